"""What is recorded at an operator: figures of every sample, each of which must not exceed its limit.

Least values enter with their sign turned, so that a domain is the set of inputs with figure <= limit everywhere. The
figures are functions of the exact inner values of the network; they are computed in float64. A limit lies `2 TOLERANCE`
outside of what was seen, and an input counts as inside only if its computed figures are below the limits by
`TOLERANCE`, some 10^9 units in the last place: rounding does not let an outside input in, nor keep recorded data out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.ir import Node
from ..operators.local.local import Enclosure, Primitive

TOLERANCE = 2.0**-20
"""How far a figure may be beyond its limit by rounding, relative to the size of the figures of one condition."""


@dataclass(frozen=True, slots=True)
class DomainCondition(ABC):
    """Figures of one operator.

    Attributes:
        key: unique in the network.
        node: the operator.
        at: the step after which the figures can be computed.
        reads: the values they are computed from.
    """

    key: str
    node: Node
    at: str
    reads: tuple[str, ...]

    @abstractmethod
    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return `[B, k]` figures from values `[B, *shape]`."""

    @abstractmethod
    def widen(self, limits: Tensor, margin: float) -> Tensor:
        """Return limits that leave room beside what was seen."""

    @abstractmethod
    def describe(self, index: int) -> str:
        """Name one of the figures."""

    def reading(self, figure: float, index: int) -> float:
        """Return a figure (or limit) as a reader knows it, its sign turned back."""
        return figure

    def scale(self, limits: Tensor) -> Tensor:
        """Return the size that tolerances are relative to."""
        return limits.abs()

    def settled(self, largest: Tensor, margin: float) -> Tensor:
        """Return the limits for the largest figures seen."""
        limits = self.widen(largest, margin)
        return limits + 2 * TOLERANCE * self.scale(limits)

    def inner(self, limits: Tensor) -> Tensor:
        """Return up to where computed figures are inside."""
        return limits - TOLERANCE * self.scale(limits)

    def excess(self, figures: Tensor, limits: Tensor) -> Tensor:
        """Return by how much figures `[B, k]` are above their limits, relative to their size; above 0 is outside."""
        scale = self.scale(limits)
        over = figures - self.inner(limits)
        relative = over / torch.where(scale > 0, scale, 1.0)
        return torch.where(limits == torch.inf, -torch.inf, relative).nan_to_num(nan=torch.inf)


@dataclass(frozen=True, slots=True)
class Interval(DomainCondition):
    """The range of every channel of a value: highest entries, and lowest ones with their sign turned.

    Attributes:
        shape: of the value.
        axis: the dimension of channels; None takes every entry for itself.
    """

    shape: tuple[int, ...]
    axis: int | None

    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Take the extremes over all dimensions but the channels'."""
        x = values[self.reads[0]]
        if self.axis is not None:
            x = x.movedim(1 + self.axis, -1).reshape(len(x), -1, x.shape[1 + self.axis])
        else:
            x = x.reshape(len(x), 1, -1)
        return torch.cat([x.amax(1), -x.amin(1)], dim=1)

    def widen(self, limits: Tensor, margin: float) -> Tensor:
        """Leave `margin` times the width of each range on both sides."""
        high, low = limits.chunk(2)
        width = margin * (high + low).clamp(min=0.0)
        return torch.cat([high + width, low + width])

    def scale(self, limits: Tensor) -> Tensor:
        """All channels share the size of the largest."""
        return limits.abs().amax().expand_as(limits) if limits.numel() else limits

    def enclosure(self, limits: Tensor) -> Enclosure:
        """Return the value between its limits."""
        high, low = limits.chunk(2)
        size = self.shape if self.axis is None else (-1, *(1,) * (len(self.shape) - 1 - self.axis))
        return Enclosure.box(*((side.reshape(size).expand(self.shape)[None].contiguous()) for side in (-low, high)))

    def describe(self, index: int) -> str:
        """Name the channel and the side."""
        side = "largest" if index < self.channels else "smallest"
        return f"the {side} value of channel {index % max(self.channels, 1)} that enters it"

    def reading(self, figure: float, index: int) -> float:
        """Turn the sign of lowest entries back."""
        return figure if index < self.channels else -figure

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return math.prod(self.shape) if self.axis is None else self.shape[self.axis]


@dataclass(frozen=True, slots=True)
class LeastMeanSquare(DomainCondition):
    """The least mean square of the sets a normalizer divides by: its variance, with the sign turned.

    Attributes:
        shape: of the value, `[sets, n]`.
        classes: sets of one class (a group, a channel) share a figure.
    """

    shape: tuple[int, ...]
    classes: int

    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Take the mean squares of `[B, sets, n]`, the least of every class."""
        y = values[self.reads[0]]
        return -y.square().mean(-1).reshape(len(y), -1, self.classes).amin(1)

    def widen(self, limits: Tensor, margin: float) -> Tensor:
        """Let the variance be smaller by a factor 1 + margin."""
        return limits / (1.0 + margin)

    def settled(self, largest: Tensor, margin: float) -> Tensor:
        """Return the limits for the least variances seen; a variance is never below 0."""
        limits = self.widen(largest, margin)
        return (limits + 2 * TOLERANCE * limits.abs()).clamp(max=0.0)

    def enclosure(self, limits: Tensor) -> Enclosure:
        """Return sets of any direction and at least that size."""
        sets, n = self.shape
        least = ((-limits).clamp(min=0.0) * n).sqrt().repeat(sets // self.classes)[None]
        anything = least.new_full((1, sets, n), torch.inf)
        return Enclosure.box(-anything, anything, least)

    def describe(self, index: int) -> str:
        """Name the class."""
        return "its least variance" + (f" in group {index}" if self.classes > 1 else "")

    def reading(self, figure: float, index: int) -> float:
        """Turn the sign back."""
        return -figure


@dataclass(frozen=True, slots=True)
class LargestQuantity(DomainCondition):
    """Quantities >= 0 that must not grow."""

    def widen(self, limits: Tensor, margin: float) -> Tensor:
        """Leave a factor 1 + margin."""
        return limits * (1.0 + margin)


@dataclass(frozen=True, slots=True)
class Sizes(LargestQuantity):
    """The largest entry and the largest norm of a row of one operand."""

    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Take both over all entries and rows."""
        x = values[self.reads[0]]
        rows = x.reshape(len(x), -1, x.shape[-1] if x.ndim > 1 else 1)
        return torch.stack([rows.abs().amax((1, 2)), torch.linalg.vector_norm(rows, dim=-1).amax(1)], 1)

    def describe(self, index: int) -> str:
        """Name the quantity."""
        return ("its operand's largest entry", "its operand's largest row norm")[index]


@dataclass(frozen=True, slots=True)
class StepGains(LargestQuantity):
    """The gains of a smooth step at a point, one for each operand.

    Attributes:
        operation: the step.
    """

    operation: Primitive

    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Ask what the step does over balls of radius 0."""
        points = [Enclosure.box(values[name], values[name]) for name in self.reads]
        return torch.stack([share.gain for share in self.operation.local(points).parts], 1)

    def describe(self, index: int) -> str:
        """Name the quantity."""
        return "its gain" if len(self.reads) == 1 else f"its gain in operand {index + 1}"
