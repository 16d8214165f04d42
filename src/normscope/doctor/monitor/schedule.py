"""When a step is measured and how much of it, and what time there is for that.

`Schedule` says which steps are due. `TimeBudget` counts how much of a run's time the watcher has taken and says whether
it may take more; it keeps that time in two `Purse`s, one for records and one for work that can wait. `Turns` says whose
turn it is where there is no time for all.
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

from ...core.errors import InputError

WINDOW_SECONDS = 60.0
"""The share of the time that watching may take (`overhead`) is kept over every window of this length."""
STEADY_SHARE = 0.75
"""The part of `overhead` that is earned as time passes. The rest of what a window allows can be saved up, and is there
at the start: so a window never spends more than what was saved when it began and what is earned in it."""
RECORD_SHARE = 0.65
"""The part of `overhead` for records and looking for alarms in them; the rest is for what waits its turn, above all
norms. Neither takes from the other."""
START_SECONDS, START_STEPS = 0.5, 800
"""Records are made as often as asked for until they have taken so many seconds, or for so many steps: short runs, and
the first steps of long ones, say most. Where records are further apart, fewer seconds will do. The time is lent: after
it records earn nothing until they would have earned what they took."""
KEPT_SHARE = 0.9
"""The part of `overhead` that is given out: the work also slows caches and the allocator, which no clock around it
sees."""
EARLY_RECORDS = 2
"""Records that are made in any case: the first takes longer than later ones, so that its cost says little of theirs."""
MAX_LEFT_OUT = 8
"""Of so many steps that are due at least one is measured, and in at least one of so many records the norms of some
layers are searched for or followed, whatever that costs."""
USUAL_INTERVAL_STEPS, LEAST_SHARE = 10, 0.25
"""The interval of records, in steps, up to which all of `overhead` may be used. Where records are further apart, what
waits its turn gets less in proportion, and records likewise, but this part of theirs at least."""
IDLE_STEP_SECONDS = 9e-6
"""What hooks are assumed to cost at every step, measured or not: those of torch, and a counter (host of an H200)."""
OBSERVED_STEP_SECONDS = 6e-6
"""What each figure that the loop observes is assumed to cost (host of an H200)."""

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

    What a task takes is charged at once by the clock of the host. On a GPU two events on the stream around it say later
    how long the kernels of the run had to wait, and that replaces the charge. A task is expected to cost what the
    cheaper of its last two times did: one that took long while the machine was busy says little.

    Args:
        share: the share of the time that may be spent; None for no limit.
        device: where the model lies.
        clock: returns nanoseconds.
        every: the interval at which steps are due.

    Attributes:
        spent: seconds that the watcher took so far.
        records: how many records were made.
        left_out: how many steps that were due were left out just before the last measured one.
        waiting: how many steps that were due were left out since then.

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
        """Begin anew, with the time that is there at the start of a run."""
        self.spent, self._began = 0.0, self._clock()
        share = KEPT_SHARE * (self.share or 0.0)
        waiting = (1.0 - RECORD_SHARE) * share
        scale = min(1.0, USUAL_INTERVAL_STEPS / self._every)
        least = max(scale, LEAST_SHARE)
        self._purses = {
            True: Purse(least * RECORD_SHARE * share, self._began, lent=least * START_SECONDS),
            False: Purse(scale * waiting, self._began, lent=(1.0 - STEADY_SHARE) * waiting * WINDOW_SECONDS),
        }
        self.left_out = self.waiting = 0

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
        """Return whether there is time now for doing a task so many times, beside the task that time is saved for.

        A task whose cost is not known only needs some time to be left.
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
        """Save time for a task: others from the same purse wait until there is time for it, too; None ends that."""
        self._saving_for = task

    def takes_record(self, task: Hashable) -> bool:
        """Return whether a step that is due is measured: if there is time for that task, or it is its turn anyway.

        The first records are made in any case, and so is one of every `MAX_LEFT_OUT`.
        """
        self.waiting += 1
        early = self.records < EARLY_RECORDS or self.waiting >= MAX_LEFT_OUT
        if self.share is not None and not early and not self.affords(task):
            return False
        self.left_out, self.waiting = self.waiting - 1, 0
        return True

    @contextmanager
    def watching(self, task: Hashable) -> Iterator[None]:
        """Charge the time of a block to a task; a task inside of another one is charged for its own part alone."""
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
        for charged, signed in ((timer, seconds), (timer.outer, -seconds)):
            if charged is None:
                continue
            task = charged.task
            self._purses[_is_record(task)].pay(signed)
            ago = self._rounds.get(task, 0) - charged.round
            if ago == 0:
                self._sums[task] = self._sums.get(task, 0.0) + signed
            elif ago <= len(costs := self._costs[task]):
                costs[-ago] = max(costs[-ago] + signed / self._times[task], 0.0)

    def _read_events(self) -> None:
        """Correct what was charged by what the events say that have arrived; nothing is waited for."""
        while self._unread and self._unread[0].events[1].query():
            timer = self._unread.popleft()
            first, last = timer.events
            self._count(timer, first.elapsed_time(last) / 1e3 - timer.seconds)
            self._free_events += timer.events


def _is_record(task: Hashable) -> bool:
    """Return whether a task is paid from the purse of records: measuring a step, or looking for alarms in it."""
    return _kind_of(task) in ("step", "alarms")


def _kind_of(task: Hashable) -> Hashable:
    """Return what all tasks of a kind share: those of norms, say, of whichever layers."""
    return task[0] if isinstance(task, tuple) else task


class Purse:
    """Time that one kind of work may take: a share of the time that passes, and some of it in advance.

    Args:
        share: of the time that passes.
        now: when the run begins, in nanoseconds.
        lent: seconds that are there at the start. What of them is above `most_held` is a loan: nothing is earned until
            that would have been.

    Attributes:
        most_held: the most seconds that can be saved up.
        earned_at: up to when time is earned, in nanoseconds; ahead of the clock while a loan is paid off.
    """

    def __init__(self, share: float, now: int, lent: float) -> None:
        self._rate, self.most_held = STEADY_SHARE * share, (1.0 - STEADY_SHARE) * share * WINDOW_SECONDS
        self._lent = self._held = lent
        self.earned_at = now + self._time_to_earn(lent)

    def _time_to_earn(self, lent: float) -> int:
        """Return the nanoseconds in which what was lent above `most_held` is earned."""
        return round(1e9 * max(lent - self.most_held, 0.0) / self._rate) if self._rate > 0.0 else 0

    def end_loan(self, began: int, now: int) -> None:
        """Give back what was lent and is not spent, unless it is earned by now."""
        if now < self.earned_at:
            spent = self._lent - self._held
            self._held, self.earned_at = max(self.most_held - spent, 0.0), began + self._time_to_earn(spent)

    def holds(self, seconds: float, now: int) -> bool:
        """Return whether there is time for something that takes so many seconds; for 0, whether any is left.

        Something that costs more than `most_held` would wait for ever, so for that as much as it takes is saved up.
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
    """Gives places, such as layers, their turns: first those that are due, then the one that has waited longest."""

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
