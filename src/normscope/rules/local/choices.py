"""Comparisons, steps and choices near a point: constant where the ball does not reach the jump.

Truth values are 0 and 1 here. A choice by a mask m is m a + (1 - m) b, and a mask that cannot change does not move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...graph.ir import Node, Ref
from ...linalg.linear_map import Identity
from ...theory.activations import REAL, Interval
from ..arithmetic import spread
from .activation import scalar
from .local import Builder, local
from .products import Multiply
from .scalar import Scalar, TurningPoint

aten = torch.ops.aten


def _steps(turns: tuple[TurningPoint, ...], *ops: Any, rising: bool = True, bounded: Interval = REAL) -> None:
    """Register functions that are constant (or straight) between jumps."""

    @local(*ops)
    def steps(node: Node, build: Builder) -> str | None:
        """A function that jumps."""
        if len(node.operands) != 1:
            return None
        reason = f"{node.op} jumps within the ball, in {node.where}"
        run: Callable[[Tensor], Tensor] = lambda x: node.evaluate([x]).double()  # noqa: E731
        return scalar(node, build, Scalar(run, (), turns, REAL, bounded, 0.0, rising=rising, reason=reason))


_steps((TurningPoint(0.0),), aten.sign.default, aten.sgn.default, bounded=(-1.0, 1.0))
_steps((TurningPoint(0.0),), aten.signbit.default, rising=False, bounded=(0.0, 1.0))
_steps((TurningPoint(0.0, 1.0),), aten.floor.default, aten.ceil.default, aten.trunc.default)
_steps((TurningPoint(0.0, 1.0),), aten.frac.default, rising=False, bounded=(-1.0, 1.0))
_steps((TurningPoint(0.5, 1.0),), aten.round.default)


@local(
    aten.gt.Scalar, aten.lt.Scalar, aten.ge.Scalar, aten.le.Scalar, aten.eq.Scalar, aten.ne.Scalar,
    aten.gt.Tensor, aten.lt.Tensor, aten.ge.Tensor, aten.le.Tensor, aten.eq.Tensor, aten.ne.Tensor,
)  # fmt: skip
def compare(node: Node, build: Builder) -> str | None:
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
        lambda x: compared(x, 0.0).double(), jumps=(TurningPoint(0.0),), bounded=(0.0, 1.0), margin=0.0, reason=reason
    )
    return build.apply(function, apart, shape=node.shape)


@local(aten.logical_not.default, aten.bitwise_not.default)
def negated(node: Node, build: Builder) -> str | None:
    """1 - m for a truth value m."""
    if node.dtype is not torch.bool:
        return None
    return _other(build, node.refs[0])


@local(aten.logical_and.default, aten.__and__.Tensor, aten.logical_or.default, aten.__or__.Tensor)
def both(node: Node, build: Builder) -> str | None:
    """`a b` for and, `1 - (1 - a)(1 - b)` for or."""
    if node.dtype is not torch.bool:
        return None
    values = [build.moved(build.operand(argument), lambda x: x.expand(node.shape)) for argument in node.args[:2]]
    if node.operator in ("logical_and", "__and__"):
        return build.apply(Multiply(), *values, shape=node.shape)
    return _other(build, build.apply(Multiply(), *(_other(build, value) for value in values), shape=node.shape))


@local(
    aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar,
    aten.masked_fill.Scalar, aten.masked_fill.Tensor,
)  # fmt: skip
def choose(node: Node, build: Builder) -> str | None:
    """A choice by a mask that depends on the input."""
    filling = node.operator == "masked_fill"
    mask, yes, no = (node.args[1], node.args[2], node.args[0]) if filling else node.args[:3]
    if not isinstance(mask, Ref) or any(_infinite(value) for value in (yes, no)):
        return None
    chosen = build.moved(mask.name, lambda x: x.expand(node.shape))
    sides = []
    for value, weight in ((yes, chosen), (no, _other(build, chosen))):
        name = build.moved(build.operand(value), lambda x: x.expand(node.shape))
        sides.append((build.apply(Multiply(), weight, name, shape=node.shape), Identity(node.shape)))
    return build.affine(sides)


def _infinite(value: Any) -> bool:
    if isinstance(value, Ref):
        return False
    return not bool(torch.isfinite(torch.as_tensor(value, dtype=torch.float64)).all())


def _other(build: Builder, name: str) -> str:
    shape = build.shapes[name]
    one: Tensor = torch.ones(shape, dtype=torch.float64, device=build.node.device)
    return build.affine([(name, spread(Ref(name, shape), shape, -1, build.node.device))], one)
