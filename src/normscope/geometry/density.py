"""Trace and density of the eigenvalues of a curvature, from random vectors and the eigenvalues that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.budget import Budget
from ..linalg.extremes import Ends
from ..linalg.quadrature import Quadrature, quadratures
from .directions import Directions
from .spectrum import Density, Estimate, Share

STEPS = 20
"""How many products are computed with each random vector."""
PLACES = 120
"""The number of points at which the density is given."""
WIDTH = 0.01
"""The width of the Gaussian that stands for an eigenvalue, as a share of the range of all eigenvalues."""
NEAR = 1e-3
"""An eigenvalue of at most this share of the largest one counts as near zero."""
ROUNDING = 64.0
"""The error of a node, in rounding errors of the largest eigenvalue."""
MOVED = 0.1
"""The limit near zero may be moved by this share of itself, for the residuals of the known eigenvectors."""


def spread(
    operator: Callable[[Tensor], Tensor],
    found: Directions,
    ends: Ends,
    *,
    probes: int,
    generator: torch.Generator,
    budget: Budget,
) -> tuple[Estimate | None, Density | None, int]:
    """Return the trace and the density, with standard errors, and over how many random vectors; None without any.

    The known eigenvectors Q are projected out first: for any Q the trace is that of Q^T A Q plus that of the rest, and
    the random vectors then estimate only the smaller eigenvalues.
    """
    known = ends.vectors
    size = known.shape[1]

    def project(vector: Tensor) -> Tensor:
        vector = found.project(vector)
        return vector - known.T @ (known @ vector)

    rest = size - found.dimensions - len(known)
    if not probes or rest < 1:
        return Estimate(value=sum(ends.top) + sum(ends.bottom), error=0.0) if probes else None, None, 0
    rules = []
    for rule in quadratures(
        operator, size, dimension=rest, probes=probes, steps=STEPS, project=project, generator=generator, like=known
    ):
        rules.append(rule)
        if len(rules) < probes and budget.late:
            break
    sharp = torch.tensor([*ends.top, *ends.bottom], dtype=torch.float64)
    trace = _mean(torch.tensor([float(sharp.sum()) + rule.form for rule in rules], dtype=torch.float64))
    return trace, _density(rules, ends, rest), len(rules)


def _density(rules: list[Quadrature], ends: Ends, rest: int) -> Density:
    """Return the density of all eigenvalues."""
    sharp = torch.tensor([*ends.top, *ends.bottom], dtype=torch.float64)
    nodes = torch.cat([sharp, *(rule.nodes for rule in rules)])
    low, high = float(nodes.min()), float(nodes.max())
    width = WIDTH * max(high - low, 1e-300)
    places = torch.linspace(low - 3 * width, high + 3 * width, PLACES, dtype=torch.float64)
    known = _smoothed(places, sharp, torch.ones_like(sharp), width)
    columns = torch.stack([rest * _smoothed(places, rule.nodes, rule.weights, width) + known for rule in rules])
    columns = columns / (rest + len(sharp))
    return Density(
        places=tuple(places.tolist()),
        values=tuple(columns.mean(0).tolist()),
        errors=tuple(_errors(columns).tolist()),
        width=width,
        near_zero=_near_zero(rules, ends, rest, float(nodes.abs().max())),
    )


def _near_zero(rules: list[Quadrature], ends: Ends, rest: int, largest: float) -> Share:
    """Return the share of all eigenvalues near zero: the mean of each side over the random vectors.

    The random vectors enclose the share of the eigenvalues of the rest, P A P with P = I - Q Q^T. With R = P A Q, whose
    columns have the lengths of the residuals, the eigenvalues of A are those of the rest and the known ones, each moved
    by at most norm(R): the limit is moved by as much. Where that is too far, the rest has in any interval as many
    eigenvalues as A, give or take as many as are known (Cauchy's interlacing).
    """
    sharp = torch.tensor([*ends.top, *ends.bottom], dtype=torch.float64).abs()
    limit, rounding = NEAR * largest, ROUNDING * torch.finfo(ends.vectors.dtype).eps * largest
    coupling = math.hypot(*ends.residuals)
    few = coupling <= MOVED * limit
    margin = rounding + coupling if few else rounding
    sides = torch.tensor([rule.share(limit, margin) for rule in rules], dtype=torch.float64) * rest
    limits = torch.tensor([limit - margin, limit, limit + margin], dtype=torch.float64)
    within = (sharp[:, None] <= limits).sum(0).double()
    sides += within if few else torch.tensor([-float(len(sharp)), float(within[1]), float(len(sharp))])
    sides = (sides / (rest + len(sharp))).clamp(0.0, 1.0)
    lower, value, upper = sides.mean(0).tolist()
    return Share(value=value, error=float(_errors(sides).max()), lower=lower, upper=upper)


def _smoothed(places: Tensor, nodes: Tensor, weights: Tensor, width: float) -> Tensor:
    """Return the sum of Gaussians at weighted nodes, evaluated at some places."""
    bells = torch.exp(-0.5 * ((places[:, None] - nodes[None, :]) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    return bells @ weights


def _errors(rows: Tensor) -> Tensor:
    """Return the standard errors of means over rows; infinite for a single row."""
    if len(rows) < 2:
        return torch.full(rows.shape[1:], math.inf, dtype=rows.dtype)
    return rows.std(0) / math.sqrt(len(rows))


def _mean(values: Tensor) -> Estimate:
    return Estimate(value=float(values.mean()), error=float(_errors(values)))
