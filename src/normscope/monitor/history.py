"""The records of a run so far, and the alarms they raise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ..core.finding import Finding, Severity
from .alarms import ALARMS, URGENT, looked_for
from .reading import Reading
from .record import KINDS, Kind, Layer, Record


class History:
    """What is known of a run, record by record.

    Attributes:
        layers: what is watched.
        records: in the order of their steps.
        findings: raised so far.

    Example:
        >>> history = History()
        >>> known = history.begin([Layer(name="fc", kind="weight", family="linear")])
        >>> [f.code for f in history.add(Record(step=0, seconds=0.0, tier="economy", loss=float("nan")))]
        ['loss-not-finite']
    """

    def __init__(self) -> None:
        self.layers: tuple[Layer, ...] = ()
        self.records: list[Record] = []
        self.findings: list[Finding] = []
        self._ended = 0
        self._kinds: dict[Kind, tuple[Layer, ...]] = {}
        self._having: dict[tuple[str, str], list[Record]] = {}
        self._raised: dict[tuple[str, str], Severity] = {}

    @property
    def next_step(self) -> int:
        """The step a resumed run goes on from."""
        return max(self._ended, self.records[-1].step + 1 if self.records else 0)

    def of(self, kind: Kind) -> tuple[Layer, ...]:
        """Return the layers of a kind, in the order of a record's numbers."""
        return self._kinds.get(kind, ())

    def having(self, kind: Kind, quantity: str) -> Sequence[Record]:
        """Return the records in which a quantity was measured, in the order of their steps."""
        return self._having.get((kind, quantity), ())

    def begin(self, layers: Sequence[Layer]) -> bool:
        """Take note of what is watched; say whether records so far are of the same layers.

        Records of other layers, of a model that was changed before the run went on, keep their loss and sums alone:
        their numbers belong to no layer any more.
        """
        same = [(layer.kind, layer.name) for layer in layers] == [(layer.kind, layer.name) for layer in self.layers]
        if not same:
            self.records = [replace(record, values={}) for record in self.records]
            self._having = {}
        self.layers = tuple(layers)
        self._kinds = {kind: tuple(layer for layer in layers if layer.kind == kind) for kind in KINDS}
        return same or not self.records

    def resume(self, folder: str | os.PathLike[str]) -> None:
        """Read what an earlier part of the run wrote.

        Records of steps that were done again replace the older ones; alarms stay, so that none is raised twice.

        Args:
            folder: of the run, or the log in it.

        Raises:
            InputError: the log is damaged or of another version.
        """
        reading = Reading.of(folder)
        self.begin(reading.layers)
        for record in reading.records():
            self.keep(record)
        for finding in reading.findings:
            self._raise(finding)
        self._ended = 0 if reading.ended is None else reading.ended.step

    def add(self, record: Record, *, thorough: bool = True) -> list[Finding]:
        """Add a record; return the alarms that it raises.

        An alarm of a code at a place is raised once in a run, and once more if it becomes more severe.

        Args:
            record: the next one.
            thorough: whether to look for all alarms, or only for those that cannot wait.
        """
        self.keep(record)
        return [finding for finding in looked_for(self, ALARMS if thorough else URGENT) if self._raise(finding)]

    def _raise(self, finding: Finding) -> bool:
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
        for kind, table in record.values.items():
            for quantity in table:
                self._having.setdefault((kind, quantity), []).append(record)

    def _forget(self, step: int) -> None:
        """Drop the records from a step on: it is done again."""
        self._ended = 0
        if self.records and self.records[-1].step >= step:
            for records in (self.records, *self._having.values()):
                while records and records[-1].step >= step:
                    records.pop()
