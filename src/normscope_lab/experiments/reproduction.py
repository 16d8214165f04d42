"""`Reproduction`: what the jobs of an experiment measured, its figures and judged claims; `Reproductions`: several."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from normscope.report import Block, Chart, Curves, Shown, Table, picture, table_csv
from normscope.toolkit import (
    InputError,
    JsonForm,
    Part,
    decode,
    describe_error,
    from_plain,
    open_json,
    to_plain,
    write_text,
)

from .base import Claim, Experiment, Figures, Job, Judgement, Measured, Settings, Verdict
from .judging import SPREAD
from .registry import registered

FORM = JsonForm(kind="reproduction", noun="reproduction", write="write one with normscope lab reproduce --folder")
AMENDED = (Verdict.CORRECTED, Verdict.FAILS, Verdict.CONVENTION)
"""The verdicts on claims that are not true as they stand, beside which the corrected statement is shown."""
UNREADABLE = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""The errors of computing figures from jobs that are missing or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim(Part):
    """One row of the ledger of claims.

    Attributes:
        id, source, where: the name of the claim, the paper, and the place in it.
        quotation: the source's own words; empty where no source says it, or its text is not at hand.
        reading: our reading of them.
        verdict: the verdict, computed from the figures.
        corrected: the corrected statement, where the claim is not true as it stands.
        evidence: the computed figures, in a sentence, or what `table` holds.
        table: rows of figures in words, the heading first; empty where the sentence has them.
        figures: the figures that the verdict was computed from; those over seeds have `median`, `low`, `high`, `seeds`.
        task: the one task on which the verdict stands; empty for a statement about formulas.
        command: the command that computes them again.
        origin: day, commit, machine, versions and processor time of the result.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("origin", "task", "corrected", "table"))

    id: str
    source: str
    where: str
    quotation: str
    reading: str
    verdict: Verdict
    corrected: str = ""
    evidence: str
    table: tuple[tuple[str, ...], ...] = ()
    figures: Mapping[str, Any]
    task: str = ""
    command: str
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict_in_words(self) -> str:
        """The verdict, with the task on which alone it stands."""
        judged = self.verdict not in (Verdict.MEASURED, Verdict.NOT_TESTABLE)
        return f"{self.verdict}, {self.on_task}" if self.task and judged else str(self.verdict)

    @property
    def on_task(self) -> str:
        """The task, or the tasks, on which alone the verdict stands, in words."""
        return f"on {'these tasks' if '; ' in self.task else 'this task'} ({self.task})"


