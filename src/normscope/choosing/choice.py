"""`Choice`: all runs in one table, and the recommendation that follows, with how certain it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.codec import JsonForm, Saved
from ..core.errors import InputError
from ..report.shown import Shown
from .cell import Cell, best_rate
from .recommendation import recommended
from .run_outcome import RunOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Saved, Shown):
    """What `normscope.choose` found. Prints as a table; `to_html` writes a page.

    Attributes:
        name: the model's name.
        outcomes: one per run.
        settings: the settings that all runs share.
        notes: what the reader must know.
    """

    page = "choice:choice_document"
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
        """One cell per batch size and normalizer, for each batch size those with the smallest loss first."""
        groups: dict[tuple[int, str], list[RunOutcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault((outcome.run.batch_size, outcome.run.normalizer), []).append(outcome)
        cells = [best_rate(normalizer, size, outcomes) for (size, normalizer), outcomes in groups.items()]
        return tuple(sorted(cells, key=lambda cell: (cell.batch_size, cell.mean)))

    def cell(self, normalizer: str, batch_size: int) -> Cell:
        """Return the cell of a normalizer at a batch size.

        Raises:
            InputError: there is no such cell.
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
        """What to use, with its figures and how certain that is."""
        return recommended(self.cells, self.best)
