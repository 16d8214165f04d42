"""`Choice`: all runs in one table, and what they recommend, with how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from ..core.codec import JsonForm, Saved
from ..core.errors import InputError
from ..experiments.statistics import half_width
from ..report.shown import Shown
from .run_outcome import WENT, RunOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One normalizer at one batch size: its best learning rate, over the seeds.

    Attributes:
        normalizer, batch_size: which.
        lr: with the smallest mean held-out loss; None if no run took place.
        outcomes: at that learning rate, one per seed; where none took place, the refusals or failures.
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
        """Of the losses."""
        return fmean(self.losses) if self.lr is not None else math.inf

    @property
    def half_width(self) -> float | None:
        """Of the interval of the mean, at 95 %; None with one seed."""
        return half_width(self.losses) if self.lr is not None else None

    @property
    def trained(self) -> int:
        """How many of the seeds trained."""
        return sum(one.status == "trained" for one in self.outcomes)

    @property
    def status(self) -> str:
        """In words."""
        if self.lr is None:
            return self.outcomes[0].status
        if 0 < self.trained < len(self.outcomes):
            return f"{self.trained} of {len(self.outcomes)} seeds"
        return "trains" if self.trained else "does not train"

    def first(self, name: str) -> Any:
        """Return a figure of the first outcome, of any learning rate, that has it."""
        every = (*self.outcomes, *self.others)
        return next((value for one in every if (value := getattr(one, name)) is not None), None)

    def mean_of(self, name: str) -> float | None:
        """Return the mean of a figure over the seeds that have it."""
        values = [value for one in self.outcomes if (value := getattr(one, name)) is not None]
        return fmean(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Saved, Shown):
    """What `normscope.choose` found. Prints as a table; `to_html` writes a page.

    Attributes:
        name: of the model.
        outcomes: one per run.
        settings: of the runs.
        notes: what the reader must know.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        kind="choice",
        noun="choice",
        write="write one with choice.to_json(path)",
        keys=("name", "recommendation", "settings", ...),
    )

    name: str
    outcomes: tuple[RunOutcome, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """One per batch size and normalizer, the best losses of each batch size first."""
        groups: dict[tuple[int, str], list[RunOutcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault((outcome.run.batch_size, outcome.run.normalizer), []).append(outcome)
        found = [_cell(normalizer, size, outcomes) for (size, normalizer), outcomes in groups.items()]
        return tuple(sorted(found, key=lambda cell: (cell.batch_size, cell.mean)))

    def cell(self, normalizer: str, batch_size: int) -> Cell:
        """Return one cell.

        Raises:
            InputError: there is none.
        """
        for cell in self.cells:
            if (cell.normalizer, cell.batch_size) == (normalizer, batch_size):
                return cell
        raise InputError(f"there is no run of {normalizer!r} at batch size {batch_size}")

    @property
    def best(self) -> Cell | None:
        """The cell with the smallest held-out loss of those whose seeds all trained; None if there is none."""
        trained = [cell for cell in self.cells if cell.lr is not None and cell.trained == len(cell.outcomes)]
        return min(trained, key=lambda cell: cell.mean, default=None)

    @property
    def recommendation(self) -> str:
        """What to use, with its figures, and how sure that is."""
        from .recommendation import recommended

        return recommended(self)

    def document(self, *, brief: bool = False) -> Any:
        """Return the report; `brief` for a terminal."""
        from .page import choice_document

        return choice_document(self, brief=brief)


def _cell(normalizer: str, size: int, outcomes: Sequence[RunOutcome]) -> Cell:
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
            outcomes=tuple(sorted(chosen, key=lambda one: one.run.seed)),
            others=tuple(one for one in outcomes if one.run.lr != lr),
        )
        for lr, chosen in rates.items()
    ]
    return min(cells, key=lambda cell: (cell.mean, cell.lr or 0.0))
