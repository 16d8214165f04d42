"""The sizes of weights and of gradients: the l2 norms of all parameters, in a few kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..distributed import l2_norms
from .quantity import Arriving, Probe, Quantity, RecordDraft, log10_of

SIZE = Quantity("weight", "log10_size", "l2 norm of a layer's weight and bias together")
GRADIENT = Quantity("weight", "log10_gradient", "l2 norm of their gradients together")
GRADIENTS = Quantity("network", "log10_gradient", "l2 norm of all gradients")
WEIGHTS = Quantity("network", "log10_weight", "l2 norm of all parameters")
MIN_SQUARED_SIZE = 1e-15
"""A norm below this has squares that leave the range of float32."""


class Sizes(Probe):
    """Measures the norms of all parameters and gradients.

    Its memory: those that have left the range of float32 when they were squared, or are zero, by quantity and
    parameter; they are measured in float64.
    """

    quantities = (SIZE, GRADIENT, GRADIENTS, WEIGHTS)
    Memory = set
    _sent: Mapping[Quantity, tuple[list[str], Arriving]] = {}

    def before_step(self) -> None:
        parameters = self.step.sized()
        sizes = {(SIZE, name): p for name, p in parameters.items()}
        graded = {(GRADIENT, name): dense_values(p.grad) for name, p in parameters.items() if p.grad is not None}
        norms = l2_norms({**sizes, **graded}, careful=self.memory)
        together = torch.stack(list(norms.values())) if norms else torch.zeros(0)
        numbers, gradients = together.split([len(sizes), len(graded)])
        scale = getattr(self.step.optimizer, "grad_scale", None)  # a GradScaler that leaves unscaling to the optimizer
        if scale is not None and graded:
            gradients = gradients / scale.to(gradients)
        parts = ((SIZE, sizes, numbers), (GRADIENT, graded, gradients))
        self._sent = {what: ([name for _, name in part], self.step.send(n)) for what, part, n in parts if part}
        self.step.has_gradients = bool(sizes)

    @cached_property
    def _norms(self) -> dict[Quantity, dict[str, float]]:
        return {
            what: dict(zip(names, sent.numbers.tolist(), strict=True)) for what, (names, sent) in self._sent.items()
        }

    def log10_joined(self, what: Quantity, names: Sequence[str] | None = None) -> float | None:
        """Return log10 of the norm of several parameters together; of all without names."""
        return log10_joined(self._norms.get(what, {}), names)

    def fill(self, record: RecordDraft) -> None:
        self.memory.clear()
        for what, (names, sent) in self._sent.items():
            extreme = (sent.numbers == math.inf) | (sent.numbers < MIN_SQUARED_SIZE)
            self.memory.update((what, names[place]) for place in np.flatnonzero(extreme))
        for what in (SIZE, GRADIENT):
            record.column(what, [self.log10_joined(what, names) for names in self.step.followed()])
        record.network(GRADIENTS, self.log10_joined(GRADIENT))
        record.network(WEIGHTS, self.log10_joined(SIZE))


def log10_joined(sizes: Mapping[str, float], names: Sequence[str] | None) -> float | None:
    """Return log10 of the norm of several parameters together, from the norm of each; of all without names."""
    parts = list(sizes.values()) if names is None else [sizes[name] for name in names if name in sizes]
    return log10_of(math.hypot(*parts)) if parts else None


def dense_values(gradient: Tensor) -> Tensor:
    """Return a tensor with the norm of a gradient: the entries of a sparse one."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
