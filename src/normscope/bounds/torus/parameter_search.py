"""Adam on parameters every value of which gives a bound: step sizes halve when nothing is gained, the best is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SETTLED = 2e-5
"""Relative gain over `PATIENCE` steps below which the step size is halved."""
PATIENCE = 12
SMALLEST = 2e-3
"""Step size at which the search stops."""


class ParameterSearch:
    """Minimises a function of parameters, which it changes in place.

    Args:
        free: the parameters.
        evaluate: the function, differentiable in them; not finite where they are not admissible.
        lr: the first step size.

    Attributes:
        value: the smallest value seen.
    """

    def __init__(self, free: Sequence[Tensor], evaluate: Callable[[], Tensor], *, lr: float = 0.1) -> None:
        self.free, self.evaluate, self.lr = list(free), evaluate, lr
        self.value = math.inf
        self._since = 0
        self._best = [p.detach().clone() for p in self.free]
        self._adam = self._fresh()

    def _fresh(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.free or [torch.zeros(())], lr=self.lr, betas=(0.9, 0.99))

    def step(self) -> bool:
        """Try one step; say whether another may help."""
        with torch.enable_grad():
            loss = self.evaluate()
        value = float(loss.detach())
        if math.isfinite(value) and value < self.value:
            self._since = -1 if self.value - value > SETTLED else self._since
            self.value = value
            self._best = [p.detach().clone() for p in self.free]
        self._since += 1
        if not self.free:
            return False
        if not math.isfinite(value) or self._since >= PATIENCE:
            return self._calmer()
        self._adam.zero_grad()
        loss.backward()
        if not all(p.grad is None or bool(p.grad.isfinite().all()) for p in self.free):
            return self._calmer()
        self._adam.step()
        return True

    def _calmer(self) -> bool:
        """Go back to the best parameters with half the step size."""
        self.lr, self._since = self.lr / 2, 0
        self.restore()
        self._adam = self._fresh()
        return self.lr >= SMALLEST

    def restore(self) -> None:
        """Set the parameters to the best ones seen."""
        with torch.no_grad():
            for parameter, best in zip(self.free, self._best, strict=True):
                parameter.copy_(best)
