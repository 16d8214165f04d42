"""The records of a run so far, and the alarms that were raised."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..core.finding import Finding, Severity
from .courses import FIRST, Course
from .locating import Broken
from .log_reading import LogReading
from .parameter_follower import ParameterFollower
from .record import KINDS, Kind, LayerRecord, Record
from .spikes import Spikes

MOST, RECENT = 1000, 300
"""Records that are kept at most, and the latest of them, which are never left out; the log has all."""
NONE = Course()
"""The course of a figure that was never measured."""


class History:
    """What is known of a run, record by record: a bounded number of figures, however long it is.

    Attributes:
        layers: what is watched.
        records: in the order of their steps; of a long run the first, the latest, and a selection of those between.
        findings: raised so far.
        peak_lr: the largest learning rate so far.
        spikes: the spikes of the loss.
        standing: what is known of the parameters without measuring.
        broken: where the numbers of a forward broke, if that was seen.
    """

    def __init__(self) -> None:
        self.layers: tuple[LayerRecord, ...] = ()
        self.records: list[Record] = []
        self.findings: list[Finding] = []
        self.broken: Broken | None = None
        self.standing = ParameterFollower()
        self._ended = 0
        self._kinds: dict[Kind, tuple[LayerRecord, ...]] = {}
        self.peak_lr, self.spikes = 0.0, Spikes()
        self._courses: dict[tuple[str, str], dict[int, Course]] = {}
        self._raised: dict[tuple[str, str], Severity] = {}

    @property
    def next_step(self) -> int:
        """The step a resumed run goes on from."""
        return max(self._ended, self.records[-1].step + 1 if self.records else 0)

    def of(self, kind: Kind) -> tuple[LayerRecord, ...]:
        """Return the layers of a kind, in the order of a record's numbers."""
        return self._kinds.get(kind, ())

    def having(self, kind: Kind, quantity: str) -> Sequence[Record]:
        """Return the records that are kept and in which a quantity was measured, in the order of their steps."""
        return [record for record in self.records if record.of(kind, quantity)]

    def course(self, kind: Kind, quantity: str, index: int) -> Course:
        """Return the figures of a quantity of one layer, in the order of a record's numbers, that alarms compare."""
        return self._courses.get((kind, quantity), {}).get(index, NONE)

    def total(self, quantity: str) -> Course:
        """Return a figure of the whole network: `loss`, `lr` (the largest), or one of `Record.total` or `metrics`."""
        return self._courses.get(("total", quantity), {}).get(0, NONE)

    def begin(self, layers: Sequence[LayerRecord]) -> bool:
        """Take note of what is watched; say whether records so far are of the same layers.

        Records of other layers, of a model that was changed before the run went on, keep their loss and sums alone:
        their numbers belong to no layer any more.
        """
        same = [(layer.kind, layer.name) for layer in layers] == [(layer.kind, layer.name) for layer in self.layers]
        if not same:
            self.records = [replace(record, values={}, histograms={}) for record in self.records]
            self._courses = {key: found for key, found in self._courses.items() if key[0] == "total"}
        self.layers = tuple(layers)
        self._kinds = {kind: tuple(layer for layer in layers if layer.kind == kind) for kind in KINDS}
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

    def raised(self, finding: Finding) -> bool:
        """Add a finding; say whether it is news."""
        key = (finding.code, finding.where)
        if key in self._raised and finding.severity <= self._raised[key]:
            return False
        self._raised[key] = finding.severity
        self.findings.append(finding)
        return True

    def keep(self, record: Record) -> None:
        """Add a record without looking for alarms."""
        self._forget(record.step)
        self.records.append(record)
        if len(self.records) > MOST:
            self.records = _thinned(self.records)
        for kind, table in record.values.items():
            for quantity, column in table.items():
                self._follow((kind, quantity), record.step, enumerate(column))
        rate = max(record.lr, default=math.nan)
        if 0.0 < rate < math.inf:
            self.peak_lr = max(self.peak_lr, rate)
            scale = math.log10(rate)  # what the weights did to it, without the schedule
            rates = enumerate(record.of("weight", "log10_effective_lr"))
            unscheduled = ((index, None if value is None else value - scale) for index, value in rates)
            self._follow(("weight", "log10_unscheduled_lr"), record.step, unscheduled)
        self.spikes.add(record)
        for quantity, value in {**record.metrics, **record.total, "loss": record.loss, "lr": rate}.items():
            self._follow(("total", quantity), record.step, ((0, value),))

    def _follow(self, key: tuple[str, str], step: int, figures: Iterable[tuple[int, float | None]]) -> None:
        """Add the figures of a step to their courses; what was not measured leaves no trace."""
        courses = self._courses.setdefault(key, {})
        for index, value in figures:
            if value is not None:
                course = courses.get(index)
                if course is None:
                    course = courses[index] = Course()
                course.add(step, value)

    def _forget(self, step: int) -> None:
        """Drop the records from a step on: it is done again."""
        self._ended = 0
        if self.records and self.records[-1].step >= step:
            while self.records and self.records[-1].step >= step:
                self.records.pop()
            for courses in self._courses.values():
                for course in courses.values():
                    course.forget(step)


def _thinned(records: Sequence[Record]) -> list[Record]:
    """Return the first records, the latest, and of those between about half of what there is room for, evenly."""
    kept, recent = list(records[:FIRST]), records[-RECENT:]
    apart = (recent[0].step - kept[-1].step) / ((MOST - RECENT) // 2)
    for record in records[FIRST:-RECENT]:
        if record.step - kept[-1].step >= apart:
            kept.append(record)
    return [*kept, *recent]
