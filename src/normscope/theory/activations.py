"""What is known of the activations of `torch.nn.functional`: slopes and ranges, turning points, words in proofs.

A slope interval [a, b] of f says that a <= (f(u) - f(v))/(u - v) <= b for all u != v. For a smooth f its ends are the
extrema of f', found from the roots of f''; tests recompute every constant below with 30 digits. Than's Definitions 4
and 8 assume slopes of at most 1 in size, which GELU, SiLU, Mish, hardswish, SELU and erf break.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.bracket import Evidence
from ..core.rounding import UNIT, Upper


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """A point (or one per entry), or with a `period` every point `at + k period`."""

    at: float | Tensor
    period: float | None = None


def turning(*points: float) -> tuple[TurningPoint, ...]:
    """Return single turning points."""
    return tuple(TurningPoint(point) for point in points)


Interval = tuple[float, float]
REAL: Interval = (-math.inf, math.inf)

SMOOTH, STRAIGHT, SIXTHS, PERIODIC = 1e-12, 0.0, 4e-8, 1e-11
"""How far a computed derivative may be off: by rounding; not at all, between straight pieces; by torch's float32 1/6;
by the rounding of many periods."""
STRETCH = 1e-9, 1e9
"""Factors of the input with which checkers of proofs still compute an activation closely."""
SURE_THRESHOLD = 37.0
"""The threshold of softplus from which on it has a word in proofs: checkers compute the smooth function, and there
torch's jump is lost in the rounding of every value near it."""
NO_LIMIT = 1e300
"""A limit that nothing reaches, for a clamp on one side."""

# silu'' = 0 at x = 2t with t tanh(t) = 1; silu' is (1 + t)/2 there, and 1 - silu'(x) = silu'(-x).
_SILU_T = 1.19967864025773383391637
# silu' = 0 where e^x = -1 - x; the value there is -W(1/e), W the Lambert function.
_SILU_MINIMUM = -0.2784645427610737951093587
# gelu'' = phi(x)(2 - x^2) = 0 at x = sqrt(2); gelu' is Phi(sqrt 2) + sqrt(2) phi(sqrt 2) there.
_GELU_SLOPE = 1.128904145185154786340744
_GELU_MINIMUM = -0.1699712074799036616938685
_GELU_TANH_SLOPE = 1.128993068658771765455904
_GELU_TANH_MINIMUM = -0.1700407505712540506390674
_MISH_SLOPES = (-0.1125261223894625564073279, 1.088498161251727861228294)
_MISH_MINIMUM = -0.3088434130172504066287602
# where the second derivatives are zero
_SILU_TURN, _GELU_TURN, _GELU_TANH_TURN = 2 * _SILU_T, math.sqrt(2.0), 1.418504008790828355548034
_MISH_TURNS = (-2.256376396360793120005749, 1.490571179485428459294419)
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
QUICK_GELU = 1.702
"""The sharpness of the sigmoid in the GELU of CLIP."""
# torch multiplies by 1.0f/6.0f even in float64 (forward on CUDA, hardsigmoid's backward): 3e-8 above 1/6.
_SIXTH = 0.16666667163372039794921875


@dataclass(frozen=True, slots=True)
class Activation:
    """A univariate function with its slope interval, its range, and what bounds over balls and proofs need of it.

    Attributes:
        name: the name in `torch.nn.functional`, with parameters if any.
        function: the function itself, elementwise on tensors.
        slope: [a, b], rounded outward; an infinite end comes with a `reason`.
        bounded: the range (lo, hi) of the values, rounded outward, possibly infinite.
        reason: why the function is not Lipschitz; None if it is.
        evidence: PROVEN for an operator of torch, NUMERICAL for a function that a model writes out in several.
        inner, factor: the function is factor/inner f(inner x), where f is the activation of that name; its slopes are
            those of f times `factor`.
        knots: the points where a piecewise linear function that a model writes out bends or jumps.
        turns: where the derivative is not monotone, kinks included; None where that is not known.
        margin: how far derivatives may be off, relative to max(1, size).
        word: its name and parameters in the vocabulary of proofs; None where no checker knows the function.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    slope: Interval
    bounded: Interval = REAL
    reason: str | None = None
    evidence: Evidence = Evidence.PROVEN
    inner: float = 1.0
    factor: float = 1.0
    knots: tuple[float, ...] = ()
    turns: tuple[TurningPoint, ...] | None = field(default=None, kw_only=True)
    margin: float = field(default=SMOOTH, kw_only=True)
    word: tuple[str, dict[str, float]] | None = field(default=None, kw_only=True)

    @property
    def gain(self) -> Upper:
        """The Lipschitz constant max(abs(a), abs(b)) as an upper bound."""
        size = max(abs(self.slope[0]), abs(self.slope[1]))
        if math.isinf(size):
            return Upper.infinite(self.reason or f"{self.name} is not Lipschitz")
        return Upper.of(size, self.evidence, f"slope of {self.name}")


def outward(low: float, high: float) -> Interval:
    """Return the interval moved outward by 4 units in the last place (the constants are correct to one)."""
    for _ in range(4):
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return low, high


def _odd_slope(top: float) -> Interval:
    """Return the slopes of x times a step from 0 to 1 that is odd about 1/2: f'(x) + f'(-x) = 1."""
    high = outward(top, top)[1]
    return 1.0 - high, high  # this subtraction is exact


def quick_gelu(x: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x), the GELU of CLIP and GPT-2's paper."""
    return x * torch.sigmoid(QUICK_GELU * x)


