"""Trace and density of the eigenvalues of a curvature, beside the eigenvalues that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..linalg.extremes import Ends
from ..linalg.quadrature import quadratures
from .directions import Directions
from .spectrum import Density, Estimate

STEPS = 20
"""Products with each random vector."""
PLACES = 120
"""At which the density is given."""
WIDTH = 0.01
"""Of the Gaussian that an eigenvalue is drawn as, as a share of the range."""
NEAR = 1e-3
"""What counts as near zero, as a share of the largest eigenvalue."""


def spread(
    operator: Callable[[Tensor], Tensor],
    found: Directions,
    ends: Ends,
    *,
    probes: int,
    generator: torch.Generator,
    late: Callable[[], bool],
) -> tuple[Estimate | None, Density | None]:
    """Return the trace and the density, with standard errors over random vectors; None without any.

    The known eigenvectors Q are taken out first: the trace is that of Q^T A Q and that of the rest, whatever Q is, and
    the random vectors are left with what is small.
    """
    known = ends.vectors
    size = known.shape[1]

    def project(vector: Tensor) -> Tensor:
        vector = found.project(vector)
        return vector - known.T @ (known @ vector)

    rest = size - found.dimensions - len(known)
    if not probes or rest < 1:
        return (Estimate(value=sum(ends.top) + sum(ends.bottom), error=0.0), None) if probes else (None, None)
    seen = []
    steps = min(STEPS, rest)
    for one in quadratures(
        operator, size, probes=probes, steps=steps, project=project, generator=generator, like=known
    ):
        seen.append(one)
        if late():
            break
    sharp = torch.tensor([*ends.top, *ends.bottom], dtype=torch.float64)
    trace = _mean(torch.tensor([float(sharp.sum()) + one.form for one in seen], dtype=torch.float64))
    nodes = torch.cat([sharp, *(one.nodes for one in seen)])
    low, high = float(nodes.min()), float(nodes.max())
    width = WIDTH * max(high - low, 1e-300)
    places = torch.linspace(low - 3 * width, high + 3 * width, PLACES, dtype=torch.float64)
    whole = rest + len(known)
    rows, near, beyond = [], [], []
    limit = NEAR * float(nodes.abs().max())
    for one in seen:
        rows.append((rest * _drawn(places, one.nodes, one.weights, width) + _drawn(places, sharp, None, width)) / whole)
        within, most = one.share(limit)
        near.append((rest * within + float((sharp.abs() <= limit).sum())) / whole)
        beyond.append(rest * (most - within) / whole)
    columns = torch.stack(rows)
    values, errors = columns.mean(0), _errors(columns)
    return trace, Density(
        places=tuple(places.tolist()),
        values=tuple(values.tolist()),
        errors=tuple(errors.tolist()),
        width=width,
        near_zero=_open_above(near, beyond),
    )


def _drawn(places: Tensor, nodes: Tensor, weights: Tensor | None, width: float) -> Tensor:
    """Return weighted nodes as Gaussians, at some places."""
    bells = torch.exp(-0.5 * ((places[:, None] - nodes[None, :]) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    return bells.sum(1) if weights is None else bells @ weights


def _errors(rows: Tensor) -> Tensor:
    """Return standard errors of means over rows; infinite for a single one."""
    if len(rows) < 2:
        return torch.full(rows.shape[1:], math.inf, dtype=rows.dtype)
    return rows.std(0) / math.sqrt(len(rows))


def _open_above(values: list[float], left_open: list[float]) -> Estimate:
    """Return a mean whose error is the standard error and what the nodes leave open."""
    mean = _mean(torch.tensor(values, dtype=torch.float64))
    return Estimate(value=mean.value, error=mean.error + sum(left_open) / len(left_open))


def _mean(values: Tensor) -> Estimate:
    return Estimate(value=float(values.mean()), error=float(_errors(values)))
