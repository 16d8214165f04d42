"""The learning rate of every parameter group of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .quantity import Arriving, Probe, Quantity, RecordDraft

RATES = Quantity("record", "lr", "the learning rate of every parameter group; over a run the largest of them")


class LearningRates(Probe):
    """Reads the learning rates in front of the step."""

    quantities = (RATES,)
    _rates: Sequence[float | Arriving] = ()

    def before_step(self) -> None:
        self._rates = [self.step.send_number(rate_of(group)) for group in self.step.optimizer.param_groups]

    def fill(self, record: RecordDraft) -> None:
        record.lr = tuple(map(float, self._rates))


def rate_of(group: Mapping[str, Any]) -> float | Tensor:
    """Return the learning rate of a parameter group, NaN if it has none; schedulers write to tensors in place."""
    lr = group.get("lr")
    return lr.detach().clone() if isinstance(lr, Tensor) else math.nan if lr is None else float(lr)
