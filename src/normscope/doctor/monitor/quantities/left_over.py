"""How much of the last step's gradient is left when that of the present step is added to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .quantity import Arriving, Probe, Quantity, RecordDraft, read_number

LEFT_OVER = Quantity("network", "left_over", "the largest entry of a gradient that was not cleared")


class LeftOver(Probe):
    """Listens to one parameter from the forward to the step of the optimizer."""

    quantities = (LEFT_OVER,)
    _clearing: Clearing | None = None
    _sent: Arriving | None = None

    def listen(self, parameter: nn.Parameter | None) -> None:
        """Listen from now on to the gradients of a parameter; None before one is known."""
        if self._clearing is None and parameter is not None:
            self._clearing = Clearing(parameter)

    def before_step(self) -> None:
        if self._clearing is not None:
            self._clearing.close()

    def finish(self) -> None:
        left = None if self._clearing is None else self._clearing.close()
        self._sent = None if left is None else self.step.send(left)

    @property
    def largest(self) -> float | None:
        """The largest entry that was left; None where that was not seen."""
        return read_number(self._sent)

    def fill(self, record: RecordDraft) -> None:
        if self._sent is not None:
            record.network(LEFT_OVER, self.largest)


class Clearing:
    """Measures how much of the last step's gradient was left when that of the present step was added to it.

    Args:
        parameter: whose gradient is looked at.

    Attributes:
        left: the largest entry, the least of all times it was added to; None where no backward was seen.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.left: Tensor | None = None
        self._parameter = parameter
        self._hook: Any = parameter.register_hook(self._added)

    def _added(self, grad: Tensor) -> None:
        with torch.no_grad():
            before = self._parameter.grad
            largest = grad.new_zeros(()) if before is None else before.detach().abs().amax()
            self.left = largest if self.left is None else torch.minimum(self.left, largest.to(self.left))

    def close(self) -> Tensor | None:
        """Stop listening, and return what was left."""
        self._hook.remove()
        return self.left