def leaky_relu(negative_slope: float = 0.01, *, name: str = "leaky_relu") -> Activation:
    """Return leaky ReLU, max(0, x) + a min(0, x): slopes between a and 1."""
    a = float(negative_slope)
    function = partial(F.leaky_relu, negative_slope=a)
    return Activation(
        f"{name}({a:g})",
        function,
        (min(a, 1.0), max(a, 1.0)),
        REAL if a > 0 else (0.0, math.inf),
        turns=turning(0.0),
        margin=STRAIGHT,
        word=("leaky_relu", {"slope": a}),
    )


def prelu(weight: Tensor) -> Activation:
    """Return PReLU with one slope or one per channel; the interval holds for every channel."""
    slopes = weight.detach().to("cpu", torch.float64).flatten()
    low, high = float(slopes.min()), float(slopes.max())
    bounded = REAL if high > 0 else (0.0, math.inf)
    function = partial(F.prelu, weight=slopes)
    return Activation("prelu", function, (min(low, 1.0), max(high, 1.0)), bounded)


def rrelu(lower: float = 1 / 8, upper: float = 1 / 3) -> Activation:
    """Return RReLU in eval mode: leaky ReLU with the mean slope (train mode draws random slopes)."""
    return leaky_relu((lower + upper) / 2, name="rrelu")


def elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, *, name: str = "elu") -> Activation:
    """Return ELU as `aten.elu` has it: s x for x > 0, s alpha (exp(i x) - 1) below.

    The slopes are s and everything between 0 and s alpha i.
    """
    floor, steepest = -scale * alpha, scale * alpha * input_scale
    function = partial(torch.ops.aten.elu.default, alpha=alpha, scale=scale, input_scale=input_scale)
    label = f"{name}({alpha:g})"
    if input_scale < 0 and floor != 0:
        reason = f"{label}: exp grows without bound on the negative side"
        return Activation(label, function, REAL, REAL, reason, turns=turning(0.0))
    if not (math.isfinite(floor) and math.isfinite(steepest)):
        reason = f"{label}: its slopes are not finite numbers"
        return Activation(label, function, REAL, REAL, reason, turns=turning(0.0))
    exact = scale == input_scale == 1.0  # otherwise a product was rounded
    low, high = (steepest, steepest) if exact else outward(steepest, steepest)
    tail = (0.0, 0.0) if input_scale == 0 else (floor, floor) if exact else outward(floor, floor)
    bounded = (-math.inf if scale < 0 else min(0.0, tail[0])), (math.inf if scale > 0 else max(0.0, tail[1]))
    word = ("elu", {"alpha": float(alpha), "scale": float(scale), "input_scale": float(input_scale)})
    return Activation(
        label,
        function,
        (min(0.0, low, scale), max(0.0, high, scale)),
        bounded,
        turns=turning(0.0),
        word=word if STRETCH[0] <= input_scale <= STRETCH[1] else None,
    )


def celu(alpha: float = 1.0) -> Activation:
    """Return CELU, max(0, x) + min(0, alpha (exp(x/alpha) - 1)): slopes [0, 1] for alpha > 0, else not Lipschitz."""
    return elu(alpha, 1.0, 1.0 / alpha, name="celu")


