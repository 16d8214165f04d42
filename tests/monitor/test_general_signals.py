"""Facts that a few records show: units that begin alike, validations in train mode, rewards that fall."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.monitor.locating import locate
from normscope.monitor.watching import Watch


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


def test_several_layers_of_units_that_begin_alike_are_told_and_a_last_one_is_not() -> None:
    for several in (True, False):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        for layer in (model[0], model[2], model[4]) if several else (model[4],):
            nn.init.constant_(layer.weight, 0.1)
        assert ("units-alike" in codes(train(model, 25))) == several


def test_a_validation_in_train_mode_is_told_where_dropout_is_on() -> None:
    for validate, share, told in ((True, 0.5, True), (False, 0.5, False), (True, 0.0, False)):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(share), nn.Linear(8, 2))
        assert ("eval-mode" in codes(train(model, 45, validate=validate))) == told


def test_a_reward_that_falls_is_told_and_one_that_rises_is_not() -> None:
    for slope, told in ((-0.005, True), (0.005, False), (0.0, False)):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        assert ("reward-falls" in codes(train(model, 101, reward=slope))) == told


def test_running_statistics_that_a_skipped_batch_broke_are_told() -> None:
    torch.manual_seed(0)
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


class Masked(nn.Module):
    """A softmax over what a mask leaves, and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.masked_fill(x < 0, -math.inf).softmax(1))


def test_a_mask_is_not_where_numbers_broke_and_the_layer_behind_is_named() -> None:
    x = torch.ones(3, 4)
    x[1] = -1.0
    broken = locate(Masked(), (x,), {}, 0)
    assert "`softmax`" in broken.words
    assert "`head`" in broken.words
