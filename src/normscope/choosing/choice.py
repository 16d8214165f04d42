"""`Choice`: all runs in one table, and what they recommend, with how sure that is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError, said
from ..core.files import read_json, write_text
from ..core.json_values import plain
from ..report.shown import Shown
from .cell import Cell, best_rate
from .recommendation import recommended
from .run_outcome import RunOutcome

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Shown):
    """What `normscope.choose` found. Prints as a table; `to_html` writes a page.

    Attributes:
        name: of the model.
        outcomes: one per run.
        settings: of the runs.
        notes: what the reader must know.
    """

    page = "choice:choice_document"

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

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        data = plain(
            {
                "schema_version": SCHEMA_VERSION,
                "type": "choice",
                "name": self.name,
                "recommendation": self.recommendation,
                "settings": dict(self.settings),
                "outcomes": [outcome.to_json() for outcome in self.outcomes],
                "notes": self.notes,
            }
        )
        if path is not None:
            write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
        return data

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Choice:
        """Return the choice that `to_json` wrote.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: there is no choice of this version.
        """
        data = source if isinstance(source, Mapping) else read_json(source)
        if (
            not isinstance(data, Mapping)
            or data.get("type") != "choice"
            or data.get("schema_version") != SCHEMA_VERSION
        ):
            raise InputError("that holds no choice of this version: write one with choice.to_json(path)")
        try:
            outcomes = tuple(map(RunOutcome.from_json, data["outcomes"]))
            return cls(
                name=data["name"], outcomes=outcomes, settings=dict(data["settings"]), notes=tuple(data["notes"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"that is a damaged choice ({said(error)})") from error