def clamp(low: float | None = None, high: float | None = None, *, name: str = "clamp") -> Activation:
    """Return x clamped to [low, high]; also hardtanh. Where low >= high torch returns the constant `high`."""
    bottom, top = -math.inf if low is None else float(low), math.inf if high is None else float(high)
    function: Callable[[Tensor], Tensor] = partial(torch.clamp, min=bottom, max=top)
    label = f"{name}({bottom:g}, {top:g})"
    turns = turning(*(limit for limit in (bottom, top) if math.isfinite(limit)))
    word = ("clamp", {"low": max(bottom, -NO_LIMIT), "high": min(top, NO_LIMIT)})
    if bottom >= top:
        constant_word = word if bottom == top else None
        return Activation(label, function, (0.0, 0.0), (top, top), turns=turns, margin=STRAIGHT, word=constant_word)
    slope = (1.0, 1.0) if (bottom, top) == REAL else (0.0, 1.0)
    return Activation(label, function, slope, (bottom, top), turns=turns, margin=STRAIGHT, word=word)


def hardtanh(min_val: float = -1.0, max_val: float = 1.0) -> Activation:
    """Return hardtanh, which is `clamp` under another name."""
    return clamp(min_val, max_val, name="hardtanh")


def threshold(threshold: float, value: float) -> Activation:
    """Return x where x > threshold, else `value`: Lipschitz only if the two meet."""
    label = f"threshold({threshold:g}, {value:g})"
    function = partial(F.threshold, threshold=threshold, value=value)
    bounded = (min(threshold, value), math.inf)
    if value == threshold:
        word = ("clamp", {"low": float(threshold), "high": NO_LIMIT})
        return Activation(
            label, function, (0.0, 1.0), bounded, turns=turning(float(threshold)), margin=STRAIGHT, word=word
        )
    return Activation(label, function, REAL, bounded, f"{label} jumps by {abs(threshold - value):g} at {threshold:g}")


def softshrink(lambd: float = 0.5) -> Activation:
    """Return softshrink, x moved towards 0 by lambd and stopped there: slopes [0, 1] ([1, 1] for lambd = 0)."""
    slope = (1.0, 1.0) if lambd == 0 else (0.0, 1.0)
    return Activation(f"softshrink({lambd:g})", partial(F.softshrink, lambd=lambd), slope)


def hardshrink(lambd: float = 0.5) -> Activation:
    """Return hardshrink, x outside [-lambd, lambd] and 0 inside: it jumps, unless lambd <= 0 (the identity)."""
    label, function = f"hardshrink({lambd:g})", partial(F.hardshrink, lambd=lambd)
    if lambd <= 0:
        return Activation(label, function, (1.0, 1.0))
    return Activation(label, function, REAL, REAL, f"{label} jumps by {lambd:g} at -{lambd:g} and {lambd:g}")


SOFTPLUS_THRESHOLD = 20.0
"""Torch's default threshold of softplus: the jump there counts as rounding, a jump at a lower threshold does not."""


def softplus(beta: float = 1.0, threshold: float = 20.0) -> Activation:
    """Return softplus, log(1 + exp(beta x))/beta: slopes sigmoid(beta x) in [0, 1].

    Assumes:
        torch returns x itself where beta x > threshold, a jump down of log(1 + exp(-threshold))/beta. From a threshold
        of about 33 on it is below the rounding of x there, in float64: PROVEN. At the default of 20 it is 1e-10 of x,
        below the rounding of float32 but not of float64, where secants across the jump are arbitrarily steep: the
        slopes are those of the smooth function, and the evidence is NUMERICAL. A lower threshold makes the function
        not Lipschitz.
    """
    label, function = f"softplus({beta:g})", partial(F.softplus, beta=beta, threshold=threshold)
    if not threshold >= SOFTPLUS_THRESHOLD:
        return Activation(label, function, REAL, REAL, f"{label} jumps at its threshold {threshold:g}")
    visible = math.log1p(math.exp(-threshold)) > UNIT * threshold
    evidence = Evidence.NUMERICAL if visible else Evidence.PROVEN
    bounded = (0.0, math.inf) if beta > 0 else (-math.inf, 0.0)
    sure = STRETCH[0] <= beta <= STRETCH[1] and threshold >= SURE_THRESHOLD
    word = ("softplus", {"beta": float(beta), "threshold": float(threshold)}) if sure else None
    return Activation(label, function, (0.0, 1.0), bounded, evidence=evidence, turns=(), word=word)


def gelu(approximate: str = "none") -> Activation:
    """Return GELU, x Phi(x), with slopes from -0.1289 at -sqrt(2) to 1.1289 at sqrt(2), or its tanh form."""
    return ACTIVATIONS["gelu" if approximate == "none" else "gelu_tanh"]


