"""The sizes of weights, of gradients and of what a step adds: l2 norms of all parameters, in a few kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..distributed import l2_norms
from ..transfer import Arriving
from .quantity import MeasuredStep, Probe, Quantity, RecordDraft, log10_of

SIZE = Quantity("weight", "log10_size", "l2 norm of a layer's weight and bias together")
GRADIENT = Quantity("weight", "log10_gradient", "l2 norm of their gradients together")
GRADIENTS = Quantity("network", "log10_gradient", "l2 norm of all gradients")
MOVED = Quantity("weight", "log10_moved", "l2 norm of what the step adds to weight and bias, above the economy tier")
WEIGHTS = Quantity("network", "log10_weight", "l2 norm of all parameters")
MIN_SQUARED_SIZE = 1e-15
"""A norm below this has squares that leave the range of float32."""


class Sizes(Probe):
    """Measures the norms of all parameters and gradients, and of what the step adds.

    Its memory: those that have left the range of float32 when they were squared, or are zero, by quantity and
    parameter; they are measured in float64.
    """

    quantities = (SIZE, GRADIENT, MOVED, GRADIENTS, WEIGHTS)
    Memory = set
    _copies: Mapping[str, Tensor] = {}

    def __init__(self, step: MeasuredStep, memory: set[tuple[Quantity, str]]) -> None:
        super().__init__(step, memory)
        self._sent: dict[Quantity, tuple[list[str], Arriving]] = {}

    def before_step(self) -> None:
        parameters, self._sent = self.step.sized(), {}
        sizes = {(SIZE, name): p for name, p in parameters.items()}
        graded = {(GRADIENT, name): dense_values(p.grad) for name, p in parameters.items() if p.grad is not None}
        norms = l2_norms({**sizes, **graded}, careful=self.memory)
        together = torch.stack(list(norms.values())) if norms else torch.zeros(0)
        numbers, gradients = together.split([len(sizes), len(graded)])
        scale = getattr(self.step.optimizer, "grad_scale", None)  # a GradScaler that leaves unscaling to the optimizer
        if scale is not None and graded:
            gradients = gradients / scale.to(gradients)
        for what, part, norm in ((SIZE, sizes, numbers), (GRADIENT, graded, gradients)):
            if part:
                self._sent[what] = [name for _, name in part], self.step.send(norm)
        self.step.has_gradients = bool(sizes)
        copied = {name: p for name, p in parameters.items() if p.requires_grad} if self.step.is_rich else {}
        self._copies = {name: p.detach().clone() for name, p in copied.items()}

    def after_step(self) -> None:
        copies, self._copies = self._copies, {}
        if copies:
            moves = l2_norms({name: self.step.parameters[name].detach() - copy for name, copy in copies.items()})
            self._sent[MOVED] = list(moves), self.step.send(torch.stack(list(moves.values())))

    @cached_property
    def _norms(self) -> dict[Quantity, dict[str, float]]:
        return {
            what: dict(zip(names, sent.numbers.tolist(), strict=True)) for what, (names, sent) in self._sent.items()
        }

    def log10_joined(self, what: Quantity, names: Sequence[str] | None = None) -> float | None:
        """Return log10 of the norm of several parameters together; of all without names."""
        norms = self._norms.get(what, {})
        parts = list(norms.values()) if names is None else [norms[name] for name in names if name in norms]
        return log10_of(math.hypot(*parts)) if parts else None

    def fill(self, record: RecordDraft) -> None:
        self.memory.clear()
        for what, (names, sent) in self._sent.items():
            extreme = (sent.numbers == math.inf) | (sent.numbers < MIN_SQUARED_SIZE)
            self.memory.update((what, names[place]) for place in np.flatnonzero(extreme))
        followed = self.step.followed()
        for what in self._sent:
            record.column(what, [self.log10_joined(what, names) for names in followed])
        record.network(GRADIENTS, self.log10_joined(GRADIENT))
        record.network(WEIGHTS, self.log10_joined(SIZE))


def dense_values(gradient: Tensor) -> Tensor:
    """Return a tensor with the norm of a gradient: the entries of a sparse one."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
