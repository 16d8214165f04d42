"""Small things that go on around a run: copies, deleted logs, other optimizers, hooks of the user's own."""

from __future__ import annotations

import copy
import functools
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.swa_utils import AveragedModel

from normscope.core.errors import InputError
from normscope.listening.listener import Names
from normscope.monitor.alarms.setup import REPLACED_STEPS
from normscope.monitor.probes.updates import HISTOGRAM_BINS, HISTOGRAM_MAX_ENTRIES, HISTOGRAM_SPAN, histogram
from normscope.monitor.watching import Watch, watch


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 64).reshape(16, 4)).square().mean().backward()
    optimizer.step()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(item.message) for item in caught if str(item.message).startswith("normscope: ")]


@pytest.mark.parametrize("log", ["", b""])
def test_an_empty_path_is_refused(log: Any) -> None:
    model = net()
    with pytest.raises(InputError, match="log is"):
        watch(model, sgd(model), log=log)


def test_a_log_that_is_deleted_midway_is_told_once(tmp_path: Path) -> None:
    model = net()
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught, watch(model, optimizer, every=1, log=tmp_path / "a") as run:
        for index in range(5):
            if index == 2:
                shutil.rmtree(tmp_path / "a")
            step(model, optimizer)
    [said] = told(caught)
    assert "the log cannot be written to and ends here" in said
    assert "deleted" in said
    assert len(run.records) == 5


# ---- another optimizer


def test_an_optimizer_that_is_replaced_is_told_within_fifty_steps() -> None:
    model = net()
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught, watch(model, optimizer, every=1):
        step(model, optimizer)
        other = torch.optim.Adam(model.parameters())
        for _ in range(REPLACED_STEPS - 1):
            step(model, other)
        assert told(caught) == []
        for _ in range(REPLACED_STEPS):
            step(model, other)
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


@pytest.mark.parametrize("case", ["another model", "other parameters", "in turns", "inside of it", "around it"])
def test_other_optimizers_that_do_not_replace_it_are_silent(case: str) -> None:
    model, side = net(), net()
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
                step(model, watched)
            if other is not None:
                step(side if case == "another model" else model, other)
    assert told(caught) == []


# ---- names


def test_names_are_those_of_torch_until_a_module_moves() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    model.register_parameter("own", nn.Parameter(torch.ones(2)))
    model[1][0].weight = model[0].weight  # tied: it has the first of its names
    names = Names(model)
    assert names.parameters(model) == dict(model.named_parameters())
    held = dict(model.named_parameters())
    model.insert(0, nn.Linear(4, 4, bias=False))
    moved = names.parameters(model)
    assert list(moved) == ["own", "0 (new).weight", "0.weight", "0.bias", "1.0.bias"]
    assert all(moved[name] is parameter for name, parameter in held.items())


# ---- copies


def hooks(model: nn.Module) -> int:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


@pytest.mark.parametrize("how", ["copied", "inside", "averaged", "twice", "state"])
def test_copies_carry_no_hooks_of_ours_and_all_of_the_users(how: str) -> None:
    model = net()
    optimizer = sgd(model)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with watch(model, optimizer, every=1) as run:
        step(model, optimizer)
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
        assert hooks(model) == watching == 1 + 4
        assert hooks(made) == 1
        assert "__setstate__" not in made.__dict__
        calls.clear()
        made.eval()
        made(torch.ones(3, 4))
        assert calls == [1]
        step(model, optimizer)
    assert [record.step for record in run.records] == [0, 1]
    assert all(torch.equal(held, value) for held, value in zip(made.state_dict().values(), before, strict=True))
    assert hooks(model) == 1


# ---- hooks that look


KEPT: list[Any] = []


