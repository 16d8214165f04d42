"""When a step is measured and how much of it, and what time there is for that.

`Schedule` says which steps are due, `TimeBudget` how much of a run's time the watcher took and may take, and `Turns`
whose turn it is where there is no time for all.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from ..core.errors import InputError

WINDOW_SECONDS = 60.0
"""The share of the time that watching may take is kept over every window of this length."""
STEADY_SHARE = 0.5
"""What of that share is earned as time passes. The rest of a window's may be held, and is there at the start: what is
spent in a window is at most what is held when it begins and what is earned in it."""

Place = TypeVar("Place", bound=Hashable)


class Tier(enum.StrEnum):
    """How much is measured on a step; each tier adds to the one before."""

    ECONOMY = "economy"
    """Normalizers, weights, products, gradients, updates of scale-invariant groups, loss."""
    STANDARD = "standard"
    """Also gains of activations and gradients by block, dead units, updates of every weight."""
    FULL = "full"
    """Also histograms of weights and gradients, and every norm searched for from the start."""

    @property
    def rank(self) -> int:
        """0, 1, 2 for economy, standard, full."""
        return list(Tier).index(self)


RICHEST_FIRST = tuple(reversed(Tier))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps are due.

    Attributes:
        every: the interval of each tier that is used, in steps of the optimizer.

    Example:
        >>> schedule = Schedule.of(10, "economy")
        >>> [step for step in range(25) if schedule.due(step)]
        [0, 10, 20]
        >>> Schedule.of({"economy": 10, "full": 20}).due(40)
        <Tier.FULL: 'full'>
    """

    every: Mapping[Tier, int]

    @classmethod
    def of(cls, every: int | Mapping[str, int], tier: str = "economy") -> Schedule:
        """Read what the user gave: one interval for one tier, or an interval for each of several.

        Args:
            every: the interval, or intervals by tier.
            tier: what one interval is of.

        Raises:
            InputError: a tier that does not exist, or an interval that is not a positive whole number.
        """
        intervals = dict(every) if isinstance(every, Mapping) else {str(tier): every}
        if not intervals:
            raise InputError("every={} measures nothing: give an interval, for instance every=50")
        for name, interval in intervals.items():
            if name not in list(Tier):
                raise InputError(f"there is no tier {name!r}: the tiers are {', '.join(Tier)}")
            if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
                raise InputError(f"every is a number of steps, 1 or more, not {interval!r} (tier {name})")
        return cls({Tier(name): interval for name, interval in intervals.items()})

    def due(self, step: int, below: Tier | None = None) -> Tier | None:
        """Return the richest tier that is due at a step, or None; only of those that are below one, if it is given."""
        for tier in RICHEST_FIRST if below is None else RICHEST_FIRST[RICHEST_FIRST.index(below) + 1 :]:
            if tier in self.every and step % self.every[tier] == 0:
                return tier
        return None

    @property
    def richest(self) -> Tier:
        """The richest tier of all."""
        return max(self.every, key=lambda tier: tier.rank)


