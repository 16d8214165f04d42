"""The Slides: their two-sided Theorem 1 with the diameters of cells, and the three errors of a trained model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def diameters(reach: Tensor, classes: int) -> Tensor:
    """Return an upper bound on the diameter of every cell, for every label: twice its reach from the centre."""
    return 2.0 * torch.as_tensor(reach).repeat(classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPart:
    """One part of the error of a trained model: its name, the range it is known to lie in, and why."""

    name: str
    low: float
    high: float
    why: str


def decomposition(
    train_loss: float, test_loss: float | None, bound: float | None, most: float
) -> tuple[ErrorPart, ...]:
    """Return what is known of the optimization, generalization and approximation errors.

    `F(P, h) - F(P, y*) = [F(D, h) - F(D, h_D)] + [F(P, h) - F(D, h)] + rest`, for a loss from 0 to `most`; h_D is the
    best member of the family on D. No data show the family's best member, so that only ranges are known of the first
    and the last term.
    """
    gap = None if test_loss is None else round(test_loss - train_loss, 12)
    limit = most if bound is None else min(most, bound)
    how = "measured on the test samples" if gap is not None else "between what the smallest certified bound allows"
    return (
        ErrorPart(
            name="optimization error",
            low=0.0,
            high=train_loss,
            why="the loss on D less the smallest of the family there, which is not known and not below 0",
        ),
        ErrorPart(
            name="generalization error",
            low=-train_loss if gap is None else gap,
            high=limit - train_loss if gap is None else gap,
            why=f"the loss on fresh data less the loss on D: {how}",
        ),
        ErrorPart(
            name="approximation error",
            low=0.0,
            high=limit if test_loss is None else test_loss,
            why="the smallest loss of the family on the distribution less that of the best function: no sample shows "
            "it, and it is at most the loss of this model",
        ),
    )
