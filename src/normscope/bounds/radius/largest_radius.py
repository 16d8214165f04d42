"""The largest radius that passes a test, for many samples at once, in as few tests as possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import Budget
from ..balls.ball import RadiusOutcome

MAX_RADIUS_TESTS = 40
"""Tests at most; half a dozen is usual."""
MIN_RADIUS_TESTS = 3
"""Tests that are run even when the clock has run out: by then a radius has passed, as a rule."""
SMALLEST = 1e-9
"""Relative to the first radius tried: below it nothing is certified."""
LARGEST = 1e9
"""Relative to the first radius tried: the search stops there."""
FACTOR = 4.0
"""Where the tests give no hint, the next radius is larger or smaller by this."""

MAX_SLOW_POWER = 1.5
"""Below this power of the radius, rates grow slowly: a test that fails then shows that a radius close by is safe."""
FLAT = 1e-4
"""Rates are not taken to grow by more than the inverse of this between two radii."""

Test = Callable[[Tensor, Tensor], RadiusOutcome]
"""From the numbers of samples `[m]` and their radii `[m]` to lower bounds of the gaps over the balls."""


@dataclass(frozen=True, slots=True)
class Widest:
    """The outcome of a search.

    Attributes:
        radius: the largest radius that passed, per sample `[B]`; the floor where none did.
        settled: whether a radius within the tolerance above it failed, `[B]`.
        tests: how many tests were run.
    """

    radius: Tensor
    settled: Tensor
    tests: int


def widest(
    test: Test,
    gaps: Tensor,
    rates: Tensor,
    start: Tensor,
    floor: Tensor,
    *,
    rtol: float,
    budget: Budget | None = None,
    least: int = MIN_RADIUS_TESTS,
) -> Widest:
    """Search for the largest radius at which every gap stays positive.

    Balls are nested, so a radius that passes is certified whatever smaller ones do, and a test that fails says how far
    it was safe; nothing else is assumed. The next radius is guessed from the rate at which each gap was seen to shrink,
    between the last two radii that passed, or the last that passed and the least that failed.

    `gaps` and the `rates` at which they shrink are those at the centres, `[B, K]`, +inf at the label; `start` is the
    first radius tried, `floor` those already certified. A step of the budget is one test; without one there are
    `MAX_RADIUS_TESTS`. `least` radii are tried whatever the budget.
    """
    low, high = floor.clone(), torch.full_like(floor, math.inf)
    earlier, near = (_Seen(torch.zeros_like(floor), rates.clone()) for _ in range(2))
    far = _Seen(high.clone(), torch.full_like(rates, math.inf))
    probe, count = start.clone(), 0
    settled, widths = torch.zeros_like(floor, dtype=torch.bool), [torch.full_like(floor, math.inf)]
    budget = Budget(MAX_RADIUS_TESTS) if budget is None else budget
    while not bool(settled.all()) and (budget.spend() or count < least):
        rows = (~settled).nonzero()[:, 0]
        at = probe[rows]
        outcome = test(rows, at)
        left = torch.where(outcome.left.isnan(), -math.inf, outcome.left)
        count += 1
        passed = left.amin(1) > 0
        shrink_rates = torch.where(left == math.inf, 0.0, (gaps[rows] - left) / at[:, None])
        further = passed & (at > near.radius[rows])
        earlier.update(rows, near.radius[rows], near.rates[rows], further)
        near.update(rows, at, shrink_rates, further)
        far.update(rows, at, shrink_rates, ~passed & (at < far.radius[rows]))
        low[rows] = torch.maximum(low[rows], torch.where(passed, at, outcome.safe))
        high[rows] = torch.where(passed, high[rows], torch.minimum(high[rows], at))
        settled = (high <= low * (1 + rtol)) | (high <= SMALLEST * start) | (low >= LARGEST * start)
        widths.append((high / torch.maximum(low, SMALLEST * start)).log())
        slow = widths[-1] > widths[max(len(widths) - 3, 0)] / 2  # guesses that do not pay are followed by the middle
        expected, power = _predict_radius(gaps, earlier, near, far)
        probe = _choose_next(low, high, torch.where(slow, math.nan, expected), power, rtol)
    return Widest(low, settled, count)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A radius per sample `[B]`, and how fast each gap shrinks up to it `[B, K]`."""

    radius: Tensor
    rates: Tensor

    def update(self, rows: Tensor, radius: Tensor, rates: Tensor, where: Tensor) -> None:
        """Take what was seen for some of the rows."""
        self.radius[rows[where]], self.rates[rows[where]] = radius[where], rates[where]


def _predict_radius(gaps: Tensor, earlier: _Seen, near: _Seen, far: _Seen) -> tuple[Tensor, Tensor]:
    """Return the radius at which the first gap closes, and by which power of the radius the rates grow there.

    Rates are taken to grow geometrically, as they did between two radii that were tried. The radius is NaN where
    nothing tells.
    """
    failed, start = far.radius.isfinite(), near.radius[:, None]
    first, later = (torch.where(failed[:, None], a.rates, b.rates) for a, b in ((near, earlier), (far, near)))
    apart = torch.where(failed, far.radius - near.radius, near.radius - earlier.radius)
    growth = (later / torch.maximum(first, FLAT * later)).log() / apart[:, None]
    growth = torch.where(growth.isfinite(), growth, 0.0)
    rates = torch.maximum(near.rates, FLAT * later)
    low = start.expand_as(rates)
    high = torch.where(failed[:, None], far.radius[:, None], torch.where(rates > 0, gaps / rates, math.inf))
    for _ in range(30):
        middle = (low + high) / 2
        closed = rates * torch.exp(growth * (middle - start)) * middle >= gaps
        low, high = torch.where(closed, low, middle), torch.where(closed, middle, high)
    end = high.amin(1)
    mute = failed & far.rates.isinf().any(1)  # failed, and does not say by how much
    expected = torch.where(end.isfinite() & (end > 0) & ~mute, end, math.nan)
    return expected, growth.amax(1) * end


def _choose_next(low: Tensor, high: Tensor, expected: Tensor, power: Tensor, rtol: float) -> Tensor:
    """Return the next radii: close to where the gap is expected to close, or the middle where nothing is expected.

    Where rates grow slowly, it is a little above: a test that fails there shows that a radius close by is safe.
    Elsewhere it is a little below, where the test should pass.
    """
    middle = torch.where(low > high / FACTOR**2, (low * high).sqrt(), high / FACTOR)
    middle = torch.where(high.isinf(), FACTOR * low, middle)
    least, most = low * (1 + 0.9 * rtol), high / (1 + 0.9 * rtol)
    nearby = torch.where(power < MAX_SLOW_POWER, expected * (1 + rtol / 3), expected / (1 + rtol / 3))
    aimed = torch.where(expected.isnan(), middle, nearby)
    # an end that is reached again is left by just as much as settles the search if the answer is the expected one
    return torch.minimum(torch.maximum(aimed, least), torch.maximum(most, least))
