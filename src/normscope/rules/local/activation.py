"""Activations and other functions of one entry near a point: where their derivatives turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...graph.ir import Node, Ref
from ...theory.activations import SOFTPLUS_THRESHOLD
from ..effects import UNKNOWN, Elementwise
from ..registry import effect_of
from .local import Builder, local
from .scalar import Scalar, TurningPoint

aten = torch.ops.aten
SMOOTH, STRAIGHT, SIXTHS, WRITTEN = 1e-12, 0.0, 4e-8, 1e-9
"""How far a derivative may be off: rounding; nothing; torch's float32 1/6; a formula with its constants rounded, whose
turns lie up to 1e-6 from the known ones: there the derivative is flat to second order."""

_SILU = 2.39935728051546766783274  # 2t with t tanh(t) = 1
_MISH = (-2.256376396360793120005749, 1.490571179485428459294419)
_GELU_TANH = 1.418504008790828355548034
_TURNS: dict[str, tuple[tuple[float, ...], float]] = {
    "identity": ((), STRAIGHT),
    "neg": ((), STRAIGHT),
    "abs": ((0.0,), STRAIGHT),
    "relu": ((0.0,), STRAIGHT),
    "relu6": ((0.0, 6.0), STRAIGHT),
    "leaky_relu": ((0.0,), STRAIGHT),
    "rrelu": ((0.0,), STRAIGHT),
    "prelu": ((0.0,), STRAIGHT),
    "elu": ((0.0,), SMOOTH),
    "celu": ((0.0,), SMOOTH),
    "selu": ((0.0,), SMOOTH),
    "gelu": ((-math.sqrt(2.0), math.sqrt(2.0)), SMOOTH),
    "gelu_tanh": ((-_GELU_TANH, _GELU_TANH), SMOOTH),
    "quick_gelu": ((-_SILU / 1.702, _SILU / 1.702), SMOOTH),
    "silu": ((-_SILU, _SILU), SMOOTH),
    "mish": (_MISH, SMOOTH),
    "hardswish": ((-3.0, 3.0), SIXTHS),
    "hardsigmoid": ((-3.0, 3.0), SIXTHS),
    "sigmoid": ((0.0,), SMOOTH),
    "logsigmoid": ((), SMOOTH),
    "tanh": ((0.0,), SMOOTH),
    "tanhshrink": ((0.0,), SMOOTH),
    "softsign": ((0.0,), SMOOTH),
    "erf": ((0.0,), SMOOTH),
    "atan": ((0.0,), SMOOTH),
    "softplus": ((), SMOOTH),
    "exp": ((), SMOOTH),
}
"""For each activation: the points where its derivative has a kink or an extremum, and how far that may be off."""


def scalar(node: Node, build: Builder, function: Scalar) -> str:
    """Add an entrywise function of the node's only operand, spread to the node's shape first."""
    name = build.moved(node.refs[0], lambda x: x.expand(node.shape))
    return build.apply(function, name, shape=node.shape)


def _bounded(node: Node) -> tuple[float, float]:
    effect = effect_of(node, [UNKNOWN])
    return effect.range if isinstance(effect, Elementwise) else (-math.inf, math.inf)


def _named(name: str, *ops: Any) -> None:
    """Register operators that are one activation whatever their parameters."""
    points, margin = _TURNS[name]

    @local(*ops)
    def activation(node: Node, build: Builder) -> str | None:
        if len(node.operands) != 1:
            return None
        turns = tuple(TurningPoint(point) for point in points)
        run: Callable[[Tensor], Tensor] = lambda x: node.evaluate([x])  # noqa: E731
        return scalar(node, build, Scalar(run, turns, bounded=_bounded(node), margin=margin))


_named("relu", aten.relu.default)
_named("relu6", aten.relu6.default)
_named("leaky_relu", aten.leaky_relu.default)
_named("rrelu", aten.rrelu.default)
_named("elu", aten.elu.default, aten.celu.default, aten.selu.default)
_named("silu", aten.silu.default)
_named("mish", aten.mish.default)
_named("hardswish", aten.hardswish.default)
_named("hardsigmoid", aten.hardsigmoid.default)
_named("sigmoid", aten.sigmoid.default)
_named("logsigmoid", aten.log_sigmoid.default)
_named("tanh", aten.tanh.default)
_named("erf", aten.erf.default)
_named("atan", aten.atan.default)
_named("abs", aten.abs.default)
_named("exp", aten.exp.default, aten.expm1.default)


@local(aten.gelu.default)
def gelu(node: Node, build: Builder) -> str | None:
    """GELU, exact or by tanh."""
    points, margin = _TURNS["gelu" if node.bound()["approximate"] == "none" else "gelu_tanh"]
    turns = tuple(TurningPoint(point) for point in points)
    return scalar(node, build, Scalar(lambda x: node.evaluate([x]), turns, bounded=_bounded(node), margin=margin))


@local(aten.prelu.default)
def prelu(node: Node, build: Builder) -> str | None:
    """PReLU: one slope, or one per channel."""
    weight = node.bound()["weight"]
    if len(node.operands) != 1:
        return None
    slopes = weight.double() if weight.numel() == 1 else weight.double().reshape(-1, *(1,) * (len(node.shape) - 2))

    def function(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, slopes * x)

    return scalar(node, build, Scalar(function, (TurningPoint(0.0),), bounded=_bounded(node), margin=STRAIGHT))


@local(aten.softplus.default)
def softplus(node: Node, build: Builder) -> str | None:
    """Softplus: its derivative is a sigmoid; at its threshold it jumps by log(1 + exp(-threshold))/beta."""
    arguments = node.bound()
    beta, threshold = float(arguments["beta"]), float(arguments["threshold"])
    jump = math.log1p(math.exp(-threshold)) / abs(beta)
    tolerated = threshold >= SOFTPLUS_THRESHOLD
    return scalar(
        node,
        build,
        Scalar(
            lambda x: node.evaluate([x]),
            jumps=() if tolerated else (TurningPoint(threshold / beta),),
            bounded=_bounded(node),
            wobble=1.01 * jump if tolerated else 0.0,
            reason=f"a jump at its threshold {threshold:g} in {node.where}",
        ),
    )


@local(aten.threshold.default)
def threshold(node: Node, build: Builder) -> str | None:
    """A threshold: a kink where the two pieces meet, otherwise a jump."""
    arguments = node.bound()
    at, value = float(arguments["threshold"]), float(arguments["value"])
    jumps = () if at == value else (TurningPoint(at),)
    reason = f"a jump at {at:g} in {node.where}"
    return scalar(
        node, build, Scalar(lambda x: node.evaluate([x]), (TurningPoint(at),), jumps, margin=STRAIGHT, reason=reason)
    )


@local(
    aten.hardtanh.default, aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.clamp.Tensor
)  # fmt: skip
def clamp(node: Node, build: Builder) -> str | None:
    """A clamp: kinks at its limits, numbers or tensors."""
    arguments = node.bound()
    names = ("min_val", "max_val") if node.op is aten.hardtanh.default else ("min", "max")
    limits = [arguments[name] for name in names if arguments.get(name) is not None]
    if len(node.operands) != 1 or any(isinstance(limit, Ref) for limit in limits):
        return None
    turns = tuple(TurningPoint(limit.double() if isinstance(limit, Tensor) else float(limit)) for limit in limits)
    return scalar(node, build, Scalar(lambda x: node.evaluate([x]), turns, bounded=_bounded(node), margin=STRAIGHT))


@local("activation")
def recognised(node: Node, build: Builder) -> str | None:
    """An activation written out in several operators: the turns of the one it is, or its own knots."""
    found, name = node.op.data["activation"], node.op.data["activation"].name.partition("(")[0]
    run: Callable[[Tensor], Tensor] = lambda x: node.evaluate([x])  # noqa: E731
    knots = tuple(TurningPoint(point) for point in found.knots)
    if found.reason is not None:
        reason = f"{name} jumps within the ball, in {node.where}"
        return scalar(node, build, Scalar(run, jumps=knots, margin=STRAIGHT, reason=reason)) if knots else None
    if knots:
        return scalar(node, build, Scalar(run, knots, bounded=found.bounded, margin=STRAIGHT))
    points, margin = _TURNS[name]
    turns = tuple(TurningPoint(point / found.inner) for point in points)
    margin = max(margin, WRITTEN) * max(1.0, abs(found.factor))
    return scalar(node, build, Scalar(run, turns, bounded=found.bounded, margin=margin))


@local(aten.sin.default)
def sine(node: Node, build: Builder) -> str | None:
    """The sine: its derivative turns at the multiples of pi."""
    return _waves(node, build, "sin")


@local(aten.cos.default)
def cosine(node: Node, build: Builder) -> str | None:
    """The cosine: its derivative turns half a period on."""
    return _waves(node, build, "cos")


def _waves(node: Node, build: Builder, name: str) -> str:
    start = 0.0 if name == "sin" else math.pi / 2
    turns = TurningPoint(start, 2 * math.pi), TurningPoint(start + math.pi, 2 * math.pi)
    return scalar(node, build, Scalar(lambda x: node.evaluate([x]), turns, bounded=(-1.0, 1.0), margin=1e-11))


_DOMAINS: list[tuple[Any, tuple[float, float], tuple[float, ...]]] = [
    (aten.log.default, (0.0, math.inf), ()),
    (aten.log2.default, (0.0, math.inf), ()),
    (aten.log10.default, (0.0, math.inf), ()),
    (aten.log1p.default, (-1.0, math.inf), ()),
    (aten.sqrt.default, (0.0, math.inf), ()),
    (aten.rsqrt.default, (0.0, math.inf), ()),
    (aten.asin.default, (-1.0, 1.0), (0.0,)),
    (aten.acos.default, (-1.0, 1.0), (0.0,)),
    (aten.atanh.default, (-1.0, 1.0), (0.0,)),
    (aten.sinh.default, (-math.inf, math.inf), (0.0,)),
    (aten.cosh.default, (-math.inf, math.inf), ()),
]
"""Functions without a finite steepest slope: the interval inside which each has a slope, and the extrema of its
derivative."""


def _steep(op: Any, domain: tuple[float, float], points: tuple[float, ...]) -> None:
    @local(op)
    def steep(node: Node, build: Builder) -> str | None:
        """A function that is steep towards the ends of its domain."""
        reason = f"{node.op} reaches the end of its domain within the ball, in {node.where}"
        turns = tuple(TurningPoint(point) for point in points)
        return scalar(node, build, Scalar(lambda x: node.evaluate([x]), turns, domain=domain, reason=reason))


for _op, _domain, _points in _DOMAINS:
    _steep(_op, _domain, _points)


@local(aten.tan.default)
def tangent(node: Node, build: Builder) -> str | None:
    """The tangent: flattest at the multiples of pi, with a pole between them."""
    reason = f"a pole of tan within the ball, in {node.where}"
    poles, turns = (TurningPoint(math.pi / 2, math.pi),), (TurningPoint(0.0, math.pi),)
    return scalar(node, build, Scalar(lambda x: node.evaluate([x]), turns, poles, margin=1e-11, reason=reason))


@local(aten.reciprocal.default)
def reciprocal(node: Node, build: Builder) -> str | None:
    """1/x: monotone on either side of its pole."""
    return scalar(node, build, reciprocal_of(node))


def reciprocal_of(node: Node) -> Scalar:
    """Return 1/x as an entrywise function, with the node's place in its reason."""
    reason = f"division by a value that can be zero within the ball, in {node.where}"
    return Scalar(torch.reciprocal, jumps=(TurningPoint(0.0),), reason=reason)


@local(aten.pow.Tensor_Scalar, aten.square.default)
def power(node: Node, build: Builder) -> str | None:
    """A fixed power: integer ones turn (or have a pole) at zero, others need a positive base."""
    exponent = float(node.args[1]) if len(node.args) > 1 else 2.0
    reason = f"power {exponent:g} of a value that can be zero or negative within the ball, in {node.where}"
    zero = (TurningPoint(0.0),)
    if exponent == int(exponent) and exponent >= 0:
        return scalar(node, build, Scalar(lambda x: node.evaluate([x]), zero, bounded=_even(exponent)))
    if exponent == int(exponent):
        return scalar(node, build, Scalar(lambda x: node.evaluate([x]), jumps=zero, reason=reason))
    return scalar(node, build, Scalar(lambda x: node.evaluate([x]), domain=(0.0, math.inf), reason=reason))


def _even(exponent: float) -> tuple[float, float]:
    return (0.0, math.inf) if exponent % 2 == 0 else (-math.inf, math.inf)
