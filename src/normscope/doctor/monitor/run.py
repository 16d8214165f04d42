"""`Run`: the log of a training run, read back as one frozen object that shows itself."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...core.codec import JsonForm, decode, encode, open_json, save_json
from ...core.errors import InputError, visible
from ...core.shown import Shown
from ...report.words import pluralise
from ..checking.verdict import Findings
from .layer_record import LAYER_KINDS, LayerKind, LayerRecord, Numbers
from .log import FILE, Ended, LogReading
from .record import Record

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Run(Shown):
    """A training run as `ns.watch(..., log=folder)` wrote it down: finished, still going on, or killed.

    Prints as tables; in a notebook it shows itself as HTML. A run that goes on is read as far as it has come: make
    another `Run` to see more.

    Args:
        folder: the folder of the run, or the `log.jsonl` in it.

    Attributes:
        path: the folder.
        metadata: model, optimizer, intervals, versions and the like, as the run was last begun.
        layers: what was watched.
        records: what was measured, by step; of a step that was done again, the last.
        metrics: what the loop gave `run.log_metrics`, as pairs (step, figures by name).
        findings: the alarms, in the order they were raised.
        resumed: the steps at which the run was gone on with.
        ended: how it ended; None if it goes on or was killed.

    Raises:
        InputError: there is no log in the folder, or it is damaged or of another version.

    Example:
        >>> import tempfile, torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> folder = tempfile.mkdtemp()
        >>> with ns.watch(model, optimizer, every=2, log=folder, panel=False):
        ...     for _ in range(5):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(3, 4) * torch.arange(3.0)[:, None]).square().mean().backward()
        ...         optimizer.step()
        >>> run = ns.Run(folder)
        >>> [record.step for record in run.records], run.ended.how
        ([0, 2, 4], 'finished')
    """

    page = "normscope.doctor.pages.run:run_document"
    JSON: ClassVar[JsonForm] = JsonForm(kind="run", noun="run", write="write one with run.to_json(path)")

    path: Path
    metadata: Mapping[str, Any] = field(hash=False)
    layers: tuple[LayerRecord, ...]
    records: tuple[Record, ...] = field(hash=False)
    metrics: tuple[tuple[int, Mapping[str, float]], ...] = field(hash=False)
    findings: Findings
    resumed: tuple[int, ...]
    ended: Ended | None

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder)
        if path.is_dir() and not (path / FILE).is_file():
            inside = sorted(log.parent.name for log in path.glob(f"*/{FILE}"))
            hint = f"; there are runs in it: {', '.join(inside[:5])}" if inside else ""
            raise InputError(f"{path} is no run: it has no {FILE}{hint}")
        self._fill(path if path.is_dir() else path.parent, LogReading.of(path))

    def _fill(self, path: Path, reading: LogReading) -> None:
        self._set(
            path=path,
            metadata=reading.metadata,
            layers=reading.layers,
            records=reading.records(),
            metrics=tuple(reading.metrics),
            findings=Findings(dict.fromkeys(reading.findings)),
            resumed=tuple(reading.resumed),
            ended=reading.ended,
        )

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of_reading(cls, path: Path, reading: LogReading) -> Run:
        """Return the run of which a log has been read so far.

        Args:
            path: the folder.
            reading: the reading of its log.
        """
        run = object.__new__(cls)
        run._fill(path, reading)
        return run

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return the run as plain data, and write it to one file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Returns:
            The lines of a log that says the same, without what was done again, and what such a log cannot say.

        Raises:
            InputError: the file cannot be written.
        """
        lines = [
            {"type": "run", **self.metadata, "layers": self.layers},
            *({"type": "step", **record.to_json()} for record in self.records),
            *({"type": "metrics", "step": step, "metrics": figures} for step, figures in self.metrics),
            *({"type": "finding", **finding.to_json()} for finding in self.findings),
            *([] if self.ended is None else [{"type": "end", **asdict(self.ended)}]),
        ]
        header = {"type": "run", "schema_version": self.JSON.version, "path": str(self.path), "resumed": self.resumed}
        return save_json(encode({**header, "lines": lines}), path)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Run:
        """Return the run that `to_json` wrote.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: the file is missing, holds no run of this version, or is damaged.
        """
        with open_json(cls.JSON, source) as data:
            reading = LogReading()
            for line in data["lines"]:
                reading.take_from("the file", line)
            run = cls.of_reading(Path(data["path"]), reading)
            run._set(resumed=decode(tuple[int, ...], data["resumed"], "resumed"))
        return run

    def between(self, low: float, high: float) -> Run:
        """Return the same run with the records and metrics of some steps alone.

        Args:
            low: the first step.
            high: the last step.
        """
        run = copy.copy(self)
        run._set(
            records=tuple(record for record in self.records if low <= record.step <= high),
            metrics=tuple(pair for pair in self.metrics if low <= pair[0] <= high),
        )
        return run

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name or self.path.resolve().name or str(self.path)

    def of(self, kind: LayerKind) -> tuple[LayerRecord, ...]:
        """Return the layers of a kind: `weight`, `normalizer`, `block` or `units`."""
        return tuple(layer for layer in self.layers if layer.kind == kind)

    def course(self, kind: LayerKind, quantity: str) -> dict[str, list[tuple[int, float]]]:
        """Return one quantity of every layer of a kind over the run.

        Args:
            kind: the kind of the layers.
            quantity: as `Record.values` names it.

        Returns:
            By layer pairs (step, value), for the steps at which it was measured; layers without any are absent.

        Example:
            `run.course("normalizer", "log10_variance")["layer1.0.bn1"]` is `[(0, -0.53), (50, -0.61), ...]`.
        """
        names = [layer.name for layer in self.of(kind)]
        courses: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
        columns = list(courses.values())
        for record in self.records:
            step = record.step
            for points, value in zip(columns, _column(record, kind, quantity)):
                if value is not None:
                    points.append((step, value))
        return {name: points for name, points in courses.items() if points}

    def last(self, kind: LayerKind, quantity: str) -> Numbers:
        """Return the last value of a quantity for every layer of a kind; None where it was never measured."""
        latest: list[float | None] = [None] * len(self.of(kind))
        for record in reversed(self.records):
            for index, value in enumerate(_column(record, kind, quantity)):
                if latest[index] is None:
                    latest[index] = value
            if _column(record, kind, quantity) and None not in latest:
                break
        return tuple(latest)

    def total(self, quantity: str) -> list[tuple[int, float]]:
        """Return one quantity of the whole network over the run, as pairs (step, value).

        Args:
            quantity: `loss`, `lr` (of the first parameter group), or as `Record.total`, `Record.metrics` or
                `run.log_metrics` names it.
        """
        read = ((record.step, _read_quantity(record, quantity)) for record in self.records)
        measured = [(step, value) for step, value in read if value is not None]
        return measured or [(step, figures[quantity]) for step, figures in self.metrics if quantity in figures]

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per step and layer: step, seconds, kind, layer, and a column for every quantity.

        Raises:
            InputError: pandas is not installed.
        """
        return _to_frame(list(self._rows()), ("step", "seconds", "kind", "layer"))

    def totals(self) -> pandas.DataFrame:
        """Return one row per step: step, seconds, tier, loss, lr (and lr_1, ... of further groups), and the totals.

        Raises:
            InputError: pandas is not installed.
        """
        rows = []
        for record in self.records:
            rates = {"lr" if index == 0 else f"lr_{index}": rate for index, rate in enumerate(record.lr)}
            line = {"step": record.step, "seconds": record.seconds, "tier": record.tier, "loss": record.loss}
            rows.append({**line, **rates, **record.total, **record.metrics})
        return _to_frame(rows, ("step", "seconds", "tier", "loss", "lr"))

    def _rows(self) -> Iterator[dict[str, Any]]:
        for record in self.records:
            for kind in LAYER_KINDS:
                columns = record.values.get(kind, {})
                for index, layer in enumerate(self.of(kind)):
                    cells = {name: numbers[index] for name, numbers in columns.items() if index < len(numbers)}
                    if any(value is not None for value in cells.values()):
                        place = {"step": record.step, "seconds": record.seconds, "kind": kind, "layer": layer.name}
                        yield {**place, **cells}

    @property
    def left_out(self) -> int:
        """How many steps were due and not measured, because there was no time for them within `overhead`."""
        behind = 0 if self.ended is None else self.ended.left_out
        return behind + sum(round(record.total_of("left_out") or 0.0) for record in self.records)

    def __repr__(self) -> str:
        reached = f"step {self.records[-1].step:,}" if self.records else "nothing measured"
        how = "no end logged" if self.ended is None else self.ended.how
        counts = f"{pluralise(len(self.layers), 'layer')}, {pluralise(len(self.findings), 'alarm')}"
        return visible(f"<Run {self.path}: {reached}, {counts}, {how}>")


def _read_quantity(record: Record, quantity: str) -> float | None:
    if quantity == "loss":
        return record.loss
    if quantity == "lr":
        return record.lr[0] if record.lr else None
    return record.total[quantity] if quantity in record.total else record.metrics.get(quantity)


def _to_frame(rows: list[dict[str, Any]], first: Sequence[str]) -> pandas.DataFrame:
    """Return rows as a table; the first columns are there even without rows."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_pandas and totals need pandas: pip install pandas") from error
    columns = list(dict.fromkeys([*first, *(key for row in rows for key in row)]))
    return pandas.DataFrame(rows, columns=columns)


def _column(record: Record, kind: LayerKind, quantity: str) -> Numbers:
    """Return a quantity of all layers of a kind, whatever version wrote it; empty if it is not in the record."""
    return record.values.get(kind, {}).get(quantity, ())
