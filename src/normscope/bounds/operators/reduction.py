"""Reductions over dimensions: extremes, norms, log-sum-exp, sorting, products and variances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...core.log10 import product_above as above
from ...core.rounding import ONE, numerical
from ...theory.activations import turning
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.linear_map import Averaging, Centering
from .effects import Effect, Gain, Linear, Mover, Range, Unbounded, as_sets, coded, spread
from .local.entry_sets import LogSumExp, Norm
from .local.local import Builder, Primitive
from .local.scalar import Scalar
from .pooling import window_steps, window_word
from .registry import rule

aten = torch.ops.aten


def _dims(given: int | Sequence[int] | None, count: int) -> list[int]:
    """Return the dimensions that are reduced, in order; none given stands for all."""
    dims = [given] if isinstance(given, int) else list(given or range(count))
    return sorted(dim % max(count, 1) for dim in dims)


def _set_steps(node: Node, build: Builder) -> str | None:
    """An l2 norm or a log-sum-exp over dimensions."""
    arguments = node.bound()
    norm = node.operator == "linalg_vector_norm"
    if norm and arguments.get("ord") not in (2, 2.0, None):
        return None
    shape = node.operands[0].shape
    there, _, size = as_sets(shape, _dims(arguments.get("dim"), len(shape)))
    primitive: Primitive = Norm() if norm else LogSumExp()
    name = build.apply(primitive, build.move_entries(node.refs[0], there), shape=size[:1])
    return build.move_entries(name, lambda x: x.reshape(node.shape))


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


def _deviations(node: Node) -> tuple[Mover, int, int, float]:
    """Return how to bring the sets of a variance together, how many there are, of how many entries, and n - c."""
    arguments, shape = node.bound(), node.operands[0].shape
    there, _, (sets, entries) = as_sets(shape, _dims(arguments.get("dim"), len(shape)))
    correction = arguments["correction"] if "correction" in arguments else arguments["unbiased"]
    return there, sets, entries, entries - (1.0 if correction is None else float(correction))


def _deviation_steps(node: Node, build: Builder) -> str | None:
    """The norm of what is off the mean, over sqrt(n - c), and for a variance its square."""
    there, sets, entries, freedom = _deviations(node)
    if node.index == 1 or freedom <= 0:
        return None
    name = build.move_entries(node.refs[0], there)
    name = build.apply(Norm(), build.affine([(name, Centering((sets, entries)))]), shape=(sets,))
    if node.operator.startswith("var"):
        name = build.apply(Scalar(torch.square, turning(0.0), bounded=(0.0, math.inf)), name, shape=(sets,))
        freedom = freedom**2
    name = build.affine([(name, spread(Ref(name, (sets,)), (sets,), freedom**-0.5, node.device))])
    return build.move_entries(name, lambda x: x.reshape(node.shape))


@rule(
    aten.std.dim, aten.std.correction, aten.var.dim, aten.var.correction,
    examples=[
        (lambda x: x.std(), (2, 3)), (lambda x: x.std(1, keepdim=True) + x, (2, 4)),
        (lambda x: x.std((0, 2), correction=0), (2, 3, 4)), (lambda x: x.tanh().var(), (2, 3)),
        (lambda x: x.tanh().var(1, keepdim=True) + x, (2, 4)),
        (lambda x: x.var(1) + x.tanh().var(1, correction=0), (2, 3)),
    ],
    local=_deviation_steps,
)  # fmt: skip
@rule(
    aten.std_mean.dim, aten.std_mean.correction, aten.var_mean.dim, aten.var_mean.correction,
    examples=[
        (lambda x: sum(torch.std_mean(x)), (2, 3)), (lambda x: sum(torch.std_mean(x, 1)), (2, 3)),
        (lambda x: sum(torch.std_mean(x, 0, correction=0)), (2, 3)), (lambda x: sum(torch.var_mean(x.sin())), (2, 3)),
        (lambda x: sum(torch.var_mean(x.sin(), 1)), (2, 3)),
        (lambda x: sum(torch.var_mean(x.sin(), 0, correction=0)), (2, 3)),
    ],
    linear=True, local=_deviation_steps,
)  # fmt: skip
def deviation(node: Node, operands: Sequence[Range]) -> Effect:
    """A standard deviation: 1/sqrt(n - c); a variance: 2 norm(x - mean)/(n - c), of bounded values."""
    if node.index == 1:
        return Linear(maps=(coded(node, 0, Averaging),))
    _, _, entries, freedom = _deviations(node)
    if freedom <= 0:
        return Unbounded(reason=f"{node.op} of {entries} entries less a correction that leaves none, in {node.where}")
    if node.operator.startswith("std"):
        return Gain(gains=(numerical(freedom**-0.5),))
    length = above(operands[0].entry, math.sqrt(entries))
    if not math.isfinite(length):
        return Unbounded(reason=f"{node.op} of a value that is not bounded, in {node.where}")
    return Gain(gains=(numerical(above(2.0 / freedom, length)),))


@rule(
    aten.prod.dim_int, aten.prod.default,
    examples=[(lambda x: torch.prod(0.1 + 0.5 * x.sigmoid()), (2, 3)), (lambda x: x.prod(1), (2, 3))],
)  # fmt: skip
def growing(node: Node, operands: Sequence[Range]) -> Effect:
    """Products, whose slopes grow without limit: +inf with the reason."""
    return Unbounded(reason=f"{node.op} has no finite slope over all inputs, in {node.where}")


describe(
    "amax.default amin.default max.dim min.dim max.default min.default prod.default prod.dim_int cumprod.default "
    "var.correction var.dim var.default std.correction std.dim std.default linalg_vector_norm.default "
    "norm.ScalarOpt_dim norm.Scalar logsumexp.default logcumsumexp.default sort.default topk.default argmax.default "
    "argmin.default argsort.default any.default any.dim all.default all.dim cummax.default cummin.default median.dim "
    "median.default kthvalue.default",
    samples=samples.along_dim,
)
