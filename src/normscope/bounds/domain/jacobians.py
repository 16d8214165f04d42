"""Norms of the Jacobians of a function at many points from above, as closely as somebody asks.

The k-th Lanczos step leaves a Ritz value below the largest eigenvalue of J^T J and a figure that it is not above but
for unlucky starts (Hochstenbach 2013; `linalg/lanczos.py`). A point is done once its upper side is so small that
nobody asks for more, or near its lower side; the others go on, and take no more than their own products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.cost import count
from ...linalg.lanczos import Krylov
from ..derivative import Tangents

Function = Callable[[Tensor], Tensor]
Enough = Callable[[Tensor], Tensor]
"""From lower sides `[B, k]` of the figures of a batch to the figures `[k]` up to which any upper side will do."""

RISK = 1e-6
"""The probability, over the random start, with which one norm may be missed."""
LOOK = 2
"""Lanczos steps between two looks at how far the points have come."""
CLOSE = 1e-3
"""An upper side this near its lower side, as a share of it, is near enough."""
SHRUNK = 2 / 3
"""The function is taken anew at the points that are left once they are at most this share."""
ROUNDING = 1e-9


def norms_above(function: Function, points: Tensor, steps: int, enough: Enough | None = None) -> Tensor:
    """Bound the norm of the Jacobian at every point from above.

    Args:
        function: maps rows `[b, n]` to rows `[b, m]`, each row for itself, and can be differentiated twice.
        points: `[B, n]`, float64.
        steps: Lanczos steps at most.
        enough: as its type says, of one figure; None brings every point as close as it gets.

    Returns:
        Upper sides `[B]`; infinite where the derivative is not finite.

    Raises:
        RuntimeError, NotImplementedError: an operator that autograd differentiates only once.
    """
    size, most = points.shape[1], min(steps, points.shape[1])
    low, high = points.new_zeros(len(points)), points.new_full((len(points),), torch.inf)
    start = torch.randn(1, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(points)
    krylov, normal = Krylov(start.expand_as(points).contiguous()), _normal(function, points)
    places = left = torch.arange(len(points), device=points.device)  # of the rows of `krylov`, and those not yet done
    while krylov.steps < most and len(left):
        for _ in range(min(LOOK, most - krylov.steps)):
            krylov.extend(normal)
        rows = torch.isin(places, left) & (krylov.alpha.isfinite() & krylov.beta.isfinite()).all(1)
        low[left] = torch.inf  # but for those with a finite derivative
        left = places[rows]
        values, _, _, above = (part.to(points).clamp(min=0.0) for part in krylov.ritz(RISK, rows))
        low[left] = values.sqrt()
        high[left] = (values if krylov.steps == size else above).sqrt() * (1 + ROUNDING)
        done = high[left] <= low[left] * (1 + CLOSE)
        if enough is not None:
            done |= high[left] <= enough(low[:, None])[0]
        left = left[~done]
        if 0 < len(left) <= SHRUNK * len(places):
            kept = torch.isin(places, left)
            places, krylov, normal = left, krylov.only(kept), _normal(function, points[left])
    return high


def norms_by_rows(function: Function, points: Tensor) -> Tensor:
    """Return the norm of the Jacobian at every point, which is taken row by row."""
    points = points.detach().requires_grad_(True)
    output = function(points)
    if not output.requires_grad:
        return points.detach().new_zeros(len(points))
    rows = [torch.autograd.grad(column.sum(), points, retain_graph=True)[0] for column in output.unbind(1)]
    jacobians = torch.stack(rows, 1)
    finite = jacobians.isfinite().all(2).all(1)
    norms = torch.linalg.matrix_norm(torch.where(finite[:, None, None], jacobians, 0.0), ord=2) * (1 + ROUNDING)
    return torch.where(finite, norms, torch.inf)


def _normal(function: Function, points: Tensor) -> Function:
    """Return the products with J^T J, all points at once."""
    points = points.detach().requires_grad_(True)
    output = function(points)
    push = Tangents(output, points) if output.requires_grad else None
    if push is None or not push.reaches:
        return torch.zeros_like

    def normal(rows: Tensor) -> Tensor:
        count("backwards", 2 * len(rows))
        (back,) = torch.autograd.grad(output, points, push(rows), retain_graph=True)
        return back

    return normal
