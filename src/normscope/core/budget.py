"""`Budget`: the work that a search may do, counted in steps, and a deadline that may cut it short."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

import torch

RAISE = ": raise max_seconds"
"""The end of every advice about work that the clock has cut short."""
GPU = 50.0
"""A GPU may do this many times the work that a CPU may do."""
RATE = 2e9
"""A CPU is taken to make this many float64 multiplications a second, to tell what still fits before a deadline."""
CLOSED_FORM_SECONDS = 10.0
"""Closed forms may take so much longer than `max_seconds`: a limit ends searches and makes no bound worse than that."""
Result = TypeVar("Result")


class OutOfTimeError(BaseException):
    """The clock has run out in the midst of some work. It is caught where the work began (`Budget.attempt`).

    It is no error of what runs: nothing that catches errors of a model or of a rule may take it for one.
    """


class Budget:
    """Counts the steps of a search. A deadline, where there is one, may cut it short, and then the budget says so.

    Loops ask `spend` before each step, or `late`. Functions that are too deep to be handed a budget ask `in_time` or
    `check_time`, which look at the deadline of the innermost `attempt` (or `timing`) that runs. Without `max_seconds`
    no clock decides anything: the same search takes the same steps in every run, whatever else the machine does.

    Budgets are parts of each other: what a part spends is spent of the whole, and what the clock cut in a part was cut
    in the whole. Closed forms have one deadline, later than that of all searches (`closed_forms`).

    Args:
        steps: how many steps the search may take; None for work that ends by itself.
        max_seconds: nothing more is begun after so many seconds; None for never.
        what: how messages name the search, in the singular.

    Attributes:
        spent: how many steps were taken.
        ended: whether something was left undone, because no step was left or because the clock had run out.

    Example:
        >>> budget = Budget(2)
        >>> [budget.spend() for _ in range(3)], budget.cut
        ([True, True, False], False)
        >>> late = Budget(300, max_seconds=0.0, what="the search from below")
        >>> late.spend(), late.advice()
        (False, 'the search from below was cut short after 0 of 300 steps by max_seconds: raise max_seconds')
    """

    def __init__(
        self, steps: float | None = None, *, max_seconds: float | None = None, what: str = "the search"
    ) -> None:
        self.what, self.ended = what, False
        self.steps, self.spent = math.inf if steps is None else float(steps), 0.0
        self._began = time.monotonic()
        self._deadline = math.inf if max_seconds is None else self._began + max_seconds
        self._whole: Budget | None = None
        self._cuts: dict[str, str] = {}

    def search(self, what: str, steps: float | None = None) -> Budget:
        """Return the budget of one search, with steps of its own and the same deadline."""
        return self._part(Budget(steps, what=what), self._deadline)

    def closed_forms(self, what: str) -> Budget:
        """Return the budget of work that all calls do: it ends `CLOSED_FORM_SECONDS` after the whole."""
        *_, whole = self._wholes()
        return self._part(Budget(what=what), whole._deadline + CLOSED_FORM_SECONDS)

    def share(self, part: float) -> Budget:
        """Return the budget of a part of the steps, and of the time, that are left; closed forms share no time."""
        steps = None if self.left == math.inf else math.floor(self.left * part)
        *_, whole = self._wholes()
        whole_time = not self.limited or self._deadline > whole._deadline
        ends = self._deadline if whole_time else time.monotonic() + part * self.seconds
        return self._part(Budget(steps, what=self.what), ends)

    def _part(self, part: Budget, deadline: float) -> Budget:
        part._whole, part._deadline = self, deadline
        return part

    def _wholes(self) -> Iterator[Budget]:
        """Yield the budget, what it is a part of, and so on."""
        whole: Budget | None = self
        while whole is not None:
            yield whole
            whole = whole._whole

    @property
    def left(self) -> float:
        """The steps that are left, infinitely many where nothing limits them."""
        return max(min(whole.steps - whole.spent for whole in self._wholes()), 0.0)

    @property
    def limited(self) -> bool:
        """Whether there is a deadline."""
        return self._deadline < math.inf

    @property
    def seconds(self) -> float:
        """The seconds that are left, infinitely many without a deadline: for solvers that take a limit of time."""
        return max(self._deadline - time.monotonic(), 0.0) if self.limited else math.inf

    @property
    def elapsed(self) -> float:
        """The seconds since the budget was made: for reports, never for a decision."""
        return time.monotonic() - self._began

    @property
    def late(self) -> bool:
        """Whether the clock has run out; it is then noted that it cut something short."""
        return not self.time_for(0.0)

    def time_for(self, seconds: float) -> bool:
        """Return whether work of so many seconds ends before the clock runs out; note it where it does not."""
        if not self.limited or 0.0 < self.seconds >= seconds:
            return True
        self.leave_out()
        return False

    def leave_out(self) -> None:
        """Note that the clock cut this short, or left no time for it."""
        done = "" if self.steps == math.inf else f" after {self.spent:,.0f} of {self.steps:,.0f} steps"
        for whole in self._wholes():
            whole._cuts[self.what], whole.ended = f"{self.what} was cut short{done} by max_seconds", True

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Let `in_time` look at this budget's deadline, where there is one; `check_time` leaves what it left before."""
        running = _running.get()
        with _run(self, running is not None and running[1]) if self.limited else nullcontext():
            yield

    def attempt(self, work: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
        """Return what some work gives or, where the clock runs out in its midst, what takes no time instead."""
        if not self.limited:
            return work()
        try:
            with _run(self, True):
                return work()
        except OutOfTimeError:
            pass
        with _run(None):
            return otherwise()

    @property
    def over(self) -> bool:
        """Whether nothing more may be done: no step is left, or the clock has run out."""
        return self._short(1.0) or self.late

    def spend(self, steps: float = 1.0) -> bool:
        """Take some steps if so many are left and the clock has not run out; return whether they may be taken."""
        if self._short(steps) or self.late:
            return False
        for whole in self._wholes():
            whole.spent += steps
        return True

    def _short(self, steps: float) -> bool:
        """Return whether fewer steps are left, and note where they have been used up."""
        if steps <= self.left:
            return False
        for whole in self._wholes():
            whole.ended = whole.ended or steps > whole.left
        return True

    @property
    def cut(self) -> bool:
        """Whether the clock ended something, here or in a part."""
        return bool(self._cuts)

    @property
    def cuts(self) -> tuple[str, ...]:
        """One sentence for each piece of work that the clock ended."""
        return tuple(self._cuts.values())

    def advice(self, before: str | None = None) -> str | None:
        """Return what the clock cut short and what to raise, behind advice that there is already."""
        if not self._cuts:
            return before
        stem = (before or "").removesuffix(RAISE)
        return "; ".join([*([stem] if stem else []), *(cut for cut in self.cuts if cut not in stem)]) + RAISE


_running: ContextVar[tuple[Budget, bool] | None] = ContextVar("normscope_running", default=None)
"""The budget of the work that runs, and whether that work may be left in its midst; None where it has no deadline."""


@contextmanager
def _run(budget: Budget | None, may_leave: bool = False) -> Iterator[None]:
    token = _running.set(None if budget is None else (budget, may_leave))
    try:
        yield
    finally:
        _running.reset(token)


def in_time(multiplications: float = 0.0, device: torch.device | str = "cpu") -> bool:
    """Return whether so many multiplications end before the clock of the work that runs; without a clock they do."""
    running = _running.get()
    return running is None or running[0].time_for(multiplications / (RATE * _speed(device)))


def check_time(multiplications: float = 0.0, device: torch.device | str = "cpu") -> None:
    """Leave the work that runs if its clock has run out, or would before so many multiplications are made.

    Work that has no deadline, or was not begun by `Budget.attempt`, goes on.

    Example:
        >>> def work() -> str:
        ...     check_time()
        ...     return "done"
        >>> Budget(max_seconds=0.0).attempt(work, lambda: "cut short"), Budget().attempt(work, lambda: "cut short")
        ('cut short', 'done')
    """
    running = _running.get()
    if running is not None and running[1] and not in_time(multiplications, device):
        raise OutOfTimeError


def attempt(work: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
    """Do some work under the clock that runs, if any (`Budget.attempt`)."""
    running = _running.get()
    return work() if running is None or not running[1] else running[0].attempt(work, otherwise)


def affordable(most: int, cost: float, *, work: float, least: int = 1, device: torch.device | str = "cpu") -> int:
    """Return how many steps of some cost fit into an amount of work: at most `most`, at least `least`.

    Both are counted in multiplications, from shapes alone: the same network has the same number in every run. A GPU is
    given `GPU` times the work of a CPU.

    Example:
        >>> affordable(300, 1e6, work=1e9), affordable(300, 1e8, work=1e9), affordable(300, 1e12, work=1e9, least=4)
        (300, 10, 4)
    """
    return max(least, min(most, int(work * _speed(device) / max(cost, 1.0))))


def _speed(device: torch.device | str) -> float:
    """Return how many times the work of a CPU a device may do."""
    return GPU if torch.device(device).type == "cuda" else 1.0
