"""Layers take turns where time is short."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.monitor.measuring import EARLY_RECORDS
from normscope.monitor.norm_tracking import DRIFT_CAUTION, DRIFT_MEMORY, READABLE_DECADES, NormFigure, WeightNorms
from normscope.monitor.schedule import PATIENCE_RECORDS, TimeShare, Turns
from normscope.monitor.watching import watch

from .training import losses

PLACES = [("a", "linear", 0), ("b", "linear", 0), ("c", "linear", 0)]


def spend(budget: TimeShare, turns: Turns, seconds: float) -> list[str]:
    done = []
    for place in turns.affordable(PLACES, budget):
        with budget.spending(("norm", place)):
            time.sleep(seconds)
        done.append(place[0])
    return done


@pytest.mark.slow
def test_at_first_everything_is_done_and_then_in_turns() -> None:
    budget, turns = TimeShare(0.5), Turns("norm")
    for _ in range(2):
        assert spend(budget, turns, 0.004) == ["a", "b", "c"]
    order = []
    for _ in range(12):
        time.sleep(0.009)
        order += spend(budget, turns, 0.004)
    assert 6 <= len(order) < 36
    assert order == (["a", "b", "c"] * 12)[: len(order)]


def test_without_a_limit_everything_is_done_every_time() -> None:
    budget, turns = TimeShare(None), Turns("norm")
    assert list(turns.affordable(PLACES, budget, {PLACES[2]})) == PLACES  # in the same order in every process
    assert [spend(budget, turns, 0.0) for _ in range(2)] == [["a", "b", "c"]] * 2


def exact_norms(model: nn.Module) -> list[float]:
    matrices = [parameter.detach() for parameter in model.parameters() if parameter.ndim == 2]
    return [math.log10(float(torch.linalg.matrix_norm(matrix, 2))) for matrix in matrices]


def test_a_layer_that_is_not_in_turn_keeps_its_norms_and_has_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.monitor.watching.TIME_SHARE", 0.0)
    alone, _, _ = losses("mlp", 9, lr=1e-4)
    watched, model, run = losses("mlp", 9, lr=1e-4, watched=lambda m, o: watch(m, o, every=1))
    assert watched == alone
    turned = [bool(record.of("weight", "rotation")) for record in run.records]
    assert turned[0]
    assert not any(turned[2:])
    ages = [*[0] * EARLY_RECORDS, 1, 2, 3]
    assert [record.of("weight", "norm_age") for record in run.records] == [(float(age),) * 3 for age in ages]
    for now in run.records[2:]:
        norms, errors = now.of("weight", "log10_norm"), now.of("weight", "norm_error")
        for norm, error, true in zip(norms, errors, exact_norms(model), strict=True):
            assert error <= READABLE_DECADES
            assert norm == pytest.approx(true, abs=error + 1e-4)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("one_each", "lr", "seen"), [(False, 2.0, 0.3), (True, 2.0, 0.4), (True, 0.05, 0.8)])
def test_norms_are_shown_between_turns_unless_they_may_be_off(
    monkeypatch: pytest.MonkeyPatch, one_each: bool, lr: float, seen: float
) -> None:
    """There is time for no layer, or for one in each record."""
    answers = itertools.cycle([one_each, False])
    monkeypatch.setattr("normscope.monitor.watching.TIME_SHARE", 0.0)
    monkeypatch.setattr(TimeShare, "affords", lambda self, task: self.share is None or next(answers))
    exact: list[list[float]] = []

    def stepping(optimizer: Any, *_: Any) -> None:
        exact.append(exact_norms(called[0]))

    called: list[nn.Module] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        called.append(model)
        optimizer.register_step_pre_hook(stepping)
        return watch(model, optimizer, every=2)

    _, _, run = losses("mlp", 60, lr=lr, watched=watched)
    shown = carried = 0
    for now in run.records:
        norms = now.of("weight", "log10_norm") or (None,) * 3
        figures = zip(norms, now.of("weight", "norm_error"), now.of("weight", "norm_age"), exact[now.step], strict=True)
        for norm, error, age, true in figures:
            assert (norm is None) == (error > READABLE_DECADES)
            assert age <= 2 * PATIENCE_RECORDS
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
    monkeypatch.setattr("normscope.monitor.watching.TIME_SHARE", 0.0)

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


def test_norms_that_could_not_be_shown_have_their_turn_first() -> None:
    budget, turns = TimeShare(0.0), Turns("norm")
    for _ in range(2):
        spend(budget, turns, 0.001)
    budget.share, budget._held = 0.0, 0.0015
    assert next(turns.affordable(PLACES, budget, {PLACES[2]})) == PLACES[2]
    assert next(turns.affordable(PLACES, budget, {PLACES[2], PLACES[1]})) == PLACES[1]
    figure = NormFigure(log10=0.0, error=0.01, drift=0.001, over=10)
    norms = WeightNorms(bare=figure, folded=replace(figure, drift=0.01), step=100)
    assert [replace(norms, folded=None).is_due(step) for step in (100, 103, 104)] == [False, False, True]
    assert norms.is_due(101)


def test_a_bias_that_grows_is_no_growth_of_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.monitor.watching.TIME_SHARE", 0.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    true = float(torch.linalg.matrix_norm(model[0].weight.detach(), 2).log10())
    with watch(model, optimizer, every=1) as run:
        for _ in range(45):  # layers wait for their turn for long
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                model[0].bias.mul_(1.1)
    first, last = (record.of("weight", "log10_size")[0] for record in (run.records[0], run.records[-1]))
    assert last - first > 1.0
    assert all(abs(record.of("weight", "log10_norm")[0] - true) < 0.1 for record in run.records)
    assert "norm-growth" not in {finding.code for finding in run.findings}


def test_nobody_waits_for_ever() -> None:
    assert PATIENCE_RECORDS <= 20
    budget, turns = TimeShare(0.0), Turns("norm")
    order = [spend(budget, turns, 0.001) for _ in range(5 * PATIENCE_RECORDS)]
    for place in "abc":
        turns_of = [index for index, done in enumerate(order) if place in done]
        assert len(turns_of) >= 5
        assert max(later - earlier for earlier, later in itertools.pairwise(turns_of)) <= PATIENCE_RECORDS
    assert sum(map(len, order)) <= 3 * 7
