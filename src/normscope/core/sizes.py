"""Norms of tensors whose squares may leave the range of floats: rescaled by the largest entry first."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(x: Tensor, dim: int | tuple[int, ...] | None = None, *, keepdim: bool = False) -> Tensor:
    """Return the l2 norm over dimensions (all by default) where no square over- or underflows; NaN stays NaN.

    Args:
        x: real entries; an infinite one makes the norm infinite.
        dim: the dimensions to take the norm over.
        keepdim: whether they stay, with one entry.

    Returns:
        Norms that are off by a few units in the last place per entry; 0 only where every entry is 0.

    Example:
        >>> norm(torch.tensor([3e-200, 4e-200], dtype=torch.float64))
        tensor(5.0000e-200, dtype=torch.float64)
    """
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if x.numel() == 0 or not dims:
        return torch.linalg.vector_norm(x, dim=dims or None, keepdim=keepdim)
    top = x.abs().amax(dims, keepdim=True)
    ordinary = (top > 0) & top.isfinite()
    scale = torch.where(ordinary, top, 1.0)
    size = torch.linalg.vector_norm(x / scale, dim=dims, keepdim=True) * scale
    return size if keepdim else size.squeeze(dims)
