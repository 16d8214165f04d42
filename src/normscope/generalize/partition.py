"""Partitions of the input space, fixed before the samples are seen: cells around centres, or a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import InputError

KINDS = ("split", "random", "grid")
"""Cells around samples that are not in D; cells around points drawn at random in the input range; boxes."""


@dataclass(frozen=True, slots=True, eq=False)
class Voronoi:
    """A cell per centre: the points nearest to it. With a radius, only those within it; one more cell holds the others.

    Attributes:
        centres: `[N, n]`, no two of them equal.
        radius: the radius of the cells, or None.
    """

    centres: Tensor
    radius: float | None = None

    def __post_init__(self) -> None:
        if len(torch.unique(self.centres, dim=0)) < len(self.centres):
            raise InputError(
                f"two of the {len(self.centres)} centres of the partition are the same point, so that a cell is empty: "
                "ask for fewer cells, or pass other data to take them from"
            )

    @property
    def size(self) -> int:
        """How many cells there are for each label."""
        return len(self.centres) + (self.radius is not None)

    def assign(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cell of each flat point `[B, n]`, and its offset from the centre of that cell `[B, n]`."""
        points = points.double()  # In single precision, points far from the origin would lose all digits.
        centres = self.centres.to(points)
        squares = centres.square().sum(1) - 2.0 * points @ centres.T
        nearest = squares.argmin(1)
        offsets = points - centres[nearest]
        if self.radius is None:
            return nearest, offsets
        inside = offsets.norm(dim=1) <= self.radius
        return torch.where(inside, nearest, len(centres)), offsets

    def reach(self, low: float | None, high: float | None) -> Tensor:
        """Return how far from its centre a point of each cell can be, if all entries lie between `low` and `high`."""
        if self.radius is not None:
            return torch.tensor([self.radius] * len(self.centres) + [math.inf], dtype=torch.float64)
        if low is None or high is None:
            return torch.full((self.size,), math.inf, dtype=torch.float64)
        centres = self.centres.double()
        return torch.maximum((centres - low).abs(), (high - centres).abs()).square().sum(1).sqrt().cpu()


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Boxes: some entries of the input are cut into bins, the others are left whole.

    Attributes:
        low, high: the range in which every entry lies.
        axes: the entries that are cut.
        bins: how many bins each of them is cut into.
        features: n, the number of entries of an input.
    """

    low: float
    high: float
    axes: Tensor
    bins: int
    features: int
    _steps: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InputError(f"a grid from {self.low} to {self.high} has empty cells: low must be below high")
        object.__setattr__(self, "_steps", self.bins ** torch.arange(len(self.axes)))

    @property
    def size(self) -> int:
        """How many cells there are for each label."""
        return self.bins ** len(self.axes)

    @property
    def width(self) -> float:
        """The width of a bin."""
        return (self.high - self.low) / self.bins

    def assign(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cell of each flat point `[B, n]`, and its offset from the middle of that cell `[B, n]`."""
        points, axes = points.double(), self.axes.to(points.device)
        bins = ((points[:, axes] - self.low) / self.width).floor().clamp(0, self.bins - 1).long()
        offsets = points - (self.low + self.high) / 2.0
        offsets[:, axes] = points[:, axes] - (self.low + (bins + 0.5) * self.width)
        return (bins * self._steps.to(points.device)).sum(1), offsets

    def reach(self, low: float | None, high: float | None) -> Tensor:
        """Return how far from its middle a point of each cell can be: half the diagonal of the box."""
        whole = self.features - len(self.axes)
        square = len(self.axes) * (self.width / 2.0) ** 2 + whole * ((self.high - self.low) / 2.0) ** 2
        return torch.full((self.size,), math.sqrt(square), dtype=torch.float64)


Partition = Voronoi | Grid


def grid(size: int, features: int, low: float, high: float, generator: torch.Generator) -> Grid:
    """Return a grid with at most `size` boxes: two bins or more along as many entries as that allows."""
    count = max(1, min(features, int(math.log2(size)))) if size > 1 else 1
    bins = max(1, int(size ** (1.0 / count) + 1e-9))
    axes = torch.randperm(features, generator=generator)[:count].sort().values
    return Grid(low, high, axes, bins, features)


def partitions(
    kind: str,
    sizes: tuple[int, ...],
    *,
    features: int,
    points: Tensor | None,
    dtype: torch.dtype,
    radius: float | None,
    input_range: tuple[float, float] | None,
    generator: torch.Generator,
) -> tuple[Partition, ...]:
    """Return one partition per size; none of them depends on the samples of D."""
    if kind == "grid":
        if input_range is None or radius is not None:
            raise InputError('partition="grid" needs input_range=(low, high), and has no radius')
        return tuple(grid(size, features, *input_range, generator) for size in sizes)
    if kind == "random":
        if input_range is None:
            raise InputError('partition="random" draws centres from input_range=(low, high): give it')
        low, high = input_range
        points = low + (high - low) * torch.rand(max(sizes), features, generator=generator)
        points = points.to(dtype)
    assert points is not None
    return tuple(Voronoi(points[:size], radius) for size in sizes)
