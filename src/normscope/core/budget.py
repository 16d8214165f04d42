"""`Budget`: the work that a search may do, counted in steps, and a deadline that may cut it short."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch

RAISE = ": raise max_seconds"
"""How advice ends where the clock ended something."""
GPU = 50.0
"""How many times the work of a CPU a GPU is given."""


class Budget:
    """Counts the steps of a search. A deadline, where there is one, may cut it short, and then the budget says so.

    Without `max_seconds` no clock decides anything: the same search takes the same steps in every run, whatever else
    the machine does. Budgets are parts of each other: what a part spends is spent of the whole, and what the clock cut
    in a part was cut in the whole.

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

    def share(self, part: float) -> Budget:
        """Return the budget of a part of the steps, and of the time, that are left."""
        steps = None if self.left == math.inf else math.floor(self.left * part)
        ends = self._deadline if not self.limited else time.monotonic() + part * self.seconds
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
        return self.limited and time.monotonic() >= self._deadline and self._cut()

    def _cut(self) -> bool:
        """Note that the clock cut this short."""
        done = "" if self.steps == math.inf else f" after {self.spent:,.0f} of {self.steps:,.0f} steps"
        for whole in self._wholes():
            whole._cuts[self.what], whole.ended = f"{self.what} was cut short{done} by max_seconds", True
        return True

    def time_for(self, steps: float, rate: float) -> bool:
        """Say whether steps that go at some rate, in steps a second, end before the clock runs out."""
        return not self.limited or steps <= rate * self.seconds or not self._cut()

    @property
    def over(self) -> bool:
        """Whether nothing more may be done: no step is left, or the clock has run out."""
        return self._short(1.0) or self.late

    def spend(self, steps: float = 1.0) -> bool:
        """Take some steps if so many are left and the clock has not run out; say whether they may be taken."""
        if self._short(steps) or self.late:
            return False
        for whole in self._wholes():
            whole.spent += steps
        return True

    def _short(self, steps: float) -> bool:
        """Say whether fewer steps are left, and note where they have been used up."""
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
        """What the clock ended, each as one sentence."""
        return tuple(self._cuts.values())

    def advice(self, before: str | None = None) -> str | None:
        """Return what the clock cut short and what to raise, behind advice that there is already."""
        if not self._cuts:
            return before
        known = (before or "").removesuffix(RAISE)
        return "; ".join([*([known] if known else []), *(cut for cut in self.cuts if cut not in known)]) + RAISE


def affordable(most: int, cost: float, *, work: float, least: int = 1, device: torch.device | str = "cpu") -> int:
    """Return how many steps of some cost fit into an amount of work: at most `most`, at least `least`.

    Both are counted in multiplications, from shapes alone: the same network has the same number in every run. A GPU is
    given `GPU` times the work of a CPU.

    Example:
        >>> affordable(300, 1e6, work=1e9), affordable(300, 1e8, work=1e9), affordable(300, 1e12, work=1e9, least=4)
        (300, 10, 4)
    """
    work = work * GPU if torch.device(device).type == "cuda" else work
    return max(least, min(most, int(work / max(cost, 1.0))))
