"""The largest radius that passes a test, for many samples at once, in as few tests as possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 40
"""Tests at most; half a dozen is usual."""
SMALLEST = 1e-9
"""Relative to the first radius tried: below it nothing is certified."""
LARGEST = 1e9
"""Relative to the first radius tried: the search stops there."""
FACTOR = 8.0
"""Where the tests give no hint, the next radius is larger or smaller by this."""

Test = Callable[[Tensor], Tensor]
"""From radii `[B]` to lower bounds of the gaps `[B, K]` over the balls; +inf at the label."""


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
    until: Callable[[], bool] = lambda: False,
) -> Widest:
    """Search for the largest radius at which every gap stays positive.

    Balls are nested, so a radius that passes is certified whatever smaller ones do; nothing else is assumed. The next
    radius is guessed from the rate at which each gap was seen to shrink, interpolated between two radii.

    Args:
        test: lower bounds of the gaps over balls.
        gaps: at the centres, `[B, K]`, positive; +inf at the label.
        rates: how fast each gap shrinks at the centre, `[B, K]`.
        start: the first radius tried, `[B]`, finite and positive.
        floor: radii already certified, `[B]`.
        rtol: how close to each other the last passing and the first failing radius shall be, relatively.
        until: says when time is up.
    """
    low, high = floor.clone(), torch.full_like(floor, math.inf)
    near, far = _Seen(torch.zeros_like(floor), rates), _Seen(high, torch.full_like(rates, math.inf))
    probe, count = start, 0
    settled = torch.zeros_like(floor, dtype=torch.bool)
    while count < MOST and not bool(settled.all()) and not (count and until()):
        left = test(probe)
        left = torch.where(left.isnan(), -math.inf, left)
        count += 1
        passed, open_ = left.amin(1) > 0, ~settled
        now = _Seen(probe, torch.where(left == math.inf, 0.0, (gaps - left) / probe[:, None]))
        near = near.replaced(now, passed & open_ & (probe > near.radius))
        far = far.replaced(now, ~passed & open_ & (probe < far.radius))
        low = torch.where(passed & open_, torch.maximum(low, probe), low)
        high = torch.where(passed | settled, high, torch.minimum(high, probe))
        settled = (high <= low * (1 + rtol)) | (high <= SMALLEST * start) | (low >= LARGEST * start)
        expected = _expected(gaps, near, far) if count % 4 else torch.full_like(low, math.nan)
        probe = torch.where(settled, torch.where(low > 0, low, start), _next(low, high, expected, rtol))
    return Widest(low, settled, count)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A radius per sample `[B]`, and how fast each gap shrinks up to it `[B, K]`."""

    radius: Tensor
    rates: Tensor

    def replaced(self, other: _Seen, where: Tensor) -> _Seen:
        """Return the other one for some samples."""
        radius = torch.where(where, other.radius, self.radius)
        return _Seen(radius, torch.where(where[:, None], other.rates, self.rates))


def _expected(gaps: Tensor, near: _Seen, far: _Seen) -> Tensor:
    """Return where the first gap closes if rates grow linearly between what was seen; NaN where nothing tells."""
    growth = (far.rates - near.rates) / (far.radius - near.radius)[:, None]
    growth = torch.where(growth.isfinite(), growth, 0.0)
    base = near.rates - growth * near.radius[:, None]
    root = 2 * gaps / (base + (base.square() + 4 * growth * gaps).sqrt())
    root = torch.where(gaps.isinf() | (near.rates + growth <= 0), math.inf, root)
    closed = root.amin(1)
    hopeless = far.radius.isfinite() & far.rates.isinf().any(1)  # failed, and does not say by how much
    return torch.where(closed.isfinite() & (closed > 0) & ~hopeless, closed, math.nan)


def _next(low: Tensor, high: Tensor, expected: Tensor, rtol: float) -> Tensor:
    """Return the next radii: a little below where the gap is expected to close, or the middle where nothing is."""
    middle = torch.where(low > 0, (low * high).sqrt(), high / FACTOR)
    middle = torch.where(high.isinf(), FACTOR * low, middle)
    least, most = low * (1 + 0.9 * rtol), high / (1 + 0.9 * rtol)
    aimed = torch.where(expected.isnan(), middle, expected / (1 + rtol / 3))
    # an end that is reached again is left by just as much as settles the search if the answer is the expected one
    return torch.minimum(torch.maximum(aimed, least), torch.maximum(most, least))
