"""Maps entry by entry: their signs, writing them out as matrices, and what is lost where their parts cancel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...core.budget import check_time
from ...core.rounding import ONE, ZERO, Upper, gamma, total
from .convolution_map import Convolution
from .linear_map import (
    Averaging,
    Bounded,
    Centering,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
    cached_per_map,
)

KEPT = 1e-5
"""A row or column of which less than this is left, of what its parts have without their signs, has cancelled."""
PROBES = 4
"""Vectors that every row and column is tried with; a row that has not cancelled is seen by the first one, mostly."""


def absolute_entries(linear: LinearMap) -> LinearMap | None:
    """Return the map whose matrix has the absolute values of the entries; None for code and for maps of several parts.

    Entries known to within the slack of the map are larger by it.
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
        case Centering():  # |1 - 1/n| on the diagonal and 1/n beside it
            dims, entries = tuple(range(-linear.dims, 0)), math.prod(linear.in_shape[-linear.dims :])
            return Averaging(
                lambda x: x * (1.0 - 2.0 / entries) + x.mean(dim=dims, keepdim=True),
                *(linear.in_shape, linear.out_shape, linear.device),
            )
    return None


def of_each(linear: Composite | Sum, change: Callable[[LinearMap], LinearMap | None]) -> LinearMap | None:
    """Return the map with every part changed; None where one part cannot be."""
    changed = [change(part) for part in (linear.parts if isinstance(linear, Composite) else linear.terms)]
    kept_parts = [part for part in changed if part is not None]
    if len(kept_parts) < len(changed):
        return None
    return Composite(kept_parts) if isinstance(linear, Composite) else Sum(kept_parts)


@cached_per_map
@torch.no_grad()
def cancels(linear: LinearMap) -> bool:
    """Say whether parts of a map cancel so far that rounding is a notable share of a row or column of its matrix.

    Such a map must not be multiplied out: what comes after it may bring the row back to any size. No such row is
    missed: with factors of at most 1, the sum of its entries is at most what is left of them. Of code nothing is known.
    Parts that were folded count as what they were folded from, so that little by little is as much as all at once.
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


@cached_per_map
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
    if isinstance(linear, Matrix) and linear.in_shape == linear.weight.shape[1:]:
        check_time()
        return linear.weight.double()
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


def lost(linear: LinearMap, norm: Callable[[LinearMap], Upper]) -> Upper:
    """Return a bound on the norm of the difference between a map and the matrix that writing it out gives.

    The difference has two sources: the rounding of products and sums, which is proportional to the product of the parts
    with absolute entries, and the slack that parts carry from folding, which is multiplied by all other parts. Parts
    given as code without a known norm are not counted; `norm` bounds that of a single map, its slack included.
    """
    size, slack = _size(linear, norm)
    return total([size.times(Upper.of(gamma(rounded(linear)), Evidence.NUMERICAL)), slack])


def _size(linear: LinearMap, norm: Callable[[LinearMap], Upper]) -> tuple[Upper, Upper]:
    """Return bounds on the map with absolute entries in every part, and on the effect of the slack of the parts."""
    own = Upper.of(linear.slack, Evidence.PROVEN) if linear.slack else ZERO
    match linear:
        case Composite(parts=parts):
            size, slack = ONE, ZERO
            for one, its in (_size(part, norm) for part in parts):  # (a + s)(b + t) - a b = (a + s) t + s b
                slack = total([total([size, slack]).times(its), slack.times(one)])
                size = size.times(one)
        case Sum(terms=terms):
            sizes = [_size(term, norm) for term in terms]
            size, slack = total([one for one, _ in sizes]), total([one for _, one in sizes])
        case Repeated(inner=inner):
            size, slack = _size(inner, norm)
        case Identity() | Reindex() | Diagonal() | Averaging():
            size, slack = norm(linear), ZERO
        case Matrix() | Convolution() | Centering() | Bounded():
            # The norm of the absolute entries is at most the root of the shorter side times the norm of the map.
            sides = linear.weight.shape if isinstance(linear, Matrix) else (linear.in_size, linear.out_size)
            size, slack = norm(linear).times(Upper.of(math.sqrt(min(sides)), Evidence.NUMERICAL)), ZERO
        case _:
            return ZERO, ZERO
    return size, total([slack, own])
