"""The work that a measurement may do, what it took, and the bar that shows it.

`Budget` counts the steps of a search and has a deadline that may cut it short, `Cost` holds what each part of a
measurement took (passes, norms, products, seconds), and `Progress` is a line on the terminal after two seconds.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch

from .codec import JsonForm, Part
from .errors import visible

DELAY = 2.0
"""Seconds that must pass before anything is shown."""
SECONDS_BETWEEN_LINES = 20.0
"""How often a line tells what is being done where no bar can be shown."""


class Progress:
    """Shows what is being done once it has taken a while, on a terminal; elsewhere only inside of `telling_lines`.

    Inside `Parts` it shows nothing of its own: the bar of the parts says what is being done.

    Example:
        >>> with Progress("bounding layers", total=2) as progress:
        ...     progress.step("layer1")
        ...     progress.step("layer2")
    """

    def __init__(self, title: str, total: int | None = None) -> None:
        self.title, self.total, self.done = title, total, 0
        self._line = _Line()
        self._parts = _parts.get()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._line.stop()

    def step(self, label: str = "") -> None:
        """Count one step; `label` names what comes next."""
        self.done += 1
        if self._parts is not None:
            self._parts.inside(f"{self.title} {label}", self.done / self.total if self.total else 0.0)
        else:
            self._line.show(f"{self.title} {label}"[:60], self.done, self.total)


class Parts:
    """One bar for a measurement of several parts: which one runs, and which remain. Silent as `Progress` is.

    Example:
        >>> with Parts("auditing", ("capture", "data", "bounds")) as parts:
        ...     begin("data")
        ...     parts.line()
        'auditing: data; then bounds'
    """

    def __init__(self, title: str, names: Sequence[str]) -> None:
        self.title, self.names = title, tuple(names)
        self._at, self._what, self._share, self._before, self._done = 0, "", 0.0, 0.0, 0.0
        self._line = _Line()

    def __enter__(self) -> Parts:
        self._token: Token[Parts | None] = _parts.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _parts.reset(self._token)
        self._line.stop()

    def begin(self, name: str) -> None:
        """Say which part begins; a name that is not among the parts changes nothing."""
        if name in self.names:
            self._at, self._what, self._share, self._before = self.names.index(name), "", 0.0, 0.0
            self._show()

    def inside(self, what: str, share: float) -> None:
        """Say what the part that runs does, and how much of that is done.

        A part may hold several searches, and how many come is not known: each takes half of what is left of the part.
        """
        if share < self._share:  # another search has begun
            self._before += (1.0 - self._before) * self._share / 2
        self._what, self._share = what.strip()[:40], min(share, 1.0)
        self._show()

    def line(self) -> str:
        """Return what is shown beside the bar."""
        doing = f" ({self._what})" if self._what else ""
        left = self.names[self._at + 1 :]
        return f"{self.title}: {self.names[self._at]}{doing}" + (f"; then {', '.join(left)}" if left else "")

    def _show(self) -> None:
        """Show the parts that are done and the share of the part that runs; a part that comes again moves nothing."""
        self._done = max(self._done, self._at + self._before + (1.0 - self._before) * self._share / 2)
        self._line.show(self.line(), self._done, len(self.names))


_parts: ContextVar[Parts | None] = ContextVar("normscope_parts", default=None)
"""The bar of the measurement that runs, if it has one."""


def begin(name: str) -> None:
    """Say which part of a measurement begins, where a bar shows its parts."""
    parts = _parts.get()
    if parts is not None:
        parts.begin(name)


class _LastLine:
    """When something was last told."""

    def __init__(self) -> None:
        self.moment = time.monotonic()


_last_line: ContextVar[_LastLine | None] = ContextVar("normscope_last_line", default=None)
"""Set while lines are printed where there is no terminal."""


@contextmanager
def telling_lines() -> Iterator[None]:
    """Inside of the block a line on standard error tells now and then what is being done, if that is no terminal."""
    token = _last_line.set(_LastLine())
    try:
        yield
    finally:
        _last_line.reset(token)


class _Line:
    """The bar itself, shown after a while; without a terminal lines, where these are wanted."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: Any = None

    def show(self, text: str, done: float, total: float | None) -> None:
        """Show a text and how much is done, if it is time to."""
        if self._bar is None and time.monotonic() - self._began <= DELAY and _last_line.get() is None:
            return
        if not sys.stderr.isatty():
            self._tell(text, done, total)
        elif self._bar is None and time.monotonic() - self._began > DELAY:
            self._start(total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=visible(text))

    def _tell(self, text: str, done: float, total: float | None) -> None:
        """Print a line if the last one was printed long enough ago."""
        last, now = _last_line.get(), time.monotonic()
        if last is None or now - last.moment < SECONDS_BETWEEN_LINES:
            return
        last.moment = now
        share = f" ({100.0 * done / total:.0f} % done)" if total else ""
        print(f"normscope: {visible(text)}{share}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def _start(self, total: float | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=total)
        self._bar.start()


RAISE = ": raise max_seconds"
"""The end of every advice about work that the clock has cut short."""
GPU = 50.0
"""A GPU may do this many times the work that a CPU may do."""
RATE = 2e9
"""A CPU is taken to make this many float64 multiplications a second, to tell what still fits before a deadline."""
CLOSED_FORM_SHARE, MOST_CLOSED_FORM_SECONDS = 0.25, 10.0
"""Closed forms may end later than searches, which end at `max_seconds`: by a share of it, so many seconds at most."""
LEAST_CLOSED_FORM_SECONDS = 1.0
"""Closed forms have so many seconds from when the first of them begins: small networks have all of theirs by then."""
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
        self._closed_forms_end: float | None = None
        self._cuts: dict[str, str] = {}

    def search(self, what: str, steps: float | None = None) -> Budget:
        """Return the budget of one search, with steps of its own and the same deadline."""
        return self._part(Budget(steps, what=what), self._deadline)

    def closed_forms(self, what: str) -> Budget:
        """Return the budget of work that all calls do: it ends a share of the time limit after the whole."""
        *_, whole = self._wholes()
        if whole._closed_forms_end is None:
            longer = min(CLOSED_FORM_SHARE * (whole._deadline - whole._began), MOST_CLOSED_FORM_SECONDS)
            least = time.monotonic() + LEAST_CLOSED_FORM_SECONDS
            whole._closed_forms_end = max(whole._deadline + longer, least)
        return self._part(Budget(what=what), whole._closed_forms_end)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Part):
    """How much work a measurement took. Counts are the same in every run; seconds are not, and are not stored in JSON.

    Attributes:
        passes: samples that went forward through the model or its graph, by part of the measurement.
        backwards: samples that went backward, by part.
        norms: norms of linear maps that were bounded, by part; one that is known already is not taken again.
        products: products with a linear map or its transpose, by part.
        seconds: how long each part took.

    Example:
        >>> Cost(passes={"data": 8, "capture": 11}).total("passes")
        19
    """

    JSON: ClassVar[JsonForm] = JsonForm(left_out=("seconds",))

    passes: Mapping[str, int] = field(default_factory=dict)
    backwards: Mapping[str, int] = field(default_factory=dict)
    norms: Mapping[str, int] = field(default_factory=dict)
    products: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    def total(self, kind: str) -> float:
        """Return what all parts took together of one kind, such as `"passes"` or `"seconds"`."""
        return sum(getattr(self, kind).values())


