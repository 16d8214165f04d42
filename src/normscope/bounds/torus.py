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
import os as _os

_LEADING = int(_os.environ.get("LEAD", "4"))
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
        import os

        beta = float(os.environ.get("BETA", "0"))
        if not beta:
            return values.amax()
        logs = values.clamp(min=1e-300).log()
        share = torch.softmax(beta * logs.detach(), dim=0)
        return (logs.detach().amax() + (share * (logs - logs.detach())).sum()).exp()

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


class _Search:
    """Adam on the multipliers of a plan, with step sizes that halve when nothing is gained; remembers the best."""

    def __init__(self, plan: Sequence[Ready], free: _Multipliers, directions: Tensor | None, lr: float = 0.1) -> None:
        self.plan, self.free, self.directions = plan, free, directions
        self.lr, self.seconds = lr, 0.0
        self.value, self.since = math.inf, 0
        self.held = [p.detach().clone() for p in free.all]
        self.adam = self._fresh()

    def _fresh(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.free.all, lr=self.lr, betas=(0.9, 0.99))

    def step(self) -> bool:
        """Try one step; say whether another may help."""
        began = time.monotonic()
        with torch.enable_grad():
            now = run(self.plan, self.free.choose, self.free.top)
            loss = objective(now, self.free, self.directions)
        value = float(loss.detach())
        if math.isfinite(value) and value < self.value:
            self.since = -1 if self.value - value > SETTLED else self.since
            self.value = value
            self.held = [p.detach().clone() for p in self.free.all]
        self.since += 1
        if not math.isfinite(value) or self.since >= PATIENCE:
            return self._calmer()
        self.adam.zero_grad()
        loss.backward()
        if not all(p.grad is None or bool(p.grad.isfinite().all()) for p in self.free.all):
            return self._calmer()
        self.adam.step()
        self.seconds = max(self.seconds, time.monotonic() - began)
        return True

    def _calmer(self) -> bool:
        """Go back to the best parameters with half the step size."""
        self.lr, self.since = self.lr / 2, 0
        self.restore()
        self.adam = self._fresh()
        return self.lr >= SMALLEST

    def restore(self) -> None:
        """Set the parameters to the best ones seen."""
        with torch.no_grad():
            for parameter, held in zip(self.free.all, self.held, strict=True):
                parameter.copy_(held)


def objective(now: Passed, free: Parameters, directions: Tensor | None) -> Tensor:
    """Return the natural logarithm of what is minimised."""
    value = now.peaks + now.log10_scale * math.log(10.0)
    if now.q is None:
        return value
    if directions is None:
        return value + free.top(now.q, "output").log() / 2
    return value + ((directions @ now.q) * directions).sum(-1).log().mean() / 2
