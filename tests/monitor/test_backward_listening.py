"""Losses that a loop tells nobody are heard where their backwards begin, in measured steps alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.doctor.facts.loss_graph import without_factor
from normscope.doctor.monitor.torch_hooks import BackwardListener

from ..net import Net
from .test_alarms_learning import told


def network(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *layers, nn.Linear(32, 4))


def train(model, optimizer, *, steps=40, every=10, loss=F.cross_entropy, after=None, step=None, x_of=lambda x: x):
    """Watch a small classification that reports nothing; return the run and the losses by step."""
    torch.manual_seed(1)
    rule, losses = torch.randn(8, 4), []
    with ns.watch(model, optimizer, every=every, panel=False) as run:
        for number in range(steps):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            value = loss(model(x_of(x)), (x @ rule).argmax(1))
            losses.append(value.item())
            value.backward() if step is None else step(value)
            optimizer.step()
            if after is not None:
                after(number, run)
    return run, losses


def test_records_of_a_loop_that_observes_nothing_have_its_losses():
    model, backward = network(), torch.autograd.backward
    run, losses = train(model, torch.optim.SGD(model.parameters(), 0.1))
    assert [record.step for record in run.records] == [0, 10, 20, 30]
    for record in run.records:
        assert record.loss == pytest.approx(losses[record.step], rel=1e-6)
        assert record.total["outputs_own"] == pytest.approx(losses[record.step], rel=1e-5)
        assert 1.0 < record.total["outputs_constant"] < 1.6
    assert torch.autograd.backward is backward


def test_torch_has_its_own_function_in_steps_that_are_not_measured():
    model, backward, replaced = network(), torch.autograd.backward, []

    def step(value):
        replaced.append(torch.autograd.backward is not backward)
        value.backward()

    train(model, torch.optim.SGD(model.parameters(), 0.1), steps=25, step=step)
    assert [number for number, flag in enumerate(replaced) if flag] == [0, 10, 20]


def test_torch_has_its_own_function_behind_a_loop_that_raised():
    model, backward = network(), torch.autograd.backward

    def fail(output, y):
        raise RuntimeError("the loop's own")

    with pytest.raises(RuntimeError, match="the loop's own"):
        train(model, torch.optim.SGD(model.parameters(), 0.1), loss=fail)
    assert torch.autograd.backward is backward


def test_two_watched_runs_at_once_hear_their_own_and_put_the_function_back():
    backward, models = torch.autograd.backward, [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    with (
        ns.watch(models[0], optimizers[0], every=1, panel=False) as one,
        ns.watch(models[1], optimizers[1], every=1, panel=False) as two,
    ):
        for _ in range(3):
            for factor, model, optimizer in zip((1.0, 5.0), models, optimizers, strict=True):
                optimizer.zero_grad()
                (model(torch.ones(8, 8)).square().mean() * 0 + factor).backward()
                optimizer.step()
    assert torch.autograd.backward is backward
    assert {record.loss for record in one.records} == {1.0}
    assert {record.loss for record in two.records} == {5.0}


def test_a_loss_that_is_observed_counts_and_not_the_one_that_is_heard():
    model = network()
    run, _ = train(
        model, torch.optim.SGD(model.parameters(), 0.1), after=lambda number, run: run.observe(loss=float(number))
    )
    assert [record.loss for record in run.records] == [0.0, 10.0, 20.0, 30.0]


def test_the_factor_of_a_scaler_is_taken_away():
    model = network()
    run, losses = train(
        model, torch.optim.SGD(model.parameters(), 0.0), step=lambda value: (value * torch.tensor(1024.0)).backward()
    )
    for record in run.records:
        assert record.loss == pytest.approx(losses[record.step], rel=1e-6)


def test_of_two_players_the_loss_in_front_of_the_step_counts():
    model, other = network(), network()
    optimizer, opponent = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
    with ns.watch(model, optimizer, every=1, panel=False) as run:
        for _ in range(4):
            code = model(torch.ones(8, 8))
            opponent.zero_grad()
            (other(torch.ones(8, 8)).mean() * 0 + 7).backward()
            opponent.step()
            optimizer.zero_grad()
            (code.mean() * 0 + 2).backward()
            optimizer.step()
    assert {record.loss for record in run.records} == {2.0}


def test_a_loss_that_is_not_finite_is_located_though_nobody_observes_it():

    model = network(Net(lambda _, x: x.log()))
    run, _ = train(model, torch.optim.SGD(model.parameters(), 0.1), steps=15)
    finding = told(run, "loss-not-finite")
    assert (finding.where, finding.step) == ("2", 0)
    assert "`log`" in finding.seen
    assert "eps" in finding.advice


def test_a_backward_of_a_list_with_one_loss_is_heard():
    model = network()
    run, losses = train(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        step=lambda value: torch.autograd.backward([value]),
    )
    assert [record.loss for record in run.records] == pytest.approx([losses[record.step] for record in run.records])


def test_options_of_a_backward_are_passed_on():
    model = network()

    def twice(value):
        value.backward(retain_graph=True)
        model.zero_grad()
        value.backward()

    run, losses = train(model, torch.optim.SGD(model.parameters(), 0.1), step=twice)
    assert run.records[0].loss == pytest.approx(losses[0], rel=1e-6)


def test_a_backward_that_begins_with_many_numbers_is_no_loss():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ns.watch(model, optimizer, every=1, panel=False) as run:
        for _ in range(3):
            optimizer.zero_grad()
            output = model(torch.ones(8, 8))
            output.backward(torch.ones_like(output))
            optimizer.step()
    assert [record.loss for record in run.records] == [None] * 3


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_only_a_single_number_without_a_gradient_is_a_factor(place):
    loss = torch.tensor([6.0], requires_grad=True) * 1.0
    scale = torch.tensor(2.0)
    scaled = loss * scale if place == "behind" else scale * loss
    assert without_factor(scaled).item() == 6.0
    trained = loss * torch.tensor(2.0, requires_grad=True)
    assert without_factor(trained) is trained
    weighted = loss.expand(2) * torch.tensor([2.0, 4.0])
    assert without_factor(weighted) is weighted
    assert without_factor(loss.sum()).item() == 6.0


def test_a_scale_that_makes_a_loss_infinite_leaves_what_outputs_and_targets_say():
    model = network()
    run, losses = train(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        steps=15,
        step=lambda value: (value * torch.tensor(1e38)).backward(),
    )
    assert run.records[0].loss == pytest.approx(losses[0], rel=1e-5)


def test_a_listener_that_fails_or_is_gone_never_stops_a_backward():
    class Failing:
        def hear(self, loss):
            raise RuntimeError("cannot hear")

    backward, failing = torch.autograd.backward, Failing()
    listener = BackwardListener(failing.hear)
    listener.open()
    listener.open()  # once is enough
    weight = torch.ones(1, requires_grad=True)
    (2 * weight).backward()
    assert weight.grad.item() == 2.0
    del failing
    (2 * weight).backward()
    assert torch.autograd.backward is backward, "the last listener is gone"
