"""`Cell`: one normalizer at one batch size, over the seeds and learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from .run_outcome import WENT, RunOutcome

LEVEL = 0.95
"""The confidence level of intervals."""


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean, by Student's t; None for fewer than two values.

    Example:
        >>> round(half_width([1.0, 2.0, 3.0]), 3)
        2.484
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One normalizer at one batch size: its best learning rate, over the seeds.

    Attributes:
        normalizer, batch_size: the normalizer and the batch size.
        lr: the learning rate with the smallest mean held-out loss; None if no run took place.
        outcomes: the outcomes at that learning rate, one per seed; if no run took place, the refusals or failures.
        others: the outcomes at other learning rates.
    """

    normalizer: str
    batch_size: int
    lr: float | None
    outcomes: tuple[RunOutcome, ...]
    others: tuple[RunOutcome, ...] = ()

    @property
    def losses(self) -> tuple[float, ...]:
        """Held-out losses by seed; a run without one counts as infinite."""
        return tuple(math.inf if one.loss is None or math.isnan(one.loss) else one.loss for one in self.outcomes)

    @property
    def mean(self) -> float:
        """The mean of the held-out losses; infinite if no run took place."""
        return fmean(self.losses) if self.lr is not None else math.inf

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval of the mean; None with one seed."""
        return half_width(self.losses) if self.lr is not None else None

    @property
    def trained(self) -> int:
        """How many of the seeds trained."""
        return sum(one.status == "trained" for one in self.outcomes)

    @property
    def status(self) -> str:
        """Whether the runs trained, in words."""
        if self.lr is None:
            return self.outcomes[0].status
        if 0 < self.trained < len(self.outcomes):
            return f"{self.trained} of {len(self.outcomes)} seeds"
        return "trains" if self.trained else "does not train"

    def first(self, name: str) -> Any:
        """Return a figure of the first outcome that has it, at any learning rate."""
        every = (*self.outcomes, *self.others)
        return next((value for one in every if (value := getattr(one, name)) is not None), None)

    def mean_of(self, name: str) -> float | None:
        """Return the mean of a figure over the seeds that have it."""
        values = [value for one in self.outcomes if (value := getattr(one, name)) is not None]
        return fmean(values) if values else None


def best_rate(normalizer: str, size: int, outcomes: Sequence[RunOutcome]) -> Cell:
    """Return the cell of a normalizer at a batch size, at the learning rate with the smallest mean loss."""
    rates: dict[float, list[RunOutcome]] = {}
    for outcome in outcomes:
        if outcome.status in WENT:
            rates.setdefault(outcome.run.lr, []).append(outcome)
    if not rates:
        return Cell(normalizer=normalizer, batch_size=size, lr=None, outcomes=tuple(outcomes))
    cells = [
        Cell(
            normalizer=normalizer,
            batch_size=size,
            lr=lr,
            outcomes=tuple(sorted(at_rate, key=lambda one: one.run.seed)),
            others=tuple(one for one in outcomes if one.run.lr != lr),
        )
        for lr, at_rate in rates.items()
    ]
    return min(cells, key=lambda cell: (cell.mean, cell.lr or 0.0))
