"""Data split in two, and batches of it; random numbers are drawn from torch's global generator."""

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import blob_images, regression_table


class Data(NamedTuple):
    """Samples to train on and samples to validate on."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor


def split(x: Tensor, y: Tensor, held: int = 256) -> Data:
    """Keep the last samples for validation, in an order that `torch.manual_seed` fixes."""
    order = torch.randperm(len(x))
    train, rest = order[:-held], order[-held:]
    return Data(x[train], y[train], x[rest], y[rest])


@cache
def _all_digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits in 0..16 and their classes, or blobs in ten places where it is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        images, labels = blob_images(1797, classes=10, size=8)
        return 4 * images + 5, labels
    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.float32)[:, None], torch.tensor(digits.target)


def digits(count: int = 1797, *, flat: bool = False, raw: bool = False) -> Data:
    """Return images of digits (8 by 8), standardised unless raw."""
    images, labels = _all_digits()
    order = torch.randperm(len(images))[:count]
    images = images[order] if raw else (images[order] - 4.9) / 6.0
    return split(images.flatten(1) if flat else images, labels[order], held=count // 4)


def batches(data: Data, size: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled batches without end, epoch after epoch, the incomplete last ones left out."""
    while True:
        order = torch.randperm(len(data.x))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield data.x[chosen], data.y[chosen]


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


def markov_chain(count: int, length: int, states: int = 12, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return sequences of a random Markov chain and its transition probabilities."""
    rows = torch.softmax(sharpness * torch.randn(states, states), dim=1)
    ids = torch.zeros(count, length, dtype=torch.long)
    ids[:, 0] = torch.randint(states, (count,))
    for place in range(1, length):
        ids[:, place] = torch.multinomial(rows[ids[:, place - 1]], 1)[:, 0]
    return ids, rows


def curves(count: int = 1280, noise: float = 0.0) -> Data:
    """Return a table and a column of targets, with noise of the given standard deviation."""
    x, y = regression_table(count)
    return split(x, y + noise * torch.randn_like(y))
