"""The lines of a log, taken one by one: what they say of a run, or why they cannot be what a run wrote."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.codec import decoded
from ..core.errors import InputError, said
from ..core.finding import Finding
from .log import read_log
from .record import LayerRecord, Numbers, Record

FORM = {"model": str, "optimizer": str, "parameters": int, "every": dict, "notes": list, "provenance": dict}
"""What the line that begins a run holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended.

    Attributes:
        how: `finished`, or what it was stopped by.
        step: how many steps the optimizer had taken.
        seconds: how long it ran, since it was last begun.
        overhead: the share of that time that watching took, without the first measurement.
    """

    how: str
    step: int
    seconds: float
    overhead: float


class LogReading:
    """What the lines of a log have said so far."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.layers: tuple[LayerRecord, ...] = ()
        self.findings: list[Finding] = []
        self.resumed: list[int] = []
        self.ended: Ended | None = None
        self._steps: list[tuple[Record, tuple[LayerRecord, ...]]] = []

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> LogReading:
        """Read a whole log.

        Raises:
            InputError: there is none, or it is damaged or of another version.
        """
        reading = cls()
        for line in read_log(folder):
            reading.take_from(folder, line)
        return reading

    def take_from(self, folder: str | os.PathLike[str], line: Mapping[str, Any]) -> None:
        """Read one line of the log in a folder.

        Raises:
            InputError: it is not what a run writes.
        """
        try:
            self.take(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            kind = f"{line['type']!s:.20}"
            raise InputError(f"{folder} is a damaged log: a line of type {kind} ({said(error)})") from error

    def take(self, line: Mapping[str, Any]) -> None:
        """Read one line; a type that is not known says nothing."""
        match line["type"]:
            case "run":
                begun = int(line.get("step", 0))
                if self.metadata:
                    self.resumed.append(begun)
                self._forget(begun)
                self.metrics = [pair for pair in self.metrics if pair[0] <= begun]
                self.metadata = {key: value for key, value in line.items() if key not in ("type", "layers")}
                self.layers = decoded(tuple[LayerRecord, ...], line["layers"], "layers")
                check_run(self.metadata)
                self.ended = None
            case "step":
                record = Record.from_json({key: value for key, value in line.items() if key != "type"})
                check_record(record, self.layers)
                self._forget(record.step)
                self._steps.append((record, self.layers))
            case "metrics":
                found = {str(key): float(value) for key, value in line["metrics"].items()}
                self.metrics.append((int(line["step"]), found))
            case "finding":
                self.findings.append(Finding.from_json(line))
            case "end":
                figures = {key: float(line[key]) for key in ("seconds", "overhead")}
                self.ended = Ended(how=str(line["how"]), step=int(line["step"]), **figures)

    def records(self) -> tuple[Record, ...]:
        """Return the records by step, all with the layers of the last part of the run."""
        return tuple(
            record if layers == self.layers else _moved(record, layers, self.layers) for record, layers in self._steps
        )

    def _forget(self, step: int) -> None:
        """Drop the records from a step on: it is done again, and an abandoned end must not follow."""
        while self._steps and self._steps[-1][0].step >= step:
            self._steps.pop()


def _moved(record: Record, old: Sequence[LayerRecord], new: Sequence[LayerRecord]) -> Record:
    """Return a record with its numbers in the order of other layers; what those do not have is left out."""
    values: dict[str, dict[str, Numbers]] = {}
    for kind, table in record.values.items():
        before = [layer.name for layer in old if layer.kind == kind]
        after = [layer.name for layer in new if layer.kind == kind]
        values[kind] = {}
        for quantity, numbers in table.items():
            known = dict(zip(before, numbers))
            if any(name in known for name in after):
                values[kind][quantity] = tuple(known.get(name) for name in after)
    return replace(record, values=values, histograms={})


def check_run(metadata: Mapping[str, Any]) -> None:
    """Raise ValueError where the line that begins a run holds something else than a run writes."""
    for key, kind in FORM.items():
        _require(isinstance(metadata.get(key, kind()), kind), key)
    _require(all(type(interval) is int for interval in metadata.get("every", {}).values()), "every")


def check_record(record: Record, layers: Sequence[LayerRecord]) -> None:
    """Raise ValueError where a record holds no numbers, or not one for each of its layers."""
    _require(_are_numbers((record.loss, *record.lr, *record.total.values())), "loss, lr or total")
    _require(_are_numbers(record.metrics.values()) and None not in record.metrics.values(), "metrics")
    _require(None not in record.lr, "lr")
    for kind, table in record.values.items():
        count = sum(layer.kind == kind for layer in layers)
        for quantity, numbers in table.items():
            _require(len(numbers) == count and _are_numbers(numbers), f"{kind} {quantity}")
    count = sum(layer.kind == "weight" for layer in layers)
    for what, rows in record.histograms.items():
        right = all(row is None or (len(row) > 1 and None not in row and _are_numbers(row)) for row in rows)
        _require(len(rows) == count and right, f"histogram of each {what}")


def _are_numbers(values: Iterable[Any]) -> bool:
    return {type(value) for value in values} <= {float, int, type(None)}


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"its {what} is not what a run writes")
