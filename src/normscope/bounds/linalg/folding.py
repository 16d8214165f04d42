"""Structural folding: compose and add linear maps into one map of a known kind wherever that is possible.

The results of `compose` and `add` differ from the exact maps by float64 rounding alone, and their `slack` is a bound on
that rounding, so that certified norms of folded maps stay certified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ...core.budget import in_time
from ...core.log10 import norm as l2
from ...core.rounding import gamma
from .convolution_map import Convolution
from .dense_form import cancels, in_range
from .linear_map import Centering, Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated, Sum

_ENTRY = 4.0 * 2.0**-53
"""The relative error of one entry after a product or a sum in float64."""
_Map = TypeVar("_Map", bound=LinearMap)


def compose(second: LinearMap, first: LinearMap) -> LinearMap:
    """Return `second` after `first` as one map; parts that cannot be folded stay side by side in a `Composite`."""
    if first.out_shape != second.in_shape:
        raise ValueError(f"cannot compose {second} after {first}")
    if isinstance(second, Identity) and second.in_shape == second.out_shape:
        return first  # the same object, so that its known norm is found again
    if isinstance(first, Identity) and first.in_shape == first.out_shape:
        return second
    parts: list[LinearMap] = []
    for part in (*_parts(first), *_parts(second)):
        parts.append(part)
        while in_time() and _fold_end(parts):
            pass
    return parts[0] if len(parts) == 1 else Composite(parts)


def add(a: LinearMap, b: LinearMap) -> LinearMap:
    """Return the sum of two maps with the same input and output as one map, or a `Sum` that keeps the terms apart."""
    if a.in_shape != b.in_shape or a.out_shape != b.out_shape:
        raise ValueError(f"cannot add {a} and {b}")
    terms: list[LinearMap] = []
    for term in (*_terms(a), *_terms(b)):
        for index, other in enumerate(terms):
            fit = in_time() and in_range(other) and in_range(term)
            folded = (_added(other, term) or _added(term, other)) if fit else None
            apart = Sum([other, term])
            if folded is not None and not cancels(apart):
                terms[index] = _from(folded, apart)
                break
        else:
            terms.append(term)
    return terms[0] if len(terms) == 1 else Sum(terms)


def _parts(linear: LinearMap) -> tuple[LinearMap, ...]:
    return linear.parts if isinstance(linear, Composite) and not linear.slack else (linear,)


def _terms(linear: LinearMap) -> tuple[LinearMap, ...]:
    return linear.terms if isinstance(linear, Sum) and not linear.slack else (linear,)


def _fold_end(parts: list[LinearMap]) -> bool:
    """Fold the last maps of a chain once, in place; say whether anything changed."""
    if len(parts) > 1:
        folded = _pair(parts[-1], parts[-2])
        if folded is not None:
            parts[-2:] = [folded]
            return True
    if len(parts) > 2 and isinstance(parts[-2], Identity):
        before, reshape, after = parts[-3:]
        if isinstance(after, Diagonal):  # move the diagonal in front of the reshape, where it may be folded
            folded = _pair(_moved(after, reshape.in_shape), before)
            if folded is not None:
                parts[-3:] = [folded, reshape]
                return True
        elif isinstance(before, Diagonal):
            folded = _pair(after, _moved(before, reshape.out_shape))
            if folded is not None:
                parts[-3:] = [reshape, folded]
                return True
    return False


def _moved(linear: Diagonal, shape: tuple[int, ...]) -> Diagonal:
    """Return a diagonal map in another shape of the same entries, with its scale in the smallest shape."""
    scale = linear.scale.expand(linear.in_shape).reshape(shape)
    for dim in range(scale.ndim):
        first = scale.narrow(dim, 0, min(1, scale.shape[dim]))
        if scale.shape[dim] > 1 and bool((scale == first).all()):
            scale = first
    moved = Diagonal(scale, shape)
    moved.slack = linear.slack
    if linear.origin is not None:
        moved.origin = Composite([Identity(shape, linear.in_shape), linear.origin, Identity(linear.out_shape, shape)])
    return moved


def _pair(second: LinearMap, first: LinearMap) -> LinearMap | None:
    """Return `second` after `first` as one map; None where that is not possible, or where rows would cancel."""
    if isinstance(first, Identity) and first.in_shape == first.out_shape:
        return second
    if isinstance(second, Identity) and second.in_shape == second.out_shape:
        return first
    folded = _joined(second, first) if in_range(second, first) else None
    if folded is None or folded is first or folded is second:
        return folded
    apart = Composite([first, second])
    return None if cancels(apart) else _from(folded, apart)


def _from(folded: LinearMap, apart: LinearMap) -> LinearMap:
    """Return the folded map, which remembers the maps it was folded from."""
    folded.origin = apart
    return folded


def _joined(second: LinearMap, first: LinearMap) -> LinearMap | None:
    """Return `second` after `first` as one map where their kinds allow it."""
    match second, first:
        case Identity(), Identity():
            return Identity(first.in_shape, second.out_shape)
        case (Repeated(leading=leading), _) | (_, Repeated(leading=leading)):
            outer, inner = slice_map(second, leading), slice_map(first, leading)
            return None if outer is None or inner is None else repeated(compose(outer, inner), leading)
        case Diagonal(), Diagonal():
            scale = second.scale.double() * first.scale.double()
            return _slack(Diagonal(scale, first.in_shape), second, first, _ENTRY * _largest(scale))
        case Diagonal(), Matrix():
            channels = second.channels(-1)
            return None if channels is None else _scaled(first, channels.double()[:, None], second, first)
        case Matrix(), Diagonal():
            channels = first.channels(-1)
            return None if channels is None else _scaled(second, channels.double()[None], second, first)
        case Diagonal(), Convolution():
            channels = second.channels(0)
            return None if channels is None else _carry(first.scaled(channels, outputs=True), second, first)
        case Convolution(), Diagonal():
            channels = first.channels(0)
            return None if channels is None else _carry(second.scaled(channels, outputs=False), first, second)
        case Matrix(), Matrix():
            return _product(second, first)
        case Centering(dims=1), Matrix():
            weight = first.weight.double()
            return _centered(first, weight - weight.mean(dim=0, keepdim=True), weight)
        case Matrix(), Centering(dims=1):
            weight = second.weight.double()
            return _centered(second, weight - weight.mean(dim=1, keepdim=True), weight)
        case Centering(), Centering() if second.dims == first.dims:
            return first
        case Reindex(), Identity():
            return Reindex(second.index.reshape(second.out_shape), first.in_shape)
        case Reindex(), Reindex():
            index = torch.where(second.index >= 0, first.index[second.index.clamp(min=0)], -1)
            return Reindex(index.reshape(second.out_shape), first.in_shape)
        case Identity(), Reindex():
            return Reindex(first.index.reshape(second.out_shape), first.in_shape)
    return None


def _scaled(matrix: Matrix, factors: Tensor, second: LinearMap, first: LinearMap) -> Matrix:
    """Return a matrix with factors of its rows or columns."""
    weight = matrix.weight.double() * factors
    return _slack(_matrix(weight, matrix), second, first, _ENTRY * _norm(weight))


def _product(second: Matrix, first: Matrix) -> LinearMap | None:
    """Multiply two matrices unless the product would be larger than both."""
    rows, columns = second.weight.shape[0], first.weight.shape[1]
    if rows * columns > max(second.weight.numel(), first.weight.numel()):
        return None
    if not in_time(float(rows) * columns * first.weight.shape[0], first.device):
        return None
    weight = second.weight.double() @ first.weight.double()
    rounding = gamma(first.weight.shape[0] + 2.0) * _norm(second.weight) * _norm(first.weight)
    return _slack(_matrix(weight, first), second, first, rounding)


def _centered(linear: Matrix, weight: Tensor, before: Tensor) -> Matrix:
    result = _matrix(weight, linear)
    result.slack = linear.slack + gamma(max(weight.shape) + 4.0) * 2.0 * _norm(before)
    return result


def _added(a: LinearMap, b: LinearMap) -> LinearMap | None:
    """Return `a + b` as one map, or None."""
    match a, b:
        case Repeated(leading=leading), _:
            one, other = slice_map(a, leading), slice_map(b, leading)
            return None if one is None or other is None else repeated(add(one, other), leading)
        case Matrix(), Matrix():
            weight = a.weight.double() + b.weight.double()
            return _sum_slack(_matrix(weight, a), a, b, _ENTRY * _norm(weight))
        case Matrix(), Identity() | Diagonal() if a.in_shape == a.out_shape:
            ones = torch.ones(a.in_shape[-1], dtype=torch.float64, device=a.device)
            channels = ones if isinstance(b, Identity) else b.channels(-1)
            if channels is None:
                return None
            weight = a.weight.double() + torch.diag(channels.double())
            return _sum_slack(_matrix(weight, a), a, b, _ENTRY * _norm(weight))
        case Convolution(), Identity():
            return a.plus_identity(1.0)
        case Convolution(), Diagonal():
            channels = b.channels(0)
            grown = None if channels is None else a.plus_identity(channels)
            return None if grown is None else _sum_slack(grown, grown, b, 0.0)
        case Convolution(), Convolution():
            return a.plus(b)
        case Diagonal(), Diagonal():
            scale = a.scale.double() + b.scale.double()
            return _sum_slack(Diagonal(scale, a.in_shape), a, b, _ENTRY * _largest(scale))
        case Diagonal(), Identity() if b.in_shape == b.out_shape:
            scale = a.scale.double() + 1.0
            return _sum_slack(Diagonal(scale, a.in_shape), a, b, _ENTRY * _largest(scale))
        case Identity(), Identity():
            if a.in_shape == a.out_shape:
                return Diagonal(torch.full((), 2.0, dtype=torch.float64), a.in_shape)
    return None


def _matrix(weight: Tensor, like: Matrix) -> Matrix:
    return Matrix(weight, like.in_shape[:-1])


def _norm(weight: Tensor) -> float:
    """Return the Frobenius norm, rounded outward: an upper bound on the spectral norm."""
    return float(l2(weight.double())) * (1.0 + 1e-9)


def _largest(scale: Tensor) -> float:
    return float(scale.double().abs().max()) if scale.numel() else 0.0


def _size(linear: LinearMap) -> float:
    """Return a cheap bound on the norm of a part."""
    if isinstance(linear, Diagonal):
        return _largest(linear.scale)
    if isinstance(linear, Matrix):
        return _norm(linear.weight)
    raise TypeError(linear)


def _slack(result: _Map, second: LinearMap, first: LinearMap, rounding: float) -> _Map:
    """Set the slack of a product: its own rounding, and the slack of its factors."""
    inherited = 0.0
    if first.slack or second.slack:
        inherited = second.slack * (_size(first) + first.slack) + first.slack * _size(second)
    result.slack = rounding + inherited
    return result


def _sum_slack(result: _Map, a: LinearMap, b: LinearMap, rounding: float) -> _Map:
    """Set the slack of a sum: its own rounding, and the slack of its terms."""
    result.slack = rounding + a.slack + b.slack
    return result


def _carry(result: Convolution, scale: Diagonal, conv: Convolution) -> Convolution:
    """Add the slack of a folded scale to that of a convolution."""
    if scale.slack:
        result.slack += scale.slack * (conv.tap_norms() + conv.slack)
    return result


def slice_map(linear: LinearMap, leading: Sequence[int]) -> LinearMap | None:
    """Return the map that `linear` applies to every slice of the leading dimensions, or None if there is none."""
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
