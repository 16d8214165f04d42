"""The hooks around a run: steps with closures, steps inside of steps, other optimizers, copies of the model."""

from __future__ import annotations

import copy
import io
import warnings
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.unseen_training import REPLACED_STEPS
from normscope.doctor.monitor.watching import watch

from .training import batches, losses, network, sgd, take_step, tiny_network, told

# ---- closures


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


@pytest.mark.one_in(3)
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


@pytest.mark.one_in(2)
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


# ---- steps inside of steps, and other optimizers


class Twice(torch.optim.SGD):
    """Hands its step on to its base class, which torch hooks too; takes something that is no closure."""

    def step(self, what: Any = None) -> None:
        super().step()


def test_a_step_that_calls_that_of_its_base_class_is_one() -> None:
    model = nn.Linear(6, 4)
    torch.optim.SGD(model.parameters(), lr=0.1)  # torch hooks the step of a class when one is made
    assert torch.optim.SGD.step.hooked
    optimizer = Twice(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step(torch.ones(2))
    assert (run.step, [record.step for record in run.records]) == (3, [0, 1, 2])


def test_an_optimizer_that_is_replaced_is_told_within_fifty_steps() -> None:
    model = tiny_network()
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught, watch(model, optimizer, every=1):
        take_step(model, optimizer)
        other = torch.optim.Adam(model.parameters())
        for _ in range(REPLACED_STEPS - 1):
            take_step(model, other)
        assert told(caught) == []
        for _ in range(REPLACED_STEPS):
            take_step(model, other)
    assert REPLACED_STEPS <= 50
    [said] = told(caught)
    assert "another optimizer (Adam) trains the parameters" in said


class Around(torch.optim.SGD):
    """Takes its step by another optimizer that has the same parameters."""

    def __init__(self, parameters: Any, times: int) -> None:
        super().__init__(parameters, lr=0.1)
        self.times = times
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)

    def step(self, closure: Any = None) -> None:
        for _ in range(self.times):
            self.base.step(closure)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", ["another model", "other parameters", "in turns", "inside of it", "around it"])
def test_other_optimizers_that_do_not_replace_it_are_silent(case: str) -> None:
    model, side = tiny_network(), tiny_network()
    watched = torch.optim.SGD(model[0].parameters(), lr=0.1)
    other: Any = sgd(side)
    if case == "other parameters":
        other = torch.optim.SGD(model[3].parameters(), lr=0.1)
    elif case == "in turns":
        other = sgd(model)
    elif case in ("inside of it", "around it"):
        outer = Around(list(model.parameters()), REPLACED_STEPS + 1 if case == "inside of it" else 1)
        watched, other = (outer, None) if case == "inside of it" else (outer.base, outer)
    with warnings.catch_warnings(record=True) as caught, watch(model, watched, every=5):
        for index in range(3 * REPLACED_STEPS):
            if case != "around it" and (case != "another model" or index % 15 == 0):
                take_step(model, watched)
            if other is not None:
                take_step(side if case == "another model" else model, other)
    assert told(caught) == []


# ---- copies


def hooks(model: nn.Module) -> int:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


@pytest.mark.parametrize("how", ["copied", "inside", "averaged", "twice", "state"])
def test_copies_carry_no_hooks_of_ours_and_all_of_the_users(how: str) -> None:
    model = tiny_network()
    optimizer = sgd(model)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with watch(model, optimizer, every=1) as run:
        take_step(model, optimizer)
        watching = hooks(model)
        made = {
            "copied": lambda: copy.deepcopy(model),
            "inside": lambda: copy.deepcopy(nn.ModuleList([model]))[0],
            "averaged": lambda: AveragedModel(model).module,
            "twice": lambda: copy.deepcopy(copy.deepcopy(model)),
            "state": lambda: copy.deepcopy({"net": model})["net"],
        }[how]()
        before = [value.clone() for value in made.state_dict().values()]
        assert all(torch.equal(*pair) for pair in zip(before, model.state_dict().values(), strict=True))
        assert hooks(model) == watching == 1 + 2
        assert hooks(made) == 1
        assert "__setstate__" not in made.__dict__
        calls.clear()
        made.eval()
        made(torch.ones(3, 4))
        assert calls == [1]
        take_step(model, optimizer)
    assert [record.step for record in run.records] == [0, 1]
    assert all(torch.equal(held, value) for held, value in zip(made.state_dict().values(), before, strict=True))
    assert hooks(model) == 1


def test_copies_of_the_model_are_not_watched() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        model(torch.randn(4, 72)).sum().backward()
        optimizer.step()
        copied = copy.deepcopy(model)
        other = torch.optim.SGD(copied.parameters(), lr=0.1)
        copied(torch.randn(4, 72)).sum().backward()
        other.step()
        torch.save(model, io.BytesIO())
    assert run.step == 1
    assert len(run.records) == 1


def test_a_saved_model_needs_no_normscope_to_be_loaded() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1):
        file = io.BytesIO()
        torch.save(model, file)
    assert b"normscope" not in file.getvalue()
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    torch.testing.assert_close(loaded(torch.ones(2, 72)), model(torch.ones(2, 72)))  # another layout in memory


def test_a_run_that_is_not_entered_says_so_at_the_first_step() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(model, optimizer)
    with pytest.warns(UserWarning, match="was not entered"):
        optimizer.step()
    optimizer.step()
    with watch(model, optimizer):
        optimizer.step()
    assert not optimizer._optimizer_step_post_hooks