def mean(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append(made.mean().item())


def detached(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append(made.detach().flatten(1).norm(dim=1))


def view_of_it(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append((made.t().reshape(-1).abs() + 1).max().item())


def without_gradients(module: nn.Module, args: Any, made: Tensor) -> None:
    with torch.no_grad():
        KEPT.append(made * 2)


def same_again(module: nn.Module, args: Any, made: Tensor) -> Tensor:
    made.std().item()
    return made


def by_operator(module: nn.Module, args: Any, made: Tensor) -> None:
    made += 1.0


def for_the_loss(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append(2 * made.square().mean())


def another(module: nn.Module, args: Any, made: Tensor) -> Tensor:
    return made + 1.0


def in_place(module: nn.Module, args: Any, made: Tensor) -> None:
    made.add_(1.0)


class Caller:
    """A hook that is an object."""

    def __call__(self, module: nn.Module, args: Any, made: Tensor) -> None:
        KEPT.append(float(made.std()))


def invariant(model: nn.Sequential) -> str | None:
    optimizer = sgd(model)
    with watch(model, optimizer, every=1) as run:
        step(model, optimizer)
    KEPT.clear()
    return run.history.of("weight")[0].invariant


@pytest.mark.parametrize(
    "hook",
    [mean, detached, view_of_it, without_gradients, same_again, Caller(), functools.partial(mean)],
    ids=["mean", "detached", "view", "no grad", "same", "object", "partial"],
)
def test_hooks_that_only_look_leave_weights_invariant(hook: Any) -> None:
    model = net()
    model[0].register_forward_hook(hook)
    assert invariant(model) == "channel"
    model = net()

    def before(module: nn.Module, args: Any) -> None:
        hook(module, args, args[0])

    model[1].register_forward_pre_hook(before)
    assert invariant(model) == "channel"


@pytest.mark.parametrize("hook", [for_the_loss, another, in_place, by_operator])
def test_hooks_that_take_part_do_not(hook: Any) -> None:
    model = net()
    model[0].register_forward_hook(hook)
    assert invariant(model) is None


def test_what_the_model_itself_reads_does_not_count_as_a_hook() -> None:
    class Reads(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y = self[0](x)
            return super().forward(x) * y.detach().mean()

    model = Reads(*net())
    model[0].register_forward_hook(mean)
    assert invariant(model) is None


def test_a_run_is_bit_identical_with_hooks_and_histograms() -> None:
    def losses(watched: bool) -> list[Tensor]:
        model = net()
        model[0].register_forward_hook(mean)
        optimizer = sgd(model)
        if not watched:
            for _ in range(6):
                step(model, optimizer)
        else:
            with watch(model, optimizer, every={"economy": 1, "full": 2}):
                for _ in range(6):
                    step(model, optimizer)
        return [parameter.detach() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(losses(True), losses(False), strict=True))


def histograms(run: Watch, what: str) -> Any:
    return run.records[-1].histograms[what]


def test_the_full_tier_has_histograms_of_weights_and_gradients(tmp_path: Path) -> None:
    from normscope.monitor.run import Run

    model = net()
    optimizer = sgd(model)
    with watch(model, optimizer, every={"economy": 1, "full": 2}, log=tmp_path) as run:
        for _ in range(3):
            step(model, optimizer)
            held = [model[0].weight.grad.clone(), model[3].weight.grad.clone()]
    assert [bool(record.histograms) for record in run.records] == [True, False, True]
    for gradient, row in zip(held, histograms(run, "gradient"), strict=True):
        size, *shares = row
        assert size == pytest.approx(float(gradient.square().mean().sqrt()), rel=1e-4)
        assert sum(shares) == pytest.approx(1.0)
        middle = float(((gradient / size).abs() < 4 / 33).double().mean())
        assert shares[16] == pytest.approx(middle, abs=1e-6)
    read = Run(tmp_path).records[-1].histograms
    assert read["weight"][0] == pytest.approx(histograms(run, "weight")[0], rel=1e-5)


def test_histograms_look_at_all_of_a_large_tensor_and_put_entries_where_they_belong() -> None:
    large = torch.cat(
        [torch.zeros(HISTOGRAM_MAX_ENTRIES), torch.ones(HISTOGRAM_MAX_ENTRIES)]
    )  # every second entry is looked at
    size, *shares = histogram(large).tolist()
    assert size == pytest.approx(math.sqrt(0.5), rel=1e-3)
    assert shares[HISTOGRAM_BINS // 2] == pytest.approx(0.5, abs=1e-3)
    width = 2 * HISTOGRAM_SPAN / HISTOGRAM_BINS
    entries = torch.tensor([-9.0, -0.9, -0.1, 0.1, 0.5, 1.0, 9.0])
    relative = entries / entries.square().mean().sqrt()
    expected = [0.0] * HISTOGRAM_BINS
    for value in relative.tolist():
        expected[min(max(int((value + HISTOGRAM_SPAN) // width), 0), HISTOGRAM_BINS - 1)] += 1 / 7
    assert histogram(entries)[1:].tolist() == pytest.approx(expected, abs=1e-6)
    assert histogram(torch.zeros(5)).tolist()[0] == 0.0


def test_a_hook_on_all_modules_that_only_looks_leaves_weights_invariant() -> None:
    handle = register_module_forward_hook(mean)
    try:
        assert invariant(net()) == "channel"
    finally:
        handle.remove()
