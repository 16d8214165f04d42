"""Normalizers, softmax and attention near a point, unrolled into maps and functions of sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...graph.ir import Node, Ref
from ...linalg.linear_map import Diagonal, Identity, LinearMap
from ..normalization import centering
from .entry_sets import LogSoftmax, LogSumExp, Norm, Normalize, Softmax
from .local import Builder, Primitive, local
from .products import product_of

aten = torch.ops.aten
Mover = Callable[[Tensor], Tensor]


def normalized(
    node: Node,
    build: Builder,
    eps: float,
    turn: tuple[Mover, Mover] | None,
    sets: tuple[int, int],
    scale: Tensor | None,
    shift: Tensor | None,
    *,
    centred: bool,
) -> str:
    """Turn into `[sets, n]`, centre, normalize, turn back, scale and shift; `turn` is there and back again."""
    there, back = turn or (lambda x: x.reshape(sets), lambda x: x.reshape(node.shape))
    name = build.moved(node.refs[0], there)
    if centred:
        name = build.affine([(name, centering(sets))])
    name = build.apply(Normalize(eps), name, shape=sets)
    name = build.moved(name, back)
    if scale is None and shift is None:
        return name
    linear: LinearMap = Identity(node.shape) if scale is None else Diagonal(scale.double(), node.shape)
    return build.affine([(name, linear)], None if shift is None else shift.double().expand(node.shape))


@local(
    aten._native_batch_norm_legit_no_training.default, aten._native_batch_norm_legit.no_stats,
)  # fmt: skip
def batch_norm(node: Node, build: Builder) -> str | None:
    """BatchNorm in train mode: every channel over the batch (eval mode is linear and never gets here)."""
    arguments = node.bound()
    if (
        not isinstance(arguments["input"], Ref)
        or len(node.operands) != 1
        or not node.uses_batch_statistics
        or node.index not in (None, 0)
    ):
        return None
    batch, channels = node.shape[:2]
    entries, inner = math.prod(node.shape) // channels, math.prod(node.shape[2:])
    turn: tuple[Mover, Mover] = (
        lambda x: x.transpose(0, 1).reshape(channels, entries),
        lambda x: x.reshape(channels, batch, inner).transpose(0, 1).reshape(node.shape),
    )
    weight, bias = (_channels(arguments.get(name), node) for name in ("weight", "bias"))
    return normalized(node, build, float(arguments["eps"]), turn, (channels, entries), weight, bias, centred=True)


@local(aten.instance_norm.default)
def instance_norm(node: Node, build: Builder) -> str | None:
    """InstanceNorm: every channel of every sample over its positions."""
    arguments = node.bound()
    if len(node.operands) != 1 or not arguments["use_input_stats"]:
        return None
    return _grouped(node, build, math.prod(node.shape[:2]), arguments)


@local(aten.group_norm.default)
def group_norm(node: Node, build: Builder) -> str | None:
    """GroupNorm: groups of channels with their positions."""
    arguments = node.bound()
    if len(node.operands) != 1:
        return None
    return _grouped(node, build, node.shape[0] * int(arguments["num_groups"]), arguments)


def _grouped(node: Node, build: Builder, sets: int, arguments: dict[str, Any]) -> str:
    size = sets, math.prod(node.shape) // sets
    weight, bias = (_channels(arguments.get(name), node) for name in ("weight", "bias"))
    return normalized(node, build, float(arguments["eps"]), None, size, weight, bias, centred=True)


@local(aten.layer_norm.default)
def layer_norm(node: Node, build: Builder) -> str | None:
    """LayerNorm: the trailing dimensions of every position."""
    arguments = node.bound()
    if len(node.operands) != 1 or node.index not in (None, 0):
        return None
    entries = math.prod(arguments["normalized_shape"])
    size = math.prod(node.shape) // entries, entries
    weight, bias = arguments.get("weight"), arguments.get("bias")
    return normalized(node, build, float(arguments["eps"]), None, size, weight, bias, centred=True)


@local(aten.rms_norm.default)
def rms_norm(node: Node, build: Builder) -> str | None:
    """RMSNorm: the trailing dimensions divided by their root mean square."""
    arguments = node.bound()
    if len(node.operands) != 1 or arguments["eps"] is None:
        return None
    entries = math.prod(arguments["normalized_shape"])
    size = math.prod(node.shape) // entries, entries
    return normalized(node, build, float(arguments["eps"]), None, size, arguments.get("weight"), None, centred=False)


@local("rms")
def written_rms(node: Node, build: Builder) -> str | None:
    """RMSNorm (or the second half of a LayerNorm) written out in several operators."""
    dims = [dim % len(node.shape) for dim in node.op.data["dims"]]
    there, back, size = _over(node.shape, dims)
    return normalized(node, build, node.op.data["eps"], (there, back), size, None, None, centred=False)


def _over(shape: Sequence[int], dims: Sequence[int]) -> tuple[Mover, Mover, tuple[int, int]]:
    """Return how to bring dimensions together as the last one of `[sets, n]`, and back."""
    order = [d for d in range(len(shape)) if d not in dims] + list(dims)
    inverse = [order.index(d) for d in range(len(shape))]
    moved = [shape[d] for d in order]
    entries = math.prod(shape[d] for d in dims)
    sets = math.prod(shape) // entries

    def there(x: Tensor) -> Tensor:
        return x.permute(order).reshape(sets, entries)

    def back(x: Tensor) -> Tensor:
        return x.reshape(moved).permute(inverse).reshape(tuple(shape))

    return there, back, (sets, entries)


@local(aten.softmax.int, aten.log_softmax.int)
def softmax(node: Node, build: Builder) -> str | None:
    """Softmax or its logarithm over one dimension."""
    there, back, size = _over(node.shape, [int(node.args[1]) % max(len(node.shape), 1)])
    primitive: Primitive = LogSoftmax() if node.operator == "log_softmax" else Softmax()
    return build.moved(build.apply(primitive, build.moved(node.refs[0], there), shape=size), back)


@local(aten.linalg_vector_norm.default, aten.logsumexp.default)
def reduced(node: Node, build: Builder) -> str | None:
    """An l2 norm or a log-sum-exp over dimensions."""
    arguments = node.bound()
    norm = node.operator == "linalg_vector_norm"
    if norm and arguments.get("ord") not in (2, 2.0, None):
        return None
    shape = node.operands[0].shape
    dims = arguments.get("dim")
    dims = list(range(len(shape))) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    there, _, size = _over(shape, sorted(dim % max(len(shape), 1) for dim in dims))
    primitive: Primitive = Norm() if norm else LogSumExp()
    name = build.apply(primitive, build.moved(node.refs[0], there), shape=size[:1])
    return build.moved(name, lambda x: x.reshape(node.shape))


@local(aten.scaled_dot_product_attention.default)
def attention(node: Node, build: Builder) -> str | None:
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
            build.moved(name, lambda x: x.repeat_interleave(heads // x.shape[-3], -3)) for name in (key, value)
        )
    scores = product_of(build, query, build.moved(key, lambda x: x.mT.clone()))
    shape = build.shapes[scores]
    terms: list[tuple[str, LinearMap]] = [
        (scores, Diagonal(torch.tensor(scale, dtype=torch.float64, device=node.device), shape))
    ]
    constant = torch.zeros(shape, dtype=torch.float64, device=node.device)
    if arguments.get("is_causal"):
        constant = constant.masked_fill(~torch.ones_like(constant, dtype=torch.bool).tril(), -math.inf)
    if isinstance(mask, Ref):
        spread = build.moved(mask.name, lambda x: x.expand(shape))
        terms.append((spread, Identity(shape)))
    elif isinstance(mask, Tensor):
        added = torch.where(mask, 0.0, -math.inf) if mask.dtype is torch.bool else mask
        constant = constant + added.double()
    logits = build.affine(terms, constant)
    rows = math.prod(shape[:-1]), shape[-1]
    weights = build.apply(Softmax(), build.moved(logits, lambda x: x.reshape(rows)), shape=rows)
    return product_of(build, build.moved(weights, lambda x: x.reshape(shape)), value)


def _channels(values: Tensor | None, node: Node) -> Tensor | None:
    """Shape a per-channel vector so that it broadcasts along dimension 1."""
    return None if values is None else values.double().reshape(-1, *(1,) * (len(node.shape) - 2))
