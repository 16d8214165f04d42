"""The losses of one measured step, and which of them a gradient came from."""

from __future__ import annotations

import torch
from torch import Tensor


class StepLosses:
    """Collects the losses of the batches of one step; nothing is read from the device."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._used: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._losses)

    @property
    def unused(self) -> bool:
        """Whether there are losses, and no gradient came from any of them."""
        return bool(self._losses) and not self._used

    def add(self, loss: Tensor | float) -> None:
        """Add the loss of a batch, and listen whether a gradient comes from it."""
        number = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss), dtype=torch.float64)
        self._losses.append(number.reshape(1).clone())
        index, used = len(self._losses) - 1, self._used
        if isinstance(loss, Tensor) and loss.requires_grad and not loss.is_leaf:
            loss.register_hook(lambda grad: used.add(index))
        else:
            used.add(index)

    def mean(self) -> Tensor:
        """Return the mean of those that a gradient came from, or of all where none came from any."""
        chosen = [loss for index, loss in enumerate(self._losses) if index in self._used] or self._losses
        alike = [loss.to(chosen[0].device, torch.float64) for loss in chosen]
        return torch.cat(alike).mean(0, keepdim=True)
