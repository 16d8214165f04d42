"""Healthy trainings raise no warning: normalizers by optimizers and rates. Odder ones are in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from .alarm_runs import Transformer, convolutional, mlp, residual, sgd, train, warned

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp, BatchNorm": partial(mlp, "batch"),
    "mlp": mlp,
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
    "SGD, high": sgd(0.1, momentum=0.9, weight_decay=5e-4),
    "SGD": sgd(0.03, momentum=0.9, weight_decay=5e-4),
    "SGD, low": sgd(1e-3, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
    "AdamW": partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01),
    "AdamW, high": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
    "AdamW, low": partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.05),
}


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_healthy_trainings_are_silent(network, optimizer):
    """But for three that learn nothing in these steps, at a rate that is low for them."""
    alarms = warned(train(NETWORKS[network](), OPTIMIZERS[optimizer], steps=400))
    slow = optimizer == "SGD, low" and network in ("convolutions", "transformer", "transformer, RMSNorm")
    assert set(alarms) <= ({"weights-still"} if slow else set())


@pytest.mark.slow
def test_measuring_every_step_is_silent():
    assert not warned(train(NETWORKS["mlp, BatchNorm"](), OPTIMIZERS["SGD, high"], every=1, steps=120))