COUNTED = ("passes", "backwards", "norms", "products")
"""The work that is counted: forward and backward passes, operator norms, and products with a matrix or a Jacobian."""


class Meter:
    """Counts what runs inside its parts.

    Example:
        >>> meter = Meter(Budget())
        >>> with meter.part("capture"):
        ...     count("passes", 8)
        >>> meter.cost().passes
        {'capture': 8}
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._counts: dict[str, Counter[str]] = {kind: Counter() for kind in COUNTED}
        self._part = ""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside under a name, and show it where a bar shows the parts."""
        began, before, self._part = self._budget.elapsed, self._part, name
        token = _meter.set(self)
        begin(name)
        try:
            yield
        finally:
            _meter.reset(token)
            self._part = before
            self._seconds[name] += self._budget.elapsed - began

    def add(self, kind: str, amount: int) -> None:
        """Count something under the part that runs."""
        self._counts[kind][self._part] += amount

    def cost(self) -> Cost:
        """Return what was counted so far."""
        return Cost(**{kind: dict(self._counts[kind]) for kind in COUNTED}, seconds=dict(self._seconds))


_meter: ContextVar[Meter | None] = ContextVar("normscope_meter", default=None)
"""The meter of the measurement that runs, if it has one."""


def count(kind: str, amount: int = 1) -> None:
    """Count passes, norms or products if a meter runs; leave the work here if its clock has run out (`check_time`)."""
    check_time()
    meter = _meter.get()
    if meter is not None:
        meter.add(kind, amount)
