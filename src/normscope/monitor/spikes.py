"""Losses that stand out: followed record by record, with a bounded number of figures."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from .record import Record

WINDOW = 64
"""How many of the latest records say what is usual."""
FEW, FEW_LOSSES = 3, 100
"""How many records, and how many losses, there must be before anything counts as usual."""
HIGH = 0.5
"""A jump is at least this share of the first loss, or of the present level if that is larger: a lower one is soon made
good."""
RARE = 10.0
"""A jump is at least this many times the usual distance between the mean and the largest of the losses of a record."""
NEW = 1.5
"""A jump is at least this many times the largest one in the window: losses that often jump do so in healthy runs
too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss far above those around it.

    Attributes:
        step: its step.
        loss: the loss.
        level: the usual loss before.
    """

    step: int
    loss: float
    level: float


class Spikes:
    """Finds the first spike of a run.

    Attributes:
        found: the spike; None while there is none.
        count: how many records have one.
    """

    def __init__(self) -> None:
        self.found: Spike | None = None
        self.count = 0
        self._start: float | None = None
        self._losses = 0.0
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def add(self, record: Record) -> None:
        """Look at the losses of one more record."""
        middle, largest = (record.metrics.get(name, record.loss) for name in ("loss_mean", "loss_largest"))
        if middle is None or largest is None or not math.isfinite(middle) or not math.isfinite(largest):
            return
        self._start = middle if self._start is None else self._start
        if len(self._window) >= FEW and self._losses >= FEW_LOSSES:
            level = median(pair[0] for pair in self._window)
            usual = median(pair[1] - pair[0] for pair in self._window)
            top = max(pair[1] for pair in self._window)
            least = max(HIGH * max(abs(self._start), abs(level)), RARE * usual, NEW * (top - level))
            if largest - level > least:
                self.count += 1
                step = int(record.metrics.get("loss_largest_at") or record.step)
                self.found = self.found or Spike(step=step, loss=largest, level=level)
        self._window.append((middle, largest))
        self._losses += record.metrics.get("loss_count") or 1.0
