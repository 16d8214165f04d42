"""Activations: their values, in balls, and the least and the largest slope between any two points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flint
import numpy as np
from flint import arb

from .arithmetic import Array, above

with flint.ctx.workprec(128):
    HALF, CUBIC, SHARP = arb(1) / 2, arb("0.044715"), (2 / arb.pi()).sqrt()
ANY = (-1e300, 1e300)


def sigmoid(x: arb) -> arb:
    """Return 1/(1 + exp(-x))."""
    return (1 + (x / 2).tanh()) / 2


def softplus(x: arb) -> arb:
    """Return log(1 + exp(x)) without overflow."""
    return x.max(arb(0)) + (-abs(x)).exp().log1p()


def elu_slopes(alpha: Array, scale: Array, inner: Array) -> tuple[float, float]:
    """Return the slopes of ELU: `scale` on the right, from 0 to alpha scale inner on the left."""
    left = arb(float(alpha[0])) * arb(float(scale[0])) * arb(float(inner[0]))
    return min(0.0, float(scale[0]), -above(-left)), max(0.0, float(scale[0]), above(left))


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
    "clamp": Function(lambda x, low, high: x.max(arb(low)).min(arb(high)), (0.0, 1.0), {"low": ANY, "high": ANY}),
    "abs": Function(abs, (-1.0, 1.0)),
    "hardsigmoid": Function(lambda x: (x / 6 + HALF).max(arb(0)).min(arb(1)), (0.0, 0.16666666666666669)),
    "hardswish": Function(lambda x: x * (x + 3).max(arb(0)).min(arb(6)) / 6, (-0.5, 1.5)),
    "elu": Function(
        lambda x, alpha, scale, inner: scale * (x.max(arb(0)) + alpha * (inner * x.min(arb(0))).expm1()),
        elu_slopes,
        {"alpha": ANY, "scale": ANY, "input_scale": (1e-9, 1e9)},
    ),
    # The next four have their extreme slopes where f'' = 0: at +-sqrt(2), +-1.4185040087908283, +-2.3993572805154677
    # (over beta), and at -2.2563763963607931 and 1.4905711794854284. What stands here is rounded away from f' there.
    "gelu": Function(lambda x: x * (1 + (x / arb(2).sqrt()).erf()) / 2, (-0.1289041451851558, 1.128904145185156)),
    "gelu_tanh": Function(
        lambda x: x * sigmoid(2 * SHARP * (x + CUBIC * x * x * x)), (-0.1289930686587728, 1.128993068658773)
    ),
    "silu": Function(
        lambda x, beta: x * sigmoid(x * beta), (-0.09983932012886793, 1.0998393201288683), {"beta": (1e-9, 1e9)}
    ),
    "mish": Function(lambda x: x * softplus(x).tanh(), (-0.11252612238946356, 1.0884981612517293)),
    # torch goes over to x above the threshold: from 37 on that is no jump that a float64 could show
    "softplus": Function(
        lambda x, beta, threshold: softplus(x * beta) / beta,
        (0.0, 1.0),
        {"beta": (1e-9, 1e9), "threshold": (37.0, 1e300)},
    ),
    "sigmoid": Function(sigmoid, (0.0, 0.25)),
    "logsigmoid": Function(lambda x: -softplus(-x), (0.0, 1.0)),
    "tanh": Function(lambda x: x.tanh(), (0.0, 1.0)),
    "erf": Function(lambda x: x.erf(), (0.0, 1.128379167095513)),
    "atan": Function(lambda x: x.atan(), (0.0, 1.0)),
    "sin": Function(lambda x: x.sin(), (-1.0, 1.0)),
    "cos": Function(lambda x: x.cos(), (-1.0, 1.0)),
}
"""`leaky_relu` is PReLU too (one slope per entry), `clamp` ReLU6 and hardtanh, `elu` CELU and SELU."""
