"""Choices, comparisons and roundings: what jumps.

Near a point they are constant where the ball does not reach the jump. Truth values are 0 and 1 there: a choice by a
mask m is m a + (1 - m) b, and a mask that cannot change does not move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...theory.activations import REAL, Interval, TurningPoint, turning
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.linear_map import Identity
from .effects import Effect, Linear, Range, Unbounded, spread
from .local.local import Builder
from .local.products import Multiply
from .local.scalar import Scalar, scalar_step
from .registry import rule

aten = torch.ops.aten
_ROUNDINGS: dict[Any, tuple[TurningPoint, bool, Interval]] = {
    aten.sign.default: (TurningPoint(0.0), True, (-1.0, 1.0)),
    aten.sgn.default: (TurningPoint(0.0), True, (-1.0, 1.0)),
    aten.signbit.default: (TurningPoint(0.0), False, (0.0, 1.0)),
    aten.floor.default: (TurningPoint(0.0, 1.0), True, REAL),
    aten.ceil.default: (TurningPoint(0.0, 1.0), True, REAL),
    aten.trunc.default: (TurningPoint(0.0, 1.0), True, REAL),
    aten.frac.default: (TurningPoint(0.0, 1.0), False, (-1.0, 1.0)),
    aten.round.default: (TurningPoint(0.5, 1.0), True, REAL),
}
"""Functions that are constant (or straight) between jumps: where they jump, whether they never fall, their range."""
_JUMPS = "Jumps: not continuous, +inf"


def _choice_steps(node: Node, build: Builder) -> str | None:
    """A choice by a mask that depends on the input."""
    filling = node.operator == "masked_fill"
    mask, yes, no = (node.args[1], node.args[2], node.args[0]) if filling else node.args[:3]
    constants = [torch.as_tensor(value, dtype=torch.float64) for value in (yes, no) if not isinstance(value, Ref)]
    if not isinstance(mask, Ref) or not all(bool(torch.isfinite(constant).all()) for constant in constants):
        return None
    chosen = build.move_entries(mask.name, lambda x: x.expand(node.shape))
    sides = []
    for value, weight in ((yes, chosen), (no, _other(build, chosen))):
        name = build.move_entries(build.operand(value), lambda x: x.expand(node.shape))
        sides.append((build.apply(Multiply(), weight, name, shape=node.shape), Identity(node.shape)))
    return build.affine(sides)


def _other(build: Builder, name: str) -> str:
    shape = build.shapes[name]
    one: Tensor = torch.ones(shape, dtype=torch.float64, device=build.node.device)
    return build.affine([(name, spread(Ref(name, shape), shape, -1, build.node.device))], one)


@rule(
    aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.masked_fill.Scalar, aten.masked_fill.Tensor,
    examples=[
        (lambda x: torch.where(torch.tensor([True, False, True]), x, 2 * x), (2, 3)),
        (lambda x: x.masked_fill(torch.tensor([True, False, True]), -1e9).softmax(-1), (2, 3)),
        (lambda x: x.masked_fill(torch.tensor([True, False, True]), torch.tensor(1.0)), (2, 3)),
        (lambda x: torch.where(torch.tensor([True, False, True]), x, 1.0), (2, 3)),
        (lambda x: torch.where(torch.tensor([True, False, True]), 1.0, x), (2, 3)),
        (lambda x: torch.where(x > 0, x.tanh(), 1.0) + torch.where(x > 1, 1.0, x.tanh()), (2, 3)),
        (lambda x: x.masked_fill(x > 0, 1.0) + x.masked_fill(x.tanh() > 0.5, torch.tensor(1.0)), (2, 3)),
    ],
    linear=True, local=_choice_steps,
)  # fmt: skip
@rule(aten.where.Scalar, examples=[(lambda x: torch.where(x > 0, 1.0, 2.0) + x, (2, 3))], local=_choice_steps)
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


def _rounding_steps(node: Node, build: Builder) -> str | None:
    """A function that jumps, and is constant or straight in between."""
    if len(node.operands) != 1:
        return None
    jump, rising, bounded = _ROUNDINGS[node.op]
    reason = f"{node.op} jumps within the ball, in {node.where}"
    run: Callable[[Tensor], Tensor] = lambda x: node.evaluate([x]).double()  # noqa: E731
    return scalar_step(node, build, Scalar(run, (), (jump,), REAL, bounded, 0.0, rising=rising, reason=reason))


def _comparison_steps(node: Node, build: Builder) -> str | None:
    """A comparison: it jumps where both sides meet."""
    left, right = (build.operand(argument) for argument in node.args[:2])
    terms = [
        (name, spread(Ref(name, build.shapes[name]), node.shape, sign, node.device))
        for name, sign in ((left, 1), (right, -1))
    ]
    apart = build.affine(terms)
    against = {"gt": torch.gt, "lt": torch.lt, "ge": torch.ge, "le": torch.le, "eq": torch.eq, "ne": torch.ne}
    compared = against[node.operator]
    reason = f"{node.op} jumps within the ball, in {node.where}"
    function = Scalar(
        lambda x: compared(x, 0.0).double(), jumps=turning(0.0), bounded=(0.0, 1.0), margin=0.0, reason=reason
    )
    return build.apply(function, apart, shape=node.shape)


def _negation_steps(node: Node, build: Builder) -> str | None:
    """1 - m for a truth value m."""
    if node.dtype is not torch.bool:
        return None
    return _other(build, node.refs[0])


def _connective_steps(node: Node, build: Builder) -> str | None:
    """`a b` for and, `1 - (1 - a)(1 - b)` for or."""
    if node.dtype is not torch.bool:
        return None
    values = [build.move_entries(build.operand(argument), lambda x: x.expand(node.shape)) for argument in node.args[:2]]
    if node.operator in ("logical_and", "__and__"):
        return build.apply(Multiply(), *values, shape=node.shape)
    return _other(build, build.apply(Multiply(), *(_other(build, value) for value in values), shape=node.shape))


@rule(
    *_ROUNDINGS,
    examples=[
        *((function, (2, 3)) for function in (
            torch.sign, torch.sgn, torch.round, torch.floor, torch.ceil, torch.trunc, torch.frac,
        )),
        (lambda x: x + x.signbit(), (2, 3)),
    ],
    summary=_JUMPS, local=_rounding_steps,
)  # fmt: skip
@rule(
    aten.gt.Scalar, aten.gt.Tensor, aten.lt.Scalar, aten.lt.Tensor, aten.ge.Scalar, aten.ge.Tensor, aten.le.Scalar,
    aten.le.Tensor, aten.eq.Scalar, aten.eq.Tensor, aten.ne.Scalar, aten.ne.Tensor,
    examples=[
        (lambda x: x + (x > 0) + (x < 1) + (x >= 2) + (x <= 3) + (x == 4) + (x != 5), (2, 3)),
        (lambda x: x + (x > x.relu()) + (x < -x) + (x >= -x) + (x <= 2 * x) + (x == x.relu()) + (x != x.tanh()),
        (2, 3)),
        (lambda x: torch.where(x > 0, x, 2 * x + 1), (2, 3)),
    ],
    summary=_JUMPS, local=_comparison_steps,
)  # fmt: skip
@rule(
    aten.logical_not.default, aten.bitwise_not.default,
    examples=[
        (lambda x: x + torch.logical_not(x > 4), (2, 3)), (lambda x: x + (~(x > 0)), (2, 3)),
    ],
    summary=_JUMPS, local=_negation_steps,
)  # fmt: skip
@rule(
    aten.logical_and.default, aten.logical_or.default, aten.__and__.Tensor, aten.__or__.Tensor,
    examples=[
        (lambda x: x + torch.logical_and(x > 0, x < 1) + torch.logical_or(x > 2, x < 3), (2, 3)),
        (lambda x: x + ((x > 0) & (x < 1)) + ((x > 2) | (x < 3)), (2, 3)),
    ],
    summary=_JUMPS, local=_connective_steps,
)  # fmt: skip
@rule(
    aten.fmod.Scalar, aten.remainder.Scalar, aten.div.Tensor_mode, aten.heaviside.default, aten.argmax.default,
    aten.argmin.default, aten.argsort.default, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim,
    aten.isnan.default, aten.isinf.default,
    examples=[
        (lambda x: x.fmod(2.0) + x % 2.0, (2, 3)), (lambda x: torch.div(x, 2.0, rounding_mode="floor"), (2, 3)),
        (lambda x: torch.heaviside(x, torch.ones(3)), (2, 3)),
        (lambda x: x + x.argmax() + x.argmin() + x.argsort(1), (2, 3)),
        (lambda x: x + (x > 0).any() + (x > 1).all() + (x > 2).any(1, keepdim=True) + (x > 3).all(1, keepdim=True),
        (2, 3)),
        (lambda x: x + x.isnan() + x.isinf(), (2, 3)),
    ],
    summary=_JUMPS,
)  # fmt: skip
def jump(node: Node, operands: Sequence[Range]) -> Effect:
    """Not continuous."""
    within_one = node.dtype is torch.bool or node.operator in ("sign", "sgn", "frac")
    size = Range.of(1.0 if within_one else math.inf, node.shape[-1] if node.shape else 1)
    return Unbounded(reason=f"{node.op} is not continuous, in {node.where}", range=size)


describe("where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Tensor __and__ __or__", samples=samples.entrywise)
