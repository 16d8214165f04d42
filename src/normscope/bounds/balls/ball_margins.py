"""Margins over balls by linear bounds alone: backwards to the input, with linear bounds of every value on the way."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.budget import Budget, affordable
from ...rules.local.local import Affine
from ..applied import multiplications
from .ball import Balls, RadiusOutcome, affine_outcome
from .enclosure import enclose
from .sweep import ROWS, Below, Relaxation, below

MOST_WORK = 2e10
"""Multiplications that one test may take: larger networks are left to the constants."""


class LinearMargins:
    """Bounds margins over balls from below by affine functions of the input."""

    def __init__(self, balls: Balls) -> None:
        self.balls = balls

    @property
    def cost(self) -> float:
        """About how many multiplications one test takes."""
        unrolled = self.balls.unrolled
        sizes = [
            math.prod(unrolled.shapes[operand])
            for step in unrolled.steps.values()
            if not isinstance(step.operation, Affine)
            for operand in step.operands
        ]
        rows = self.balls.outputs + sum(min(size, ROWS) for size in sizes)  # each goes half of the way, twice
        return len(self.balls.centres) * rows * multiplications(self.balls.captured.graph)

    @property
    def usable(self) -> bool:
        """Whether there are linear bounds: of few outputs, at an acceptable cost, where no value vanishes."""
        device = self.balls.centres.device
        cheap = affordable(1, self.cost / len(self.balls.centres), work=MOST_WORK, least=0, device=device) == 1
        return self.balls.carried and cheap and not self.balls.vanishing

    def over(self, radius: Tensor, top: Tensor, gaps: Tensor, budget: Budget) -> RadiusOutcome:
        """Test radii `[B]`; nothing is tightened any more once the clock has run out. See `affine_outcome`."""
        lines = self._below(radius, top, budget)
        offset, rates = torch.cat([item.offset for item in lines]), torch.cat([item.rates for item in lines])
        return affine_outcome(gaps, offset, rates, radius)

    def rates(self, radius: Tensor, top: Tensor, budget: Budget) -> Tensor:
        """Return how fast the affine functions below the margins fall, `[B, K]`; at radius 0 the margins themselves."""
        return torch.cat([item.rates for item in self._below(radius, top, budget)])

    def _below(self, radius: Tensor, top: Tensor, budget: Budget) -> list[Below]:
        balls, shape = self.balls, self.balls.captured.graph.output_shape
        eye = torch.eye(balls.outputs, dtype=torch.float64, device=radius.device)
        lines = []
        with torch.no_grad():
            for values, some, label in zip(balls.chunks, radius.split(balls.step), top.split(balls.step), strict=True):
                helpers = [Relaxation(budget)]
                enclosures = enclose(
                    balls.unrolled, values, some, balls.bounding.norm, ceilings=balls.ceilings, helpers=helpers
                )
                rows = (eye[label][:, None] - eye[None]).reshape(len(some), balls.outputs, *shape)
                lines.append(below(enclosures, balls.unrolled.output, rows))
        return lines
