"""The log of a run: one JSON object a line, appended whole, so that a killed run loses at most its last line.

`LogWriter` writes it, `read_log` returns its lines, and `LogReading` puts together what they say of the run.
"""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.codec import decode, is_number
from ...core.errors import InputError, describe_error
from ...core.files import bounded_lines, parse_json
from ...core.finding import Finding
from .layer_record import LayerRecord, Numbers
from .record import Record

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

SCHEMA_VERSION = 1
FILE = "log.jsonl"
MENDED_BLOCK_BYTES = 1 << 16
"""Bytes that are read at a time in search of the last line break."""
BEGINNING_TYPES = {"model": str, "optimizer": str, "parameters": int, "every": dict, "notes": list, "provenance": dict}
"""What the line that begins a run holds."""


class LogWriter:
    """Appends to the log of a run; a line that a killed run left half written is cut off first.

    Args:
        folder: the folder of the run; made if it does not exist.

    Attributes:
        resumed: whether the log holds whole lines already.

    Raises:
        InputError: the folder cannot be made or written to, another run writes to it, or its log is of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from error
        try:
            next(read_log(self.path), None)  # what is no log, or another version's, is left alone
            self._lock()
        except BaseException:
            os.close(self._handle)
            raise
        self.resumed = self._mend()

    def _lock(self) -> None:
        """Keep others from writing to the same log, until it is closed or the process ends."""
        if fcntl is not None:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by a kill
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):  # others: not on this file system
                    raise InputError(
                        f"another run is writing to {self.path}: give this one a folder of its own"
                    ) from error
        OPEN_LOGS.add(self)

    def _mend(self) -> bool:
        """Cut off what stands behind the last line break; say whether anything is left."""
        size = start = os.fstat(self._handle).st_size
        whole = 0
        while start > 0 and whole == 0:
            start, stop = max(0, start - MENDED_BLOCK_BYTES), start
            os.lseek(self._handle, start, os.SEEK_SET)
            line_break = os.read(self._handle, stop - start).rfind(b"\n")
            whole = 0 if line_break < 0 else start + line_break + 1
        if whole < size:
            os.ftruncate(self._handle, whole)
        return whole > 0

    def write(self, kind: str, data: Mapping[str, Any] | str) -> None:
        """Append one line with a single call to the system.

        Args:
            kind: what the line says of the run.
            data: plain data, or a JSON object with at least one entry as text.

        Raises:
            OSError: it could not be written, or not whole; then nothing of it is left. Or the file was deleted.
        """
        text = data if isinstance(data, str) else json.dumps(data, allow_nan=False, separators=(",", ":"))
        raw = f'{{"type":"{kind}",{text[1:]}\n'.encode()
        if self._handle < 0:  # closed, or of the process that this one was forked from
            return
        if os.fstat(self._handle).st_nlink == 0:  # what is written to a file without a name is lost
            raise OSError(errno.ENOENT, "the file was deleted", str(self.path))
        written = os.write(self._handle, raw)
        if written < len(raw):
            os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file; every line is with the system already."""
        if self._handle >= 0:
            os.close(self._handle)
            OPEN_LOGS.discard(self)
            self._handle = -1


OPEN_LOGS: weakref.WeakSet[LogWriter] = weakref.WeakSet()
"""The logs that this process has open."""


