"""Sums, products, comparisons and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.log10 import ceiling10, log10
from ..core.log10 import product_above as above
from ..core.rounding import ONE, numerical
from ..graph.ir import Node, Ref
from ..linalg.folding import compose
from ..linalg.linear_map import Averaging, Diagonal, LinearMap, Reindex
from .effects import Effect, Elementwise, Gain, Linear, Range, Unbounded
from .linear import coded
from .registry import rule

aten = torch.ops.aten
_STEEP: list[Callable[[Tensor], Tensor]] = [
    torch.reciprocal, torch.sqrt, torch.rsqrt, torch.log, torch.log1p, torch.log2, torch.log10, torch.acos, torch.asin,
    torch.atanh, torch.tan, torch.sinh, torch.cosh, torch.expm1, torch.prod,
]  # fmt: skip
_JUMPS: list[Callable[[Tensor], Tensor]] = [
    torch.sign, torch.sgn, torch.round, torch.floor, torch.ceil, torch.trunc, torch.frac,
    lambda x: x.fmod(2.0) + x % 2.0, lambda x: torch.div(x, 2.0, rounding_mode="floor"),
    lambda x: torch.heaviside(x, torch.ones(3)), lambda x: x + x.argmax() + x.argmin() + x.argsort(1),
    lambda x: x + (x > 0) + (x < 1) + (x >= 2) + (x <= 3) + (x == 4) + (x != 5),
    lambda x: x + (x > x.relu()) + (x < -x) + (x >= -x) + (x <= 2 * x) + (x == x.relu()) + (x != x.tanh()),
    lambda x: x + torch.logical_and(x > 0, x < 1) + torch.logical_or(x > 2, x < 3) + torch.logical_not(x > 4),
    lambda x: x + (~(x > 0)) + ((x > 0) & (x < 1)) + ((x > 2) | (x < 3)),
    lambda x: x + (x > 0).any() + (x > 1).all() + (x > 2).any(1, keepdim=True) + (x > 3).all(1, keepdim=True),
    lambda x: x + x.isnan() + x.isinf() + x.signbit(),
]  # fmt: skip

JUMPING = (
    aten.sign.default, aten.sgn.default, aten.round.default, aten.floor.default, aten.ceil.default, aten.trunc.default,
    aten.frac.default, aten.fmod.Scalar, aten.remainder.Scalar, aten.div.Tensor_mode, aten.heaviside.default,
    aten.argmax.default, aten.argmin.default, aten.argsort.default,
    aten.gt.Scalar, aten.gt.Tensor, aten.lt.Scalar, aten.lt.Tensor, aten.ge.Scalar, aten.ge.Tensor, aten.le.Scalar,
    aten.le.Tensor, aten.eq.Scalar, aten.eq.Tensor, aten.ne.Scalar, aten.ne.Tensor, aten.logical_not.default,
    aten.logical_and.default, aten.logical_or.default, aten.bitwise_not.default, aten.__and__.Tensor,
    aten.__or__.Tensor, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim, aten.isnan.default,
    aten.isinf.default, aten.signbit.default,
)  # fmt: skip
"""Operators that are not continuous."""


def _inside(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function where logarithms, roots and arcs are all defined."""
    return function(0.1 + 0.5 * x.sigmoid())


def spread(ref: Ref, shape: Sequence[int], scale: Any, device: torch.device) -> LinearMap:
    """Broadcast an operand to `shape` and multiply it by `scale` (a number or a tensor that broadcasts)."""
    wide = Reindex.of(lambda x: x.expand(tuple(shape)), ref.shape, device)
    if isinstance(scale, int | float) and scale == 1:
        return wide
    factor = scale if isinstance(scale, Tensor) else torch.tensor(float(scale), dtype=torch.float64, device=device)
    return compose(Diagonal(factor.to(torch.float64), tuple(shape)), wide)


