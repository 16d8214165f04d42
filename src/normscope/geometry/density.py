"""Trace and density of the eigenvalues of a curvature, from random vectors and the eigenvalues that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..linalg.extremes import Ends
from ..linalg.quadrature import Quadrature, quadratures
from .directions import Directions
from .spectrum import Density, Estimate

STEPS = 20
"""How many products are computed with each random vector."""
PLACES = 120
"""The number of points at which the density is given."""
WIDTH = 0.01
"""The width of the Gaussian that stands for an eigenvalue, as a share of the range of all eigenvalues."""
NEAR = 1e-3
"""An eigenvalue of at most this share of the largest one counts as near zero."""


def spread(
    operator: Callable[[Tensor], Tensor],
    found: Directions,
    ends: Ends,
    *,
    probes: int,
    generator: torch.Generator,
    late: Callable[[], bool],
) -> tuple[Estimate | None, Density | None]:
    """Return the trace and the density, with standard errors over random vectors; None for both without any vector.

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
        return (Estimate(value=sum(ends.top) + sum(ends.bottom), error=0.0), None) if probes else (None, None)
    rules = []
    steps = min(STEPS, rest)
    for rule in quadratures(
        operator, size, probes=probes, steps=steps, project=project, generator=generator, like=known
    ):
        rules.append(rule)
        if late():
            break
    sharp = torch.tensor([*ends.top, *ends.bottom], dtype=torch.float64)
    trace = _mean(torch.tensor([float(sharp.sum()) + rule.form for rule in rules], dtype=torch.float64))
    return trace, _density(rules, sharp, rest, rest + len(known))


def _density(rules: list[Quadrature], sharp: Tensor, rest: int, whole: int) -> Density:
    """Return the density of all eigenvalues.

    Args:
        rules: the quadrature that each random vector gave, for the eigenvalues that are not known.
        sharp: the known eigenvalues.
        rest: how many eigenvalues are not known.
        whole: how many there are.
    """
    nodes = torch.cat([sharp, *(rule.nodes for rule in rules)])
    low, high = float(nodes.min()), float(nodes.max())
    width = WIDTH * max(high - low, 1e-300)
    places = torch.linspace(low - 3 * width, high + 3 * width, PLACES, dtype=torch.float64)
    limit = NEAR * float(nodes.abs().max())
    rows, near, left_open = [], [], []
    for rule in rules:
        unknown = _smoothed(places, rule.nodes, rule.weights, width)
        rows.append((rest * unknown + _smoothed(places, sharp, None, width)) / whole)
        least, most = rule.share(limit)
        near.append((rest * least + float((sharp.abs() <= limit).sum())) / whole)
        left_open.append(rest * (most - least) / whole)
    columns = torch.stack(rows)
    return Density(
        places=tuple(places.tolist()),
        values=tuple(columns.mean(0).tolist()),
        errors=tuple(_errors(columns).tolist()),
        width=width,
        near_zero=_open_above(near, left_open),
    )


def _smoothed(places: Tensor, nodes: Tensor, weights: Tensor | None, width: float) -> Tensor:
    """Return the sum of Gaussians at weighted nodes, evaluated at some places."""
    bells = torch.exp(-0.5 * ((places[:, None] - nodes[None, :]) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    return bells.sum(1) if weights is None else bells @ weights


def _errors(rows: Tensor) -> Tensor:
    """Return the standard errors of means over rows; infinite for a single row."""
    if len(rows) < 2:
        return torch.full(rows.shape[1:], math.inf, dtype=rows.dtype)
    return rows.std(0) / math.sqrt(len(rows))


def _open_above(values: list[float], left_open: list[float]) -> Estimate:
    """Return a mean whose error is its standard error plus the mean of what the nodes leave open."""
    mean = _mean(torch.tensor(values, dtype=torch.float64))
    return Estimate(value=mean.value, error=mean.error + sum(left_open) / len(left_open))


def _mean(values: Tensor) -> Estimate:
    return Estimate(value=float(values.mean()), error=float(_errors(values)))