@dataclass(frozen=True, kw_only=True)
class Reproduction(Shown):
    """An experiment that was run. Prints as tables; `to_html` writes a page, `to_json` a file to keep.

    Attributes:
        experiment: the experiment.
        full: whether it ran with the settings of the paper, and not with the quick ones.
        settings: the settings of its jobs.
        measured: what each finished job measured.
        failed: why the other jobs did not finish, by job.
        origin: day, commit, machine, versions and processor time.
    """

    page = "normscope_lab.pages.reproduction:reproduction_document"

    experiment: Experiment
    full: bool
    settings: Settings
    measured: Mapping[Job, Measured]
    failed: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.experiment.name

    @property
    def command(self) -> str:
        """The command that runs it again."""
        return command(self.experiment, full=self.full)

    @cached_property
    def _computed(self) -> tuple[Figures, str]:
        """The figures, and the reason where there are none."""
        try:
            figures = self.experiment.figures(self.settings, self.measured)
        except UNREADABLE as error:
            if not self.failed:
                raise
            first, why = next(iter(self.failed.items()))
            return {}, f"{len(self.failed)} of its jobs did not finish (`{first}`: {why}; {describe_error(error)})"
        return {name: float(value) for name, value in figures.items() if not math.isnan(value)}, ""

    @property
    def figures(self) -> Figures:
        """The figures computed from the measured jobs, without those that are NaN."""
        return self._computed[0]

    @property
    def claims(self) -> tuple[JudgedClaim, ...]:
        """The claims with their verdicts, computed from the figures."""
        why = self._computed[1]
        return tuple(
            row(one, self.experiment, self.figures, run=self.command, origin=self.origin, why=why)
            for one in self.experiment.claims
        )

    def drawn(self) -> Sequence[Block]:
        """Return tables and charts of the measured jobs; nothing where jobs that they need did not finish."""
        try:
            return self.experiment.draw(self.settings, self.measured) if self.measured else ()
        except UNREADABLE:
            if not self.failed:
                raise
            return ()

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        jobs = [{"kind": job.kind, "seed": job.seed, "measured": measured} for job, measured in self.measured.items()]
        data = to_plain(
            {
                "schema_version": FORM.version,
                "type": FORM.kind,
                "name": self.name,
                "full": self.full,
                "origin": dict(self.origin),
                "settings": dict(self.settings),
                "figures": dict(self.figures),
                "claims": [claim.to_json() for claim in self.claims],
                "failed": dict(self.failed),
                "jobs": jobs,
            }
        )
        if path is not None:
            write_text(path, json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n")
        return data

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Reproduction:
        """Return the reproduction that `to_json` wrote; its figures and verdicts are computed anew.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: there is no reproduction of this version, or of an experiment that is not known.
        """
        with open_json(FORM, source) as data:
            experiments, name = registered(), data.get("name")
            if not isinstance(name, str) or name not in experiments:
                raise InputError(f"that is the reproduction of {name!r}, an experiment that is not known here")
            jobs = {Job(one["kind"], one["seed"]): from_plain(one["measured"]) for one in data["jobs"]}
            hints = {"full": bool, "settings": Settings, "failed": Mapping[str, str], "origin": Mapping[str, str]}
            options = {key: decode(hint, data[key], key) for key, hint in hints.items()}
            return readable(cls(experiment=experiments[name], measured=jobs, **options), "that reproduction")


def readable(reproduction: Reproduction, source: str) -> Reproduction:
    """Return a reproduction whose jobs were read from a file."""
    try:
        reproduction.claims, reproduction.drawn()
    except UNREADABLE as error:
        raise InputError(
            f"{source} holds damaged jobs of {reproduction.name} ({describe_error(error)}): remove it, and run the "
            "experiment again"
        ) from error
    return reproduction


def command(experiment: Experiment, *, full: bool) -> str:
    """Return the command that runs an experiment, with a folder of data where these are not embedded."""
    data = (experiment.full if full else experiment.quick).get("data", "digits")
    embedded = set([data] if isinstance(data, str) else data) <= {"digits"}
    return f"normscope lab reproduce {experiment.name}{' --full' if full else ''}{'' if embedded else ' --data FOLDER'}"


class _ReadFigures(dict[str, float]):
    """Figures that remember which of them were read."""

    def __init__(self, figures: Figures) -> None:
        super().__init__(figures)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> float:
        value = super().__getitem__(name)
        self.names[name] = None
        return value

    def nested(self) -> dict[str, Any]:
        """Return the figures that were read; a median stands with its interval and number of seeds under one name."""
        summary: dict[str, Any] = {}
        for name in self.names:
            start, ending = next(((name.removesuffix(end), end) for end in SPREAD if name.endswith(end)), (name, ""))
            if ending and all(start + one in self for one in SPREAD):
                summary[start] = {one[1:]: dict.__getitem__(self, start + one) for one in SPREAD}
            else:
                summary[name] = dict.__getitem__(self, name)
        return summary


def row(
    claim: Claim, experiment: Experiment, figures: Figures, *, run: str, origin: Mapping[str, str], why: str = ""
) -> JudgedClaim:
    """Return a claim as a row of the ledger; one whose figures were not measured is not testable, for a reason."""
    read = _ReadFigures(figures)
    try:
        judgement = claim.judge(read)
    except KeyError as error:
        missing = f"the figure {error.args[0]!r} was not measured in this run"
        judgement = Judgement(Verdict.NOT_TESTABLE, why or missing)
    return JudgedClaim(
        id=claim.id,
        source=claim.source,
        where=claim.where,
        quotation=claim.quotation,
        reading=claim.text,
        verdict=judgement.verdict,
        corrected=claim.corrected if judgement.verdict in AMENDED else "",
        evidence=judgement.evidence,
        table=judgement.table,
        figures=read.nested(),
        task="" if claim.identity else experiment.task,
        command=run,
        origin=origin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproductions(Shown):
    """The experiments that `normscope lab reproduce` ran. Prints as tables; `to_html` writes one page for all of them.

    Attributes:
        items: one per experiment.
        notes: what the reader must know.
    """

    page = "normscope_lab.pages.reproduction:reproductions_document"

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
                elif isinstance(block, Chart | Curves) and (drawn := picture(block)):
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
