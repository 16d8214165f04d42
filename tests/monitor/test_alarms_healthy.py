"""Healthy trainings raise no warning: normalizers, optimizers, learning rates, schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from .alarm_runs import Transformer, convolutional, mlp, residual, sgd, train, warned

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "mlp, BatchNorm": partial(mlp, "batch"),
    "mlp, LayerNorm": partial(mlp, "layer"),
    "mlp, GroupNorm": partial(mlp, "group"),
    "convolutions": partial(convolutional, "none"),
    "convolutions, BatchNorm": partial(convolutional, "batch"),
    "convolutions, GroupNorm": partial(convolutional, "group"),
    "residual": residual,
    "transformer": Transformer,
    "transformer, RMSNorm": partial(Transformer, normalizer=nn.RMSNorm),
}
OPTIMIZERS = {
    "SGD": sgd(0.03, momentum=0.9, weight_decay=5e-4),
    "SGD, high": sgd(0.1, momentum=0.9, weight_decay=5e-4),
    "SGD, low": sgd(1e-3, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
    "AdamW": partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01),
    "AdamW, high": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
    "AdamW, low": partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.05),
}
SMALL: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(mlp, depth=3, width=24),
    "mlp, BatchNorm": partial(mlp, "batch", depth=3, width=24),
    "mlp, LayerNorm": partial(mlp, "layer", depth=3, width=24),
    "convolutions": partial(convolutional, "none", 4, 2),
    "convolutions, BatchNorm": partial(convolutional, "batch", 4, 2),
    "convolutions, GroupNorm": partial(convolutional, "group", 4, 2),
    "residual": partial(residual, 4, 1),
    "transformer": partial(Transformer, 12, 1),
}
TWELVE = [
    ("mlp", "SGD", "standard"), ("mlp", "SGD, high", "economy"), ("mlp", "AdamW, high", "economy"),
    ("mlp, BatchNorm", "Adam", "standard"), ("mlp, BatchNorm", "SGD, high", "economy"),
    ("mlp, LayerNorm", "SGD, low", "standard"), ("mlp, LayerNorm", "AdamW, high", "economy"),
    ("convolutions", "Adam", "standard"), ("convolutions, BatchNorm", "SGD, high", "economy"),
    ("convolutions, GroupNorm", "AdamW", "economy"), ("residual", "AdamW, high", "standard"),
    ("transformer", "AdamW", "economy"),
]  # fmt: skip


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("network", "optimizer", "tier"), TWELVE)
def test_a_healthy_training_is_silent(network, optimizer, tier):
    """With alarms at full attention: all of them at every record."""
    run = train(SMALL[network](), OPTIMIZERS[optimizer], tier=tier, steps=130)
    assert len(run.records) == 13
    assert not run.findings, "not even an info"


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("network", ["convolutions, BatchNorm", "mlp, LayerNorm"])
def test_a_schedule_that_begins_and_ends_at_zero_is_silent(network):
    run = train(SMALL[network](), OPTIMIZERS["SGD, high"], steps=200, warmed=True)
    assert run.records[0].lr[0] == 0.0
    assert not warned(run)


@pytest.mark.slow
def test_measuring_every_step_is_silent():
    assert not warned(train(SMALL["mlp, BatchNorm"](), OPTIMIZERS["SGD, high"], every=1, steps=120))


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_healthy_trainings_are_silent(network, optimizer):
    """But for three that learn nothing in these steps, at a rate that is low for them."""
    alarms = warned(train(NETWORKS[network](), OPTIMIZERS[optimizer], steps=400))
    slow = optimizer == "SGD, low" and network in ("convolutions", "transformer", "transformer, RMSNorm")
    assert set(alarms) <= ({"weights-still"} if slow else set())


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp", "mlp, BatchNorm", "mlp, LayerNorm"])
def test_a_training_that_goes_on_after_all_is_fitted_is_silent(network):
    assert not warned(train(NETWORKS[network](), OPTIMIZERS["Adam"], steps=3000, every=20))
