"""Elementary functions of single entries that are steep somewhere: powers, roots, exponentials, logarithms, arcs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core.log10 import ceiling10, log10
from ...core.log10 import product_above as above
from ...theory.activations import PERIODIC, TurningPoint, turning
from ..graph.ir import Node
from .effects import Effect, Elementwise, Linear, Range, Unbounded, spread
from .local.local import Builder
from .local.scalar import Scalar, reciprocal, scalar_step
from .registry import rule

aten = torch.ops.aten
_DOMAINS: dict[Any, tuple[tuple[float, float], tuple[float, ...]]] = {
    aten.log.default: ((0.0, math.inf), ()),
    aten.log2.default: ((0.0, math.inf), ()),
    aten.log10.default: ((0.0, math.inf), ()),
    aten.log1p.default: ((-1.0, math.inf), ()),
    aten.sqrt.default: ((0.0, math.inf), ()),
    aten.rsqrt.default: ((0.0, math.inf), ()),
    aten.asin.default: ((-1.0, 1.0), (0.0,)),
    aten.acos.default: ((-1.0, 1.0), (0.0,)),
    aten.atanh.default: ((-1.0, 1.0), (0.0,)),
    aten.sinh.default: ((-math.inf, math.inf), (0.0,)),
    aten.cosh.default: ((-math.inf, math.inf), ()),
    aten.exp.default: ((-math.inf, math.inf), ()),
    aten.expm1.default: ((-math.inf, math.inf), ()),
}
"""The interval inside which each function has a slope, and the extrema of its derivative."""
_STEEP = "Slopes grow without limit: +inf with the reason"


def _inside(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function where logarithms, roots and arcs are all defined."""
    return function(0.1 + 0.5 * x.sigmoid())


def _power_steps(node: Node, build: Builder) -> str | None:
    """A fixed power: integer ones turn (or have a pole) at zero, others need a positive base."""
    exponent = float(node.args[1]) if len(node.args) > 1 else 2.0
    reason = f"power {exponent:g} of a value that can be zero or negative within the ball, in {node.where}"
    zero = turning(0.0)
    if exponent == int(exponent) and exponent >= 0:
        bounded = (0.0 if exponent % 2 == 0 else -math.inf, math.inf)
        return scalar_step(node, build, Scalar(lambda x: node.evaluate([x]), zero, bounded=bounded))
    if exponent == int(exponent):
        return scalar_step(node, build, Scalar(lambda x: node.evaluate([x]), jumps=zero, reason=reason))
    return scalar_step(node, build, Scalar(lambda x: node.evaluate([x]), domain=(0.0, math.inf), reason=reason))


@rule(
    aten.pow.Tensor_Scalar,
    examples=[
        (lambda x: x.tanh() ** 2, (2, 3)), (lambda x: x.sigmoid().pow(3), (2, 3)), (lambda x: x.pow(1), (2, 3)),
    ],
    linear=True, local=_power_steps,
)  # fmt: skip
@rule(aten.square.default, examples=[(lambda x: x.tanh().square(), (2, 3))], local=_power_steps)
def power(node: Node, operands: Sequence[Range]) -> Effect:
    """A whole power of a bounded value, from 1 on."""
    exponent = float(node.args[1]) if len(node.args) > 1 else 2.0
    entry = operands[0].entry
    if exponent == 1:
        return Linear(maps=(spread(node.operands[0], node.shape, 1, node.device),))
    if not (exponent > 1 and exponent == int(exponent)):
        return Unbounded(reason=f"power {exponent:g}, no whole number above 0, in {node.where}")
    if not math.isfinite(entry):
        return Unbounded(reason=f"power {exponent:g} of a value that is not bounded in {node.where}")
    slope = above(exponent, ceiling10((exponent - 1) * log10(entry))) * (1 + 1e-12) if entry > 0 else 0.0
    top = ceiling10(exponent * log10(entry)) * (1 + 1e-12) if entry > 0 else 0.0
    if not (math.isfinite(slope) and math.isfinite(top)):
        return Unbounded(reason=f"power {exponent:g} of a value as large as {entry:g} overflows in {node.where}")
    even = exponent % 2 == 0
    return Elementwise(slope=(-slope if even else 0.0, slope), range=(0.0 if even else -top, top))


def _domain_steps(node: Node, build: Builder) -> str | None:
    """A function with a slope inside its domain, steep towards the ends of it."""
    domain, points = _DOMAINS[node.op]
    reason = f"{node.op} reaches the end of its domain within the ball, in {node.where}"
    return scalar_step(
        node, build, Scalar(lambda x: node.evaluate([x]), turning(*points), domain=domain, reason=reason)
    )


@rule(aten.exp.default, examples=[(lambda x: x.tanh().exp(), (2, 3))], local=_domain_steps)
def exponential(node: Node, operands: Sequence[Range]) -> Effect:
    """The exponential of a bounded value."""
    entry = operands[0].entry
    if not entry < 700:
        return Unbounded(reason=f"exponential of a value that is not bounded in {node.where}")
    return Elementwise(slope=(0.0, math.exp(entry) * (1 + 1e-12)), range=(0.0, math.exp(entry) * (1 + 1e-12)))


def _tangent_steps(node: Node, build: Builder) -> str | None:
    """The tangent: flattest at the multiples of pi, with a pole between them."""
    reason = f"a pole of tan within the ball, in {node.where}"
    poles, turns = (TurningPoint(math.pi / 2, math.pi),), (TurningPoint(0.0, math.pi),)
    return scalar_step(node, build, Scalar(lambda x: node.evaluate([x]), turns, poles, margin=PERIODIC, reason=reason))


@rule(
    *(op for op in _DOMAINS if op is not aten.exp.default),
    examples=[
        *((partial(_inside, function), (2, 3)) for function in (
            torch.sqrt, torch.rsqrt, torch.log, torch.log1p, torch.log2, torch.log10, torch.acos, torch.asin,
            torch.atanh, torch.sinh, torch.cosh, torch.expm1,
        )),
        (lambda x: x.abs().sqrt(), (2, 3)),
    ],
    summary=_STEEP, local=_domain_steps,
)  # fmt: skip
@rule(aten.tan.default, examples=[(partial(_inside, torch.tan), (2, 3))], summary=_STEEP, local=_tangent_steps)
@rule(
    aten.reciprocal.default,
    examples=[(partial(_inside, torch.reciprocal), (2, 3))],
    summary=_STEEP,
    local=lambda node, build: scalar_step(node, build, reciprocal(node)),  # monotone on either side of its pole
)
def steep(node: Node, operands: Sequence[Range]) -> Effect:
    """No finite slope over all inputs."""
    return Unbounded(reason=f"{node.op} has no finite slope over all inputs, in {node.where}")
