"""The searches for radii: by linear bounds of the margins, and by constants over balls.

Where a search starts depends on the samples alone, never on what an attack found.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from ...core.budget import Budget, affordable
from ...core.progress import Progress
from ..balls.ball import Balls
from ..balls.ball_margins import LinearMargins
from ..balls.radius_outcome import RadiusOutcome
from .largest_radius import LEAST


class RadiusStage(ABC):
    """Tests radii of samples by one method, which results name by `method`; see `affine_outcome` for the gaps."""

    method = "ball"
    effort = "fast"

    def __init__(
        self, balls: Balls, rows: Tensor, top: Tensor, gaps: Tensor, budget: Budget, progress: Progress
    ) -> None:
        self.balls, self.rows, self.top, self.gaps = balls, rows, top, gaps
        self.budget, self.progress = budget, progress
        self._some = balls

    def test(self, some: Tensor, radius: Tensor) -> RadiusOutcome:
        """Test radii `[m]` of the samples with numbers `some`; those that are settled are left out."""
        self.progress.step("radii")
        if len(some) != len(self._some.centres):
            self._some = self.balls.around(self.rows[some]) if len(some) < len(self.rows) else self.balls
        return self.tested(self._some, radius, self.top[some], self.gaps[some])

    def start(self) -> Tensor:
        """Return the first radii to try: where the linear model changes class."""
        linear = torch.where(self.rates > 0, self.gaps / self.rates, math.inf).amin(1)
        size = self.balls.centres.norm(dim=1)
        return torch.where(linear.isfinite() & (linear > 0), linear, torch.where(size > 0, size, 1.0))

    @property
    @abstractmethod
    def cost(self) -> float:
        """About how many multiplications one test of all samples takes."""

    @property
    @abstractmethod
    def rates(self) -> Tensor:
        """How fast each margin falls at the samples, `[B, K]`."""

    @abstractmethod
    def tested(self, balls: Balls, radius: Tensor, top: Tensor, gaps: Tensor) -> RadiusOutcome:
        """Test radii of some samples."""


class LinearStage(RadiusStage):
    """Linear bounds of the margins, carried back from the output."""

    method = "linear"

    @cached_property
    def cost(self) -> float:  # noqa: D102
        return LinearMargins(self.balls).cost

    def usable(self, work: float | None) -> bool:
        """Say whether linear bounds apply, and whether a few tests fit into an amount of work."""
        enough = work is None or affordable(LEAST, self.cost, work=work, least=0, device=self.rows.device) == LEAST
        return enough and LinearMargins(self.balls).usable

    @cached_property
    def rates(self) -> Tensor:  # noqa: D102
        still = torch.zeros(len(self.rows), dtype=torch.float64, device=self.rows.device)
        return LinearMargins(self.balls).rates(still, self.top, self.budget)

    def tested(self, balls: Balls, radius: Tensor, top: Tensor, gaps: Tensor) -> RadiusOutcome:  # noqa: D102
        return LinearMargins(balls).over(radius, top, gaps, self.budget)


class TiltedStage(LinearStage):
    """Linear bounds of the margins whose lines below kinks are searched for."""

    effort = "tight"

    def tested(self, balls: Balls, radius: Tensor, top: Tensor, gaps: Tensor) -> RadiusOutcome:  # noqa: D102
        return LinearMargins(balls, tilt=True).over(radius, top, gaps, self.budget)


class ConstantStage(RadiusStage):
    """Limits of the outputs and constants of their differences over the balls."""

    def __init__(
        self,
        balls: Balls,
        rows: Tensor,
        top: Tensor,
        gaps: Tensor,
        budget: Budget,
        progress: Progress,
        *,
        effort: str,
    ) -> None:
        super().__init__(balls, rows, top, gaps, budget, progress)
        self.effort = effort

    @property
    def cost(self) -> float:  # noqa: D102
        return self.balls.cost

    @cached_property
    def rates(self) -> Tensor:  # noqa: D102
        return self.balls.over(0.0).differences(self.top)

    def tested(self, balls: Balls, radius: Tensor, top: Tensor, gaps: Tensor) -> RadiusOutcome:  # noqa: D102
        return balls.over(radius, effort=self.effort).tested(top, gaps)
