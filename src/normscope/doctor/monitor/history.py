"""What is known of a run so far: its records, the curves that alarms compare, and the alarms that were raised.

All of it is bounded, however long the run is.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ...core.finding import Finding, Severity
from .layer_record import LAYER_KINDS, LayerKind, LayerRecord
from .locating import Broken
from .log import LogReading
from .parameter_state import ParameterState
from .quantities import DERIVED, OF_WHOLE_NETWORK, check_declared
from .record import Record
from .series import FIRST, LASTING_STEPS, NO_SERIES, PLAIN_STEPS, SeriesByLayer, Spikes, ValueSeries

MAX_RECORDS, RECENT_RECORDS = 1000, 300
"""Records that are kept at most, and the latest of them, which are never left out; the log has all."""
GUESSING_SHARE = 0.95
"""The loss over that of a constant output: above it, for several batches, nothing has been learned of the inputs."""
UNCLEAR_SHARE = 0.8
"""The loss over that of a constant output, below which it is clearly better in every batch."""


def losses_beside_constant(records: Iterable[Record]) -> list[tuple[Record, float, float]]:
    """Return the records with the loss of their outputs and that of the best constant output, where both are known."""
    return [
        (record, loss, constant)
        for record in records
        if (loss := record.total_of("outputs_own")) is not None and (constant := record.total_of("outputs_constant"))
    ]


class History:
    """What is known of a run, record by record: a bounded number of figures, however long it is.

    Attributes:
        layers: what is watched.
        records: in the order of their steps; of a long run the first, the latest, and a selection of those between.
        findings: raised so far.
        peak_lr: the largest learning rate so far.
        spikes: the spikes of the loss.
        parameter_state: what is known of the parameters without measuring.
        validations: what `log_metrics` was given, by name pairs (step, value); of many the latest.
        least_loss: the least mean loss of a record so far and its step.
        broken: where the numbers of a forward broke, if that was seen.
        looked_up: what several alarms read off the last record, by name.
        measured: how many steps were measured, also those whose records are not kept.
        left_out: how many due steps in front of these were not measured, for lack of time.
    """

    def __init__(self) -> None:
        self.layers: tuple[LayerRecord, ...] = ()
        self.records: list[Record] = []
        self.findings: list[Finding] = []
        self.broken: Broken | None = None
        self.parameter_state = ParameterState()
        self.looked_up: dict[str, Any] = {}
        self.validations: dict[str, deque[tuple[int, float]]] = {}
        self.least_loss: tuple[float, int] | None = None
        self.measured = self.left_out = self._ended = 0
        self._kinds: dict[LayerKind, tuple[LayerRecord, ...]] = {}
        self.peak_lr, self.spikes = 0.0, Spikes()
        self._series: defaultdict[tuple[str, str], SeriesByLayer] = defaultdict(SeriesByLayer)
        self._raised: dict[tuple[str, str], Severity] = {}

    @property
    def step(self) -> int:
        """The step of the last record."""
        return self.records[-1].step

    @property
    def next_step(self) -> int:
        """The step a resumed run goes on from."""
        return max(self._ended, self.step + 1 if self.records else 0)

    @property
    def first_loss(self) -> float | None:
        """The median loss of the first records, as far as these lie within a few steps; None where none is known."""
        first = [r.loss for r in self.records[:FIRST] if r.step - self.records[0].step <= 2 * PLAIN_STEPS]
        losses = [loss for loss in first if loss is not None and math.isfinite(loss)]
        return median(losses) if losses else None

    def over_constant(self) -> list[float]:
        """Return the loss of outputs over that of the best constant in the last records, where both are known."""
        return [loss / constant for _, loss, constant in losses_beside_constant(self.repeated())]

    @property
    def beats_constant(self) -> bool:
        """Whether of late the outputs are clearly better than a constant."""
        ratios = self.over_constant()
        return bool(ratios) and max(ratios) < UNCLEAR_SHARE

    @property
    def is_unlearned(self) -> bool:
        """Whether of late the outputs are no better than a constant or, where that is not known, the loss than it was.

        In single batches either is off by some per cent.
        """
        ratios = self.over_constant()
        if not ratios and self.first_loss is not None:
            means = [r.metrics.get("loss_mean", r.loss) for r in self.repeated()]
            ratios = [value / self.first_loss for value in means if value is not None and self.first_loss > 0.0]
        return bool(ratios) and median(ratios) >= GUESSING_SHARE

    def of(self, kind: LayerKind) -> tuple[LayerRecord, ...]:
        """Return the layers of a kind, in the order of a record's numbers."""
        return self._kinds.get(kind, ())

    def repeated(self, count: int = 3) -> list[Record]:
        """Return the last records that show what chance does not: so many, or two that are far apart; or none."""
        if len(self.records) > 1 and self.step - self.records[-2].step >= LASTING_STEPS:
            return self.records[-2:]
        return self.records[-count:] if len(self.records) >= count else []

    def having(self, kind: LayerKind, quantity: str) -> Sequence[Record]:
        """Return the records that are kept and in which a quantity was measured, in the order of their steps."""
        return [record for record in self.records if record.of(kind, quantity)]

    def value_series(self, kind: LayerKind, quantity: str, index: int) -> ValueSeries:
        """Return the figures of a quantity of one layer, in the order of a record's numbers, that alarms compare."""
        return self.series_by_layer(kind, quantity).of(index)

    def series_by_layer(self, kind: LayerKind, quantity: str) -> SeriesByLayer:
        """Return the series of a quantity of all layers of a kind."""
        series = self._series.get((kind, quantity))
        if series is None:
            check_declared(quantity, kind)
        return series or NO_SERIES

    def total(self, quantity: str) -> ValueSeries:
        """Return a figure of the whole network: `loss`, `lr` (the largest), or one of `Record.total` or `metrics`."""
        series = self._series.get(("total", quantity))
        if series is None:
            check_declared(quantity, *OF_WHOLE_NETWORK)
        return (series or NO_SERIES).of(0)

    def then_and_now(self, kind: LayerKind, quantity: str) -> Iterator[tuple[int, LayerRecord, float, float]]:
        """Yield for every layer of a kind its place, itself, and a quantity's median at the start and now."""
        series, layers = self.series_by_layer(kind, quantity), self.of(kind)
        starts, nows = series.starts(), series.nows()
        for index in sorted(starts.keys() & nows.keys()):
            yield index, layers[index], starts[index], nows[index]

    def lasting(self, kind: LayerKind, quantity: str) -> Iterator[tuple[int, LayerRecord, list[float]]]:
        """Yield for every layer of a kind its place, itself, and a quantity's latest figures, all of them numbers."""
        layers = self.of(kind)
        for index, values in sorted(self.series_by_layer(kind, quantity).lasting().items()):
            yield index, layers[index], values

    def last(self, kind: LayerKind, quantity: str) -> Iterator[tuple[LayerRecord, tuple[float, ...]]]:
        """Yield for every layer of a kind itself and a quantity's last figures, two that span enough steps."""
        layers = self.of(kind)
        for index, values in sorted(self.series_by_layer(kind, quantity).last().items()):
            yield layers[index], values

    def begin(self, layers: Sequence[LayerRecord]) -> bool:
        """Take note of what is watched; return whether records so far are of the same layers.

        Records of other layers, of a model that was changed before the run went on, keep their loss and sums alone:
        their numbers belong to no layer any more.
        """
        same = [(layer.kind, layer.name) for layer in layers] == [(layer.kind, layer.name) for layer in self.layers]
        if not same:
            self.records = [replace(record, values={}, histograms={}) for record in self.records]
            for key in [key for key in self._series if key[0] != "total"]:
                del self._series[key]
        self.layers = tuple(layers)
        self._kinds = {kind: tuple(layer for layer in layers if layer.kind == kind) for kind in LAYER_KINDS}
        return same or not self.records

    def resume(self, folder: str | os.PathLike[str]) -> None:
        """Read what an earlier part of the run wrote.

        Records of steps that were done again replace the older ones; alarms stay, so that none is raised twice.

        Args:
            folder: the folder of the run, or the log in it.

        Raises:
            InputError: the log is damaged or of another version.
        """
        reading = LogReading.of(folder)
        self.begin(reading.layers)
        for record in reading.records():
            self.keep(record)
        for finding in reading.findings:
            self.raised(finding)
        self._ended = 0 if reading.ended is None else reading.ended.step

    def has_raised(self, code: str) -> bool:
        """Return whether an alarm of this code was raised, at any layer: naming another layer would be no news."""
        return any(finding.code == code for finding in self.findings)

    def raised(self, finding: Finding) -> bool:
        """Add a finding; return whether it is news."""
        key = (finding.code, finding.where)
        if key in self._raised and finding.severity <= self._raised[key]:
            return False
        self._raised[key] = finding.severity
        self.findings.append(finding)
        return True

    def keep(self, record: Record) -> None:
        """Add a record without looking for alarms."""
        self._forget(record.step)
        self.looked_up = {}
        self.records.append(record)
        self._count(record, 1)
        if len(self.records) > MAX_RECORDS:
            self.records = _thin_out(self.records)
        for kind, table in record.values.items():
            for quantity, column in table.items():
                self._series[kind, quantity].add(record.step, column)
        rate = max(record.lr, default=math.nan)
        if 0.0 < rate < math.inf:
            self.peak_lr = max(self.peak_lr, rate)
        for key, derive in DERIVED.items():
            self._series[key].add(record.step, derive(record))
        self.spikes.add(record)
        mean = record.metrics.get("loss_mean", record.loss)
        if mean is not None and record.step and (self.least_loss is None or mean < self.least_loss[0]):
            self.least_loss = (mean, record.step)
        for quantity, value in {**record.metrics, **record.total, "loss": record.loss, "lr": rate}.items():
            self._series["total", quantity].add(record.step, (value,))

    def note(self, step: int, figures: Mapping[str, float]) -> None:
        """Add figures that the loop gave: those of a validation."""
        for name, value in figures.items():
            self.validations.setdefault(name, deque(maxlen=RECENT_RECORDS)).append((step, value))

    def _count(self, record: Record, times: int) -> None:
        self.measured += times
        self.left_out += times * round(record.total_of("left_out") or 0.0)

    def _forget(self, step: int) -> None:
        """Drop the records from a step on: it is done again."""
        self._ended = 0
        if self.records and self.step >= step:
            while self.records and self.step >= step:
                self._count(self.records.pop(), -1)
            for series in self._series.values():
                series.forget(step)


def _thin_out(records: Sequence[Record]) -> list[Record]:
    """Return the first records, the latest, and of those between about half of what there is room for, evenly."""
    kept, recent = list(records[:FIRST]), records[-RECENT_RECORDS:]
    apart = (recent[0].step - kept[-1].step) / ((MAX_RECORDS - RECENT_RECORDS) // 2)
    for record in records[FIRST:-RECENT_RECORDS]:
        if record.step - kept[-1].step >= apart:
            kept.append(record)
    return [*kept, *recent]
