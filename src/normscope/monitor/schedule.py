"""When a step is measured and how much of it, and what time there is for that.

`Schedule` says which steps are due, `Clock` how much of a run's time the watcher took, `TimeShare` is a share of that
time for work that can wait, and `Turns` shares it out among layers.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..core.errors import InputError
from ..listening.calls import Site

PATIENCE_RECORDS = 20
"""After this many measured steps a layer is measured again, whatever it costs."""


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

    def due(self, step: int) -> Tier | None:
        """Return the richest tier that is due at a step, or None."""
        tiers = [tier for tier, interval in self.every.items() if step % interval == 0]
        return max(tiers, key=lambda tier: tier.rank, default=None)

    @property
    def richest(self) -> Tier:
        """The richest tier of all."""
        return max(self.every, key=lambda tier: tier.rank)


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
        """Return whether there is time for a task now."""
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


class Turns:
    """Goes round a list of places as far as the budget reaches: those that are due first, then who has waited longest.

    Args:
        task: what is done at each.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._waited: dict[Site, int] = {}
        self._served: dict[Site, int] = {}

    def affordable(self, places: Iterable[Site], budget: TimeShare, due: Collection[Site] = ()) -> Iterator[Site]:
        """Return places one by one while there is time for the next, or it has waited for long; each at most once.

        Args:
            places: all there are.
            budget: the budget of the task.
            due: those that cannot wait as long as others.
        """
        order = list(places)
        self._waited = {site: self._waited.get(site, 0) + 1 for site in order}
        if budget.share is not None:  # otherwise all have their turn, in the same order in every process
            order.sort(
                key=lambda site: (self._waited[site] < PATIENCE_RECORDS, site not in due, self._served.get(site, 0))
            )
        for site in order:
            if self._waited[site] < PATIENCE_RECORDS and not budget.affords((self._task, site)):
                return
            self._waited[site], self._served[site] = 0, max(self._served.values(), default=0) + 1
            yield site
