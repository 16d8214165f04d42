"""Margins over balls by linear bounds alone: backwards to the input, with linear bounds of every value on the way."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.budget import Budget, affordable
from ...rules.local.local import Affine, Lines
from ..applied import multiplications
from ..minimise import minimise
from .ball import Balls, RadiusOutcome, affine_outcome
from .enclosure import Enclosures, enclose
from .sweep import ROWS, Below, Relaxation, below

MOST_WORK = 2e10
"""Multiplications that one test may take: larger networks are left to the constants."""
TILTS, RATE = 12, 0.25
"""Steps of Adam on lower lines, and the first step's length; the last is a tenth of it."""


class LinearMargins:
    """Bounds margins over balls from below by affine functions of the input; `tilt` searches the lines of kinks."""

    def __init__(self, balls: Balls, *, tilt: bool = False) -> None:
        self.balls, self.tilt = balls, tilt

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
                lines.append((tilted if self.tilt else below)(enclosures, balls.unrolled.output, rows))
        return lines


def tilted(enclosures: Enclosures, name: str, rows: Tensor) -> Below:
    """Bound combinations of a value's entries as `below`, with the slopes of kinks that were found to suit each best.

    Below a ReLU every line of slope 0 to 1 through the origin will do. Each combination of outputs has slopes of its
    own, which a few steps of Adam improve; none ends below the plain choice.

    Reference: Xu et al. 2021 (alpha-CROWN), for the output alone: what is known of inner values is not touched.
    """
    plain, shares = below(enclosures, name, rows), _shares(enclosures, name, rows)

    def evaluate() -> tuple[Tensor, Tensor, Tensor]:
        lines = below(enclosures, name, rows, shares)
        return -lines.least(enclosures.radius), lines.slopes, lines.offset

    if not shares:
        return plain
    _, slopes, offset = minimise(
        list(shares.values()),
        evaluate,
        (-plain.least(enclosures.radius), plain.slopes, plain.offset),
        turns=range(TILTS + 1),
        rate=RATE,
        betas=(0.5, 0.9),
        decay=0.1 ** (1 / TILTS),
        interval=(0.0, 1.0),
    )
    return Below(slopes, offset)


def _shares(enclosures: Enclosures, name: str, rows: Tensor) -> dict[str, Tensor]:
    """Return where the plain lower lines lie in their swing, for every step on the way that has one, row by row."""
    shares = {}
    for step in enclosures.unrolled.before(name):
        local = enclosures.locals.get(step.name)
        lines: Lines | None = None if local is None or local.lines is None else local.lines()
        if lines is None or lines.swing is None or bool((lines.swing[0] >= lines.swing[1]).all()):
            continue
        least, most = lines.swing
        share = torch.where(most > least, (lines.low_slopes[0] - least) / (most - least).clamp(min=1e-300), 0.0)
        every = share[:, None].expand(-1, rows.shape[1], *share.shape[1:])
        shares[step.name] = every.clone().clamp_(0.0, 1.0).requires_grad_(True)
    return shares