def _table() -> dict[str, Activation]:
    unit, positive, sign = (0.0, 1.0), (0.0, math.inf), (-1.0, 1.0)
    silu = _odd_slope((1.0 + _SILU_T) / 2.0)
    gelu_tanh = partial(F.gelu, approximate="tanh")

    def above(minimum: float) -> Interval:
        return outward(minimum, math.inf)

    def plain(
        name: str,
        function: Callable[[Tensor], Tensor],
        slope: Interval,
        bounded: Interval = REAL,
        *turns: float,
        margin: float = SMOOTH,
        word: str | None = None,
        **parameters: float,
    ) -> Activation:
        proof_word = None if word is None else (word, parameters)
        return Activation(name, function, slope, bounded, turns=turning(*turns), margin=margin, word=proof_word)

    def wave(name: str, function: Callable[[Tensor], Tensor], start: float) -> Activation:
        turns = tuple(TurningPoint(start + half, 2 * math.pi) for half in (0.0, math.pi))
        return Activation(name, function, sign, sign, turns=turns, margin=PERIODIC, word=(name, {}))

    def both(point: float) -> tuple[float, float]:
        return -point, point

    quick_turn, quick_least = _SILU_TURN / QUICK_GELU, _SILU_MINIMUM / QUICK_GELU
    odd_tanh, swish = _odd_slope(_GELU_TANH_SLOPE), outward(-3.0 * _SIXTH, 9.0 * _SIXTH)
    top = (0.0, outward(0.0, 6.0 * _SIXTH)[1])
    rows = [
        plain("identity", torch.clone, (1.0, 1.0), margin=STRAIGHT),
        plain("neg", torch.neg, (-1.0, -1.0), margin=STRAIGHT),
        plain("abs", torch.abs, sign, positive, 0.0, margin=STRAIGHT, word="abs"),
        plain("relu", F.relu, unit, positive, 0.0, margin=STRAIGHT, word="relu"),
        plain("relu6", F.relu6, unit, (0.0, 6.0), 0.0, 6.0, margin=STRAIGHT, word="clamp", low=0.0, high=6.0),
        replace(elu(_SELU_ALPHA, _SELU_SCALE), name="selu", function=F.selu),
        plain("gelu", F.gelu, _odd_slope(_GELU_SLOPE), above(_GELU_MINIMUM), *both(_GELU_TURN), word="gelu"),
        plain("gelu_tanh", gelu_tanh, odd_tanh, above(_GELU_TANH_MINIMUM), *both(_GELU_TANH_TURN), word="gelu_tanh"),
        plain("quick_gelu", quick_gelu, silu, above(quick_least), *both(quick_turn), word="silu", beta=QUICK_GELU),
        plain("silu", F.silu, silu, above(_SILU_MINIMUM), *both(_SILU_TURN), word="silu", beta=1.0),
        plain("mish", F.mish, outward(*_MISH_SLOPES), above(_MISH_MINIMUM), *_MISH_TURNS, word="mish"),
        plain("hardswish", F.hardswish, swish, above(-2.25 * _SIXTH), *both(3.0), margin=SIXTHS, word="hardswish"),
        plain("hardsigmoid", F.hardsigmoid, (0.0, _SIXTH), top, *both(3.0), margin=SIXTHS, word="hardsigmoid"),
        plain("sigmoid", torch.sigmoid, (0.0, 0.25), unit, 0.0, word="sigmoid"),
        plain("logsigmoid", F.logsigmoid, unit, (-math.inf, 0.0), word="logsigmoid"),
        plain("tanh", torch.tanh, unit, sign, 0.0, word="tanh"),
        plain("tanhshrink", F.tanhshrink, unit, REAL, 0.0),
        plain("softsign", F.softsign, unit, sign, 0.0),
        wave("sin", torch.sin, 0.0),
        wave("cos", torch.cos, math.pi / 2),
        plain("erf", torch.erf, (0.0, outward(0.0, 2.0 / math.sqrt(math.pi))[1]), sign, 0.0, word="erf"),
        plain("atan", torch.atan, unit, outward(-math.pi / 2.0, math.pi / 2.0), 0.0, word="atan"),
        Activation("exp", torch.exp, positive, positive, "exp grows without bound", turns=()),
    ]
    defaults = [leaky_relu(), rrelu(), elu(), celu(), hardtanh(), softplus(), softshrink(), hardshrink()]
    return {row.name: row for row in rows} | {row.name.partition("(")[0]: row for row in defaults}


ACTIVATIONS: dict[str, Activation] = _table()
"""The parameter-free activations, and the others at torch's default parameters."""
