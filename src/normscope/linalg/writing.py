"""Writing a map out as a matrix: what it would cost, and doing it in pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.budget import check_time
from .convolution_map import Convolution
from .entries import cancels
from .kept import kept
from .linear_map import Composite, Diagonal, LinearMap, Matrix, Repeated, Sum

SIDE, ENTRIES, OPERATIONS = 2048, 30_000_000, 5e10
"""Largest short side, number of entries and multiplications of a map that is written out without being asked."""
_PIECE = 2e7
"""Entries of the largest intermediate value while a piece is written."""


def cost(linear: LinearMap) -> float:
    """Return about how many multiplications one application takes."""
    match linear:
        case Matrix():
            return float(linear.weight.numel()) * math.prod(linear.in_shape[:-1])
        case Convolution():
            return float(linear.weight.numel()) * math.prod(axis.outputs for axis in linear.axes)
        case Repeated():
            return cost(linear.inner) * math.prod(linear.leading)
        case Composite():
            return sum(cost(part) for part in linear.parts)
        case Sum():
            return sum(cost(term) for term in linear.terms)
    return float(linear.in_size + linear.out_size)


def widest(linear: LinearMap) -> int:
    """Return the number of entries of the largest value met on the way."""
    inner: tuple[LinearMap, ...] = ()
    if isinstance(linear, Composite):
        inner = linear.parts
    elif isinstance(linear, Sum):
        inner = linear.terms
    return max([linear.in_size, linear.out_size, *(widest(part) for part in inner)])


@dataclass(frozen=True, slots=True)
class Span:
    """How far the numbers of a map lie from 1, in powers of ten, added up over composed parts.

    Attributes:
        tops: distance of the largest entries from 1, either way.
        high: of the largest entries that are above 1.
        low: of the least entries that are below 1 and not zero.
        factors: how many parts have entries other than 1.
    """

    tops: float = 0.0
    high: float = 0.0
    low: float = 0.0
    factors: int = 0


@kept
def span(linear: LinearMap) -> Span:
    """Return how far the numbers of a map lie from 1; the map keeps the answer."""
    match linear:
        case Matrix() | Convolution():
            values = linear.weight
        case Diagonal():
            values = linear.scale
        case Repeated():
            return span(linear.inner)
        case Composite():
            return _together([span(part) for part in linear.parts])
        case Sum():
            terms = [span(term) for term in linear.terms]
            return Span(*(max(getattr(term, name) for term in terms) for name in ("tops", "high", "low", "factors")))
        case _:
            return Span()
    sizes = values.detach().double().abs()
    top = float(sizes.max()) if sizes.numel() else 0.0
    if not 0.0 < top < math.inf:
        return Span()
    least = math.log10(float(torch.where(sizes > 0, sizes, math.inf).min()))
    high = math.log10(top)
    return Span(abs(high), max(high, 0.0), max(-least, 0.0), 1)


def _together(spans: Sequence[Span]) -> Span:
    return Span(*(sum(getattr(one, name) for one in spans) for name in ("tops", "high", "low", "factors")))


def in_range(*parts: LinearMap) -> bool:
    """Say whether no product of entries of the parts overflows or vanishes in float64."""
    whole = _together([span(part) for part in parts])
    return whole.tops <= 140.0 and (whole.factors <= 1 or max(whole.low, whole.high) <= 290.0)


def moderate(linear: LinearMap) -> bool:
    """Say whether a map can be multiplied out in float64: no product of entries overflows, vanishes or cancels."""
    return in_range(linear) and not cancels(linear)


def writable(linear: LinearMap) -> bool:
    """Say whether a map is small enough to be written out without being asked, and its products stay in float64."""
    if not in_range(linear):
        return False
    short, long = sorted((linear.in_size, linear.out_size))
    return short <= SIDE and short * long <= ENTRIES and short * (cost(linear) + float(short) * long) <= OPERATIONS


def written(linear: LinearMap) -> float:
    """Return about how many multiplications it takes to write a map out."""
    return min(linear.in_size, linear.out_size) * cost(linear)


def write_out(linear: LinearMap) -> Tensor:
    """Return the map as a float64 matrix `[out_size, in_size]`, applied to a few basis vectors at a time."""
    by_columns = linear.in_size <= linear.out_size
    count = linear.in_size if by_columns else linear.out_size
    shape = linear.in_shape if by_columns else linear.out_shape
    if count == 0:
        return torch.zeros(linear.out_size, linear.in_size, dtype=torch.float64, device=linear.device)
    step = max(1, int(_PIECE / max(1, widest(linear))))
    pieces = []
    check_time(written(linear), linear.device)
    for start in range(0, count, step):
        check_time()
        rows = min(step, count - start)
        basis = torch.zeros(rows, count, dtype=torch.float64, device=linear.device)
        basis[torch.arange(rows), torch.arange(start, start + rows)] = 1.0
        basis = basis.reshape(rows, *shape)
        pieces.append((linear.apply(basis) if by_columns else linear.adjoint(basis)).reshape(rows, -1))
    matrix = torch.cat(pieces)
    return matrix.T if by_columns else matrix


def rounded(linear: LinearMap) -> float:
    """Return how many roundings one after another lie behind an entry of a map that is written out, at most."""
    return 8.0 * widest(linear) * _count(linear) + 64.0


def _count(linear: LinearMap) -> int:
    if isinstance(linear, Repeated):
        return _count(linear.inner)
    inner = linear.parts if isinstance(linear, Composite) else linear.terms if isinstance(linear, Sum) else ()
    return 1 + sum(_count(part) for part in inner)
