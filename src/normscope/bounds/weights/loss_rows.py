"""A model's output as rows for a loss, and the targets that go with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import InputError
from ...graph.ir import Shape
from ...theory.losses import Loss

ALL_CLASSES = 10_000_000
"""Where rows times squared classes are at most this many, every class is tried as a target; else the least likely."""


@dataclass(frozen=True, slots=True)
class LossRows:
    """How an output of some shape is read as rows of classes (or predictions).

    The last dimension holds the classes (`[samples, K]`, `[samples, tokens, K]`), or the second if there are four and
    more (`[samples, K, height, width]`).
    """

    shape: Shape

    @property
    def axis(self) -> int:
        """The dimension of the classes."""
        return 1 if len(self.shape) >= 4 else -1

    @property
    def classes(self) -> int:
        """How many outputs a row has."""
        return self.shape[self.axis] if self.shape else 1

    @property
    def count(self) -> int:
        """How many rows there are."""
        return math.prod(self.shape) // max(self.classes, 1)

    def split(self, flat: Tensor) -> Tensor:
        """Return a flat output as `[rows, classes]`."""
        return flat.reshape(self.shape or (1,)).movedim(self.axis, -1).reshape(self.count, self.classes)

    def targets(self, loss: Loss, given: Tensor) -> Tensor:
        """Return one sample's targets as `[rows]` classes or `[rows, classes]` values; an error if they do not fit."""
        needed = self.count if loss.targets == "classes" else self.count * self.classes
        if given.numel() != needed:
            raise InputError(f"the {loss.name} needs {needed} target(s) for outputs of shape {list(self.shape)}")
        if loss.targets == "values":
            return self.split(given.double())
        labels = given.reshape(-1)
        if labels.is_floating_point() or bool(((labels < 0) | (labels >= self.classes)).any()):
            raise InputError(f"the targets of the {loss.name} are classes from 0 to {self.classes - 1}")
        return labels.long()

    def loss(self, loss: Loss, targets: Tensor | None, output: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return the mean loss as a function of the flat output; None where targets are needed and there are none.

        Without targets the classes that move the loss most at `output` are taken.
        """
        chosen = targets
        if chosen is None:
            if loss.targets == "values":
                return None
            chosen = steepest_classes(loss, self.split(output.detach().double()))
        goal = chosen.to(output.device)
        return lambda flat: loss.rows(self.split(flat), goal).mean()


def steepest_classes(loss: Loss, logits: Tensor) -> Tensor:
    """Return, for every row of logits, the class as whose loss the gradient is longest (or the least likely)."""
    rows, classes = logits.shape
    if rows * classes**2 > ALL_CLASSES:
        return logits.argmin(-1)
    every = torch.arange(classes, device=logits.device)
    with torch.enable_grad():
        wide = logits.repeat_interleave(classes, dim=0).requires_grad_(True)
        (slopes,) = torch.autograd.grad(loss.rows(wide, every.repeat(rows)).sum(), wide)
    return slopes.norm(dim=-1).reshape(rows, classes).argmax(-1)


def targets_by_sample(loss: Loss, given: Tensor, rows: LossRows, samples: int, *, whole: bool) -> list[Tensor]:
    """Return the targets of every measured sample from what the user passed, one entry per sample."""
    if not isinstance(given, Tensor):
        raise InputError(f"targets is a {type(given).__name__}: pass a tensor")
    if whole:
        return [rows.targets(loss, given)]
    if given.ndim == 0 or len(given) < samples:
        raise InputError(f"{len(given) if given.ndim else 1} target(s) for {samples} samples")
    return [rows.targets(loss, target) for target in given[:samples]]
