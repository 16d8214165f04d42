"""What alarms know of a curve: its first figures and its latest, a bounded number however long the run is."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

FIRST = 3
"""Figures at the start that say where a run came from."""
RECORDS = 5
"""Figures that show a lasting state: the median of five is not moved by two odd batches."""
STEPS = 40
"""Steps that a lasting state spans at least, however often is looked: four times the memory of momentum 0.9."""
APART = 4
"""Steps between two figures that are both kept: ten gaps make a lasting state."""
KEPT = STEPS // APART + 2
"""The latest figures that are kept: a lasting state, and one that the next may replace."""


class Course:
    """One figure over a run, as its records come.

    Attributes:
        first: the first figures that are numbers.
        recent: pairs (step, figure) of the latest, without the very first, which is of an untrained model. Of those
            that lie close the last stands for all.

    Example:
        >>> course = Course()
        >>> for step in range(0, 100, 10):
        ...     course.add(step, step / 10)
        >>> course.first, course.lasting()
        ([0.0, 1.0, 2.0], [5.0, 6.0, 7.0, 8.0, 9.0])
    """

    __slots__ = ("_begun", "_latest", "first", "recent")

    def __init__(self) -> None:
        self.first: list[float] = []
        self.recent: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._begun = False
        self._latest: list[tuple[int, float]] | None = None  # several alarms ask for it at one look

    def add(self, step: int, value: float) -> None:
        """Add the figure of a step."""
        if len(self.first) < FIRST and not math.isnan(value):
            self.first.append(value)
        if not self._begun:
            self._begun = True
            return
        recent, self._latest = self.recent, None
        if len(recent) > 1 and recent[-1][0] - recent[-2][0] < APART:
            recent[-1] = (step, value)
        else:
            recent.append((step, value))

    def forget(self, step: int) -> None:
        """Drop what is known of the steps from one on: they are done again."""
        self._latest = None
        while self.recent and self.recent[-1][0] >= step:
            self.recent.pop()

    def latest(self) -> list[tuple[int, float]]:
        """Return the last pairs that show a lasting state; empty while there are too few of them."""
        if self._latest is None:
            self._latest = self._found()
        return self._latest

    def _found(self) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        for pair in reversed(self.recent):
            found.append(pair)
            if len(found) >= RECORDS and found[0][0] - pair[0] >= STEPS:
                return found[::-1]
        return []

    def lasting(self) -> list[float]:
        """Return the figures of a lasting state; empty where there is none, or one of them is no number."""
        found = [value for _, value in self.latest()]
        return [] if any(map(math.isnan, found)) else found

    @property
    def start(self) -> float | None:
        """The median of the first figures; None before there is one."""
        return median(self.first) if self.first else None

    @property
    def now(self) -> float | None:
        """The median of a lasting state, without what is no number; None where there is none."""
        known = [value for _, value in self.latest() if not math.isnan(value)]
        return median(known) if known else None
