"""Activations: their values, in balls, and the least and the largest slope between any two points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flint
import numpy as np
from flint import arb

from .arithmetic import above, below

with flint.ctx.workprec(128):
    PI, HALF, CUBIC = arb.pi(), arb(1) / 2, arb("0.044715")
SLACK = 1e-15
"""Slopes at a bend are widened by this: the bend is known to the last bits of a float, and the slope is flat there."""
ANY = (-1e300, 1e300)


def sigmoid(x: arb) -> arb:
    """Return 1/(1 + exp(-x))."""
    return (1 + (x / 2).tanh()) / 2


def softplus(x: arb) -> arb:
    """Return log(1 + exp(x)) without overflow."""
    return x.max(arb(0)) + (-abs(x)).exp().log1p()


def clamp(x: arb, low: float, high: float) -> arb:
    """Return x between two limits."""
    return x.max(arb(low)).min(arb(high))


def bell(x: arb) -> arb:
    """Return the derivative of tanh."""
    return 4 * sigmoid(2 * x) * sigmoid(-2 * x)


def gelu_slope(x: arb) -> arb:
    """Return the derivative of GELU."""
    return (1 + (x / arb(2).sqrt()).erf()) / 2 + x * (-x * x / 2).exp() / (2 * PI).sqrt()


def gelu_inner(x: arb) -> arb:
    """Return what tanh is taken of in the tanh form of GELU."""
    return (2 / PI).sqrt() * (x + CUBIC * x * x * x)


def gelu_tanh_slope(x: arb) -> arb:
    """Return the derivative of the tanh form of GELU."""
    steep = (2 / PI).sqrt() * (1 + 3 * CUBIC * x * x)
    return sigmoid(2 * gelu_inner(x)) + x * bell(gelu_inner(x)) * steep / 2


def silu_slope(x: arb) -> arb:
    """Return the derivative of SiLU."""
    return sigmoid(x) * (1 + x * sigmoid(-x))


def mish_slope(x: arb) -> arb:
    """Return the derivative of Mish."""
    return softplus(x).tanh() + x * bell(softplus(x)) * sigmoid(x)


def at_bends(slope: Callable[[arb], arb], low: float, high: float) -> tuple[float, float]:
    """Return the range of a derivative from 0 to 1 that is least at one place and largest at another: zeros of f''."""
    with flint.ctx.workprec(128):
        return below(slope(arb(low))) - SLACK, above(slope(arb(high))) + SLACK


@dataclass(frozen=True)
class Function:
    """An activation: its value, its slopes, and the ranges of its parameters; both take them in this order."""

    value: Callable[..., arb]
    slopes: tuple[float, float] | Callable[..., tuple[Any, Any]]
    parameters: dict[str, tuple[float, float]] = field(default_factory=dict)


FUNCTIONS: dict[str, Function] = {
    "relu": Function(lambda x: x.max(arb(0)), (0.0, 1.0)),
    "leaky_relu": Function(
        lambda x, slope: x.max(x * slope) if slope <= 1.0 else x.min(x * slope),
        lambda slope: (np.minimum(slope, 1.0), np.maximum(slope, 1.0)),
        {"slope": ANY},
    ),
    "clamp": Function(clamp, (0.0, 1.0), {"low": ANY, "high": ANY}),
    "abs": Function(abs, (-1.0, 1.0)),
    "hardsigmoid": Function(lambda x: clamp(x / 6 + HALF, 0.0, 1.0), (0.0, 1.0 / 6.0 + SLACK)),
    "hardswish": Function(lambda x: x * clamp(x + 3, 0.0, 6.0) / 6, (-0.5, 1.5)),
    "elu": Function(
        lambda x, alpha, scale, inner: scale * (x.max(arb(0)) + alpha * (inner * x.min(arb(0))).expm1()),
        lambda alpha, scale, inner: (
            min(0.0, scale, below(arb(scale) * alpha * inner)),
            max(0.0, scale, above(arb(scale) * alpha * inner)),
        ),
        {"alpha": ANY, "scale": ANY, "input_scale": (1e-9, 1e9)},
    ),
    "gelu": Function(lambda x: x * (1 + (x / arb(2).sqrt()).erf()) / 2, at_bends(gelu_slope, -(2**0.5), 2**0.5)),
    "gelu_tanh": Function(
        lambda x: x * sigmoid(2 * gelu_inner(x)),
        at_bends(gelu_tanh_slope, -1.418504008790828355548, 1.418504008790828355548),
    ),
    "silu": Function(
        lambda x, beta: x * sigmoid(x * beta),
        at_bends(silu_slope, -2.399357280515467667833, 2.399357280515467667833),
        {"beta": (1e-9, 1e9)},
    ),
    "mish": Function(
        lambda x: x * softplus(x).tanh(), at_bends(mish_slope, -2.256376396360793120006, 1.490571179485428459294)
    ),
    # torch goes over to x above the threshold: from 37 on that is no jump that a float64 could show
    "softplus": Function(
        lambda x, beta, threshold: softplus(x * beta) / beta,
        (0.0, 1.0),
        {"beta": (1e-9, 1e9), "threshold": (37.0, 1e300)},
    ),
    "sigmoid": Function(sigmoid, (0.0, 0.25)),
    "logsigmoid": Function(lambda x: -softplus(-x), (0.0, 1.0)),
    "tanh": Function(lambda x: x.tanh(), (0.0, 1.0)),
    "erf": Function(lambda x: x.erf(), (0.0, above((4 / PI).sqrt()))),
    "atan": Function(lambda x: x.atan(), (0.0, 1.0)),
    "sin": Function(lambda x: x.sin(), (-1.0, 1.0)),
    "cos": Function(lambda x: x.cos(), (-1.0, 1.0)),
}
"""`leaky_relu` is PReLU too (one slope per entry), `clamp` ReLU6 and hardtanh, `elu` CELU and SELU."""
