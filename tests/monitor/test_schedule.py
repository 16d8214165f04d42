"""Layers take turns where time is short."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import normscope
from normscope.doctor.monitor import schedule
from normscope.doctor.monitor.quantities.operator_norms import (
    DRIFT_CAUTION,
    DRIFT_MEMORY,
    PART_STEPS,
    READABLE_DECADES,
    NormFigure,
    OperatorNorms,
    WeightNorms,
)
from normscope.doctor.monitor.schedule import (
    KEPT_SHARE,
    MAX_LEFT_OUT,
    RECORD_SHARE,
    STEADY_SHARE,
    WINDOW_SECONDS,
    Tier,
    TimeBudget,
    Turns,
)
from normscope.doctor.monitor.watching import watch
from normscope.products.followed_norms import SEARCH_STEPS

from .training import losses, only_at_first, take_step

PLACES = [("a", "linear", 0), ("b", "linear", 0), ("c", "linear", 0)]


class FakeClock:
    """A clock that stands still unless it is moved."""

    now = 0

    def __call__(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


def spend(budget: TimeBudget, clock: FakeClock, task: Any, seconds: float) -> None:
    with budget.watching(task):
        clock.pass_by(seconds)


@pytest.mark.parametrize(("share", "step", "cost"), [(0.02, 0.01, 0.004), (0.02, 0.3, 0.05), (0.1, 0.002, 0.02)])
def test_the_share_is_kept_over_every_minute_from_the_first_step_on(share: float, step: float, cost: float) -> None:
    clock = FakeClock()
    budget = TimeBudget(share, clock=clock)
    spendings: list[tuple[float, float]] = []
    while budget.passed < 4 * WINDOW_SECONDS:
        clock.pass_by(step)
        for task in ("step", "norms"):
            if budget.affords(task):
                spendings.append((budget.passed, cost))
                spend(budget, clock, task, cost)
        budget.end_record()
    for began, _ in spendings:  # a window that begins with any of them
        spent = sum(seconds for at, seconds in spendings if began <= at < began + WINDOW_SECONDS)
        assert spent <= share * WINDOW_SECONDS + 2 * cost  # the first time nobody knows what a task costs
    assert budget.spent == pytest.approx(sum(seconds for _, seconds in spendings))
    assert 0.9 * STEADY_SHARE * share <= budget.overhead <= share


def test_a_task_that_costs_more_than_may_be_held_waits_until_it_is_earned() -> None:
    clock = FakeClock()
    budget = TimeBudget(0.01, clock=clock)
    for _ in range(2):
        spend(budget, clock, "full", 10.0)
        budget.end_record()
    assert not budget.affords("full")
    done = 0
    earned = STEADY_SHARE * (1.0 - RECORD_SHARE) * 0.01
    for _ in range(round(35.0 / earned)):
        clock.pass_by(1.0)
        if budget.affords("full"):
            spend(budget, clock, "full", 10.0)
            budget.end_record()
            done += 1
    assert done == 3  # 35 seconds are earned, and what a minute earns was owed


def test_what_waits_its_turn_and_records_do_not_take_from_each_other() -> None:
    clock = FakeClock()
    budget = TimeBudget(0.02, clock=clock)
    for _ in range(2):
        assert budget.takes_record("step")
        spend(budget, clock, "step", 5.0)
        budget.end_record()
    assert not budget.takes_record("step")
    assert budget.affords("norms")
    spend(budget, clock, "norms", 5.0)
    budget.end_record()
    assert not budget.affords("norms")
    clock.pass_by(2 * WINDOW_SECONDS)
    assert budget.affords("follow")


@pytest.mark.parametrize(("saved_for", "other", "waits"), [("search", "follow", True), ("search", "step", False)])
def test_what_is_saved_for_lets_others_of_its_kind_wait(saved_for: str, other: str, waits: bool) -> None:
    clock = FakeClock()
    budget = TimeBudget(0.02, clock=clock)
    held = (1.0 - STEADY_SHARE) * 0.02 * WINDOW_SECONDS * (1.0 - RECORD_SHARE)
    for task, seconds in ((saved_for, 0.7 * held), (other, 0.2 * held)):
        spend(budget, clock, task, seconds)
    budget.end_record()
    budget.restart()
    spend(budget, clock, "more norms", 0.2 * held)
    budget.save_for(saved_for)
    assert budget.affords(saved_for)
    assert budget.affords(other) != waits
    budget.save_for(None)
    assert budget.affords(other)


def test_hooks_of_steps_that_are_not_measured_are_paid_for_by_records() -> None:
    budget = TimeBudget(0.02, clock=FakeClock())
    steps = round(2 * schedule.START_SECONDS / schedule.IDLE_STEP_SECONDS)
    budget.pass_steps(steps)
    assert budget.spent == steps * schedule.IDLE_STEP_SECONDS
    assert not budget.affords("step")
    assert budget.affords("norms")


def test_figures_that_the_loop_observes_are_paid_for() -> None:
    budget = TimeBudget(0.02, clock=FakeClock())
    budget.pass_steps(10, figures=7)
    assert budget.spent == pytest.approx(10 * schedule.IDLE_STEP_SECONDS + 7 * schedule.OBSERVED_STEP_SECONDS)


@pytest.mark.parametrize(("every", "scale"), [(1, 1.0), (10, 1.0), (50, 0.2)])
def test_what_waits_its_turn_uses_less_where_records_are_far_apart(every: int, scale: float) -> None:
    clock, spent = FakeClock(), 0.0
    budget = TimeBudget(0.02, clock=clock, every=every)
    shares = []
    while budget.passed < 20 * WINDOW_SECONDS:
        clock.pass_by(0.1)
        if budget.affords("norms"):
            spend(budget, clock, "norms", 0.002)
            spent += 0.002
        shares.append(spent / budget.passed)
    waiting = 0.02 * (1.0 - RECORD_SHARE)
    assert max(shares[600:]) <= waiting * 1.05, "also over the first minute"
    assert shares[-1] == pytest.approx(scale * STEADY_SHARE * waiting, rel=0.1)


def test_what_is_lent_at_the_start_is_earned_in_the_first_minute() -> None:
    clock = FakeClock()
    budget = TimeBudget(0.02, clock=clock)
    spent = 0.0
    for _ in range(6000):  # of 10 milliseconds
        clock.pass_by(0.01)
        budget.waiting = 0  # none has waited for so long that it is made in any case
        if budget.takes_record("step"):
            spend(budget, clock, "step", 0.005)
            clock.pass_by(-0.005)
            budget.end_record()
            spent += 0.005
    assert schedule.START_SECONDS < spent <= 0.02 * RECORD_SHARE * WINDOW_SECONDS + 0.005


def test_time_inside_of_a_task_is_that_of_the_inner_one_and_counted_once() -> None:
    clock = FakeClock()
    budget = TimeBudget(0.1, clock=clock)
    for _ in range(2):
        with budget.watching("step"):
            clock.pass_by(1.0)
            spend(budget, clock, "norms", 2.0)
        budget.end_record()
    assert (budget.expect("step"), budget.expect("norms")) == (1.0, 2.0)
    assert budget.spent == 6.0
    budget.skip(3.0)
    assert budget.passed == 3.0
    assert not budget.affords("step")


class FakeEvent:
    """An event of a device whose clock is another one, and that has not come there yet."""

    reached = False

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def record(self, stream: Any) -> None:
        self.at = self._clock.now

    def query(self) -> bool:
        return self.reached

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) / 1e6


def test_time_of_a_device_replaces_that_of_the_host_once_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, device_clock = FakeClock(), FakeClock()
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(device_clock))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(FakeEvent, "reached", False)
    budget = TimeBudget(0.5, torch.device("cuda"), clock)
    for _ in range(2):
        with budget.watching("norms"):
            clock.pass_by(0.25)
            device_clock.pass_by(2.0)
        budget.end_record()
    clock.pass_by(10.0)
    budget.affords("norms")
    assert (budget.spent, budget.expect("norms")) == (0.5, 0.25)
    monkeypatch.setattr(FakeEvent, "reached", True)
    budget.affords("norms")
    assert (budget.spent, budget.expect("norms")) == (4.0, 2.0)


def test_places_have_their_turn_one_after_the_other_and_those_that_are_due_first() -> None:
    turns: Turns[Any] = Turns()
    for place in PLACES[:2]:
        turns.serve(place)
    assert turns.order(PLACES) == [PLACES[2], PLACES[0], PLACES[1]]
    assert turns.order(PLACES, {PLACES[1]}) == [PLACES[1], PLACES[2], PLACES[0]]


def exact_norms(model: nn.Module) -> list[float]:
    matrices = [parameter.detach() for parameter in model.parameters() if parameter.ndim == 2]
    return [math.log10(float(torch.linalg.matrix_norm(matrix, 2))) for matrix in matrices]


def test_a_layer_that_is_not_in_turn_keeps_its_norms_and_has_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    only_at_first(monkeypatch, records=3)
    alone, _, _ = losses("mlp", 9, lr=1e-4)
    watched, model, run = losses("mlp", 9, lr=1e-4, watched=lambda m, o: watch(m, o, every=1, overhead=0.5))
    assert watched == alone
    assert [bool(record.of("weight", "rotation")) for record in run.records] == [True] * 3 + [False] * 6
    ages = [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert [record.of("weight", "norm_age") for record in run.records] == [(float(age),) * 3 for age in ages]
    for now in run.records[2:]:
        norms, errors = now.of("weight", "log10_norm"), now.of("weight", "norm_error")
        for norm, error, true in zip(norms, errors, exact_norms(model), strict=True):
            assert error <= READABLE_DECADES
            assert norm == pytest.approx(true, abs=error + 1e-4)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("one_each", "lr", "seen"), [(False, 2.0, 0.25), (True, 2.0, 0.4), (True, 0.05, 0.8)])
def test_norms_are_shown_between_turns_unless_they_may_be_off(
    monkeypatch: pytest.MonkeyPatch, one_each: bool, lr: float, seen: float
) -> None:
    """There is time for no layer, or for one in each record."""
    granted: dict[int, Any] = {}

    def affords(self: TimeBudget, task: Any, times: int = 1) -> bool:
        kind, place = (task, None) if isinstance(task, str) else task
        if kind == "step" or self.records < 6:
            return True
        return one_each and kind in ("search", "follow") and granted.setdefault(self.records, place) == place

    monkeypatch.setattr(TimeBudget, "affords", affords)
    exact: list[list[float]] = []

    def stepping(optimizer: Any, *_: Any) -> None:
        exact.append(exact_norms(called[0]))

    called: list[nn.Module] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        called.append(model)
        optimizer.register_step_pre_hook(stepping)
        return watch(model, optimizer, every=2, overhead=0.5)

    _, _, run = losses("mlp", 60, lr=lr, watched=watched)
    shown = carried = 0
    for now in run.records:
        norms = now.of("weight", "log10_norm") or (None,) * 3
        figures = zip(norms, now.of("weight", "norm_error"), now.of("weight", "norm_age"), exact[now.step], strict=True)
        for norm, error, age, true in figures:
            assert (norm is None) == (error > READABLE_DECADES)
            assert age <= 2 * 3 * MAX_LEFT_OUT
            if norm is not None:
                assert norm == pytest.approx(true, abs=READABLE_DECADES)
                shown, carried = shown + 1, carried + (age > 0)
    assert carried > 0
    assert seen * 90 <= shown < 90
    assert all(record.total["log10_printed"] is not None for record in run.records)


def test_the_error_of_a_norm_grows_with_its_age_and_faster_where_nothing_was_seen() -> None:
    first = NormFigure(log10=1.0, error=0.004)
    assert first.error_after(0) == 0.004
    assert first.error_after(1) == math.inf
    then = NormFigure(log10=1.03, error=0.002).corrected(first.carried(0.01, 10), 10)
    assert then.drift == pytest.approx(0.002)
    assert then.error_after(5) == pytest.approx(0.002 + DRIFT_CAUTION * 0.002 * 5)
    assert then.error_after(40) == pytest.approx(0.002 + DRIFT_CAUTION * 0.002 * 40 * 4)
    calm = NormFigure(log10=1.03, error=0.002).corrected(then.carried(0.0, 20), 20)
    assert calm.drift == pytest.approx(DRIFT_MEMORY * 0.002)
    assert calm.over == 20


def test_norms_are_carried_on_by_the_growth_of_the_weight_less_that_of_the_deviation() -> None:
    figure = NormFigure(log10=0.5, error=0.001, drift=1e-5, over=100)
    norms = WeightNorms(bare=figure, folded=replace(figure, log10=0.2), step=10, size=1.0, level=-2.0)
    later = norms.carried(20, 1.3, -1.6)
    assert later.folded is not None
    assert (later.bare.log10, later.folded.log10) == pytest.approx((0.8, 0.3))
    assert later.step == 10
    assert later.bare.error == pytest.approx(0.001 + DRIFT_CAUTION * 1e-5 * 10)
    unknown = norms.carried(20, None, None)
    assert unknown.bare.log10 == 0.5
    assert math.isnan(norms.carried(20, math.nan, -2.0).bare.log10)


class Calls(TorchDispatchMode):
    """Counts what torch is asked to do."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_a_record_without_turns_costs_few_calls_however_many_layers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, and with a record in ten steps: 48 calls for three layers, and at most two more for another."""
    only_at_first(monkeypatch, records=2)

    def calls(depth: int, watched: bool) -> int:
        torch.manual_seed(0)
        blocks = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(depth)]
        model = nn.Sequential(*(layer for block in blocks for layer in block))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        run = watch(model, optimizer, every=10) if watched else None
        with contextlib.ExitStack() as stack:
            if run is not None:
                stack.enter_context(run)
            for step in range(70):
                if step == 60:
                    counted = stack.enter_context(Calls())
                optimizer.zero_grad()
                loss = model(torch.ones(2, 4, 5, 5)).square().mean()
                if run is not None:
                    run.observe(loss=loss)
                loss.backward()
                optimizer.step()
            return counted.count

    extra = {depth: calls(depth, True) - calls(depth, False) for depth in (2, 6)}
    assert extra[2] <= 60
    assert extra[6] - extra[2] <= 4 * 2


