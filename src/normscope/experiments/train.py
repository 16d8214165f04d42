"""Train a classifier for a few epochs and score it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    generator: torch.Generator,
    epochs: int = 15,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    on_epoch: Callable[[], None] | None = None,
) -> None:
    """Train `model` in place with cross entropy; it is left in eval mode.

    Args:
        model: a classifier.
        images: its inputs.
        labels: the classes.
        generator: shuffles the batches.
        epochs: the number of passes over the data.
        batch_size: the number of samples in a step; a last, smaller batch is left out.
        learning_rate: the learning rate of Adam, which is the optimizer if none is given.
        optimizer: makes another optimizer, e.g. `partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2)`.
        on_epoch: called after every epoch.
    """
    make = optimizer or partial(torch.optim.Adam, lr=learning_rate)
    stepper = make(model.parameters())
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for rows in order[: len(order) - len(order) % batch_size].split(batch_size):
            stepper.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            stepper.step()
        if on_epoch is not None:
            on_epoch()
    model.zero_grad()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of `images` that `model`, in its present mode, classifies correctly."""
    return (model(images).argmax(dim=1) == labels).double().mean().item()
