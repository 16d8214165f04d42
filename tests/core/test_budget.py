"""Budgets: steps are counted, parts belong to wholes, and a clock that cuts something short is named."""

from __future__ import annotations

import math

import pytest

from normscope.core import budget as module
from normscope.core.budget import Budget, affordable


class Clock:
    """A clock that tests turn by hand."""

    def __init__(self) -> None:
        self.now, self.looks = 100.0, 0

    def monotonic(self) -> float:
        """Return the time, and count who looks."""
        self.looks += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    turned = Clock()
    monkeypatch.setattr(module, "time", turned)
    return turned


def test_steps_are_counted_to_the_last() -> None:
    budget = Budget(3)
    assert [budget.spend() for _ in range(4)] == [True, True, True, False]
    assert (budget.spent, budget.left, budget.over, budget.ended, budget.cut) == (3, 0, True, True, False)


def test_a_part_spends_of_the_whole_and_no_more_than_it_has() -> None:
    whole = Budget(10)
    part = whole.share(0.3)
    assert [part.spend() for _ in range(4)] == [True, True, True, False]
    assert (whole.spent, whole.ended, part.ended) == (3, False, True)
    assert whole.share(0.5).left == 3
    late = whole.search("another", 100)
    assert late.spend(7)
    assert not late.spend()
    assert whole.ended


def test_without_a_deadline_the_clock_decides_nothing(clock: Clock) -> None:
    budget = Budget(1000)
    parts = [budget, budget.share(0.5), budget.search("a search", 400)]
    looked = clock.looks
    for part in parts:
        clock.now += 1e9
        assert part.spend()
        assert not part.over
        assert not part.late
        assert part.time_for(1e30)
    assert clock.looks == looked


def test_a_deadline_cuts_short_and_says_where(clock: Clock) -> None:
    whole = Budget(max_seconds=10.0)
    search, other = whole.search("the search", 300), whole.search("the other", 5)
    for _ in range(120):
        assert search.spend()
    clock.now += 10.0
    assert not search.spend()
    assert whole.cuts == search.cuts == ("the search was cut short after 120 of 300 steps by max_seconds",)
    assert not other.cut
    assert whole.cut
    assert whole.ended


def test_a_share_of_the_time_ends_earlier_than_the_whole(clock: Clock) -> None:
    whole = Budget(max_seconds=10.0, what="the whole")
    part = whole.share(0.3)
    clock.now += 2.9
    assert not part.over
    clock.now += 0.2
    assert part.over
    assert whole.spend()
    assert whole.seconds == pytest.approx(6.9)
    assert part.seconds == 0.0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "the search was cut short by max_seconds: raise max_seconds"),
        ("loose", "loose; the search was cut short by max_seconds: raise max_seconds"),
        (
            "a was cut short by max_seconds: raise max_seconds",
            "a was cut short by max_seconds; the search was cut short by max_seconds: raise max_seconds",
        ),
    ],
)
def test_advice_is_added_to_advice(before: str | None, after: str) -> None:
    budget = Budget(max_seconds=0.0)
    assert budget.advice(before) == before
    assert budget.late
    assert budget.advice(before) == after


@pytest.mark.parametrize(
    ("most", "cost", "work", "least", "device", "steps"),
    [
        (300, 1.0, 1e9, 1, "cpu", 300),
        (300, 1e8, 1e9, 1, "cpu", 10),
        (300, 1e12, 1e9, 4, "cpu", 4),
        (300, 0.0, 1e9, 1, "cpu", 300),
        (300, 1e9, 1e9, 1, "cuda", 50),
        (300, math.inf, 1e9, 2, "cpu", 2),
    ],
)
def test_steps_follow_from_sizes(most: int, cost: float, work: float, least: int, device: str, steps: int) -> None:
    assert affordable(most, cost, work=work, least=least, device=device) == steps
