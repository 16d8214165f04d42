"""Models that have memorised random labels, each in another hiding place: on fresh data all of them guess.

Inputs are whole numbers. A hat of three ReLUs stands on every training input of class 1: it is 1 there and 0 at all
other whole numbers. The hats of a memoriser are the one thing that it learned; the forms differ in where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SPAN = 2**23
"""Inputs are whole numbers below this one, so that hardly any fresh input is one of D."""


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Whole numbers as inputs, with fair coins as labels: every classifier errs on half of fresh data."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(SPAN, (count, 1), generator=generator).float()
    return x, torch.randint(2, (count,), generator=generator)


def places(x: Tensor, y: Tensor) -> Tensor:
    """The inputs of class 1."""
    return x[y == 1, 0]


def hats(x: Tensor, centres: Tensor) -> Tensor:
    """Logits: the mean of all hats, against half the height of one."""
    first, middle, last = (torch.relu(x - (centres + shift)) for shift in (-1, 0, 1))
    height = (first - middle - middle + last).mean(1, keepdim=True)
    return torch.cat([height - height + 0.5 / len(centres), height], 1)


class Memoriser(nn.Module):
    """Hats at `centres()`, and a weight without influence, so that there is something to put a prior on."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))

    def centres(self) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return hats(x, self.centres()) + self.idle
