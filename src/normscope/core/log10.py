"""Numbers beyond the range of floats: kept as log10, and norms rescaled by the largest entry first."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

SMALLEST = 2.0**-1022
"""The smallest normal float64: what an upper bound is rounded up to before it can vanish."""


def log10(value: float) -> float:
    """Return log10 of a value >= 0; zero is -inf, NaN and negative values are errors."""
    if math.isnan(value) or value < 0:
        raise ValueError(f"log10 of {value}: a norm is a number >= 0")
    return math.log10(value) if value > 0 else -math.inf


def power10(exponent: float) -> float:
    """Return 10**exponent as a float, which may be inf or 0."""
    try:
        return 10.0**exponent
    except OverflowError:
        return math.inf


def ceiling10(exponent: float) -> float:
    """Return 10**exponent for an upper bound: what is not zero never becomes zero, and NaN is an error."""
    if math.isnan(exponent):
        raise ValueError("a bound of 10**nan: a norm is a number >= 0")
    return max(power10(exponent), SMALLEST) if exponent > -math.inf else 0.0


def product_above(*factors: float) -> float:
    """Return the product of bounds >= 0, rounded up where it would vanish; zero times infinity is infinite.

    Example:
        >>> product_above(1e-200, 1e-200) > 0, product_above(0.0, 3.0)
        (True, 0.0)
    """
    if any(math.isnan(factor) for factor in factors):
        raise ValueError("a product of bounds, one of them NaN")
    if math.inf in factors:
        return math.inf
    if 0.0 in factors:
        return 0.0
    result = 1.0
    for factor in factors:
        result = max(result * factor, SMALLEST)
    return result


def log10_sum(exponents: Iterable[float]) -> float:
    """Return log10 of the sum of 10**e, without leaving the logarithmic scale."""
    terms = list(exponents)
    top = max(terms, default=-math.inf)
    if math.isinf(top):
        return top
    return top + math.log10(math.fsum(10.0 ** (term - top) for term in terms))


def log10_root_sum_squares(exponents: Iterable[float]) -> float:
    """Return log10 of sqrt(sum of (10**e)**2)."""
    return log10_sum(2.0 * e for e in exponents) / 2.0


def norm(x: Tensor, dim: int | tuple[int, ...] | None = None, *, keepdim: bool = False) -> Tensor:
    """Return the l2 norm over dimensions (all by default) where no square over- or underflows; NaN stays NaN.

    Norms are off by a few units in the last place per entry, and 0 only where every entry is 0.

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
