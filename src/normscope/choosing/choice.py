"""`Choice`: all runs in one table, and what they recommend, with how sure that is."""

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
        name: of the model.
        outcomes: one per run.
        settings: of the runs.
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
        """One per batch size and normalizer, the best losses of each batch size first."""
        groups: dict[tuple[int, str], list[RunOutcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault((outcome.run.batch_size, outcome.run.normalizer), []).append(outcome)
        found = [best_rate(normalizer, size, outcomes) for (size, normalizer), outcomes in groups.items()]
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
        return recommended(self.cells, self.best)
