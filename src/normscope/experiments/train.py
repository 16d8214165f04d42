"""Train a classifier for a few epochs and score it."""

from __future__ import annotations

from collections.abc import Callable

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
    on_epoch: Callable[[], None] | None = None,
) -> None:
    """Train `model` in place with Adam and cross entropy; it is left in eval mode.

    Args:
        model: a classifier.
        images: its inputs.
        labels: the classes.
        generator: shuffles the batches.
        epochs: passes over the data.
        batch_size: samples a step; a last, smaller batch is left out.
        learning_rate: of Adam.
        on_epoch: called after every epoch.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for rows in order[: len(order) - len(order) % batch_size].split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        if on_epoch is not None:
            on_epoch()
    model.zero_grad()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of `images` that `model`, as it stands, puts into the right class."""
    return (model(images).argmax(dim=1) == labels).double().mean().item()