class TimeBudget:
    """Earns a share of a run's time, and counts what the watcher takes: on a GPU how long it holds up the stream.

    What is spent is charged at once by the clock of the host. Two events on the stream around it say later how long the
    kernels of the run had to wait: that replaces it. A task is expected to cost what it did for the last record that it
    was done for; the first time is longer than those that follow, and says little.

    Args:
        share: the share of the time that may be spent; None for no limit.
        device: where the model lies.
        clock: returns nanoseconds.

    Attributes:
        spent: seconds that the watcher took so far.

    Example:
        >>> budget = TimeBudget(share=1e-9)
        >>> for _ in range(2):
        ...     with budget.watching("norms"):
        ...         total = sum(range(10000))
        ...     budget.end_record()
        >>> budget.affords("norms")
        False
    """

    def __init__(
        self,
        share: float | None,
        device: torch.device | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.share, self._clock = share, clock
        self._device = device if device is not None and device.type == "cuda" else None
        self._costs: dict[Hashable, float] = {}
        self._sums: dict[Hashable, float] = {}  # of the record that is being made
        self._record = 0
        self._running: list[_Timer] = []
        self._unread: deque[_Timer] = deque()
        self.restart()

    def restart(self) -> None:
        """Begin anew, with what may be held."""
        self.spent, self._began = 0.0, self._clock()
        self._held, self._earned_at = self._most_held, self._began

    @property
    def passed(self) -> float:
        """Seconds since the run began."""
        return (self._clock() - self._began) / 1e9

    @property
    def overhead(self) -> float:
        """The share of the time that the watcher took."""
        passed = self.passed
        return self.spent / passed if passed > 0 else 0.0

    def skip(self, seconds: float) -> None:
        """Leave out time in which the loop stood still."""
        self._began += round(seconds * 1e9)
        self._earned_at += round(seconds * 1e9)

    def expect(self, task: Hashable) -> float:
        """Return what a task is expected to cost, in seconds."""
        return self._costs.get(task, 0.0)

    def affords(self, *tasks: Hashable) -> bool:
        """Return whether there is time for some tasks now; one that was never done needs time that is held."""
        if self.share is None:
            return True
        self._read_events()
        now = self._clock()
        expected = sum(map(self.expect, tasks))
        earned = STEADY_SHARE * self.share * (now - self._earned_at) / 1e9
        # a task that costs more than may be held would wait for ever
        self._held = min(self._held + earned, max(self._most_held, expected, self._held))
        self._earned_at = now
        return self._held >= max(expected, 1e-9)

    @property
    def _most_held(self) -> float:
        return (1.0 - STEADY_SHARE) * (self.share or 0.0) * WINDOW_SECONDS

    @contextmanager
    def watching(self, task: Hashable) -> Iterator[None]:
        """Count what happens inside as the watcher's, for a task; that of a task inside of another is its own alone."""
        timer = _Timer(task, self._running[-1] if self._running else None, task not in self._costs, self._record)
        self._running.append(timer)
        timer.start(self._clock, self._device)
        try:
            yield
        finally:
            self._running.pop()
            timer.stop(self._clock)
            self._count(timer, timer.seconds)
            if timer.events:
                self._unread.append(timer)

    def charge(self, nanoseconds: int) -> None:
        """Add to the watcher's time what is no task."""
        self.spent += nanoseconds / 1e9
        self._held -= nanoseconds / 1e9

    def end_record(self) -> None:
        """Take note that all tasks of a record are done: what they cost is expected of the next."""
        self._costs |= {task: cost if task in self._costs else 0.0 for task, cost in self._sums.items()}
        self._sums, self._record = {}, self._record + 1

    def _count(self, timer: _Timer, seconds: float) -> None:
        """Count seconds for the task of a timer, and not for the one around it; they may be a correction."""
        if timer.outer is None:
            self.spent += seconds
            self._held -= seconds
        for one, signed in ((timer, seconds), (timer.outer, -seconds)):
            if one is None:
                continue
            if one.record == self._record:
                self._sums[one.task] = self._sums.get(one.task, 0.0) + signed
            elif not one.is_first:
                self._costs[one.task] = max(self._costs.get(one.task, 0.0) + signed, 0.0)

    def _read_events(self) -> None:
        """Correct what was charged by what the events say that have arrived; nothing is waited for."""
        while self._unread and self._unread[0].events[1].query():
            timer = self._unread.popleft()
            first, last = timer.events
            self._count(timer, first.elapsed_time(last) / 1e3 - timer.seconds)


class _Timer:
    """One stretch of time in which the watcher works.

    Args:
        task: what is done in it.
        outer: the stretch around it, if there is one.
        is_first: whether the task is done for the first time.
        record: the number of the record that it is done for.
    """

    def __init__(self, task: Hashable, outer: _Timer | None, is_first: bool, record: int) -> None:
        self.task, self.outer, self.is_first, self.record = task, outer, is_first, record
        self.seconds = 0.0
        self.events: list[Any] = []  # at the beginning and the end

    def start(self, clock: Callable[[], int], device: torch.device | None) -> None:
        """Begin; on a device also an event there, unless its kernels are being recorded into a graph."""
        self._began = clock()
        if device is not None and not torch.cuda.is_current_stream_capturing():
            self._stream = torch.cuda.current_stream(device)
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self.events[0].record(self._stream)

    def stop(self, clock: Callable[[], int]) -> None:
        """End."""
        if self.events:
            self.events[1].record(self._stream)
        self.seconds = (clock() - self._began) / 1e9


class Turns(Generic[Place]):
    """Goes round a list of places: those that are due first, then who has waited longest."""

    def __init__(self) -> None:
        self._served: dict[Place, int] = {}
        self._count = 0

    def order(self, places: Iterable[Place], due: Collection[Place] = ()) -> list[Place]:
        """Return places in the order in which they have their turn.

        Args:
            places: all there are.
            due: those that cannot wait as long as others.
        """
        return sorted(places, key=lambda place: (place not in due, self._served.get(place, 0)))

    def serve(self, place: Place) -> None:
        """Take note that a place has had its turn."""
        self._count += 1
        self._served[place] = self._count
