"""How the gradients of several backwards add up: what is left of the last step's, and whether two parts agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ....core.whole_weights import is_sharded
from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft

LEFT_OVER = Quantity("network", "left_over", "the largest entry of a gradient that was not cleared")
HALVES_AGREE = Quantity(
    "network",
    "halves_agree",
    "the cosine between the gradients of the first two parts of a batch that accumulate: 1 without noise, 0.5 where "
    "each has as much noise as signal, below 0 where a step along one harms the other",
)


class Accumulation(Probe):
    """Listens to the gradients of one parameter, and compares what the first two backwards of a step add to all."""

    quantities = (LEFT_OVER, HALVES_AGREE)
    _clearing: Clearing | None = None
    _left: Arriving | None = None
    _begun: Sequence[int] = ()  # how many forwards there were in front of each backward
    _first: Sequence[tuple[nn.Parameter, Tensor]] = ()  # of the first backward, while the second runs
    _products: Arriving | None = None  # of the gradients of both: with each other, each with itself

    def listen(self, parameter: nn.Parameter | None) -> None:
        """Listen from now on to the gradients of a parameter; None before one is known."""
        if self._clearing is None and parameter is not None:
            self._clearing = Clearing(parameter)

    def before_step(self) -> None:
        if self._clearing is not None:
            self._clearing.close()

    def finish(self) -> None:
        self._left = self.step.send_any(None if self._clearing is None else self._clearing.close())

    @torch.no_grad()
    def begin_backward(self, forwards: int) -> None:
        self._begun = [*self._begun, forwards]
        if len(self._begun) == 2 and self._begun[1] > self._begun[0]:
            groups = self.step.optimizer.param_groups
            trained = [p for group in groups for p in group["params"] if p.grad is not None]
            if trained and not is_sharded(trained) and not any(p.grad.is_sparse or p.is_complex() for p in trained):
                self._first, self.step.awaits_backward = [(p, p.grad.clone()) for p in trained], True

    @torch.no_grad()
    def end_backward(self) -> None:
        pairs, self._first, self.step.awaits_backward = self._first, (), False
        rows = []
        for parameter, first in pairs:
            if parameter.grad is not None:
                one, other = first.flatten().float(), (parameter.grad - first).flatten().float()
                rows.append(torch.stack([one @ other, one @ one, other @ other]).to(pairs[0][1].device))
        self._products = self.step.send(torch.stack(rows).sum(0)) if rows else None

    def fill(self, record: RecordDraft) -> None:
        record.arrived(LEFT_OVER, self._left)
        if self._products is not None and not (self._left and float(self._left)):
            product, *squares = self._products.numbers.tolist()
            lengths = math.sqrt(squares[0] * squares[1])
            record.network(HALVES_AGREE, product / lengths if lengths > 0.0 else None)


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