def test_norms_that_could_not_be_shown_are_due() -> None:
    figure = NormFigure(log10=0.0, error=0.01, drift=0.001, over=10)
    norms = WeightNorms(bare=figure, folded=replace(figure, drift=0.01), step=100)
    assert [replace(norms, folded=None).is_due(step) for step in (100, 103, 104)] == [False, False, True]
    assert norms.is_due(101)


def test_a_bias_that_grows_is_no_growth_of_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    only_at_first(monkeypatch, records=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    true = float(torch.linalg.matrix_norm(model[0].weight.detach(), 2).log10())
    with watch(model, optimizer, every=1) as run:
        for _ in range(45):  # layers wait for their turn for long
            take_step(model, optimizer, torch.randn(8, 6))
            with torch.no_grad():
                model[0].bias.mul_(1.1)
    first, last = (record.of("weight", "log10_size")[0] for record in (run.records[0], run.records[-1]))
    assert last - first > 1.0
    assert all(abs(record.of("weight", "log10_norm")[0] - true) < 0.1 for record in run.records)
    assert "norm-growth" not in {finding.code for finding in run.findings}


@pytest.mark.parametrize("cost", [0.001, 0.009, 0.014, 0.06, 10.0])
def test_records_take_their_share_whatever_else_was_spent_and_one_of_eight_is_made(
    cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is due every second, in which records earn a little below ten milliseconds."""
    monkeypatch.setattr(schedule, "START_SECONDS", 0.0)
    clock = FakeClock()
    budget = TimeBudget(0.02, clock=clock)
    spend(budget, clock, "set-up", 1000.0)
    taken, left_out = [], 0
    for due in range(800):
        clock.pass_by(1.0)
        if budget.takes_record("step"):
            taken.append(due)
            left_out += budget.left_out
            clock.pass_by(-cost)  # as if the time between were that of the run alone
            spend(budget, clock, "step", cost)
            budget.end_record()
    earned = KEPT_SHARE * STEADY_SHARE * RECORD_SHARE * 0.02
    held = KEPT_SHARE * (1.0 - STEADY_SHARE) * RECORD_SHARE * 0.02 * WINDOW_SECONDS / cost  # is spent at the start
    assert taken[:2] == [0, 1]
    assert len(taken) == pytest.approx(min(max(800 * earned / cost, 800 / MAX_LEFT_OUT), 800), abs=3 + held)
    assert left_out == taken[-1] + 1 - len(taken)


def test_at_the_start_every_step_that_is_due_is_measured() -> None:
    clock = FakeClock()
    budget = TimeBudget(0.02, clock=clock)
    spend(budget, clock, "set-up", 1000.0)
    taken = 0
    for _ in range(30):
        clock.pass_by(0.01)
        if budget.takes_record("step"):
            taken += 1
            spend(budget, clock, "step", 0.06)
            budget.end_record()
    records = math.floor(schedule.START_SECONDS / 0.06)
    assert taken == records + (30 - records) // MAX_LEFT_OUT


def test_a_richer_tier_that_is_due_is_measured_once_there_is_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def affords(self: TimeBudget, task: Any, times: int = 1) -> bool:
        return task != ("step", Tier.STANDARD) or self.records != 3

    monkeypatch.setattr(TimeBudget, "affords", affords)
    _, _, run = losses("mlp", 7, watched=lambda m, o: watch(m, o, every={"economy": 1, "standard": 3}, overhead=0.5))
    assert "".join(record.tier[0] for record in run.records) == "seeeses"
    _, _, run = losses("mlp", 5, watched=lambda m, o: watch(m, o, every=1, tier="standard", overhead=0.5))
    assert "".join(record.tier[0] for record in run.records) == "ssses"


def test_a_search_in_parts_has_the_norm_of_the_step_that_it_began_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time for one part of a search in each record, and for nothing else."""
    parts: set[int] = set()

    def affords(self: TimeBudget, task: Any, times: int = 1) -> bool:
        if task[0] != "search" or times > 1 or self.records in parts:
            return task[0] == "step"
        parts.add(self.records)
        return True

    monkeypatch.setattr(TimeBudget, "affords", affords)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    exact = []
    with watch(model, optimizer, every=1, overhead=0.5) as run:
        hooks = run._hooks
        for _ in range(2 * (needed := -(-SEARCH_STEPS // PART_STEPS))):
            optimizer.zero_grad()
            (model(torch.randn(8, 60)) - 9.0).square().sum().backward()
            exact.append(exact_norms(model))
            optimizer.step()
        run.flush()
        layers = list(hooks._memories[OperatorNorms].last.values())
    assert [layer.step for layer in layers] == [0, needed]
    for index, layer in enumerate(layers):
        assert -1e-5 <= exact[layer.step][index] - layer.bare.log10 <= layer.bare.error
        assert abs(exact[layer.step + needed - 1][index] - layer.bare.log10) > 0.1  # where it ended
    ages = [record.of("weight", "norm_age") for record in run.records]
    assert ages == [()] * (needed - 1) + [(float(needed - 1 + later), None) for later in range(needed)] + [
        (float(2 * needed - 1), float(needed - 1))
    ]
    assert all(record.of("weight", "log10_norm") == () for record in run.records)  # nobody knows how fast they move


def test_a_step_that_is_not_measured_calls_nothing_but_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 6)

    with watch(model, optimizer, every=100) as run:
        for _ in range(2):  # what was measured at the first is sent at the second
            take_step(model, optimizer, x)
        called: list[str] = []

        def note(frame: Any, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(os.path.dirname(normscope.__file__)):
                called.append(frame.f_code.co_name)

        with Calls() as watched:
            sys.setprofile(note)
            try:
                take_step(model, optimizer, x)
            finally:
                sys.setprofile(None)
        assert not model._forward_hooks
    with Calls() as alone:
        take_step(model, optimizer, x)
    assert watched.count == alone.count
    allowed = {"__call__", "_before_forward", "passes", "listens", "_after_any_step", "_after_step", "stepped"}
    assert set(called) <= allowed, sorted(set(called) - allowed)
    assert len(called) <= 8
    assert run.step == 3


@pytest.mark.parametrize("tier", ["economy", "standard"])
def test_a_measured_step_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    """On a CPU too: whatever would wait for a GPU raises, and what raises is told."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6),
        nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LayerNorm(150), nn.Linear(150, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 3, 5, 5)

    def refuse(*_: Any) -> Any:
        raise AssertionError("the host waits for the device")

    with watch(model, optimizer, every=1, tier=tier) as run:
        for step in range(7):
            optimizer.zero_grad()
            with monkeypatch.context() as patched:
                for name in ("item", "__bool__", "__float__", "__int__", "tolist", "nonzero") if step else ():
                    patched.setattr(torch.Tensor, name, refuse)
                patched.setattr(
                    "normscope.doctor.monitor.record_writer.Recorder.collect", lambda *_, **__: None
                )  # on the host
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
    assert [record.step for record in run.records] == list(range(7))
    assert all(None not in record.of("weight", "log10_norm") for record in run.records)


@pytest.mark.parametrize(("every", "records"), [(10, 80), (50, 16), (1000, 1)])
def test_what_is_lent_is_given_back_after_some_steps_less_what_was_spent(every: int, records: int) -> None:
    clock = FakeClock()
    budget = TimeBudget(0.02, clock=clock, every=every)
    for _ in range(records):
        assert budget.affords("step")
        spend(budget, clock, "step", 0.001)
        budget.end_record()
    most = (
        KEPT_SHARE * max(schedule.LEAST_SHARE, 10 / every) * RECORD_SHARE * 0.02 * (1 - STEADY_SHARE) * WINDOW_SECONDS
    )
    left = most - 0.001 * records
    taken = 0
    while budget.affords("step") and taken < 1000:
        spend(budget, clock, "step", 0.001)
        budget.end_record()
        taken += 1
    assert taken == pytest.approx(max(left, 0.0) / 0.001, abs=2)
