"""Reductions over dimensions: extremes, norms, log-sum-exp, sorting, products and variances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..core.rounding import ONE, numerical
from ..graph.ir import Node
from .effects import Effect, Gain, Range, Unbounded, as_sets
from .local.entry_sets import LogSumExp, Norm
from .local.local import Builder, Primitive
from .pooling import window_steps, window_word
from .registry import rule

aten = torch.ops.aten


def _set_steps(node: Node, build: Builder) -> str | None:
    """An l2 norm or a log-sum-exp over dimensions."""
    arguments = node.bound()
    norm = node.operator == "linalg_vector_norm"
    if norm and arguments.get("ord") not in (2, 2.0, None):
        return None
    shape = node.operands[0].shape
    dims = arguments.get("dim")
    dims = list(range(len(shape))) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    there, _, size = as_sets(shape, sorted(dim % max(len(shape), 1) for dim in dims))
    primitive: Primitive = Norm() if norm else LogSumExp()
    name = build.apply(primitive, build.moved(node.refs[0], there), shape=size[:1])
    return build.moved(name, lambda x: x.reshape(node.shape))


@rule(
    aten.amax.default, aten.amin.default, aten.max.dim, aten.min.dim, aten.max.default, aten.min.default,
    examples=[
        (lambda x: x.amax(1), (2, 4)), (lambda x: x.max(1).values, (2, 4)), (lambda x: x.min(), (2, 4)),
        (lambda x: x.amin(1), (2, 4)), (lambda x: x.min(1).values, (2, 4)), (lambda x: x.max(), (2, 4)),
    ],
    local=window_steps, word=window_word,
)  # fmt: skip
@rule(
    aten.linalg_vector_norm.default, aten.logsumexp.default,
    examples=[
        (lambda x: torch.linalg.vector_norm(x, dim=1), (2, 4)), (lambda x: x.logsumexp(1), (2, 4)),
        (lambda x: x.norm(dim=1, p=1), (2, 4)),
    ],
    local=_set_steps,
)  # fmt: skip
@rule(
    aten.sort.default, aten.topk.default,
    examples=[(lambda x: x.sort(1).values, (2, 4)), (lambda x: x.topk(2).values, (2, 4))],
)  # fmt: skip
def reduce(node: Node, operands: Sequence[Range]) -> Effect:
    """Extremes, norms and log-sum-exp over disjoint sets: gradients of norm at most one."""
    if node.index not in (None, 0):
        return Unbounded(reason=f"indices returned by {node.op} in {node.where}: not continuous")
    gain = ONE
    if node.operator == "linalg_vector_norm":
        order = node.bound().get("ord", 2)
        order = 2 if order is None else order
        order = float(order)
        if order < 1:
            return Unbounded(reason=f"a norm of order {order} in {node.where}")
        if order < 2:
            copies = math.prod(node.operands[0].shape) / max(math.prod(node.shape), 1)
            gain = numerical(copies ** (1 / order - 0.5))
    return Gain(gains=(gain,))


@rule(
    aten.prod.dim_int, aten.prod.default, aten.var.correction, aten.var.dim,
    examples=[
        (lambda x: torch.prod(0.1 + 0.5 * x.sigmoid()), (2, 3)), (lambda x: x.prod(1), (2, 3)),
        (lambda x: x.var(1) + x.var(1, correction=0), (2, 3)),
    ],
)  # fmt: skip
def growing(node: Node, operands: Sequence[Range]) -> Effect:
    """Products and variances, whose slopes grow without limit: +inf with the reason."""
    return Unbounded(reason=f"{node.op} has no finite slope over all inputs, in {node.where}")
