"""Maps that act alike on every slice of leading dimensions: the map of one slice, and its repetition over slices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .linear_map import Centering, Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated, Sum


def slice_map(linear: LinearMap, leading: Sequence[int]) -> LinearMap | None:
    """Return the map that `linear` applies to every slice of the leading dimensions, or None if there is no such map.

    Example:
        >>> slice_map(Matrix(torch.ones(2, 5), (8, 3)), (8,))
        Matrix([3, 5] -> [3, 2])
    """
    leading = tuple(leading)
    depth = len(leading)
    if linear.in_shape[:depth] != leading or linear.out_shape[:depth] != leading:
        return None
    if depth == 0:
        return linear
    inner = _inner(linear, leading)
    if inner is not None and not isinstance(linear, Repeated):
        inner.slack = linear.slack
        if linear.origin is not None:
            inner.origin = slice_map(linear.origin, leading)
            return None if inner.origin is None else inner
    return inner


def _inner(linear: LinearMap, leading: tuple[int, ...]) -> LinearMap | None:
    depth = len(leading)
    in_shape, out_shape = linear.in_shape[depth:], linear.out_shape[depth:]
    match linear:
        case Repeated():
            if len(linear.leading) < depth:
                return slice_map(linear.inner, leading[len(linear.leading) :])
            rest = linear.leading[depth:]
            return Repeated(linear.inner, rest) if rest else linear.inner
        case Matrix() if in_shape and out_shape:
            return Matrix(linear.weight, in_shape[:-1])
        case Identity():
            return Identity(in_shape, out_shape)
        case Diagonal():
            scale = linear.scale
            outer = scale.shape[: max(0, scale.ndim - len(in_shape))]
            if math.prod(outer) != 1:
                return None
            return Diagonal(scale.reshape(scale.shape[len(outer) :]), in_shape)
        case Centering() if linear.dims <= len(in_shape):
            return Centering(in_shape, linear.dims)
        case Reindex():
            return _inner_reindex(linear, math.prod(leading), in_shape, out_shape)
        case Composite():
            parts = [slice_map(part, leading) for part in linear.parts]
            return None if any(part is None for part in parts) else Composite([part for part in parts if part])
        case Sum():
            terms = [slice_map(term, leading) for term in linear.terms]
            return None if any(term is None for term in terms) else Sum([term for term in terms if term])
    return None


def _inner_reindex(
    linear: Reindex, count: int, in_shape: tuple[int, ...], out_shape: tuple[int, ...]
) -> Reindex | None:
    """Return the reindexing of one slice if all slices do the same within themselves."""
    if count == 0 or math.prod(in_shape) == 0:
        return None
    index = linear.index.reshape(count, -1)
    offset = torch.arange(count, device=index.device)[:, None] * math.prod(in_shape)
    within = torch.where(index >= 0, index - offset, -1)
    outside = (index >= 0) & ((within < 0) | (within >= math.prod(in_shape)))
    if bool(outside.any()) or not bool((within == within[:1]).all()):
        return None
    return Reindex(within[0].reshape(out_shape), in_shape)


def repeated(inner: LinearMap, leading: Sequence[int]) -> LinearMap:
    """Return `inner` applied to every slice of the leading dimensions, as a map of its own kind where possible."""
    leading = tuple(leading)
    result: LinearMap
    match inner:
        case Matrix():
            result = Matrix(inner.weight, (*leading, *inner.in_shape[:-1]))
        case Identity():
            result = Identity((*leading, *inner.in_shape), (*leading, *inner.out_shape))
        case Diagonal():
            result = Diagonal(inner.scale, (*leading, *inner.in_shape))
        case Centering():
            result = Centering((*leading, *inner.in_shape), inner.dims)
        case Repeated():
            return Repeated(inner.inner, (*leading, *inner.leading))
        case _:
            return Repeated(inner, leading) if leading else inner
    result.slack = inner.slack
    result.origin = None if inner.origin is None else Repeated(inner.origin, leading)
    return result
