"""How many steps were due since the record before and were left out, for lack of time."""

from __future__ import annotations

from .quantity import Probe, Quantity, RecordDraft

LEFT_OUT = Quantity("network", "left_out", "steps that were due since the record before and left out, if any")


class LeftOut(Probe):
    """Counts the steps that the budget left out."""

    quantities = (LEFT_OUT,)
    _steps = 0

    def before_step(self) -> None:
        self._steps = self.step.budget.left_out

    def fill(self, record: RecordDraft) -> None:
        if self._steps:
            record.network(LEFT_OUT, float(self._steps))
