"""`lost`: how far the written-out matrix of a map may be off, where parts of the map cancel each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..core.bracket import Evidence
from ..core.rounding import ONE, ZERO, Upper, gamma, total
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
)
from .writing import rounded


def lost(linear: LinearMap, norm: Callable[[LinearMap], Upper]) -> Upper:
    """Return a bound on the norm of the difference between a map and the matrix that writing it out gives.

    The difference has two sources: the rounding of products and sums, which is proportional to the product of the parts
    with absolute entries, and the slack that parts carry from folding, which is multiplied by all other parts.

    Args:
        linear: a map of several parts; parts given as code without a known norm are not counted.
        norm: a function that bounds the norm of a single map, its slack included.
    """
    size, slack = _size(linear, norm)
    return total([size.times(Upper.of(gamma(rounded(linear)), Evidence.NUMERICAL)), slack])


def _size(linear: LinearMap, norm: Callable[[LinearMap], Upper]) -> tuple[Upper, Upper]:
    """Return bounds on the map with absolute entries in every part, and on the effect of the slack of the parts."""
    own = Upper.of(linear.slack, Evidence.PROVEN) if linear.slack else ZERO
    match linear:
        case Composite(parts=parts):
            size, slack = _product([_size(part, norm) for part in parts])
        case Sum(terms=terms):
            found = [_size(term, norm) for term in terms]
            size, slack = total([one for one, _ in found]), total([one for _, one in found])
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


def _product(parts: Sequence[tuple[Upper, Upper]]) -> tuple[Upper, Upper]:
    """Return size and slack of parts one after another: (a + s)(b + t) - a b = (a + s) t + s b."""
    size, slack = ONE, ZERO
    for one, its in parts:
        slack = total([total([size, slack]).times(its), slack.times(one)])
        size = size.times(one)
    return size, slack