@rule(
    aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor,
    examples=[
        (lambda x: x + x.relu(), (2, 3)), (lambda x: x - 0.5 * x.tanh(), (2, 3)), (lambda x: 1 - x, (2, 3)),
        (lambda x: torch.add(x, x.mean(1, keepdim=True), alpha=2), (2, 3)), (lambda x: x + 0.1 * x, (2, 3)),
        (lambda x: torch.rsub(x, x.relu(), alpha=3), (2, 3)), (lambda x: aten.add.Scalar(x, 1.0), (2, 3)),
        (lambda x: aten.sub.Scalar(x, 1.0), (2, 3)),
    ],
)  # fmt: skip
def add(node: Node, operands: Sequence[Range]) -> Effect:
    """A sum: every operand enters linearly."""
    alpha = node.bound().get("alpha", 1)
    first, second = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[node.operator]
    factors = [f for argument, f in zip(node.args[:2], (first, second), strict=False) if isinstance(argument, Ref)]
    return Linear(
        maps=tuple(spread(r, node.shape, f, node.device) for r, f in zip(node.operands, factors, strict=True))
    )


@rule(aten.neg.default, examples=[(lambda x: (-x).softmax(1), (2, 3))])
def negative(node: Node, operands: Sequence[Range]) -> Effect:
    """The change of sign."""
    return Linear(maps=(spread(node.operands[0], node.shape, -1, node.device),))


@rule(
    aten.mul.Tensor, aten.mul.Scalar,
    examples=[
        (lambda x: 3 * x, (2, 3)), (lambda x: x * torch.linspace(-2, 1, 3), (2, 3)),
        (lambda x: x.tanh() * x.sigmoid(), (2, 3)), (lambda x: x.sigmoid().mean(1, keepdim=True) * x.tanh(), (2, 3)),
        (lambda x: torch.nn.functional.layer_norm(x, (4,)) * x.tanh(), (2, 4)),
        (lambda x: aten.mul.Scalar(x, 2.0), (2, 3)),
    ],
)  # fmt: skip
def multiply(node: Node, operands: Sequence[Range]) -> Effect:
    """A constant factor (diagonal map), or a product of two bounded values."""
    left, right = node.args[:2]
    if not (isinstance(left, Ref) and isinstance(right, Ref)):
        constant = right if isinstance(left, Ref) else left
        return Linear(maps=(spread(node.operands[0], node.shape, constant, node.device),))
    a, b = operands
    if not (math.isfinite(a.entry) and math.isfinite(b.entry)):
        return Unbounded(reason=f"a product of two values, one of them unbounded (gating), in {node.where}")
    size = math.prod(node.shape)
    copies = [size / max(math.prod(ref.shape), 1) for ref in (left, right)]
    gains = (numerical(above(b.entry, math.sqrt(copies[0]))), numerical(above(a.entry, math.sqrt(copies[1]))))
    rows = [r.row if ref.shape and ref.shape[-1] == node.shape[-1] else math.inf for r, ref in ((a, left), (b, right))]
    row = min(above(rows[0], b.entry) if b.entry else 0.0, above(rows[1], a.entry) if a.entry else 0.0)
    return Gain(gains=gains, range=Range.of(above(a.entry, b.entry), node.shape[-1] if node.shape else 1, row))


@rule(
    aten.div.Tensor, aten.div.Scalar,
    examples=[
        (lambda x: x / 3, (2, 3)), (lambda x: x.relu() / torch.linspace(1, 2, 3), (2, 3)),
        (lambda x: aten.div.Scalar(x, 2.0), (2, 3)),
    ],
)  # fmt: skip
def divide(node: Node, operands: Sequence[Range]) -> Effect:
    """Division by a constant; division by a variable has no finite constant here."""
    right = node.args[1]
    if isinstance(right, Ref):
        return Unbounded(reason=f"division by a value that depends on the input in {node.where}")
    constant = 1.0 / right if isinstance(right, int | float) else right.to(torch.float64).reciprocal()
    return Linear(maps=(spread(node.operands[0], node.shape, constant, node.device),))


@rule(
    aten.maximum.default, aten.minimum.default, aten.max.other, aten.min.other,
    examples=[
        (lambda x: torch.maximum(x, -0.5 * x), (2, 3)), (lambda x: torch.minimum(x, torch.ones(3)), (2, 3)),
        (lambda x: torch.max(x, -x), (2, 3)), (lambda x: torch.min(x, 2 * x), (2, 3)),
    ],
)  # fmt: skip
def extreme(node: Node, operands: Sequence[Range]) -> Effect:
    """The larger or smaller of two values: each entry follows one of them."""
    size = math.prod(node.shape)
    gains = tuple(numerical(math.sqrt(size / max(math.prod(ref.shape), 1))) for ref in node.operands)
    entry = max((r.entry for r in operands), default=math.inf) if len(operands) == 2 else math.inf
    return Gain(gains=gains, joint=True, range=Range.of(entry, node.shape[-1] if node.shape else 1))


