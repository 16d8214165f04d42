"""Norms in closed form, of maps that move, scale, centre or average entries, with a vector that attains them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.bracket import Evidence
from ..core.errors import InputError
from ..core.rounding import ONE, UNIT, ZERO, Upper, gamma
from .linear_map import Averaging, Centering, Diagonal, Identity, LinearMap, Reindex, Repeated


@dataclass(frozen=True, slots=True)
class NormBound:
    """An upper bound, a vector that comes close to attaining it, and a way to tighten it given a log10 lower side."""

    upper: Upper
    start: Tensor | None = None
    tighten: Callable[[float], Upper] | None = None


ZERO_BOUND = NormBound(ZERO)


def isometric(linear: LinearMap) -> bool:
    """Whether a map is an isometry onto its outputs, because it permutes the entries."""
    if isinstance(linear, Repeated):
        return isometric(linear.inner)
    if isinstance(linear, Reindex):
        return linear.in_size == linear.out_size and bool((linear.counts() == 1).all())
    return isinstance(linear, Identity)


def unit_vector(linear: LinearMap, index: int) -> Tensor:
    """Return the input of a map that is 1 at one entry and 0 at all others."""
    vector = torch.zeros(linear.in_size, dtype=torch.float64, device=linear.device)
    vector[index] = 1.0
    return vector.reshape(linear.in_shape)


def diagonal_bound(linear: Diagonal) -> NormBound:
    """Return the norm of a map that scales entries: the largest absolute factor."""
    size = linear.scale.detach().double().abs().expand(linear.in_shape).reshape(-1)
    _check_finite(size)
    best = int(size.argmax())
    return NormBound(Upper.of(float(size[best]), Evidence.PROVEN, "largest entry"), unit_vector(linear, best))


def reindex_bound(linear: Reindex) -> NormBound:
    """Return the norm of a map that moves and copies entries: the root of the largest number of copies."""
    counts = linear.counts()
    best = int(counts.argmax())
    most = int(counts[best])
    if most <= 1:
        return NormBound(Upper.of(float(most), Evidence.PROVEN, "moves entries"), unit_vector(linear, best))
    value = Upper.of(math.sqrt(most), Evidence.PROVEN, "most copies of an entry", allowance=2.0 * UNIT)
    return NormBound(value, unit_vector(linear, best))


def centering_bound(linear: Centering) -> NormBound:
    """Return 1, the norm of an orthogonal projection, or 0 where each mean is over a single entry."""
    count = math.prod(linear.in_shape[len(linear.in_shape) - linear.dims :])
    if count < 2:
        return ZERO_BOUND
    start = unit_vector(linear, 0).reshape(-1)
    start[1] = -1.0
    return NormBound(ONE.named("orthogonal projection"), start.reshape(linear.in_shape))


def averaging_bound(linear: Averaging) -> NormBound:
    """Return sqrt(largest row sum * largest column sum), a bound for a matrix without negative entries."""
    rows = linear.apply(torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device))
    columns = linear.adjoint(torch.ones(1, *linear.out_shape, dtype=torch.float64, device=linear.device))
    _check_finite(rows)
    value = math.sqrt(float(rows.max().clamp(min=0.0))) * math.sqrt(float(columns.max().clamp(min=0.0)))
    allowance = gamma(2.0 * (linear.in_size + linear.out_size) + 8.0)
    start = columns[0] / columns.norm().clamp(min=1e-300)
    return NormBound(Upper.of(value, Evidence.NUMERICAL, "Schur test", allowance=allowance), start)


def _check_finite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise InputError("a weight is NaN or infinite: the map has no norm")
