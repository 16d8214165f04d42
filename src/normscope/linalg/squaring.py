"""The largest eigenvalues of many Hermitian matrices by repeated squaring.

A few large products in place of many small steps: a GPU takes them in a fraction of the time of Lanczos.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def squared_eigenpairs(matrices: Tensor, start: Tensor, *, rtol: float) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue `[b]`, from below, and its eigenvector `[b, m]` of positive semidefinite matrices.

    The p-th power of a matrix leads any start to its top eigenvectors: what lies below the largest eigenvalue by a
    share d is left with exp(-p d) of its part. So the estimate misses a share of about log(m) / p.

    Args:
        matrices: `[b, m, m]`, float64 or complex128.
        start: `[b, m]`, drawn at random.
        rtol: about how much of the eigenvalue may be missed.

    Example:
        >>> matrix = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))
        >>> values, _ = squared_eigenpairs(matrix[None], torch.ones(1, 2), rtol=1e-9)
        >>> round(float(values), 9)
        3.0
    """
    size = matrices.shape[-1]
    squarings = max(1, math.ceil(math.log2(max(math.log(size), 1.0) / rtol)))
    power = matrices
    for _ in range(squarings):
        power = power / torch.linalg.matrix_norm(power, keepdim=True).clamp(min=1e-300)
        power = power @ power
    vectors = _unit(power @ start.to(matrices)[:, :, None])
    images = matrices @ vectors
    values = (vectors.conj() * images).sum(dim=(1, 2)).real
    return values, _unit(images)[:, :, 0]


def _unit(columns: Tensor) -> Tensor:
    return columns / columns.norm(dim=1, keepdim=True).clamp(min=1e-300)
