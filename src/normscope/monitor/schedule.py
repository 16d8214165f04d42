"""When a step is measured and how much of it, and what time there is for that.

`Schedule` says which steps are due, `TimeBudget` how much of a run's time the watcher took and may take, and `Turns`
whose turn it is where there is no time for all.
"""

from __future__ import annotations

import enum
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import torch

from ..core.errors import InputError

WINDOW_SECONDS = 60.0
"""The share of the time that watching may take is kept over every window of this length."""
STEADY_SHARE = 0.75
"""What of that share is earned as time passes. The rest of a window's may be held, and is there at the start: what is
spent in a window is at most what is held when it begins and what is earned in it."""
RECORD_SHARE = 0.65
"""What of that share is for records and looking for alarms in them; the rest is for what waits its turn, norms above
all. Neither takes from the other."""
START_SECONDS, START_STEPS = 0.5, 800
"""Records are made as often as asked until they have taken this long, or for so many steps: short runs, and the first
steps of long ones, say most. Where records are further apart, a part of it will do. It is lent: records earn nothing
until they would have earned what they took of it."""
KEPT_SHARE = 0.9
"""What of the share is given out: caches and the allocator take some more, which no clock around the work sees."""
EARLY_RECORDS = 2
"""Records that are made in any case: the first takes longer than those that follow, and says little of them."""
MAX_LEFT_OUT = 8
"""Of this many steps that are due one is measured, and of this many records one has the norms of some layers searched
for or followed, whatever that costs."""
USUAL_INTERVAL_STEPS, LEAST_SHARE = 10, 0.25
"""The interval at which the whole share of the time may be used. Where records are further apart, less is: of what
waits its turn in proportion, of records this part of it at least."""
IDLE_STEP_SECONDS = 9e-6
"""What hooks are taken to cost at every step: those of torch, and a counter. Measured on the host of an H200."""
OBSERVED_STEP_SECONDS = 6e-6
"""What an observed figure is taken to cost."""

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


