"""How long a run has taken, and how much of that time the watcher took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Tells the time of a run from that of the watcher; its first measurement, which finds the layers, stands apart.

    Attributes:
        own: seconds that the watcher took after its first measurement.
        first: seconds that the first measurement took.
    """

    def __init__(self) -> None:
        self.own = self.first = 0.0
        self._began, self._inside, self._settled = time.perf_counter(), False, False

    @property
    def passed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    @property
    def overhead(self) -> float:
        """The watcher's share, the first measurement left out."""
        passed = self.passed - self.first
        return self.own / passed if passed > 0 else 0.0

    def restart(self) -> None:
        """Begin anew."""
        self._began = time.perf_counter()

    def skip(self, seconds: float) -> None:
        """Leave out time in which the loop stood still."""
        self._began += seconds

    def settle(self) -> None:
        """Take note that the first measurement is over."""
        self._settled = True

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what happens inside as the watcher's; once where this is nested."""
        if self._inside:
            yield
            return
        self._inside, began = True, time.perf_counter()
        try:
            yield
        finally:
            self._inside = False
            self.spend(time.perf_counter() - began)

    def spend(self, seconds: float) -> None:
        """Add to the watcher's time."""
        if self._settled:
            self.own += seconds
        else:
            self.first += seconds
