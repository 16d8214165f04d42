"""`Check`: what a check found, as one frozen object that saves and shows itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

from ..core.codec import JsonForm, Saved
from ..core.errors import InputError
from ..core.finding import Finding
from ..report.document import Block, Column, Document, Table, Text
from ..report.shown import Shown
from ..report.words import counted
from .signal import Signal, SignalRow
from .verdict import verdict

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes through the model that a result took."""

    forwards: int
    backwards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Saved, Shown):
    """What `normscope.check` found. Prints as tables; in a notebook it shows itself as HTML.

    Attributes:
        name: of the model: its class, or what the command line was given.
        mode: `"train"` or `"eval"`: which of the model's two functions was checked.
        parameters: how many the model holds.
        samples, batches: how much data was seen.
        findings: the most serious first.
        signal: values and gradients of the input and of every layer's output, by depth; `None` if the model could not
            be run.
        cost: how many forward and backward passes the check took.
        skipped: what was not measured, and why.
        notes: what the reader must know.
        provenance: versions and device.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        kind="check",
        noun="check",
        write="write one with check.to_json(path) or normscope check --json",
        keys=("verdict", ...),
        choices={"mode": ("train", "eval")},
    )

    name: str
    mode: str
    parameters: int
    samples: int
    batches: int
    findings: tuple[Finding, ...]
    signal: Signal | None
    cost: Passes
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """What is to be said of the model first, in one sentence: what is wrong with it, or that nothing is."""
        return verdict(self.findings)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per row of `signal`.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas") from error
        rows = () if self.signal is None else self.signal.rows
        columns = [item.name for item in fields(SignalRow)]
        return pandas.DataFrame([{name: getattr(row, name) for name in columns} for row in rows], columns=columns)

    def document(self, *, brief: bool = False) -> Document:
        """Return the report; `brief` for a terminal."""
        from .cards import next_steps, notices, steps
        from .signal_page import signal_chart, signal_table

        went = f"{counted(self.samples, 'sample')} in {counted(self.batches, 'batch', 'batches')}"
        about = (
            f"{self.name} holds {counted(self.parameters, 'parameter')}. It was checked in {self.mode} mode on {went}, "
            f"with {counted(self.cost.forwards, 'forward pass', 'forward passes')} and "
            f"{counted(self.cost.backwards, 'backward pass', 'backward passes')}. No bounds were taken: "
            "normscope.audit takes them."
        )
        skipped = Table(columns=(Column(title="not measured"), Column(title="why")), rows=self.skipped)
        notes = [Text(body=f"Note: {note}") for note in self.notes]
        rest: list[Block] = [*([skipped] if self.skipped else []), *notes]
        table = signal_table(self.signal, brief=brief, title="values and gradients by depth")
        chart = None if brief else signal_chart(self.signal)
        shown: list[Block] = [block for block in (chart, table) if block is not None]
        opening = Text(heading="" if brief else "Verdict", body=self.verdict, lead=True)
        found: list[Block] = [*notices(self.findings), *([] if brief else steps(next_steps(self.findings)))]
        depth = [] if brief or not shown else [Text(heading="Signal by depth")]
        blocks: tuple[Block, ...] = (opening, Text(body=about), *found, *depth, *shown, *rest)
        return Document(title=f"Check of {self.name}", blocks=blocks)

    def __repr__(self) -> str:
        return f"<Check of {self.name}: {self.verdict}>"