@rule(
    aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
    examples=[
        (lambda x: torch.where(torch.tensor([True, False, True]), x, 2 * x), (2, 3)),
        (lambda x: x.masked_fill(torch.tensor([True, False, True]), -1e9).softmax(-1), (2, 3)),
        (lambda x: x.masked_fill(torch.tensor([True, False, True]), torch.tensor(1.0)), (2, 3)),
        (lambda x: torch.where(torch.tensor([True, False, True]), x, 1.0), (2, 3)),
        (lambda x: torch.where(torch.tensor([True, False, True]), 1.0, x), (2, 3)),
        (lambda x: torch.where(x > 0, 1.0, 2.0) + x, (2, 3)),
    ],
)  # fmt: skip
def choose(node: Node, operands: Sequence[Range]) -> Effect:
    """A fixed mask chooses; a mask that depends on the input is not continuous."""
    arguments = list(node.args)
    filling = node.operator == "masked_fill"
    mask = arguments[1] if filling else arguments[0]
    if isinstance(mask, Ref):
        return Unbounded(reason=f"a mask that depends on the input in {node.where}: not continuous")
    kept = {0: ~mask} if filling else {1: mask, 2: ~mask}
    if filling and isinstance(arguments[2], Ref):
        kept[2] = mask
    maps = [
        spread(argument, node.shape, kept[i].to(torch.float64), node.device)
        for i, argument in enumerate(arguments)
        if isinstance(argument, Ref)
    ]
    return Linear(maps=tuple(maps), disjoint=True)


@rule(
    aten.mean.dim, aten.mean.default, aten.sum.dim_IntList, aten.sum.default,
    examples=[
        (lambda x: x.mean(1), (2, 3)), (lambda x: x.sum((0, 1), keepdim=True), (2, 3)), (lambda x: x.mean(), (2, 3)),
        (lambda x: x.sum(), (2, 3)),
    ],
)  # fmt: skip
def average(node: Node, operands: Sequence[Range]) -> Effect:
    """A mean or a sum: no negative weight, so the Schur test is exact."""
    return Linear(maps=(coded(node, 0, Averaging),))


@rule(
    aten.amax.default, aten.amin.default, aten.max.dim, aten.min.dim, aten.max.default, aten.min.default,
    aten.linalg_vector_norm.default, aten.logsumexp.default, aten.sort.default, aten.topk.default,
    examples=[
        (lambda x: x.amax(1), (2, 4)), (lambda x: x.max(1).values, (2, 4)), (lambda x: x.min(), (2, 4)),
        (lambda x: x.amin(1), (2, 4)), (lambda x: x.min(1).values, (2, 4)), (lambda x: x.max(), (2, 4)),
        (lambda x: torch.linalg.vector_norm(x, dim=1), (2, 4)), (lambda x: x.logsumexp(1), (2, 4)),
        (lambda x: x.sort(1).values, (2, 4)), (lambda x: x.topk(2).values, (2, 4)),
        (lambda x: x.norm(dim=1, p=1), (2, 4)),
    ],
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
    aten.pow.Tensor_Scalar, aten.square.default,
    examples=[
        (lambda x: x.tanh() ** 2, (2, 3)), (lambda x: x.sigmoid().pow(3), (2, 3)),
        (lambda x: x.tanh().square(), (2, 3)),
    ],
)  # fmt: skip
def power(node: Node, operands: Sequence[Range]) -> Effect:
    """A power >= 1 of a bounded value."""
    exponent = float(node.args[1]) if len(node.args) > 1 else 2.0
    entry = operands[0].entry
    if exponent == 1:
        return Linear(maps=(spread(node.operands[0], node.shape, 1, node.device),))
    if not (exponent > 1 and exponent == int(exponent) and math.isfinite(entry)):
        return Unbounded(reason=f"power {exponent:g} of a value that is not bounded in {node.where}")
    slope = above(exponent, ceiling10((exponent - 1) * log10(entry))) * (1 + 1e-12) if entry > 0 else 0.0
    top = ceiling10(exponent * log10(entry)) * (1 + 1e-12) if entry > 0 else 0.0
    if not (math.isfinite(slope) and math.isfinite(top)):
        return Unbounded(reason=f"power {exponent:g} of a value as large as {entry:g} overflows in {node.where}")
    even = exponent % 2 == 0
    return Elementwise(slope=(-slope if even else 0.0, slope), range=(0.0 if even else -top, top))