def _leave_to_parent() -> None:
    """Leave the logs to the process that this one was forked from, its lock too."""
    for writer in list(OPEN_LOGS):
        writer.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def read_log(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Return the lines of a log; a last line that is not whole is left out.

    Args:
        folder: the folder of the run, or the file in it.

    Raises:
        InputError: there is no log, a line in it is no JSON object or too long, or it has another `schema_version`.
    """
    path = Path(folder)
    path = path / FILE if path.is_dir() else path
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(bounded_lines(file, path), 1):
                if raw.endswith(b"\n"):
                    yield read_line(raw, f"{path}, line {number}")
                elif number == 1 and not raw.startswith(b'{"type"'[: len(raw)]):
                    raise InputError(f"{path} is no log of a run")
    except OSError as error:
        raise InputError(f"cannot read the log {path}: {error.strerror or error}") from error


def read_line(raw: bytes, where: str) -> dict[str, Any]:
    """Return one line of a log.

    Raises:
        InputError: it is no JSON object, or has another `schema_version`.
    """
    try:
        line = parse_json(raw)
    except ValueError as error:
        raise InputError(f"{where} {error}") from error
    if not isinstance(line, dict) or "type" not in line:
        raise InputError(f"{where} is not a line of a run's log")
    version = line.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema_version {version!s:.40}; this version of Normscope reads {SCHEMA_VERSION}"
        )
    return line


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended.

    Attributes:
        how: `finished`, or what it was stopped by.
        step: how many steps the optimizer had taken.
        seconds: how long it ran, since it was last begun.
        overhead: the share of that time that watching took, without the first measurement.
        left_out: how many due steps were not measured behind the last record, for lack of time.
    """

    how: str
    step: int
    seconds: float
    overhead: float
    left_out: int = 0


class LogReading:
    """What the lines of a log have said so far."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.layers: tuple[LayerRecord, ...] = ()
        self.findings: list[Finding] = []
        self.resumed: list[int] = []
        self.ended: Ended | None = None
        self._counts: Mapping[str, int] = {}
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
        """Read one line of the log in a folder; a type that is not known says nothing.

        Raises:
            InputError: it is not what a run writes.
        """
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            kind = f"{line['type']!s:.20}"
            raise InputError(f"{folder} is a damaged log: a line of type {kind} ({describe_error(error)})") from error

    def _take(self, line: Mapping[str, Any]) -> None:
        match line["type"]:
            case "run":
                begun = _read_step(line.get("step", 0))
                if self.metadata:
                    self.resumed.append(begun)
                self._forget(begun)
                self._forget_metrics(begun)
                self.metadata = {key: value for key, value in line.items() if key not in ("type", "layers")}
                layers = decode(tuple[LayerRecord, ...], line["layers"], "layers")
                if layers != self.layers:  # so that `is` tells records of other layers
                    self.layers, self._counts = layers, Counter(layer.kind for layer in layers)
                _check_beginning(self.metadata)
                self.ended = None
            case "step":
                record = Record.from_json({key: value for key, value in line.items() if key != "type"})
                _check_record(record, self._counts)
                self._forget(record.step)
                self._steps.append((record, self.layers))
            case "metrics":
                figures = {str(key): float(value) for key, value in line["metrics"].items()}
                step = _read_step(line["step"])
                self._forget_metrics(step)
                self.metrics.append((step, figures))
            case "finding":
                self.findings.append(Finding.from_json(line))
            case "end":
                shares = {key: float(line[key]) for key in ("seconds", "overhead")}
                step, left_out = _read_step(line["step"]), _read_step(line.get("left_out", 0))
                self.ended = Ended(how=str(line["how"]), step=step, left_out=left_out, **shares)

    def records(self) -> tuple[Record, ...]:
        """Return the records by step, all with the layers of the last part of the run."""
        return tuple(
            record if layers is self.layers else _reorder_record(record, layers, self.layers)
            for record, layers in self._steps
        )

    def _forget(self, step: int) -> None:
        """Drop the records from a step on: it is done again, and an abandoned end must not follow."""
        while self._steps and self._steps[-1][0].step >= step:
            self._steps.pop()

    def _forget_metrics(self, step: int) -> None:
        """Drop the metrics behind a step; at one step there may be several."""
        while self.metrics and self.metrics[-1][0] > step:
            self.metrics.pop()


def _reorder_record(record: Record, old: Sequence[LayerRecord], new: Sequence[LayerRecord]) -> Record:
    """Return a record with its numbers in the order of other layers; what those do not have is left out."""
    values: dict[str, dict[str, Numbers]] = {}
    for kind, table in record.values.items():
        before = [layer.name for layer in old if layer.kind == kind]
        after = [layer.name for layer in new if layer.kind == kind]
        values[kind] = {}
        for quantity, numbers in table.items():
            by_name = dict(zip(before, numbers))
            if any(name in by_name for name in after):
                values[kind][quantity] = tuple(by_name.get(name) for name in after)
    return replace(record, values=values, histograms={})


def _check_beginning(metadata: Mapping[str, Any]) -> None:
    """Raise ValueError where the line that begins a run holds something else than a run writes."""
    for key, kind in BEGINNING_TYPES.items():
        _require(isinstance(metadata.get(key, kind()), kind), key)
    _require(all(type(interval) is int for interval in metadata.get("every", {}).values()), "every")


def _read_step(value: Any) -> int:
    """Return a step; raise ValueError for an integer beyond every count, which no chart can place."""
    _require(is_number(int(value)), "step")
    return int(value)


def _check_record(record: Record, counts: Mapping[str, int]) -> None:
    """Raise ValueError where a record holds no numbers, or not one for each of its layers."""
    _read_step(record.step)
    _require(_are_numbers((record.loss, *record.lr, *record.total.values())), "loss, lr or total")
    _require(_are_numbers(record.metrics.values()) and None not in record.metrics.values(), "metrics")
    _require(None not in record.lr, "lr")
    for kind, table in record.values.items():
        for quantity, numbers in table.items():
            _require(len(numbers) == counts.get(kind, 0) and _are_numbers(numbers), f"{kind} {quantity}")
    for what, rows in record.histograms.items():
        right = all(row is None or (len(row) > 1 and None not in row and _are_numbers(row)) for row in rows)
        _require(len(rows) == counts.get("weight", 0) and right, f"histogram of each {what}")


def _are_numbers(values: Collection[Any]) -> bool:
    kinds = {type(value) for value in values}
    integers = (value for value in values if type(value) is int) if int in kinds else ()
    return kinds <= {float, int, type(None)} and all(map(is_number, integers))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"its {what} is not what a run writes")
