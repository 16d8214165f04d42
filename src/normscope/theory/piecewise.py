"""Piecewise linear functions of one variable in exact arithmetic: their knots, slopes and jumps.

Knots, slopes and values are fractions, so that even a jump of 1e-300 is found, and a continuous function has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ..core.bracket import Evidence
from .activations import ACTIVATIONS, Activation, clamp, hardshrink, leaky_relu, softshrink

Line = tuple[Fraction, Fraction]
"""The slope and the offset of a line."""
MOST_KNOTS = 16
"""The largest number of knots: more than any activation has, and few enough for fast arithmetic."""
COMPARED: dict[str, Callable[[Fraction], bool]] = {
    "gt": lambda d: d > 0,
    "ge": lambda d: d >= 0,
    "lt": lambda d: d < 0,
    "le": lambda d: d <= 0,
    "eq": lambda d: d == 0,
    "ne": lambda d: d != 0,
}
"""Comparisons of two values, as tests of their difference."""


class Unreadable(ValueError):
    """An expression that cannot be computed exactly."""


@dataclass(frozen=True, slots=True)
class PiecewiseLinear:
    """A function that is a line between neighbouring knots, and at each knot has a value of its own.

    Attributes:
        knots: the points where the lines change, in ascending order.
        at: the values at the knots.
        lines: one more than there are knots, from left to right.
    """

    knots: tuple[Fraction, ...]
    at: tuple[Fraction, ...]
    lines: tuple[Line, ...]

    @classmethod
    def identity(cls) -> PiecewiseLinear:
        """Return the function x."""
        return cls((), (), ((Fraction(1), Fraction(0)),))

    @classmethod
    def constant(cls, value: Fraction) -> PiecewiseLinear:
        """Return a constant function."""
        return cls((), (), ((Fraction(0), value),))

    def __call__(self, x: Fraction) -> Fraction:
        """Return the value at a point."""
        if x in self.knots:
            return self.at[self.knots.index(x)]
        slope, offset = self.lines[sum(knot < x for knot in self.knots)]
        return slope * x + offset

    def __add__(self, other: PiecewiseLinear) -> PiecewiseLinear:
        return _joined((self, other), lambda a, b: (a[0] + b[0], a[1] + b[1]))

    def __mul__(self, other: PiecewiseLinear) -> PiecewiseLinear:
        return _joined((self, other), _product)

    def divided(self, other: PiecewiseLinear) -> PiecewiseLinear:
        """Return the quotient by a constant."""
        if other.knots or other.lines[0][0] != 0 or other.lines[0][1] == 0:
            raise Unreadable("division by a value that is not constant")
        return self * PiecewiseLinear.constant(1 / other.lines[0][1])

    def powered(self, exponent: int) -> PiecewiseLinear:
        """Return an integer power."""
        if exponent != 1:
            raise Unreadable("a power is not piecewise linear")
        return self

    def called(self, name: str, *limits: Fraction | None) -> PiecewiseLinear:
        """Return `abs`, `sign` or `clamp` (limits: the least and the largest value) of the function."""
        zero = PiecewiseLinear.constant(Fraction(0))
        minus = PiecewiseLinear.constant(Fraction(-1))
        if name == "abs":
            return self.compared("gt", zero).chosen(self, self * minus)
        if name == "sign":
            return self.compared("gt", zero) + self.compared("lt", zero) * minus
        if name != "clamp":
            raise Unreadable(f"{name} is not piecewise linear")
        low, high = limits
        clamped = self
        if low is not None:
            floor = PiecewiseLinear.constant(low)
            clamped = clamped.compared("gt", floor).chosen(clamped, floor)
        if high is not None:
            ceiling = PiecewiseLinear.constant(high)
            clamped = clamped.compared("lt", ceiling).chosen(clamped, ceiling)
        return clamped

    def compared(self, kind: str, other: PiecewiseLinear) -> PiecewiseLinear:
        """Return 1 where a comparison holds and 0 elsewhere."""
        difference = self + other * PiecewiseLinear.constant(Fraction(-1))
        roots = [-offset / slope for slope, offset in difference.lines if slope != 0]
        test = COMPARED[kind]
        knots = tuple(sorted({*difference.knots, *roots}))
        at = tuple(Fraction(test(difference(x))) for x in knots)
        lines = tuple((Fraction(0), Fraction(test(difference(x)))) for x in _between(knots))
        return _checked(PiecewiseLinear(knots, at, lines))

    def chosen(self, first: PiecewiseLinear, second: PiecewiseLinear) -> PiecewiseLinear:
        """Return `first` where this function (a comparison) is 1 and `second` where it is 0."""
        if any(line not in ((0, 0), (0, 1)) for line in self.lines):
            raise Unreadable("a choice by something that is no comparison")
        return _joined((self, first, second), lambda c, a, b: a if c[1] else b)

    def simplified(self) -> PiecewiseLinear:
        """Return the same function without knots where nothing changes."""
        knots, at, lines = [], [], [self.lines[0]]
        for knot, value, line in zip(self.knots, self.at, self.lines[1:], strict=True):
            if line != lines[-1] or value != line[0] * knot + line[1]:
                knots.append(knot)
                at.append(value)
                lines.append(line)
        return PiecewiseLinear(tuple(knots), tuple(at), tuple(lines))

    @property
    def continuous(self) -> bool:
        """Whether the lines on both sides of every knot meet in its value."""
        pairs = zip(self.knots, self.at, self.lines, self.lines[1:], strict=False)
        return all(a * k + b == value == c * k + d for k, value, (a, b), (c, d) in pairs)


def activation_of(function: PiecewiseLinear) -> Activation | None:
    """Return a continuous piecewise linear function with a bend as an activation; also hardshrink, which jumps.

    The slopes are exact, so that the function need not be a known one; a known function gets its name.
    """
    function = function.simplified()
    if not function.knots:
        return None
    knots = tuple(float(knot) for knot in function.knots)
    if not function.continuous:
        jumping = _hardshrink(function)
        return None if jumping is None else replace(jumping, knots=knots, evidence=Evidence.NUMERICAL)
    slopes = [slope for slope, _ in function.lines]
    slope = (_down(min(slopes)), _up(max(slopes)))
    low = -math.inf if slopes[0] > 0 or slopes[-1] < 0 else _down(min(function.at))
    high = math.inf if slopes[0] < 0 or slopes[-1] > 0 else _up(max(function.at))
    activation = _named(function, slopes) or Activation("piecewise linear", _evaluator(function), slope)
    return replace(activation, slope=slope, bounded=(low, high), knots=knots, evidence=Evidence.NUMERICAL)


def _named(function: PiecewiseLinear, slopes: list[Fraction]) -> Activation | None:
    """Return the activation of torch that equals a continuous function, or None."""
    knots, lines = function.knots, function.lines
    if knots == (0,) and lines[1] == (1, 0):
        plain = {0: "relu", -1: "abs"}.get(int(slopes[0])) if slopes[0].denominator == 1 else None
        return ACTIVATIONS[plain] if plain else leaky_relu(float(slopes[0]))
    ends = [float(knot) for knot in knots]
    if slopes == [0, 1, 0] and lines[1] == (1, 0):
        return clamp(ends[0], ends[1])
    if slopes in ([0, 1], [1, 0]) and (1, 0) in lines:
        return clamp(ends[0], None) if slopes[1] == 1 else clamp(None, ends[0])
    if slopes == [1, 0, 1] and knots[0] == -knots[1] and lines[1] == (0, 0):
        return softshrink(ends[1])
    return None


def _hardshrink(function: PiecewiseLinear) -> Activation | None:
    """Return hardshrink if the function is x outside two knots, 0 between them, and either of these at the knots."""
    knots, lines = function.knots, function.lines
    if len(knots) != 2 or knots[0] != -knots[1] or lines != ((1, 0), (0, 0), (1, 0)):
        return None
    if any(value not in (0, knot) for knot, value in zip(knots, function.at, strict=True)):
        return None
    return hardshrink(float(knots[1]))


def _evaluator(function: PiecewiseLinear) -> Callable[[Any], Any]:
    """Return the function in a form that runs on tensors."""
    knots = [float(knot) for knot in function.knots]
    lines = [(float(slope), float(offset)) for slope, offset in function.lines]

    def run(x: Any) -> Any:
        value = lines[0][0] * x + lines[0][1]
        for knot, (slope, offset) in zip(knots, lines[1:], strict=True):
            value = (slope * x + offset).where(x > knot, value)
        return value

    return run


def _between(knots: tuple[Fraction, ...]) -> list[Fraction]:
    """Return one point inside every piece."""
    if not knots:
        return [Fraction(0)]
    return [knots[0] - 1, *((a + b) / 2 for a, b in pairwise(knots)), knots[-1] + 1]


def _joined(functions: tuple[PiecewiseLinear, ...], combine: Callable[..., Line]) -> PiecewiseLinear:
    """Combine functions line by line over all their knots; the values at a knot are combined as constant lines."""
    knots = tuple(sorted({knot for function in functions for knot in function.knots}))
    at = tuple(combine(*((Fraction(0), function(knot)) for function in functions))[1] for knot in knots)
    lines = tuple(combine(*(_line(function, x) for function in functions)) for x in _between(knots))
    return _checked(PiecewiseLinear(knots, at, lines))


def _line(function: PiecewiseLinear, x: Fraction) -> Line:
    return function.lines[sum(knot < x for knot in function.knots)]


def _product(a: Line, b: Line) -> Line:
    if a[0] != 0 and b[0] != 0:
        raise Unreadable("a product of two slopes is not piecewise linear")
    return a[0] * b[1] + a[1] * b[0], a[1] * b[1]


def _checked(function: PiecewiseLinear) -> PiecewiseLinear:
    if len(function.knots) > MOST_KNOTS:
        raise Unreadable("too many pieces")
    return function


def _down(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


def _up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
