"""Each alarm rings in a training that has its fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from normscope.core.finding import Severity
from normscope.monitor.alarms.normalizers import FALL_COUPLED_DECADES
from normscope.monitor.watching import watch

from .alarm_runs import convolutional, data, mlp, residual, sgd, train, warned
from .training import only_at_first


def named(run, code):
    return next(finding for finding in run.findings if finding.code == code)


def normalizers(model: nn.Module, **options: float) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for key, value in options.items():
                setattr(module, key, value)
    return model


def swelling(factor: float, *names: str) -> Callable[[nn.Module, int], None]:
    @torch.no_grad()
    def before(model: nn.Module, step: int) -> None:
        for name in names:
            model.get_submodule(name).weight.mul_(factor)

    return before


def collapsing(optimizer) -> dict:
    """Two easy classes, fitted within fifty steps: then gradients vanish and the decay alone is left."""
    options = {"lr": 1e-2, "weight_decay": 1e-2}
    return {
        "model": residual(blocks=1, classes=2),
        "optimizer": partial(optimizer, **options),
        "steps": 200,
        "tier": "economy",
        "samples": data(classes=2, samples=256),
    }


@pytest.mark.slow
def test_coupled_l2_in_adam_collapses_variances_and_is_named():
    run = train(**collapsing(torch.optim.Adam))
    assert len(warned(run)["variance-collapse"]) >= 2
    found = named(run, "variance-collapse")
    assert found.severity is Severity.WARNING
    assert found.numbers["coupled"] == 1
    assert found.numbers["weight_decay"] == 1e-2
    assert found.numbers["log10_variance"] <= found.numbers["log10_variance_first"] - FALL_COUPLED_DECADES
    assert found.numbers["log10_norm"] < found.numbers["log10_norm_first"]
    assert "coupled L2" in found.why
    assert "scale invariant" in found.why
    assert "AdamW" in found.advice
    assert "weight_decay=0" in found.advice
    assert "small-batch" not in warned(run)


@pytest.mark.slow
def test_the_same_decay_in_adamw_collapses_nothing():
    run = train(**collapsing(torch.optim.AdamW))
    assert run.records[-1].loss < 0.01
    assert not warned(run)


def test_small_batches_are_seen_at_once():
    run = train(mlp("batch"), sgd(0.01), batch=8, steps=20)
    found = named(run, "small-batch")
    assert found.step == 0
    assert found.numbers["relative_error"] == pytest.approx((2 / 7) ** 0.5)
    assert found.numbers["count"] == 3
    assert "small-batch" in warned(train(convolutional("batch"), sgd(0.01), batch=2, steps=10))


@pytest.mark.slow
def test_running_statistics_that_do_not_follow():
    run = train(normalizers(mlp("batch"), momentum=1e-3), sgd(0.1, momentum=0.9), steps=200)
    assert list(warned(run)) == ["stale-statistics"]


def test_a_loss_that_is_no_number_names_the_step_and_the_weights():
    run = train(mlp(), sgd(30.0), every=1, steps=20)
    found = named(run, "loss-not-finite")
    assert found.severity is Severity.ERROR
    assert found.where == "linear4", "the first whose output overflows, all before it are finite"
    assert run.findings[-1] is found
    assert next(record.step for record in run.records if record.loss != record.loss) == found.step
    assert warned(run)["gradient-explosion"]


@pytest.mark.slow
def test_a_loss_that_is_no_number_names_the_layer_of_the_forward():
    def poison(model, step):
        if step == 25:
            model.get_submodule("linear2").register_forward_hook(lambda module, given, made: made * float("inf"))

    run = train(mlp("batch"), sgd(0.1), before=poison, steps=60, every=5)
    assert warned(run) == {"loss-not-finite": ["linear2"]}
    assert named(run, "loss-not-finite").step == 25
    assert "linear2" in named(run, "loss-not-finite").seen


def test_broken_data_are_not_blamed_on_a_layer():
    images, labels = data()
    run = train(mlp(), sgd(0.01), samples=(images * float("nan"), labels), steps=3, every=1, tier="economy")
    assert warned(run) == {"loss-not-finite": [""]}


@pytest.mark.slow
def test_gradients_that_vanish_in_a_deep_sigmoid_network():
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (nn.Linear(32, 32), nn.Sigmoid())]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), *layers, nn.Linear(32, 10))
    assert warned(train(model, sgd(0.1), steps=80, tier="economy")) == {"gradient-vanishing": ["1"]}


@pytest.mark.slow
def test_gradients_that_vanish_between_blocks():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.Sigmoid()) for _ in range(12)]
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 32), nn.Sigmoid()), *layers, nn.Linear(32, 10))
    run = train(model, sgd(0.1), steps=80)
    assert list(warned(run)) == ["gradient-vanishing"]


@pytest.mark.slow
def test_units_and_layers_that_a_large_step_kills():
    run = train(mlp(), sgd(3.0), steps=80)
    assert set(warned(run)) >= {"dead-relu", "dead-layer"}
    assert warned(run)["dead-relu"] == ["relu1", "relu2", "relu3"]
    assert warned(run)["dead-layer"] == ["linear3"], "the last layer without gradient, once"


@pytest.mark.slow
def test_channels_that_are_switched_off():
    @torch.no_grad()
    def kill(model, step):
        if step == 30:
            model.norm1.weight[:16] = 0
            model.norm1.weight.requires_grad_(False)

    assert warned(train(mlp("batch"), sgd(0.1), before=kill, steps=100)) == {"dead-channels": ["norm1"]}


def test_a_layer_that_stays_zero():
    model = mlp("layer")
    nn.init.zeros_(model.linear2.weight)
    nn.init.zeros_(model.linear2.bias)
    nn.init.zeros_(model.norm2.weight)
    run = train(model, sgd(0.1), steps=80)
    assert {"linear2", "norm2"} <= set(warned(run)["dead-layer"])


@pytest.mark.slow
def test_steps_that_turn_nothing_and_steps_that_turn_all():
    def holding(parameters):
        held = list(parameters)
        inner = [p for p in held if p.ndim == 2 and p.shape[0] > 10]
        others = [p for p in held if all(p is not one for one in inner)]
        return torch.optim.SGD([{"params": inner, "lr": 1e-9}, {"params": others}], lr=0.01)

    still = train(mlp("batch"), holding, steps=80)
    assert warned(still) == {"weights-still": ["linear1"]}
    assert "the learning rate of `linear1.weight`" in named(still, "weights-still").seen.lower()
    assert list(warned(train(mlp("batch"), sgd(1e-9), steps=80))) == ["weights-still"], "all of them: told once"

    @torch.no_grad()
    def short(model, step):
        for name in ("linear1", "linear2", "linear3"):
            model.get_submodule(name).weight.mul_(0.05)

    def turning(parameters):
        held = list(parameters)
        inner = [p for p in held if p.ndim == 2 and p.shape[0] > 10]
        return torch.optim.SGD([{"params": inner, "lr": 3.0}, {"params": [p for p in held if p.ndim == 1]}], lr=1e-3)

    spun = train(normalizers(mlp("batch"), eps=1e-12), turning, before=short, steps=80)
    assert "effective-lr" in warned(spun)
    assert named(spun, "effective-lr").numbers["exploding"] == 1


@pytest.mark.slow
def test_norms_and_variances_that_grow_without_limit():
    run = train(mlp("batch"), sgd(0.01), before=swelling(1.1, "linear1"))
    assert warned(run)["norm-growth"] == ["linear1"]
    assert warned(run)["variance-growth"] == ["norm1"]
    assert warned(train(mlp(), sgd(1e-3), before=swelling(1.05, "linear1")))["norm-growth"] == ["linear1"]


@pytest.mark.slow
def test_a_normalizer_that_makes_signal_of_noise():
    images, labels = data()
    run = train(normalizers(convolutional("batch"), eps=1e-14), sgd(0.01), samples=(1e-4 * images, labels), steps=80)
    assert warned(run)["expanding-normalizer"] == ["1"], "once, where it is worst"
    assert named(run, "expanding-normalizer").numbers["count"] >= 1


@pytest.mark.slow
def test_a_loss_that_training_makes_worse():
    run = train(mlp("batch"), sgd(1e-4), before=swelling(1.05, "linear4"))
    assert warned(run)["loss-rising"] == [""]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["exit", "flush"])
def test_alarms_are_looked_for_in_time_and_at_the_end(end, monkeypatch):
    """Without any time for alarms: at the latest after ten records, and whatever is left at a flush or at the end."""
    only_at_first(monkeypatch, records=2)
    told = []

    @torch.no_grad()
    def kill(model, step):
        if step == 40:
            model.linear2.bias.fill_(-50.0)

    late = train(mlp(), sgd(0.01), before=kill, steps=100)
    assert (named(late, "dead-relu").where, named(late, "dead-relu").step) == ("relu2", 50)
    model = mlp()
    optimizer = sgd(0.01)(model.parameters())
    images, labels = data()
    with watch(model, optimizer, every=10, tier="standard", sinks=[lambda r, f: told.extend(f)]) as run:
        for step in range(291):
            kill(model, step - 100)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[:16]), labels[:16]).backward()
            optimizer.step()
            if end == "flush" and step in (145, 201):
                run.flush()
                assert ("dead-relu" in {f.code for f in run.findings}) == (step == 201)
    assert 150 <= named(run, "dead-relu").step <= 150 + 100, "ten records after the second that says so"
    assert [f.code for f in told] == [f.code for f in run.findings], "sinks hear of all, once"


class Branches(nn.Module):
    """Thirty branches beside a skip, each scaled by 0.1: gradients neither grow nor fade on the way through."""

    def __init__(self, *, skip: bool) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.first, self.last, self.skip = nn.Linear(64, 8), nn.Linear(8, 10), skip
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(30))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.copy_(0.02 * layer.weight if skip else torch.eye(8) * 1.6)

    def forward(self, x):
        x = self.first(x.flatten(1))
        for layer in self.layers:
            x = x + 0.1 * layer(x) if self.skip else layer(x)
        return self.last(x)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("skip", [True, False])
def test_branches_beside_a_skip_are_no_chain(skip):
    run = train(Branches(skip=skip), sgd(1e-9), steps=60)
    codes = set(warned(run)) - {"loss-rising", "weights-still"}
    growth = run.records[0].total["log10_backward"]
    chained = sum(v for v in run.records[0].of("block", "log10_backward") if v is not None)
    if skip:
        assert not codes
        assert abs(growth) < 0.5
        assert abs(chained) > 20, "as if they were one behind the other"
    else:
        assert codes == {"gradient-explosion"}
        assert growth == pytest.approx(30 * math.log10(1.6), abs=0.5)
        assert growth == pytest.approx(chained, abs=0.5)
