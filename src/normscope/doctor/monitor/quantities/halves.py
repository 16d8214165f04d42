"""Whether the gradients of two parts of a batch agree, where gradients accumulate over several backwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ....core.whole_weights import is_sharded
from .left_over import LeftOver
from .quantity import Arriving, Probe, Quantity, RecordDraft

HALVES_AGREE = Quantity("network", "halves_agree", "the cosine between the gradients of the first two parts of a batch")


class Halves(Probe):
    """Compares the gradients that the first two backwards of a step add."""

    quantities = (HALVES_AGREE,)
    _begun: Sequence[int] = ()  # how many forwards there were in front of each backward
    _first: Sequence[tuple[nn.Parameter, Tensor]] = ()  # of the first backward, while the second runs
    _products: Arriving | None = None  # of the gradients of both: with each other, each with itself

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
        if self._products is not None and not self.step.probe(LeftOver).largest:
            product, *squares = self._products.numbers.tolist()
            lengths = math.sqrt(squares[0] * squares[1])
            record.network(HALVES_AGREE, product / lengths if lengths > 0.0 else None)
