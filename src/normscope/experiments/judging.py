"""How figures become verdicts: the few patterns that all claims share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..bounds.data.order import rank_above, rank_below
from .base import Figures, Judgement, Verdict

ROUNDING = 1e-9
"""Relative differences below it count as rounding of float64."""
CONFIDENCE = 0.975
"""Of each end of an interval for a median."""
FEWEST = 6
"""Values from which there is such an interval."""
TOO_FEW = f"Fewer than {FEWEST} seeds decide nothing: the full version has more."
MEDIAN, LOW, HIGH, COUNT = ".median", ".low", ".high", ".seeds"
"""Endings of the names of the figures that `spread` makes."""


Judge = Callable[[Figures], Judgement]
"""What a claim is judged by."""


class Spread(NamedTuple):
    """A median over seeds with its interval."""

    median: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.median:.3g} (median of {self.seeds} seeds, interval {self.low:.3g} to {self.high:.3g})"


def judged(printed: bool, evidence: str, *, corrected: bool = False) -> Judgement:
    """Return `holds`; where the printed form is violated `holds with correction` if the corrected form is not."""
    verdict = Verdict.HOLDS if printed else Verdict.CORRECTED if corrected else Verdict.FAILS
    return Judgement(verdict, evidence)


def by_convention(outcomes: Sequence[bool], evidence: str) -> Judgement:
    """Return `depends on convention` where the claim holds under some of its readings and not under others."""
    return by_count(sum(outcomes), len(outcomes), evidence)


def by_count(count: float, every: float, evidence: str) -> Judgement:
    """Return `holds` where a claim is true of all that were tried, `fails` where of none, else `depends on convention`.

    Args:
        count: of how many it is true.
        every: how many were tried.
        evidence: what was seen, in words.
    """
    verdict = Verdict.HOLDS if count >= every else Verdict.CONVENTION if count > 0 else Verdict.FAILS
    return Judgement(verdict, evidence)


def decided(found: Spread, *, above: float | None = None, below: float | None = None, evidence: str) -> Judgement:
    """Judge whether a median over seeds lies above, or below, a value; `not testable` where its interval covers it.

    Args:
        found: the median with its interval.
        above: the claim is that the median lies above this.
        below: the claim is that it lies below this.
        evidence: what was seen, in words.
    """
    assert (above is None) != (below is None)
    if found.seeds < FEWEST:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} {TOO_FEW}")
    held = found.low > above if above is not None else found.high < (below or 0.0)
    broken = found.high <= above if above is not None else found.low >= (below or 0.0)
    if held or broken:
        return Judgement(Verdict.HOLDS if held else Verdict.FAILS, evidence)
    limit = above if above is not None else below
    return Judgement(
        Verdict.NOT_TESTABLE,
        f"{evidence} The interval covers {limit:g}: {found.seeds} seeds do not decide it.",
    )


def readings(found: Sequence[Spread], *, above: float, evidence: str) -> Judgement:
    """Judge whether medians over seeds, one for each reading of a claim, lie above a value.

    `depends on convention` where one reading holds and another is broken; `not testable` where some are not decided.
    """
    if min(one.seeds for one in found) < FEWEST:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} {TOO_FEW}")
    held, broken = [one.low > above for one in found], [one.high <= above for one in found]
    if any(held) and any(broken):
        return Judgement(Verdict.CONVENTION, evidence)
    if all(held) or all(broken):
        return Judgement(Verdict.HOLDS if all(held) else Verdict.FAILS, evidence)
    return Judgement(Verdict.NOT_TESTABLE, f"{evidence} An interval covers {above:g}: these seeds do not decide it.")


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the median of values with an interval that holds the true median in 95 % of all cases, as figures.

    The interval is one of order statistics and assumes nothing of the distribution. Fewer than six values give none
    with that confidence: then it goes from the least to the largest.

    Example:
        >>> spread("ratio", [3.0, 1.0, 2.0])
        {'ratio.median': 2.0, 'ratio.low': 1.0, 'ratio.high': 3.0, 'ratio.seeds': 3.0}
    """
    ordered = sorted(values, key=lambda value: math.inf if math.isnan(value) else value)
    if not ordered:
        return {name + MEDIAN: math.nan, name + LOW: -math.inf, name + HIGH: math.inf, name + COUNT: 0.0}
    size = len(ordered)
    middle = (ordered[(size - 1) // 2] + ordered[size // 2]) / 2.0
    below, above = rank_below(size, 0.5, CONFIDENCE) or 1, rank_above(size, 0.5, CONFIDENCE) or size
    return {
        name + MEDIAN: middle,
        name + LOW: ordered[below - 1],
        name + HIGH: ordered[above - 1],
        name + COUNT: float(size),
    }


def read(figures: Figures, name: str) -> Spread:
    """Return the median and interval that `spread` left under a name."""
    median, low, high, seeds = (figures[name + ending] for ending in (MEDIAN, LOW, HIGH, COUNT))
    return Spread(median, low, high, int(seeds))


def flat(measured: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of a measured job as figures."""
    return {name: float(value) for name, value in measured.items()}
