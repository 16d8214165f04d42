"""Softmax attention and rotary embeddings.

For out_i = sum_j p_ij v_j with p_i = softmax(scale q_i k_j + bias) and rows of norm at most R_q, R_k, R_v:
in v the map has norm at most sqrt(n) (rows of P sum to 1, columns to at most n queries); in q_i it is scale times the
covariance of v and k under p_i, at most R_v R_k; in k it is at most scale R_q norm(J_i V) per query with
norm(J_i V) <= R_v/sqrt(2), so sqrt(n/2) scale R_q R_v over n queries; in the bias at most R_v/sqrt(2). Masks, causal or
not, only remove terms. Heads are independent. Without bounds on the rows attention is not Lipschitz.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.log10 import norm as l2
from ...core.log10 import product_above as above
from ...core.rounding import numerical
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.linear_map import Diagonal, Identity, LinearMap
from .effects import Effect, Gain, Linear, Range, Unbounded
from .local.entry_sets import Softmax
from .local.local import Builder
from .local.products import product_of
from .registry import AttentionWord, rule

aten = torch.ops.aten
_MASKED = -1e30
"""What a masked score becomes in a proof: softmax gives it the weight 0, as it does for -inf."""


def _attend(x: Tensor, causal: bool = False) -> Tensor:
    bounded = F.layer_norm(x, (x.shape[-1],), eps=0.5)
    return F.scaled_dot_product_attention(bounded, 0.5 * bounded + 0.3, bounded.flip(-1), is_causal=causal)


def _cross(x: Tensor) -> Tensor:
    bounded = F.layer_norm(x, (x.shape[-1],), eps=0.5)
    memory = torch.linspace(-1, 1, 12).reshape(1, 1, 3, 4)
    return F.scaled_dot_product_attention(bounded, memory, memory.cos())


def _written_out(x: Tensor) -> Tensor:
    bounded = F.layer_norm(x, (x.shape[-1],), eps=0.5)
    return (bounded @ bounded.mT / 2 + torch.eye(x.shape[-2])).softmax(-1) @ bounded


def _attention_steps(node: Node, build: Builder) -> str | None:
    """softmax(scale Q K^T + mask) V, with grouped heads, boolean, additive and causal masks."""
    arguments = node.bound()
    query, key, value = (build.operand(arguments[name]) for name in ("query", "key", "value"))
    scale, mask = arguments.get("scale"), arguments.get("attn_mask")
    scale = 1.0 / math.sqrt(build.shapes[query][-1]) if scale is None else float(scale)
    if float(arguments.get("dropout_p") or 0.0) != 0.0:
        return None
    if arguments.get("enable_gqa"):
        heads = build.shapes[query][-3]
        key, value = (
            build.move_entries(name, lambda x: x.repeat_interleave(heads // x.shape[-3], -3)) for name in (key, value)
        )
    scores = product_of(build, query, build.move_entries(key, lambda x: x.mT.clone()))
    shape = build.shapes[scores]
    terms: list[tuple[str, LinearMap]] = [
        (scores, Diagonal(torch.tensor(scale, dtype=torch.float64, device=node.device), shape))
    ]
    constant = torch.zeros(shape, dtype=torch.float64, device=node.device)
    if arguments.get("is_causal"):
        constant = constant.masked_fill(~torch.ones_like(constant, dtype=torch.bool).tril(), -math.inf)
    if isinstance(mask, Ref):
        terms.append((build.move_entries(mask.name, lambda x: x.expand(shape)), Identity(shape)))
    elif isinstance(mask, Tensor):
        added = torch.where(mask, 0.0, -math.inf) if mask.dtype is torch.bool else mask
        constant = constant + added.double()
    logits = build.affine(terms, constant)
    rows = math.prod(shape[:-1]), shape[-1]
    weights = build.apply(Softmax(), build.move_entries(logits, lambda x: x.reshape(rows)), shape=rows)
    return product_of(build, build.move_entries(weights, lambda x: x.reshape(shape)), value)


def _attention_word(node: Node) -> AttentionWord | None:
    """Attention without grouped heads, with a mask that does not vary."""
    arguments = node.bound()
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    shapes = [tuple(item.shape) for item in (query, key, value)]
    mask = arguments.get("attn_mask")
    if len({shape[:-2] for shape in shapes}) > 1 or isinstance(mask, Ref) or min(map(len, shapes)) < 2:
        return None
    bias = _added(mask, bool(arguments.get("is_causal")), shapes[0][-2], shapes[1][-2])
    if bias is not None and (not bool(torch.isfinite(bias).all()) or bool((bias <= _MASKED / 2).all(-1).any())):
        return None  # a row of the mask leaves nothing
    scale = arguments.get("scale")
    return AttentionWord(query, key, value, 1.0 / math.sqrt(shapes[0][-1]) if scale is None else float(scale), bias)


def _added(mask: Tensor | None, causal: bool, queries: int, keys: int) -> Tensor | None:
    """Return what a mask adds to the scores, in numbers that are finite; None for nothing."""
    bias = None
    if isinstance(mask, Tensor):
        bias = torch.where(mask, 0.0, _MASKED).double() if mask.dtype is torch.bool else mask.double()
        bias = bias.clamp(min=_MASKED)
    if causal:
        lower = torch.ones(queries, keys, dtype=torch.bool).tril()
        bias = torch.where(lower, 0.0, _MASKED).double() + (0.0 if bias is None else bias.cpu())
        bias = bias.clamp(min=_MASKED)
    return bias


@rule(
    aten.scaled_dot_product_attention.default,
    examples=[
        (_attend, (1, 2, 3, 4)), (lambda x: _attend(x, True), (1, 1, 4, 4)), (_cross, (1, 1, 2, 4)),
        (_written_out, (1, 3, 4)),
    ],
    local=_attention_steps, word=_attention_word,
)  # fmt: skip
def attention(node: Node, operands: Sequence[Range]) -> Effect:
    """Softmax attention on rows of bounded norm."""
    arguments = node.bound()
    ranges = iter(operands)
    rows = {}
    for name in ("query", "key", "value"):
        value = arguments[name]
        rows[name] = next(ranges).row if isinstance(value, Ref) else float(l2(value.double(), -1).amax())
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    width = query.shape[-1]
    factor = arguments.get("scale")
    scale = abs(float(factor)) if factor is not None else 1.0 / math.sqrt(width)
    queries = query.shape[-2]
    # a key head may serve several query heads (grouped queries, or broadcasting): each sees the same change
    heads = math.prod(node.shape[:-2])
    shared = {n: heads / max(math.prod(arguments[n].shape[:-2]), 1) for n in ("query", "key", "value")}
    moves = {
        "query": above(scale, rows["key"], rows["value"]),
        "key": above(scale, rows["query"], rows["value"], math.sqrt(queries / 2)),
        "value": math.sqrt(queries),
    }
    varying = [name for name in ("query", "key", "value") if isinstance(arguments[name], Ref)]
    if any(math.isinf(moves[name]) or math.isnan(moves[name]) for name in varying):
        return Unbounded(
            reason=f"dot-product attention on tokens of unbounded norm in {node.where}: not Lipschitz over all inputs",
            range=Range.of(rows["value"], node.shape[-1], rows["value"]),
        )
    gains = [numerical(above(moves[name], math.sqrt(shared[name]))) for name in varying]
    mask = arguments.get("attn_mask")
    if isinstance(mask, Ref):
        copies = heads * queries * key.shape[-2] / max(math.prod(mask.shape), 1)
        gains.append(numerical(above(rows["value"], math.sqrt(copies / 2))))
    return Gain(gains=tuple(gains), range=Range.of(rows["value"], value.shape[-1], rows["value"]))


def _rotate(x: Tensor) -> Tensor:
    angle = torch.linspace(0, 2, 3)[:, None].expand(3, 4)
    turned = torch.cat([-x[..., 2:], x[..., :2]], -1)
    return x * angle.cos() + turned * angle.sin()


@rule("rotary", examples=[(_rotate, (1, 3, 4))], linear=True)
def rotary(node: Node, operands: Sequence[Range]) -> Effect:
    """Rotary position embedding: a rotation of pairs of entries."""
    return Linear(maps=(node.op.data["map"],))


describe("scaled_dot_product_attention.default", samples=samples.attention)
