"""`Reproductions`: experiments that were run, as one page, and as files of results, tables and pictures."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import write_text
from ..report.document import Chart, Circle, Curves, Table
from ..report.export import picture, table_csv
from ..report.shown import Shown
from .reproduction import JudgedClaim, Reproduction


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproductions(Shown):
    """The experiments that `normscope reproduce` ran. Prints as tables; `to_html` writes one page for all of them.

    Attributes:
        items: one per experiment.
        notes: what the reader must know.
    """

    page = "reproduction:reproductions_document"

    items: tuple[Reproduction, ...]
    notes: tuple[str, ...] = ()

    @property
    def claims(self) -> tuple[JudgedClaim, ...]:
        """All claims with their verdicts."""
        return tuple(claim for one in self.items for claim in one.claims)

    def __getitem__(self, name: str) -> Reproduction:
        for one in self.items:
            if one.name == name:
                return one
        raise KeyError(name)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the result of each experiment, its figures and tables as CSV, and its pictures as SVG.

        Args:
            folder: the folder in which each experiment gets its own.

        Raises:
            InputError: a file cannot be written.
        """
        for one in self.items:
            target = Path(folder) / one.name
            try:
                target.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot write into {target}: {error.strerror or error}") from error
            one.to_json(target / "result.json")
            write_text(target / "figures.csv", _rows([("figure", "value"), *one.figures.items()]))
            for number, block in enumerate(one.drawn(), 1):
                if isinstance(block, Table):
                    write_text(target / f"table{number}.csv", table_csv(block))
                elif isinstance(block, Chart | Curves | Circle) and (drawn := picture(block)):
                    write_text(target / f"picture{number}.svg", drawn)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
        """Return plain data of every experiment, and write it to a file if a path is given.

        Raises:
            InputError: the file cannot be written.
        """
        data = [one.to_json() for one in self.items]
        if path is not None:
            write_text(path, json.dumps(data, allow_nan=False) + "\n")
        return data


def _rows(rows: list[tuple[Any, Any]]) -> str:
    return "".join(f"{name},{value}\n" for name, value in rows)
