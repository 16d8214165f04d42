"""Where the norms of a weight layer stand, how old they are, and how far they may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

READABLE = 0.02
"""A norm is shown only if it is off by no more than this, in decades."""
CAUTION = 3.0
"""A norm that is not measured anew is taken to move at most this many times as fast as it last did."""
FORGOTTEN = 0.4
"""What is kept of the drift that was known before: a layer that was calm for a turn may move again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormFigure:
    """One norm of a layer: alone, or with the normalizer behind it.

    Attributes:
        log10: of the norm.
        error: decades by which it may be off.
        drift: decades a step by which it was off where it was carried on; infinite if that is not known.
        over: steps over which that was seen.
    """

    log10: float
    error: float
    drift: float = math.inf
    over: int = 1

    @property
    def shown(self) -> float | None:
        """The figure, if it can be read."""
        return None if self.error > READABLE else self.log10

    def error_after(self, age: int) -> float:
        """Return by how many decades it may be off some steps later.

        Over more steps than the drift was seen over, it may have gone on to grow with every step.
        """
        return self.error if age == 0 else self.error + CAUTION * self.drift * age * max(1.0, age / self.over)

    def carried(self, grown: float, age: int) -> NormFigure:
        """Return what it is some steps later, if all that has happened is a known growth."""
        return replace(self, log10=self.log10 + grown, error=self.error_after(age))

    def corrected(self, carried: NormFigure, age: int) -> NormFigure:
        """Return the norm as measured, with how far the one that was carried on to here was off."""
        past = 0.0 if math.isinf(carried.drift) else FORGOTTEN * carried.drift
        over = max(age, 1)
        return replace(self, drift=max(abs(_growth(carried.log10, self.log10)) / over, past), over=over)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNorms:
    """The norms of a weight layer.

    Attributes:
        bare: alone.
        folded: with the normalizer behind it, if it feeds one.
        step: when they were measured.
        size: log10 of the l2 norm of the weight at that time.
        level: the mean of log10 of the variances into the normalizer behind it, at that time.
    """

    bare: NormFigure
    folded: NormFigure | None
    step: int
    size: float | None = None
    level: float | None = None

    def carried(self, step: int, size: float | None, level: float | None) -> WeightNorms:
        """Return what they are at a later step, if the layer has only grown as its size has.

        Folded with a normalizer it has also shrunk as the typical deviation there has grown.
        """
        grown, age = _growth(self.size, size), step - self.step
        grown = math.nan if size is not None and math.isnan(size) else grown
        folded = self.folded and self.folded.carried(grown - _growth(self.level, level) / 2.0, age)
        return replace(self, bare=self.bare.carried(grown, age), folded=folded)

    def is_due(self, step: int) -> bool:
        """Say whether one of them could not be shown at a later step unless it is measured again."""
        figures = (self.bare,) if self.folded is None else (self.bare, self.folded)
        return any(figure.error_after(step - self.step) > READABLE for figure in figures)

    def corrected(self, carried: WeightNorms) -> WeightNorms:
        """Return the norms as measured, with how far those that were carried on to here were off."""
        age = self.step - carried.step
        folded = self.folded and carried.folded and self.folded.corrected(carried.folded, age)
        return replace(self, bare=self.bare.corrected(carried.bare, age), folded=folded or self.folded)


def _growth(then: float | None, now: float | None) -> float:
    """Return by how much a logarithm has grown; 0 where either is not known."""
    return 0.0 if then is None or now is None or not math.isfinite(now - then) else now - then
