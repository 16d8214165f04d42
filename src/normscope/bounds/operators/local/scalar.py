"""Functions of one entry over an interval: the exact range of the derivative, and lines that enclose the function.

Between its *turns* (kinks and extrema of the derivative) the derivative is monotone, so its range over an interval is
spanned by its values at both ends and on both sides of the turns inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ....theory.activations import TurningPoint
from ...graph.ir import Node
from .local import Builder, Enclosure, Lines, LocalForm, Primitive, diagonal_part

Function = Callable[[Tensor], Tensor]
STEP = 1e-12
"""How far from a turn, relative to its size, the derivative is taken on either side."""


@dataclass(frozen=True, slots=True)
class Scalar(Primitive):
    """An entrywise function.

    Attributes:
        function: the function on `[B, *shape]`, differentiable by autograd.
        turns: where the derivative is not monotone, kinks included.
        jumps: where the function jumps or has a pole: no finite slope across.
        domain: outside of which (ends included) there is no finite slope.
        bounded: the range of the values.
        margin: how far derivatives may be off, relative to max(1, size); 0 for piecewise linear functions.
        wobble: how far values may be off (a switch between two formulas).
        rising: the function never falls, jumps included.
        reason: said when the interval leaves the domain or meets a jump.
    """

    function: Function
    turns: tuple[TurningPoint, ...] = ()
    jumps: tuple[TurningPoint, ...] = ()
    domain: tuple[float, float] = (-math.inf, math.inf)
    bounded: tuple[float, float] = (-math.inf, math.inf)
    margin: float = 1e-12
    wobble: float = 0.0
    rising: bool = False
    reason: str = "a function without a finite slope over the ball"

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Apply the function."""
        return self.function(values[0])

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Return slopes, limits and lines over the interval of every entry."""
        (x,) = operands
        a, b = self.slopes(x.low, x.high)
        value = self.function(x.centre)
        low, high = self._limits(x, value, a, b)
        broken = bool((a.isinf() | b.isinf()).any())
        lines = cache(lambda: self._lines(x, a, b))
        return LocalForm(low, high, (diagonal_part(a, b, x),), lines, self.reason if broken else None)

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the range of the derivative over [low, high]: no secant inside is steeper."""
        first, last = self.derivative(low), self.derivative(high)
        a, b = torch.minimum(first, last), torch.maximum(first, last)
        for turn in self.turns:
            inside = _holds(turn, low, high)
            if not bool(inside.any()):
                continue
            at = torch.as_tensor(turn.at, dtype=low.dtype, device=low.device).expand(low.shape)
            step = STEP * at.abs().clamp(min=1.0)
            for point in (at - step, at, at + step):
                slope = self.derivative(point)
                a, b = torch.where(inside, torch.minimum(a, slope), a), torch.where(inside, torch.maximum(b, slope), b)
        if self.margin:
            a, b = a - self.margin * a.abs().clamp(min=1.0), b + self.margin * b.abs().clamp(min=1.0)
        lost = a.isnan() | b.isnan() | (low <= self.domain[0]) | (high >= self.domain[1])
        for jump in self.jumps:
            lost = lost | _holds(jump, low, high)
        return torch.where(lost, -torch.inf, a), torch.where(lost, torch.inf, b)

    def derivative(self, x: Tensor) -> Tensor:
        """Return the derivative that autograd gives."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(True)
            value = self.function(leaf)
            if not value.requires_grad:
                return torch.zeros_like(x)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        return slope

    def _limits(self, x: Enclosure, value: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Values at the ends where the function is monotone; otherwise the centre's, moved by the steepest slopes."""
        ends = self.function(x.low), self.function(x.high)
        above = torch.where(x.high == x.centre, 0.0, x.high - x.centre)
        below = torch.where(x.low == x.centre, 0.0, x.centre - x.low)
        reach = (
            torch.maximum(_product(b, above), _product(-a, below)),
            torch.maximum(_product(-a, above), _product(b, below)),
        )
        high, low = value + reach[0], value - reach[1]
        up, down = (a >= 0) | self.rising, b <= 0
        low = torch.where(up, ends[0], torch.where(down, ends[1], low))
        high = torch.where(up, ends[1], torch.where(down, ends[0], high))
        pad = self.wobble + 1e-14 * value.abs() + STEP * self.margin
        return (low - pad).clamp(*self.bounded), (high + pad).clamp(*self.bounded)

    def _lines(self, x: Enclosure, a: Tensor, b: Tensor) -> Lines:
        """Enclose the function by lines: chord and tangent where it bends one way, parallel lines otherwise."""
        width, size = x.high - x.low, x.size
        ends = self.function(x.low), self.function(x.high)
        chord = torch.where(width > 0, (ends[1] - ends[0]) / width.clamp(min=1e-300), (a + b) / 2)
        chord = torch.minimum(torch.maximum(chord, a), b)
        offset = ends[0] - chord * x.low
        # f(v) - chord v has equal values at both ends and slopes between a - chord and b - chord in between
        below, above = chord - a, b - chord
        dip = _product(below, above) / (below + above).clamp(min=1e-300) * width
        middle = (x.low + x.high) / 2
        tangent = self.derivative(middle)
        touch = self.function(middle) - tangent * middle
        bends_up, bends_down = self._bends(x)
        low_slope, high_slope = torch.where(bends_up, tangent, chord), torch.where(bends_down, tangent, chord)
        low = torch.where(bends_up, touch, torch.where(bends_down, offset, offset - dip))
        high = torch.where(bends_down, touch, torch.where(bends_up, offset, offset + dip))
        scale = ends[0].abs() + ends[1].abs() + (chord.abs() + tangent.abs()) * size
        pad = self.wobble + 1e-13 * scale + self.margin * width
        good = (low - high + low_slope - high_slope).isfinite() & a.isfinite() & b.isfinite()
        return Lines(
            (torch.where(good, low_slope, 0.0),),
            torch.where(good, low - pad, -torch.inf),
            (torch.where(good, high_slope, 0.0),),
            torch.where(good, high + pad, torch.inf),
        )

    def _bends(self, x: Enclosure) -> tuple[Tensor, Tensor]:
        """Say where the derivative is monotone over the interval: (it rises, it falls)."""
        count = torch.zeros_like(x.low)
        for turn in self.turns:
            count = count + _holds(turn, x.low, x.high)
        first, last = self.derivative(x.low), self.derivative(x.high)
        # one kink between two straight pieces bends one way, too
        one_way = count <= (1 if self.margin == 0.0 else 0)
        return one_way & (last >= first), one_way & (last < first)


def _product(slope: Tensor, width: Tensor) -> Tensor:
    return torch.where(width == 0, 0.0, slope * width)


def scalar_step(node: Node, build: Builder, function: Scalar) -> str:
    """Add an entrywise function of the node's only operand, spread to the node's shape first."""
    name = build.move_entries(node.refs[0], lambda x: x.expand(node.shape))
    return build.apply(function, name, shape=node.shape)


def reciprocal(node: Node) -> Scalar:
    """Return 1/x as an entrywise function, with the node's place in its reason."""
    reason = f"division by a value that can be zero within the ball, in {node.where}"
    return Scalar(torch.reciprocal, jumps=(TurningPoint(0.0),), reason=reason)


def _holds(point: TurningPoint, low: Tensor, high: Tensor) -> Tensor:
    """Say where an interval holds a turning point, or one of those that repeat."""
    if point.period is None:
        return (low <= point.at) & (high >= point.at)
    return torch.floor((high - point.at) / point.period) >= torch.ceil((low - point.at) / point.period)
