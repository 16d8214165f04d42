"""`absolute_entries`: a single map with the absolute values of its entries."""

from __future__ import annotations

import math

from torch import Tensor

from .convolution import Convolution
from .linear_map import Averaging, Centering, Diagonal, Identity, LinearMap, Matrix, Reindex


def absolute_entries(linear: LinearMap) -> LinearMap | None:
    """Return the map whose matrix has the absolute values of the entries; None for code and for maps of several parts.

    Entries known to within the slack of the map are larger by it.

    Example:
        >>> import torch
        >>> absolute_entries(Matrix(torch.tensor([[1.0, -2.0]]))).apply(torch.ones(1, 2))
        tensor([[3.]], dtype=torch.float64)
    """
    match linear:
        case Identity() | Reindex() | Averaging():
            return linear
        case Diagonal():
            return Diagonal(linear.scale.double().abs() + linear.slack, linear.in_shape)
        case Matrix():
            return Matrix(linear.weight.double().abs() + linear.slack, linear.in_shape[:-1])
        case Convolution():
            return linear._with_weight(linear.weight.double().abs() + linear.slack, 0.0)
        case Centering():
            return _absolute_centering(linear)
    return None


def _absolute_centering(linear: Centering) -> LinearMap:
    """|1 - 1/n| on the diagonal and 1/n beside it."""
    dims = tuple(range(-linear.dims, 0))
    entries = math.prod(linear.in_shape[-linear.dims :])

    def function(x: Tensor) -> Tensor:
        return x * (1.0 - 2.0 / entries) + x.mean(dim=dims, keepdim=True)

    return Averaging(function, linear.in_shape, linear.out_shape, linear.device)
