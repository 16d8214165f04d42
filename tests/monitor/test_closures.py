"""Optimizers whose step runs forward and backward itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from normscope.monitor.record import Record
from normscope.monitor.watching import watch

from .training import batches, losses, network


def closed(make: Any, *, named: bool = False, every: int = 1) -> tuple[list[float], tuple[Record, ...]]:
    model = network("mlp")
    optimizer = make(model.parameters())
    torch.manual_seed(2)
    found = []
    with watch(model, optimizer, every=every) as run:
        for x, y in batches("mlp", 5):

            def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                run.observe(loss=loss)
                loss.backward()
                return loss

            made = optimizer.step(closure=closure) if named else optimizer.step(closure)
            found.append(float(made.detach()))
    return found, run.records


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("every", [1, 2])
def test_a_closure_is_measured_like_a_loop(named: bool, every: int) -> None:
    found, records = closed(lambda p: torch.optim.SGD(p, lr=0.05), named=named, every=every)
    alone, _, run = losses("mlp", 5, watched=lambda m, o: watch(m, o, every=every))
    assert found == alone
    assert [record.step for record in records] == list(range(0, 5, every))
    for one, two in zip(records, run.records, strict=True):
        assert one.loss == two.loss
        assert one.total["log10_gradient"] == two.total["log10_gradient"]
        for quantity in ("log10_gradient", "log10_size", "rotation", "radial"):
            assert one.of("weight", quantity) == two.of("weight", quantity)
        assert one.of("normalizer", "log10_variance") == two.of("normalizer", "log10_variance")


def test_a_closure_that_is_run_many_times_is_measured_once() -> None:
    found, records = closed(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4))
    assert [record.step for record in records] == [0, 1, 2, 3, 4]
    assert [record.loss for record in records] == pytest.approx(found)
    assert all(record.total["log10_gradient"] is not None for record in records)


class HandsOn(torch.optim.SGD):
    """Hands its closure on to its base class, whose step torch hooks too."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("every", [1, 2, 4])
def test_a_closure_that_is_handed_on_is_one_step(every: int) -> None:
    torch.optim.SGD(network("mlp").parameters(), lr=0.1)
    assert torch.optim.SGD.step.hooked
    found, records = closed(lambda p: HandsOn(p, lr=0.05), every=every)
    assert found == closed(lambda p: torch.optim.SGD(p, lr=0.05), every=every)[0]
    assert [record.step for record in records] == list(range(0, 5, every))


@pytest.mark.parametrize("kind", [torch.optim.SGD, HandsOn])
def test_a_closure_that_raises_is_no_step(kind: Any) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=0.01)
    x = torch.ones(8, 3)
    failing = [3, 4]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        failing[:] = [count - 1 for count in failing]
        if 0 in failing:
            raise MemoryError
        loss.backward()
        return loss

    with watch(model, optimizer, every=2) as run:
        for _ in range(10):
            with suppress(MemoryError):
                optimizer.step(closure)
    assert run.step == 8
    assert [record.step for record in run.records] == [0, 2, 4, 6]
