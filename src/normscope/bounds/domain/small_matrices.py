"""Norms of many small matrices from above, by products alone."""

from __future__ import annotations

import torch
from torch import Tensor

SQUARINGS = 3
"""Each one halves what the bound can be off by, as a logarithm: n^(1/32) for matrices of n rows."""
ROUNDING = 1 + 1e-9


def above_norm(matrices: Tensor, squarings: int = SQUARINGS) -> Tensor:
    """Bound the spectral norms of `[..., n, m]` from above: norm(G^k)_F^(1/(2k)) with the smaller Gram matrix G."""
    top = matrices.abs().amax((-2, -1), keepdim=True)
    scale = torch.where((top > 0) & top.isfinite(), top, 1.0)  # so that no square vanishes or overflows
    scaled = matrices / scale
    gram = scaled.mT @ scaled if scaled.shape[-2] > scaled.shape[-1] else scaled @ scaled.mT
    return (above_root(gram, squarings) * scale[..., 0, 0]).nan_to_num(nan=torch.inf)


def above_root(gram: Tensor, squarings: int = SQUARINGS) -> Tensor:
    """Bound the roots of the largest eigenvalues of symmetric matrices `[..., n, n]` of moderate size from above."""
    size = torch.linalg.matrix_norm(gram)
    result = size.sqrt()
    for step in range(squarings):
        gram = gram / torch.where(size > 0, size, 1.0)[..., None, None]
        gram = gram @ gram
        size = torch.linalg.matrix_norm(gram)
        result = result * size ** (0.5 ** (step + 2))
    return result * ROUNDING
