"""Facts that a few records show: units that begin alike, validations in train mode, rewards that fall."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.doctor.monitor.history import History
from normscope.doctor.monitor.locating import locate
from normscope.doctor.monitor.watching import Watch

from ..net import Net


def codes(run: Watch) -> set[str]:
    return {finding.code for finding in run.findings}


def train(model: nn.Module, steps: int, *, reward: float | None = None, validate: bool | None = None) -> Watch:
    """Train a classifier on noise; `validate` logs a validation every ten steps, in train mode or not."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for step in range(steps):
            x = torch.randn(16, 6)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if reward is not None:
                run.log_metrics(reward=1.0 + reward * step + 0.01 * math.sin(step))
            if validate is not None and step % 10 == 9:
                model.train(validate)
                with torch.no_grad():
                    run.log_metrics(val_loss=F.cross_entropy(model(x), (x[:, 0] > 0).long()))
                model.train()
    return run


@pytest.mark.parametrize(
    ("layers", "bias", "grad", "told"),
    [
        ((0, 2, 4), 0.1, True, True),
        ((4,), 0.1, True, False),
        ((0, 2, 4), None, True, False),
        ((0, 2), 0.1, False, False),
    ],
)
def test_several_trained_layers_of_units_that_begin_alike_are_told(
    layers: tuple[int, ...], bias: float | None, grad: bool, told: bool
) -> None:
    """Not the last layer alone, nor where biases tell the units apart, nor filters that are fixed."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    for index in layers:
        nn.init.constant_(model[index].weight, 0.1)
        if bias is not None:
            nn.init.constant_(model[index].bias, bias)
        model[index].requires_grad_(grad)
    assert ("units-alike" in codes(train(model, 25))) == told


def test_channels_that_are_smoothed_alike_are_not_alike() -> None:
    layers = [nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False) for _ in range(2)]
    for layer in layers:
        nn.init.constant_(layer.weight, 1 / 9)
    standing = History().parameter_state
    standing.look_at_first_weights({str(i): layer for i, layer in enumerate(layers)})
    assert standing.alike == ()


def test_a_validation_in_train_mode_is_told_where_dropout_is_on() -> None:
    for validate, share, told in ((True, 0.5, True), (False, 0.5, False), (True, 0.0, False)):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(share), nn.Linear(8, 2))
        assert ("eval-mode" in codes(train(model, 45, validate=validate))) == told


def test_a_reward_that_falls_is_told_and_one_that_rises_is_not() -> None:
    for slope, told in ((-0.005, True), (0.005, False), (0.0, False)):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        assert ("reward-falls" in codes(train(model, 101, reward=slope))) == told


def test_rewards_that_are_not_finite_end_no_run_and_are_not_judged() -> None:
    model = nn.Linear(2, 1)
    with ns.watch(model, torch.optim.SGD(model.parameters(), lr=0.01), panel=False) as run:
        for step in range(70):
            run.log_metrics(reward=math.inf if step == 3 else -float(step))
    assert "reward-falls" not in codes(run)


def test_running_statistics_that_a_skipped_batch_broke_are_told() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for step in range(60):
            x = torch.randn(16, 6)
            x[0, 0] = math.nan if step == 25 else 0.0
            loss = model(x).square().mean()
            if loss.isfinite():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.observe(loss=loss)
    found = next(finding for finding in run.findings if finding.code == "stale-statistics")
    assert found.where == "1"
    assert "not finite" in found.seen
    assert found.step is not None
    assert found.step <= 50


def test_a_mask_is_not_where_numbers_broke_and_the_layer_behind_is_named() -> None:
    x = torch.ones(3, 4)
    x[1] = -1.0
    model = Net(lambda net, x: net.head(x.masked_fill(x < 0, -math.inf).softmax(1)), head=nn.Linear(4, 2))
    broken = locate(model, (x,), {}, 0)
    assert "`softmax`" in broken.words
    assert "`head`" in broken.words


@pytest.mark.parametrize(("rate", "words"), [(1e-2, "warm-up"), (1e-4, None)])
def test_gradients_that_vanish_behind_large_first_steps_are_blamed_on_the_steps(rate: float, words: str | None) -> None:
    block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Linear(10, 64), nn.TransformerEncoder(block, 6), nn.Flatten(), nn.Linear(64 * 8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with ns.watch(model, optimizer, every=10, overhead=None, panel=False) as run:
        for _ in range(40):
            x = torch.randn(16, 8, 10)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, 0, :4].argmax(1)).backward()
            optimizer.step()
    advice = [finding.advice for finding in run.findings if finding.code == "gradient-vanishing"]
    assert all(words in one for one in advice) if words else not advice
    assert bool(advice) == bool(words)
