"""`Check`: what a check found, as one frozen object that saves and shows itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError, said
from ..core.files import read_json, write_text
from ..core.finding import Finding
from ..core.json_values import plain
from ..report.shown import Shown
from .form import check_form
from .signal import Signal, SignalRow
from .verdict import verdict

if TYPE_CHECKING:
    import pandas

SCHEMA_VERSION = 1
"""Of the JSON form; a change that breaks readers raises it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes through the model that a result took."""

    forwards: int
    backwards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Shown):
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

    page = "check:check_document"

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

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Returns:
            What JSON can hold: `null` is not measured, infinities are strings.

        Raises:
            InputError: the file cannot be written.
        """
        data: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "type": "check", "verdict": self.verdict}
        data |= {item.name: getattr(self, item.name) for item in fields(self)}
        data["findings"] = [finding.to_json() for finding in self.findings]
        data["signal"] = None if self.signal is None else self.signal.to_json()
        data["cost"] = asdict(self.cost)
        data["provenance"] = dict(self.provenance)
        data = plain(data)
        if path is not None:
            write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
        return data

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Check:
        """Return the check that `to_json` wrote.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: the file is missing, is no JSON, or holds no check of this version.
        """
        name = "the data" if isinstance(source, Mapping) else f"{os.fspath(source)}"
        data = source if isinstance(source, Mapping) else read_json(source)
        if not isinstance(data, Mapping) or data.get("type") != "check":
            raise InputError(f"{name} holds no check: write one with check.to_json(path) or normscope check --json")
        if data.get("schema_version") != SCHEMA_VERSION or isinstance(data["schema_version"], bool):
            raise InputError(f"{name} is of another version of Normscope: check the model again")
        try:
            check_form(data, cls)
            given = {item.name: data[item.name] for item in fields(cls)}
            given["findings"] = tuple(map(Finding.from_json, given["findings"]))
            given["signal"] = None if given["signal"] is None else Signal.from_json(given["signal"])
            given["cost"] = Passes(**{item.name: given["cost"][item.name] for item in fields(Passes)})
            given["skipped"] = tuple((what, why) for what, why in given["skipped"])
            return cls(**{**given, "notes": tuple(given["notes"])})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{name} is a damaged check ({said(error)})") from error

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

    def __repr__(self) -> str:
        return f"<Check of {self.name}: {self.verdict}>"