@rule(aten.exp.default, examples=[(lambda x: x.tanh().exp(), (2, 3))])
def exponential(node: Node, operands: Sequence[Range]) -> Effect:
    """The exponential of a bounded value."""
    entry = operands[0].entry
    if not entry < 700:
        return Unbounded(reason=f"exponential of a value that is not bounded in {node.where}")
    return Elementwise(slope=(0.0, math.exp(entry) * (1 + 1e-12)), range=(0.0, math.exp(entry) * (1 + 1e-12)))


@rule(
    aten.reciprocal.default, aten.sqrt.default, aten.rsqrt.default, aten.log.default, aten.log1p.default,
    aten.log2.default, aten.log10.default, aten.acos.default, aten.asin.default, aten.atanh.default, aten.tan.default,
    aten.sinh.default, aten.cosh.default, aten.expm1.default, aten.prod.dim_int, aten.prod.default,
    aten.var.correction, aten.var.dim,
    examples=[
        *((partial(_inside, function), (2, 3)) for function in _STEEP),
        (lambda x: x.abs().sqrt(), (2, 3)), (lambda x: x.prod(1), (2, 3)),
        (lambda x: x.var(1) + x.var(1, correction=0), (2, 3)),
    ],
    summary="Slopes grow without limit: +inf with the reason",
)  # fmt: skip
def steep(node: Node, operands: Sequence[Range]) -> Effect:
    """No finite slope over all inputs."""
    return Unbounded(reason=f"{node.op} has no finite slope over all inputs, in {node.where}")


@rule(
    *JUMPING,
    examples=[
        *((function, (2, 3)) for function in _JUMPS), (lambda x: torch.where(x > 0, x, 2 * x + 1), (2, 3)),
    ],
    summary="Jumps: not continuous, +inf",
)  # fmt: skip
def jump(node: Node, operands: Sequence[Range]) -> Effect:
    """Not continuous."""
    within_one = node.dtype is torch.bool or node.operator in ("sign", "sgn", "frac")
    size = Range.of(1.0 if within_one else math.inf, node.shape[-1] if node.shape else 1)
    return Unbounded(reason=f"{node.op} is not continuous, in {node.where}", range=size)


@rule(
    aten.einsum.default, aten.upsample_bicubic2d.vec, aten.cumsum.default, aten.trace.default, aten.diff.default,
    aten.tensordot.default, aten.inner.default, aten.outer.default, aten.kron.default,
    examples=[
        (lambda x: torch.einsum("ij,kj->ik", x, torch.linspace(-1, 1, 20).reshape(5, 4)), (3, 4)),
        (lambda x: x.cumsum(1), (2, 4)), (lambda x: torch.diff(x), (2, 4)), (lambda x: torch.trace(x), (3, 3)),
        (lambda x: torch.tensordot(x, torch.linspace(-1, 1, 6).reshape(3, 2), 1), (2, 3)),
        (lambda x: torch.inner(x, torch.linspace(1, 2, 3)), (2, 3)), (lambda x: torch.outer(x, torch.ones(3)), (3,)),
        (lambda x: torch.kron(x, torch.linspace(-1, 1, 4).reshape(2, 2)), (2, 3)),
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="bicubic"), (1, 1, 3, 3)),
    ],
    summary="Linear in its only variable operand: written out as a matrix where small",
)  # fmt: skip
def contraction(node: Node, operands: Sequence[Range]) -> Effect:
    """Use the operator's own code as the map."""
    if len(node.operands) != 1:
        return Unbounded(reason=f"{node.op} of several variable operands in {node.where}")
    return Linear(maps=(coded(node, 0),))
