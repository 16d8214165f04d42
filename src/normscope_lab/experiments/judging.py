"""How figures become verdicts: the few patterns that all claims share.

One rule for all claims:

- `holds`: true as written, for everything that was tried.
- `holds with correction`: what the claim says exists and goes the way it says, but a constant, a term of a formula or a
  condition had to be mended, and the mended form was computed to hold. So too where it is true of most, and not of all,
  of the networks, data or ways to train that it speaks of, and where a printed figure is off but the comparison that it
  illustrates comes out as the claim says.
- `fails`: there is no such thing, it goes the other way, it is true of half or fewer of what was tried, or a figure
  that is all the claim says comes out in no reading.
- `depends on convention`: true in one reading of its words and false in another: which norm, which definition, which
  kind of weight decay, which mode, which of several sets of weights of one function. What differs between networks,
  data or settings is no convention.
- `not testable`: what was measured leaves it open. Fewer than six seeds decide nothing by a median or an interval; a
  count over networks or configurations needs no seeds. A run that came less than half of its way decides nothing about
  the end of training.
- `measurement`: no source claims it; it has figures and no verdict.

A printed figure comes out if the measured one is within a factor of 2 of it, or within a tenth of its exponent if that
is more: 5 lies between 2.5 and 10, and 10^50 between 10^45 and 10^55. Algebra holds to 1e-9 of its size, second
derivatives and gradients of networks to 1e-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from normscope.toolkit import rank_above, rank_below

from .base import Figures, Judgement, Verdict

ROUNDING = 1e-9
"""Relative differences below it count as rounding of float64."""
CONFIDENCE = 0.975
"""The confidence of each end of an interval for a median."""
FEWEST = 6
"""The least number of values for which there is such an interval."""
TOO_FEW = f"Fewer than {FEWEST} seeds decide nothing."
MEDIAN, LOW, HIGH, COUNT = ".median", ".low", ".high", ".seeds"
SPREAD = (MEDIAN, LOW, HIGH, COUNT)
"""Endings of the names of the figures that `spread` makes."""


Judge = Callable[[Figures], Judgement]
"""A function from the figures of an experiment to the verdict on a claim."""


class SeedSpread(NamedTuple):
    """A median over seeds with its interval."""

    median: float
    low: float
    high: float
    seeds: int

    def negated(self) -> SeedSpread:
        """Return the median of the values with the other sign."""
        return self._replace(median=-self.median, low=-self.high, high=-self.low)

    def __str__(self) -> str:
        return f"{self.median:.3g} (median of {self.seeds} seeds, interval {self.low:.3g} to {self.high:.3g})"


def near(log10_value: float, log10_printed: float) -> bool:
    """Return whether a measured figure is a printed one: to a factor of 2, or a tenth of its exponent."""
    return abs(log10_value - log10_printed) <= max(math.log10(2.0), abs(log10_printed) / 10.0)


def reaches(share: float, limit: str) -> str:
    """Return in words which share of a limit something reaches at most."""
    return f"reaches {limit}" if abs(share - 1.0) < 5e-3 else f"reaches {share:.3g} of {limit}"


def judged(printed: bool, evidence: str, *, corrected: bool = False) -> Judgement:
    """Return `holds`; where the printed form is violated `holds with correction` if the corrected form is not."""
    verdict = Verdict.HOLDS if printed else Verdict.CORRECTED if corrected else Verdict.FAILS
    return Judgement(verdict, evidence)


def with_seeds(seeds: float, judgement: Judgement) -> Judgement:
    """Return a judgement that depends on several seeds; it becomes `not testable` where there are too few seeds."""
    if seeds < FEWEST:
        return Judgement(Verdict.NOT_TESTABLE, f"{judgement.evidence} {TOO_FEW}")
    return judgement


def by_convention(outcomes: Sequence[bool], evidence: str) -> Judgement:
    """Return `depends on convention` where the claim holds under some of its readings and not under others."""
    return Judgement(of_readings([Verdict.HOLDS if one else Verdict.FAILS for one in outcomes]), evidence)


def by_count(count: float, every: float, evidence: str) -> Judgement:
    """Judge a claim about all cases by the number of tried cases for which it is true: all, most or fewer."""
    verdict = Verdict.HOLDS if count >= every else Verdict.CORRECTED if 2.0 * count > every else Verdict.FAILS
    return Judgement(verdict, evidence)


def of_all(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim about several networks, data sets or parts, from the verdict on each of them.

    An undecided case leaves the claim open, unless the verdict is the same whichever way that case turns out.
    """
    held, undecided = (sum(one is kind for one in verdicts) for kind in (Verdict.HOLDS, Verdict.NOT_TESTABLE))
    least, most = (by_count(count, len(verdicts), "").verdict for count in (held, held + undecided))
    return least if least is most else Verdict.NOT_TESTABLE


def of_readings(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim from the verdict on each reading of its words."""
    different = set(verdicts)
    if Verdict.FAILS in different and different & {Verdict.HOLDS, Verdict.CORRECTED}:
        return Verdict.CONVENTION
    if Verdict.NOT_TESTABLE in different:
        return Verdict.NOT_TESTABLE
    return Verdict.CORRECTED if len(different) > 1 else different.pop()


def decided(
    spread_over_seeds: SeedSpread, *, above: float | None = None, below: float | None = None, evidence: str
) -> Judgement:
    """Judge whether a median over seeds lies above (or below) a value; `not testable` if its interval covers it."""
    assert (above is None) != (below is None)
    if spread_over_seeds.seeds < FEWEST:
        return with_seeds(spread_over_seeds.seeds, Judgement(Verdict.NOT_TESTABLE, evidence))
    held = spread_over_seeds.low > above if above is not None else spread_over_seeds.high < (below or 0.0)
    broken = spread_over_seeds.high <= above if above is not None else spread_over_seeds.low >= (below or 0.0)
    if held or broken:
        return Judgement(Verdict.HOLDS if held else Verdict.FAILS, evidence)
    limit = above if above is not None else below
    return Judgement(
        Verdict.NOT_TESTABLE,
        f"{evidence} The interval covers {limit:g}: {spread_over_seeds.seeds} seeds do not decide it.",
    )


def readings(spreads: Sequence[Sequence[SeedSpread]], *, above: float, evidence: str) -> Judgement:
    """Judge whether medians over seeds lie above a value, in every reading of a claim and for all its subjects."""
    each = [[decided(one, above=above, evidence=evidence).verdict for one in same] for same in spreads]
    verdict = of_readings([of_all(same) for same in each])
    fewest = min(one.seeds for same in spreads for one in same)
    if verdict is Verdict.NOT_TESTABLE and fewest >= FEWEST:
        evidence += f" An interval covers {above:g}: these seeds do not decide it."
    return with_seeds(fewest, Judgement(verdict, evidence))


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return, as figures, the median of values with an interval that holds the true median in 95 % of all cases.

    The ends of the interval are order statistics, so that nothing is assumed about the distribution. For fewer than six
    values there is no interval of that confidence, and it goes from the least to the largest value.

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


def read(figures: Figures, name: str) -> SeedSpread:
    """Return the median and interval that `spread` stored under a name."""
    median, low, high, seeds = (figures[name + ending] for ending in SPREAD)
    return SeedSpread(median, low, high, int(seeds))


def flat(measured: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of a measured job as figures."""
    return {name: float(value) for name, value in measured.items()}
