"""Layers take turns where time is short."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch
from torch import nn

from normscope.monitor.budget import Budget
from normscope.monitor.norm_figures import READABLE
from normscope.monitor.norms import PATIENCE, Turns
from normscope.monitor.watching import watch

from .training import losses

PLACES = [("a", "linear", 0), ("b", "linear", 0), ("c", "linear", 0)]


def spend(budget: Budget, turns: Turns, seconds: float) -> list[str]:
    done = []
    for place in turns.affordable(PLACES, budget):
        with budget.spending(("norm", place)):
            time.sleep(seconds)
        done.append(place[0])
    return done


def test_at_first_everything_is_done_and_then_in_turns() -> None:
    budget, turns = Budget(0.5), Turns("norm")
    for _ in range(2):
        assert spend(budget, turns, 0.004) == ["a", "b", "c"]
    order = []
    for _ in range(12):
        time.sleep(0.009)
        order += spend(budget, turns, 0.004)
    assert 6 <= len(order) < 36
    assert order == (["a", "b", "c"] * 12)[: len(order)]


def test_without_a_limit_everything_is_done_every_time() -> None:
    budget, turns = Budget(None), Turns("norm")
    assert [spend(budget, turns, 0.0) for _ in range(2)] == [["a", "b", "c"]] * 2


def test_a_layer_that_is_not_in_turn_keeps_its_norms_and_has_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.monitor.watching.SHARE", 0.0)
    alone, _, _ = losses("mlp", 5, lr=1e-4)
    watched, model, run = losses("mlp", 5, lr=1e-4, watched=lambda m, o: watch(m, o, every=1))
    assert watched == alone
    turned = [bool(record.of("weight", "rotation")) for record in run.records]
    assert turned[0]
    assert not any(turned[2:])
    assert [record.of("weight", "norm_age") for record in run.records] == [(float(age),) * 3 for age in (0, 0, 1, 2, 3)]
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    exact = [math.log10(float(torch.linalg.matrix_norm(matrix.detach(), 2))) for matrix in matrices]
    for now in run.records[2:]:
        for norm, error, true in zip(
            now.of("weight", "log10_norm"), now.of("weight", "norm_error"), exact, strict=True
        ):
            assert error <= READABLE
            assert norm == pytest.approx(true, abs=error + 1e-4)


def test_norms_that_move_fast_are_not_shown_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.monitor.watching.SHARE", 0.0)
    _, _, run = losses("mlp", 5, lr=2.0, watched=lambda m, o: watch(m, o, every=1))
    hidden = 0
    for now in run.records:
        for norm, error in zip(
            now.of("weight", "log10_norm") or (None,) * 3, now.of("weight", "norm_error"), strict=True
        ):
            assert (norm is None) == (error > READABLE)
            hidden += norm is None
    assert hidden > 0
    assert run.records[-1].total["log10_printed"] is not None


def test_a_bias_that_grows_is_no_growth_of_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.monitor.watching.SHARE", 0.0)
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
    assert PATIENCE <= 20
    budget, turns = Budget(0.0), Turns("norm")
    order = [spend(budget, turns, 0.001) for _ in range(5 * PATIENCE)]
    for place in "abc":
        turns_of = [index for index, done in enumerate(order) if place in done]
        assert len(turns_of) >= 5
        assert max(later - earlier for earlier, later in itertools.pairwise(turns_of)) <= PATIENCE
    assert sum(map(len, order)) <= 3 * 7
