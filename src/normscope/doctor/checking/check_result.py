"""`Check`: what a check found, as one frozen object that saves and shows itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

from ...core.codec import JsonForm, Part, Saved
from ...core.errors import InputError, visible
from ...core.finding import Finding
from ...core.shown import Shown
from ..facts.layers import LayerRow
from ..facts.pass_facts import PassFacts
from .verdict import Judged, verdict

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes(Part):
    """Passes through the model that a result took; `small` are forwards of at most seven samples."""

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("small",))

    forwards: int
    backwards: int
    small: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable(Shown):
    """Values and gradients of every layer, in the order they run, as one table."""

    page = "normscope.doctor.pages.check:layers_document"

    signal: PassFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Judged, Saved, Shown):
    """What `normscope.check` found. Prints as tables; in a notebook it shows itself as HTML.

    Attributes:
        name: the name of the model: its class, or what the command line was given.
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
        trainable: how many of the parameters ask for gradients; `None` in files from before this was counted.
        parameter_bytes: the memory that the parameters take, in bytes; `None` likewise.
    """

    page = "normscope.doctor.pages.check:check_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="check",
        nan=True,
        noun="check",
        write="write one with check.to_json(path) or normscope check --json",
        keys=("verdict", ...),
        sparse=("trainable", "parameter_bytes"),
        choices={"mode": ("train", "eval")},
    )

    name: str
    mode: str
    parameters: int
    samples: int
    batches: int
    findings: tuple[Finding, ...]
    signal: PassFacts | None
    cost: Passes
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    trainable: int | None = None
    parameter_bytes: int | None = None

    @property
    def verdict(self) -> str:
        """What is to be said of the model first, in one sentence: what is wrong with it, or that nothing is."""
        return verdict(self.findings)

    def table(self) -> LayerTable:
        """Return the table of all layers, of which `print(check)` shows a block in one line."""
        return LayerTable(signal=self.signal)

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
        columns = [item.name for item in fields(LayerRow)]
        return pandas.DataFrame([{name: getattr(row, name) for name in columns} for row in rows], columns=columns)

    def __repr__(self) -> str:
        return visible(f"<Check of {self.name}: {self.verdict}>")
