"""`Cost`: how much work each part of a measurement took, counted while it ran: passes, norms, products and seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar

from .budget import Budget, check_time
from .codec import JsonForm, Part
from .progress import begin


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
