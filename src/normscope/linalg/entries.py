"""Entries and their signs: a map with absolute entries, and whether the parts of a map cancel each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .convolution_map import Convolution
from .kept import kept
from .linear_map import Averaging, Centering, Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated, Sum

KEPT = 1e-5
"""A row or column of which less than this is left, of what its parts have without their signs, has cancelled."""
PROBES = 4
"""Vectors that every row and column is tried with; a row that has not cancelled is seen by the first one, mostly."""


def absolute_entries(linear: LinearMap) -> LinearMap | None:
    """Return the map whose matrix has the absolute values of the entries; None for code and for maps of several parts.

    Entries known to within the slack of the map are larger by it.

    Example:
        >>> import torch
        >>> absolute_entries(Matrix(torch.tensor([[1.0, -2.0]]))).apply(torch.ones(1, 2))
        tensor([[3.]])
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


def of_each(linear: Composite | Sum, change: Callable[[LinearMap], LinearMap | None]) -> LinearMap | None:
    """Return the map with every part changed; None where one part cannot be."""
    found = [change(part) for part in (linear.parts if isinstance(linear, Composite) else linear.terms)]
    known = [part for part in found if part is not None]
    if len(known) < len(found):
        return None
    return Composite(known) if isinstance(linear, Composite) else Sum(known)


@kept
@torch.no_grad()
def cancels(linear: LinearMap) -> bool:
    """Say whether parts of a map cancel so far that rounding is a notable share of a row or column of its matrix.

    Such a map must not be multiplied out: what comes after it may bring the row back to any size. No such row is
    missed: with factors of at most 1, the sum of its entries is at most what is left of them. Of code nothing is known.
    Parts that were folded count as what they were folded from, so that little by little is as much as all at once.

    Args:
        linear: any map; it keeps the answer.

    Example:
        >>> ones = Matrix(torch.ones(1, 1, dtype=torch.float64))
        >>> minus = Matrix(-0.999999999 * torch.ones(1, 1, dtype=torch.float64))
        >>> cancels(Sum([ones, minus])), cancels(Sum([ones, ones]))
        (True, False)
    """
    if isinstance(linear, Repeated):
        return cancels(linear.inner)
    if not isinstance(linear, Composite | Sum) or linear.in_size == 0 or linear.out_size == 0 or not _mixed(linear):
        return False
    whole = _uncancelled(linear)
    if whole is None:
        return False
    generator = torch.Generator().manual_seed(0)
    for name, shape in (("apply", linear.in_shape), ("adjoint", linear.out_shape)):
        size = math.prod(shape)
        draws = torch.rand(PROBES, size, dtype=torch.float64, generator=generator) * 0.5 + 0.5
        signs = torch.randint(0, 2, (PROBES, size), generator=generator) * 2 - 1
        vectors = (draws * signs).to(linear.device).reshape(PROBES, *shape)
        left = getattr(linear, name)(vectors).abs().amax(0)
        had = getattr(whole, name)(torch.ones_like(vectors[:1]))[0]
        if bool((left < KEPT * had).any()):
            return True
    return False


def _mixed(linear: Composite | Sum) -> bool:
    """Say whether entries of several parts are added up; moving and scaling entries adds nothing."""
    if isinstance(linear, Sum):
        return True
    mixing = [part for part in linear.parts if not isinstance(part, Identity | Reindex | Diagonal)]
    return len(mixing) > 1 or any(isinstance(part, Composite | Sum) and _mixed(part) for part in mixing)


def _uncancelled(linear: LinearMap) -> LinearMap | None:
    """Return the map with absolute entries in every single map that it was made of; None where one is code."""
    if linear.origin is not None:
        return _uncancelled(linear.origin)
    if isinstance(linear, Repeated):
        inner = _uncancelled(linear.inner)
        return None if inner is None else Repeated(inner, linear.leading)
    return of_each(linear, _uncancelled) if isinstance(linear, Composite | Sum) else absolute_entries(linear)
