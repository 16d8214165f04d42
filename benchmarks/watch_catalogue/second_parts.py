"""Data and a loop that reports nothing, for the blind runs; all random numbers come from torch's global generator."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..fault_catalogue.parts import blob_images, sentences, table, waves
from .case import Watch
from .parts import Data, batches, split


def curved_table(count: int = 1600, classes: int = 3) -> Data:
    """Return a table of twelve columns and classes that depend on four of them."""
    return split(*table(count, classes=classes), held=400)


def friedman(count: int = 1400, noise: float = 0.1) -> Data:
    """Return ten uniform columns and Friedman's first function of five of them, standardised, as one column."""
    values = torch.rand(count, 10)
    target = 10 * torch.sin(math.pi * values[:, 0] * values[:, 1]) + 20 * (values[:, 2] - 0.5).square()
    target = target + 10 * values[:, 3] + 5 * values[:, 4]
    target = (target - target.mean()) / target.std() + noise * torch.randn(count)
    return split((values - 0.5) * math.sqrt(12), target[:, None], held=350)


def spirals(count: int = 1200) -> Data:
    """Return points on two spirals and which of the two each lies on."""
    labels = torch.arange(count) % 2
    angle = 0.5 + 7 * torch.rand(count).sqrt()
    radius = angle / 4 * (1 - 2 * labels)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + 0.05 * torch.randn(count, 2)
    return split(points, labels, held=300)


def blobs(count: int = 900, classes: int = 6, size: int = 12) -> Data:
    """Return images of one blob, its place by class."""
    return split(*blob_images(count, classes=classes, size=size), held=240)


def word_orders(count: int = 1500, length: int = 10) -> Data:
    """Return sentences and whether one of their words comes before another."""
    return split(*sentences(count, length=length, vocabulary=24), held=300)


def frequencies(count: int = 700, steps: int = 30) -> Data:
    """Return noisy waves of three features and which frequency each has."""
    return split(*waves(count, steps=steps), held=200)


def chain(count: int, length: int, states: int = 12, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return sequences of a random Markov chain and its transition probabilities."""
    rows = torch.softmax(sharpness * torch.randn(states, states), dim=1)
    ids = torch.zeros(count, length, dtype=torch.long)
    ids[:, 0] = torch.randint(states, (count,))
    for place in range(1, length):
        ids[:, place] = torch.multinomial(rows[ids[:, place - 1]], 1)[:, 0]
    return ids, rows


class LastState(nn.Module):
    """A recurrent layer and a linear head that reads its last state."""

    def __init__(self, recurrent: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        return self.head(states[:, -1])


def fit_silently(
    watch: Watch,
    model: nn.Module,
    optimizer: Optimizer,
    data: Data,
    steps: int,
    *,
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
    batch: int = 32,
    schedule: Any = None,
) -> None:
    """Train as a user would who tells the watcher nothing, neither losses nor figures."""
    model.train()
    with watch(model, optimizer):
        for _, (x, y) in zip(range(steps), batches(data, batch)):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
