"""A share of the run's time, for work that can wait its turn."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class TimeShare:
    """Earns a share of the time that passes and spends it on tasks, each expected to cost what it did last time.

    Args:
        share: the share of the time; None for no limit.

    Example:
        >>> budget = TimeShare(share=0.0)
        >>> for _ in range(2):  # what was never done is free, and says little of what it will cost
        ...     with budget.spending("norms"):
        ...         total = sum(range(10000))
        >>> budget.affords("norms")
        False
    """

    def __init__(self, share: float | None) -> None:
        self.share = share
        self._held, self._since = 0.0, time.perf_counter()
        self._costs: dict[Hashable, float] = {}

    def skip(self, seconds: float) -> None:
        """Leave out time that passed."""
        self._since += seconds

    def affords(self, task: Hashable) -> bool:
        """Say whether there is time for a task now."""
        if self.share is None or task not in self._costs:
            return True
        now = time.perf_counter()
        self._held, self._since = self._held + self.share * (now - self._since), now
        return self._held >= self._costs[task]

    @contextmanager
    def spending(self, task: Hashable, *, more: bool = False, free: bool = False) -> Iterator[None]:
        """Do a task: `more` of one that has begun already, or a `free` one, whose cost is noted but not charged."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            if task not in self._costs:  # the first time is longer than those that follow
                self._costs[task] = 0.0
            else:
                self._costs[task] = spent + (self._costs[task] if more else 0.0)
                self._held -= 0.0 if free else spent
