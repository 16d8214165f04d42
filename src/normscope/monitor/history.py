"""The records of a run so far, and the alarms they raise."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.finding import Finding
from .record import Layer, Record


class History:
    """What is known of a run, record by record.

    Attributes:
        layers: what is watched.
        records: in the order of their steps.
        findings: raised so far.
    """

    def __init__(self) -> None:
        self.layers: tuple[Layer, ...] = ()
        self.records: list[Record] = []
        self.findings: list[Finding] = []

    @property
    def next_step(self) -> int:
        """The step a resumed run goes on from."""
        return self.records[-1].step + 1 if self.records else 0

    def begin(self, layers: Sequence[Layer]) -> None:
        """Take note of what is watched."""
        self.layers = tuple(layers)

    def resume(self, folder: str | os.PathLike[str]) -> None:
        """Read what an earlier part of the run wrote."""

    def add(self, record: Record) -> list[Finding]:
        """Add a record; return the alarms that it raises."""
        self.records.append(record)
        return []
