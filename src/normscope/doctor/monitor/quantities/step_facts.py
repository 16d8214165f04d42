"""What is known of a step without measuring: learning rates, and how many steps were left out in front of it."""

from __future__ import annotations

from collections.abc import Sequence

from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft

RATES = Quantity("record", "lr", "the learning rate of every parameter group; over a run the largest of them")
LEFT_OUT = Quantity("network", "left_out", "steps that were due since the record before and left out for lack of time")


class StepFacts(Probe):
    """Reads the learning rates in front of the step, and what the budget has left out."""

    quantities = (RATES, LEFT_OUT)
    _rates: Sequence[float | Arriving] = ()
    _left_out = 0

    def before_step(self) -> None:
        self._rates = [self.step.send_rate(group) for group in self.step.optimizer.param_groups]
        self._left_out = self.step.budget.left_out

    def fill(self, record: RecordDraft) -> None:
        record.lr = tuple(map(float, self._rates))
        if self._left_out:
            record.network(LEFT_OUT, float(self._left_out))
