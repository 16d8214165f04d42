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

from ..core.log10 import product_above as above
from ..core.rounding import numerical
from ..core.sizes import norm as l2
from ..graph.ir import Node, Ref
from .effects import Effect, Gain, Linear, Range, Unbounded
from .registry import rule

aten = torch.ops.aten


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


@rule(
    aten.scaled_dot_product_attention.default,
    examples=[
        (_attend, (1, 2, 3, 4)), (lambda x: _attend(x, True), (1, 1, 4, 4)), (_cross, (1, 1, 2, 4)),
        (_written_out, (1, 3, 4)),
    ],
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
    given = arguments.get("scale")
    scale = abs(float(given)) if given is not None else 1.0 / math.sqrt(width)
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


@rule("rotary", examples=[(_rotate, (1, 3, 4))])
def rotary(node: Node, operands: Sequence[Range]) -> Effect:
    """Rotary position embedding: a rotation of pairs of entries."""
    return Linear(maps=(node.op.data["map"],))
