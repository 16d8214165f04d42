"""How a loop is put together: what is no fault raises nothing, and what nobody can see is told as such."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.finding import Severity
from normscope.doctor.monitor.quantities.accumulation import Clearing
from normscope.doctor.monitor.quantities.batch import measure_spread
from normscope.doctor.monitor.watching import watch

from .training import take_step


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2))


def codes(run: Any) -> set[str]:
    return {finding.code for finding in run.findings if finding.severity >= Severity.WARNING}


def batch(step: int) -> Tensor:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(step))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("how", ["none", "zeros", "model", "after the forward", "after the step", "by hand", "closure"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_that_are_cleared_somehow_are_no_fault(how: str, accumulate: int) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def clear() -> None:
        if how == "model":
            model.zero_grad()
        elif how == "by hand":
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        else:
            optimizer.zero_grad(set_to_none=how != "zeros")

    def run_once(step: int) -> Tensor:
        if how not in ("after the forward", "after the step"):
            clear()
        for part in range(accumulate):
            loss = model(batch(step + part)).square().mean()
            if how == "after the forward" and part == 0:
                clear()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return loss

    with watch(model, optimizer, every=2) as run:
        for step in range(12):
            if how == "closure":
                optimizer.step(lambda step=step: run_once(step))
            else:
                run_once(step)
                optimizer.step()
            if how == "after the step":
                clear()
    assert [record.total["left_over"] for record in run.records[1:]] == [0.0] * 5
    assert not codes(run)
    assert all(not parameter._backward_hooks for parameter in model.parameters())


def test_a_discriminator_that_is_cleared_before_its_own_backward_is_no_fault() -> None:
    critic, maker = network(), nn.Linear(2, 6)
    own, other = torch.optim.SGD(critic.parameters(), lr=0.01), torch.optim.SGD(maker.parameters(), lr=0.01)
    with watch(critic, own, every=2) as run:
        for step in range(16):
            other.zero_grad()
            critic(maker(batch(step)[:, :2])).mean().backward()  # reaches the critic's weights too
            other.step()
            own.zero_grad()
            critic(batch(step)).square().mean().backward()
            own.step()
    assert "no-zero-grad" not in codes(run)


def test_listening_to_clearing_leaves_nothing_behind() -> None:
    weight = nn.Parameter(torch.ones(3))
    clearing = Clearing(weight)
    weight.sum().backward()
    weight.sum().backward()
    assert clearing.close() == 0.0, "the first had nothing to be added to"
    assert not weight._backward_hooks
    again = Clearing(weight)
    weight.sum().backward()
    assert again.close() == 2.0


def test_branches_that_are_taken_now_and_then_are_no_fault() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rare, self.last, self.calls = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x = self.first(x)
            return self.last(x + self.rare(x) if self.calls % 7 == 3 else x)

    model = Sometimes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=7) as run:  # the calls that are measured never take it
        for step in range(120):
            take_step(model, optimizer, batch(step))
    assert not codes(run)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["frozen", "another optimizer", "by hand", "no gradient either"])
def test_parameters_that_another_trains_or_nobody_wants_are_no_fault(how: str) -> None:
    model, more = network(), None
    optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.01)
    if how == "frozen":
        model[0].requires_grad_(False)
    if how == "another optimizer":
        more = torch.optim.Adam(model[0].parameters(), lr=0.01)
    with watch(model, optimizer, every=5) as run:
        for step in range(60):
            optimizer.zero_grad()
            model[0].zero_grad()
            x = batch(step)
            if how == "no gradient either":
                model(x)[0, 0].detach()
                model[2:](model[:2](x).detach()).square().mean().backward()
            else:
                model(x).square().mean().backward()
            optimizer.step()
            if more is not None:
                more.step()
            if how == "by hand":
                with torch.no_grad():
                    model[0].weight.sub_(0.01 * model[0].weight.grad)
                    model[0].bias.sub_(0.01 * model[0].bias.grad)
    assert not codes(run)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((torch.zeros(4, 3),), 0.0),
        ((torch.ones(4, 3, 2) * 7,), 0.0),
        ((torch.tensor([[1, 2], [1, 2]]),), 0.0),
        ((torch.tensor([[1, 2], [1, 5]]), torch.ones(2, 3)), 3.0),
        ((torch.ones(2, 3), {"x": torch.tensor([[0.0], [2.5]])}), 2.5),
        ((torch.ones(2, 3), torch.arange(5.0)), 0.0),  # no batch
        ((torch.tensor([[1.0, 4.0]]),), 3.0),  # one sample
        ((torch.ones(2, 3, dtype=torch.half), torch.zeros(2, dtype=torch.bool)), 0.0),
    ],
)
def test_how_far_samples_differ(args: Any, expected: float) -> None:
    assert float(measure_spread(args, {})) == expected
    assert float(measure_spread((), {"given": args})) == expected


@pytest.mark.parametrize("args", [(), (None, 3), (torch.tensor(1.0),), (torch.zeros(0, 3),), (torch.ones(2).bool(),)])
def test_what_cannot_be_compared_is_not(args: Any) -> None:
    assert measure_spread(args, {}) is None


def loop(model: Any, optimizer: Any, call: Any, *, steps: int = 8, whole: bool = False) -> Any:
    with watch(model, optimizer, every=2) as run:
        for step in range(steps):
            loss = call(batch(step)).square().mean()
            run.observe(loss=loss.detach())
            if not whole:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return run


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_function_around_a_plain_model_is_told(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # functions that are compiled are looked for
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def inside(x: Tensor) -> Tensor:
        made = model(x)
        if whole:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.01 * parameter)
        return made

    compiled = torch.compile(inside, backend="eager")
    with pytest.warns(UserWarning, match="no forward of the watched|neither a forward"):
        run = loop(model, optimizer, compiled, steps=35 if whole else 6, whole=whole)
    seen = run.findings
    assert [finding.code for finding in seen] == ["not-seen"]
    assert "torch.compile" in seen[0].why + seen[0].seen
    assert "Compile the model" in seen[0].advice
    assert run.step == (0 if whole else 6)


def test_a_run_in_which_nothing_happens_says_nothing() -> None:
    model = network()
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.01), every=2) as run:
        copy.deepcopy(model)(batch(0))
    assert run.findings == ()


@pytest.mark.parametrize(
    ("place", "bias", "severity"),
    [(2, True, "warning"), (4, True, "warning"), (2, False, "warning"), (4, False, "info")],
)
def test_frozen_random_layers_are_told_as_a_check_tells_them(place: int, bias: bool, severity: str) -> None:
    """In the same words and as severe: a map without a bias behind all others may be meant, as a fixed classifier."""
    sizes = ((8, 32), (32, 32), (32, 4))
    layers = [nn.Linear(*size, bias=bias or 2 * i != place) for i, size in enumerate(sizes)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    model[place].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    x, y = torch.randn(64, 8), torch.randint(4, (64,))
    findings = ns.check(model, (x, y), loss="cross_entropy", optimizer=optimizer).findings
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for _ in range(60):
            rows = torch.randperm(64)[:32]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    checked, watched = ([f for f in found if f.code == "frozen-layer"] for found in (findings, run.findings))
    assert [replace(finding, step=None) for finding in watched] == checked
    assert [(finding.severity, finding.where) for finding in checked] == [(severity, str(place))]
