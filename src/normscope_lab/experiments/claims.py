"""`claims`: the ledger of the papers' claims, each judged by figures that the program computed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

from normscope.report import Shown
from normscope.toolkit import write_text

from .base import Experiment
from .registry import chosen_claims, source_of
from .reproducing import reproduce
from .reproduction import JudgedClaim, Reproduction, command, row


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims(Shown):
    """The ledger of claims, one row each. Prints as a table; `to_html` writes a page, `to_json` a list of objects.

    Attributes:
        rows: the claims, in the order of the papers.
        items: the results that judge them: new runs and stored ones.
    """

    page = "normscope_lab.pages.reproduction:ledger_document"

    rows: tuple[JudgedClaim, ...]
    items: tuple[Reproduction, ...] = ()

    def __iter__(self) -> Iterator[JudgedClaim]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, id: str) -> JudgedClaim:
        for one in self.rows:
            if one.id == id:
                return one
        raise KeyError(id)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
        """Return one object per claim, and write the list to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        data = [one.to_json() for one in self.rows]
        if path is not None:
            write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
        return data


def claims(names: Sequence[str] = (), *, workers: int | None = None) -> Claims:
    """Judge the claims of the papers.

    Claims of fast experiments are judged by a new run; those of long experiments by figures that are stored in the
    package, with day, commit and machine. Verdicts are computed in either case.

    Args:
        names: ids of claims (`than.lemma1`), experiments for all of their claims (`than.figure1`), or the beginning of
            several of either (`than`, `slides`); empty for all.
        workers: how many processes to start on this machine; 0 for none, None for one per core.

    Returns:
        One row per claim: `id`, `source`, `where`, `quotation`, `reading`, `verdict`, `corrected`, `evidence`,
        `figures`, `command`, `origin`.

    Raises:
        InputError: there is no such claim or experiment.
    """
    wanted = chosen_claims(names)
    live = [one.name for one, _ in wanted if not one.stored]
    ran = {one.name: one for one in reproduce(live, workers=workers).items} if live else {}
    held = {one.name: ran.get(one.name) or stored(one) for one, _ in wanted}
    ids = {claim.id for _, claims in wanted for claim in claims}
    rows = tuple(row for one, _ in wanted for row in _rows(one, held[one.name]) if row.id in ids)
    return Claims(rows=rows, items=tuple(one for one in held.values() if one is not None))


def stored(experiment: Experiment) -> Reproduction | None:
    """Return the result of an experiment that is stored in the package; None if there is none."""
    resource = files(__package__) / "stored" / f"{source_of(experiment).name}.json"
    if not resource.is_file():
        return None
    with as_file(resource) as path:
        held = Reproduction.from_json(path)
    return Reproduction(
        experiment=experiment,
        full=held.full,
        settings=held.settings,
        measured=held.measured,
        failed=held.failed,
        origin=held.origin,
    )


def _rows(experiment: Experiment, result: Reproduction | None) -> tuple[JudgedClaim, ...]:
    if result is not None:
        return result.claims
    run = command(experiment, full=True)
    why = f"there is no stored result: run `{run}`"
    return tuple(row(claim, experiment, {}, run=run, origin={}, why=why) for claim in experiment.claims)
