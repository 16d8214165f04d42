"""The optimised certificate of convolutional networks too wide to write out: the ellipsoid engine per frequency.

A state that treats all places of a torus alike is one small Hermitian matrix per frequency, and multipliers shared by
all places of a channel leave it so (see `torus_plan`). Multipliers are found by Adam, on a smaller torus first, which
samples the frequencies; a figure is taken only from a run over all frequencies of the full torus whose Cholesky
factorizations all went through in complex128.

Reference: Pauli, Gramlich and Allgower 2023 and 2024 treat convolutions as systems in state space for the same purpose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.progress import Progress
from ..core.rounding import Upper
from .ellipsoid import largest
from .optimised import EXACT, PATIENCE, POWER_STEPS, SETTLED, SMALLEST, Certified, Parameters
from .plan import Plan
from .segments import Segments
from .torus_plan import Close, Stage, stages
from .torus_run import Passed, Ready, ready, run

_FIRST = 40
"""Power steps from a cold start."""
_LEADING = 4
"""Frequencies at which the largest eigenvalue is taken exactly."""
_MARGIN = 1e-9


@dataclass(frozen=True, slots=True)
class CertifiedField(Certified):
    """A certificate of an output that is a field: nothing is known of single outputs but the constant of all."""

    def along(self, directions: Tensor) -> Tensor:
        """Return log10 of the constant of d^T f for every row d: that of f times the norm of d."""
        return directions.norm(dim=-1).log10() + self.log10


class _Multipliers(Parameters):
    """Parameters whose largest eigenvalues are those over all frequencies."""

    def top(self, matrix: Tensor, name: str) -> Tensor:
        """Return the largest eigenvalue over all frequencies, differentiable; also of a single matrix."""
        if matrix.ndim == 2:
            return super().top(matrix, name)
        fixed = matrix.detach()
        if not bool(fixed.isfinite().all()):
            return (matrix.real * math.nan).sum()
        value, vector = self._powers(fixed, name)
        lead = value.topk(min(_LEADING, len(value))).indices
        if matrix.shape[-1] <= EXACT:
            vector[lead] = torch.linalg.eigh(fixed[lead])[1][..., -1]
        chosen = vector[lead]
        values = (chosen.conj() * (matrix[lead] @ chosen[..., None])[..., 0]).sum(-1).real
        return values.amax()

    def _powers(self, fixed: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return Rayleigh quotients and vectors of all frequencies, from those of the last run where there are any."""
        vector = self.warm.get(name)
        count = POWER_STEPS
        if vector is None or vector.shape != fixed.shape[:-1]:
            column = fixed.diagonal(dim1=-2, dim2=-1).real.argmax(-1)
            vector = fixed[torch.arange(len(fixed), device=fixed.device), :, column]
            count = _FIRST
        for _ in range(count):
            vector = vector / vector.norm(dim=-1, keepdim=True).clamp(min=1e-300)
            moved = (fixed @ vector[..., None])[..., 0]
            value, vector = (vector.conj() * moved).sum(-1).real, moved
        vector = vector / vector.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        self.warm[name] = vector
        return value, vector


class _Careful(_Multipliers):
    """The same with every largest eigenvalue confirmed by Cholesky factorizations of all frequencies."""

    def top(self, matrix: Tensor, name: str) -> Tensor:
        """Return a value just above all eigenvalues."""
        found = super().top(matrix, name)
        if not bool(found.isfinite()):
            return found
        return highest(matrix[None] if matrix.ndim == 2 else matrix, found)


def highest(matrices: Tensor, near: Tensor) -> Tensor:
    """Return a value just above the largest eigenvalue of `[F, n, n]`, confirmed by Cholesky, from one near to it."""
    for _ in range(2):
        bound = near * (1.0 + _MARGIN)
        rest = -matrices
        rest.diagonal(dim1=-2, dim2=-1).add_(bound.clamp(min=1e-300))
        failed = torch.linalg.cholesky_ex(rest)[1] != 0
        if not bool(failed.any()):
            break
        near = torch.maximum(near, largest(matrices[failed]).amax())
    return near * (1.0 + _MARGIN)