TierName = Literal["economy", "standard", "full"]
"""The tiers as a caller writes them."""
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
    def of(cls, every: int | Mapping[str, int], tier: TierName = "economy") -> Schedule:
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

    def due(self, step: int) -> Tier | None:
        """Return the richest tier that is due at a step, or None."""
        for tier in RICHEST_FIRST:
            if tier in self.every and step % self.every[tier] == 0:
                return tier
        return None

    def next_due(self, step: int) -> int:
        """Return the first step that is due, from a step on."""
        return min(-(-step // interval) * interval for interval in self.every.values())

    @property
    def richest(self) -> Tier:
        """The richest tier of all."""
        return max(self.every, key=lambda tier: tier.rank)


class TimeBudget:
    """Earns a share of a run's time, and counts what the watcher takes: on a GPU how long it holds up the stream.

    What is spent is charged at once by the clock of the host. Two events on the stream around it say later how long the
    kernels of the run had to wait: that replaces it. A task is expected to cost what it did at the cheaper of the last
    two times: one that took long while the machine was busy says little.

    Args:
        share: the share of the time that may be spent; None for no limit.
        device: where the model lies.
        clock: returns nanoseconds.
        every: the interval at which steps are due.

    Attributes:
        spent: seconds that the watcher took so far.
        records: how many records were made.
        left_out: how many steps that were due have been left out in front of the last one that was measured.

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
        *,
        every: int = USUAL_INTERVAL_STEPS,
    ) -> None:
        self.share, self._clock, self._every = share, clock, every
        self._device = device if device is not None and device.type == "cuda" else None
        self._costs: dict[Hashable, deque[float]] = {}  # of the last two times
        self._sums: dict[Hashable, float] = {}  # of tasks that are not done
        self._first_costs: dict[Hashable, float] = {}  # by kind of task, of the last that was done for the first time
        self._rounds: dict[Hashable, int] = {}  # how often each was done
        self._times: dict[Hashable, int] = {}  # and how many times in the last round
        self.records = 0
        self._running: list[_Timer] = []
        self._unread: deque[_Timer] = deque()
        self._free_events: list[Any] = []
        self._saving_for: Hashable = None
        self.restart()

    def restart(self) -> None:
        """Begin anew, with what may be held."""
        self.spent, self._began = 0.0, self._clock()
        share = KEPT_SHARE * (self.share or 0.0)
        waiting = (1.0 - RECORD_SHARE) * share
        scale = min(1.0, USUAL_INTERVAL_STEPS / self._every)
        least = max(scale, LEAST_SHARE)
        self._purses = {
            True: Purse(least * RECORD_SHARE * share, self._began, lent=least * START_SECONDS),
            False: Purse(scale * waiting, self._began, lent=(1.0 - STEADY_SHARE) * waiting * WINDOW_SECONDS),
        }
        self.left_out = self._due = 0  # _due: steps that were due since the last record

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
        nanoseconds = round(seconds * 1e9)
        self._began += nanoseconds
        for purse in self._purses.values():
            purse.earned_at += nanoseconds

    def expect(self, task: Hashable) -> float:
        """Return what a task is expected to cost, in seconds; 0 if nobody knows.

        One that was never done costs what the last one of its kind did when that was new: it loads what it needs.
        """
        return min(self._costs[task]) if task in self._costs else self._first_costs.get(_kind_of(task), 0.0)

    def knows(self, task: Hashable) -> bool:
        """Return whether a task was done before."""
        return task in self._costs

    def affords(self, task: Hashable, times: int = 1) -> bool:
        """Return whether there is time for a task now, or for doing it several times, and for what it saves for.

        One whose cost is not known needs any time.
        """
        if self.share is None:
            return True
        self._read_events()
        expected, saving_for = times * self.expect(task), self._saving_for
        if not self.knows(task):  # what it needs is loaded already, perhaps
            expected = min(expected, self._purses[_is_record(task)].most_held)
        if saving_for not in (None, task) and _is_record(saving_for) == _is_record(task):
            expected += self.expect(saving_for)
        return self._purses[_is_record(task)].holds(expected, self._clock())

    def save_for(self, task: Hashable) -> None:
        """Let other tasks of its kind wait until there is time for one, too; None for no such task."""
        self._saving_for = task

    def takes_record(self, task: Hashable) -> bool:
        """Return whether a step that is due is measured, which is a task.

        It is if there is time for that. Of a few steps that are due one is measured in any case.
        """
        self._due += 1
        early = self.records < EARLY_RECORDS or self._due >= MAX_LEFT_OUT
        if self.share is not None and not early and not self.affords(task):
            return False
        self.left_out, self._due = self._due - 1, 0
        return True

    @contextmanager
    def watching(self, task: Hashable) -> Iterator[None]:
        """Count what happens inside as the watcher's, for a task; that of a task inside of another is its own alone."""
        timer = _Timer(task, self._running[-1] if self._running else None, self._rounds.get(task, 0))
        self._running.append(timer)
        stream: Any = None
        if self._device is not None and not torch.cuda.is_current_stream_capturing():
            stream = torch.cuda.current_stream(self._device)
            timer.events = [self._record_event(stream)]
        began = self._clock()
        try:
            yield
        finally:
            self._running.pop()
            timer.seconds = (self._clock() - began) / 1e9
            self._count(timer, timer.seconds)
            if timer.events:
                timer.events.append(self._record_event(stream))
                self._unread.append(timer)

    def _record_event(self, stream: Any) -> Any:
        """Return an event that the stream will come by."""
        event = self._free_events.pop() if self._free_events else torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def pass_steps(self, steps: int, figures: int = 0) -> None:
        """Count what hooks take at every step, measured or not, and what figures take that the loop observed."""
        seconds = steps * IDLE_STEP_SECONDS + figures * OBSERVED_STEP_SECONDS
        self.spent += seconds
        self._purses[True].pay(seconds)

    def end_task(self, task: Hashable, times: int = 1) -> None:
        """Take note that a task is done, several times perhaps: what it cost is expected of the next time."""
        seconds = self._sums.pop(task, None)
        if seconds is not None:
            if task not in self._costs:
                self._first_costs[_kind_of(task)] = max(seconds / times, 0.0)
            self._costs.setdefault(task, deque(maxlen=2)).append(max(seconds / times, 0.0))
            self._times[task] = times
            self._rounds[task] = self._rounds.get(task, 0) + 1

    def end_record(self) -> None:
        """Take note that all tasks of a record are done."""
        for task in list(self._sums):
            self.end_task(task)
        self.records += 1
        if self.records == -(-START_STEPS // self._every):
            self._purses[True].end_loan(self._began, self._clock())

    def _count(self, timer: _Timer, seconds: float) -> None:
        """Count seconds for the task of a timer, and not for the one around it; they may be a correction."""
        if timer.outer is None:
            self.spent += seconds
        for one, signed in ((timer, seconds), (timer.outer, -seconds)):
            if one is None:
                continue
            self._purses[_is_record(one.task)].pay(signed)
            ago = self._rounds.get(one.task, 0) - one.round
            if ago == 0:
                self._sums[one.task] = self._sums.get(one.task, 0.0) + signed
            elif ago <= len(costs := self._costs[one.task]):
                costs[-ago] = max(costs[-ago] + signed / self._times[one.task], 0.0)

    def _read_events(self) -> None:
        """Correct what was charged by what the events say that have arrived; nothing is waited for."""
        while self._unread and self._unread[0].events[1].query():
            timer = self._unread.popleft()
            first, last = timer.events
            self._count(timer, first.elapsed_time(last) / 1e3 - timer.seconds)
            self._free_events += timer.events


def _is_record(task: Hashable) -> bool:
    """Return whether a task is that of measuring a step or of looking at it, and not of what waits its turn."""
    return _kind_of(task) in ("step", "alarms")


def _kind_of(task: Hashable) -> Hashable:
    """Return what all tasks of a kind share: those of norms, say, of whichever layers."""
    return task[0] if isinstance(task, tuple) else task


class Purse:
    """Time that one kind of work may take: a share of what passes, and some of that in advance.

    Args:
        share: of the time that passes.
        now: when the run begins, in nanoseconds.
        lent: seconds that are there at the start; what of them may not be held is earned later.
    """

    def __init__(self, share: float, now: int, lent: float) -> None:
        self._rate, self.most_held = STEADY_SHARE * share, (1.0 - STEADY_SHARE) * share * WINDOW_SECONDS
        self._lent = self._held = lent
        self.earned_at = now + self._time_to_earn(lent)

    def _time_to_earn(self, lent: float) -> int:
        """Return the nanoseconds after which more was earned than may not be held of what was lent."""
        return round(1e9 * max(lent - self.most_held, 0.0) / self._rate) if self._rate > 0.0 else 0

    def end_loan(self, began: int, now: int) -> None:
        """Give back what was lent and is not spent, unless it is earned by now."""
        if now < self.earned_at:
            spent = self._lent - self._held
            self._held, self.earned_at = max(self.most_held - spent, 0.0), began + self._time_to_earn(spent)

    def holds(self, seconds: float, now: int) -> bool:
        """Return whether there is time for something that takes so long; what is not known needs any time.

        Something that costs more than may be held would wait for ever: then as much as it takes may be.
        """
        if now > self.earned_at:
            earned = self._rate * (now - self.earned_at) / 1e9
            self._held, self.earned_at = min(self._held + earned, max(self.most_held, seconds, self._held)), now
        return self._held >= max(seconds, 1e-9)

    def pay(self, seconds: float) -> None:
        """Take time out of it; it may come to owe some, but no more than is earned in a window."""
        self._held = max(self._held - seconds, -self._rate * WINDOW_SECONDS)


@dataclass(slots=True)
class _Timer:
    """One stretch of time in which the watcher works.

    Attributes:
        task: what is done in it.
        outer: the stretch around it, if there is one.
        round: how often the task was done before.
        seconds: what it took by the clock of the host.
        events: on a device, at the beginning and the end.
    """

    task: Hashable
    outer: _Timer | None
    round: int
    seconds: float = 0.0
    events: list[Any] = field(default_factory=list)


class Turns(Generic[Place]):
    """Goes round a list of places: those that are due first, then who has waited longest."""

    def __init__(self) -> None:
        self._served: dict[Place, int] = {}  # when each place last had its turn
        self._turns: Counter[Place] = Counter()
        self._count = 0

    def order(self, places: Iterable[Place], due: Collection[Place] = ()) -> list[Place]:
        """Return places in the order in which they have their turn.

        Args:
            places: all there are.
            due: those that cannot wait as long as others.
        """
        return sorted(places, key=lambda place: (place not in due, self._served.get(place, 0)))

    def of(self, place: Place) -> int:
        """Return how many turns a place has had."""
        return self._turns[place]

    def serve(self, place: Place) -> None:
        """Take note that a place has had its turn."""
        self._count += 1
        self._served[place] = self._count
        self._turns[place] += 1
