"""Where the derivative of a function of one entry turns: its kinks and the extrema of its derivative.

Between its turning points a derivative is monotone, so that its range over an interval is spanned by its values at both
ends and on both sides of the turning points inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """A point (or one per entry), or with a `period` every point `at + k period`."""

    at: float | Tensor
    period: float | None = None

    def inside(self, low: Tensor, high: Tensor) -> Tensor:
        """Say where an interval holds such a point."""
        if self.period is None:
            return (low <= self.at) & (high >= self.at)
        return torch.floor((high - self.at) / self.period) >= torch.ceil((low - self.at) / self.period)


def turning(*points: float) -> tuple[TurningPoint, ...]:
    """Return single turning points."""
    return tuple(TurningPoint(point) for point in points)
