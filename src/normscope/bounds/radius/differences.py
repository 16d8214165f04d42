"""Lipschitz constants of the differences of outputs over all inputs: what a margin is divided by."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ...core.budget import Budget
from ...core.log10 import ceiling10
from ..bounding import Bounding
from ..captured import Captured
from ..ellipsoids.ellipsoid_plan import plan
from ..ellipsoids.optimised import Certified, optimise
from ..ellipsoids.rounded import accounted
from ..folded import Bounds
from ..outputs import directions
from ..rungs import upper_sides

PAIRED = 12
"""Up to this many outputs the tight certificate is optimised for all pairs; beyond, for the output as a whole."""


def difference_constants(
    captured: Captured, bounding: Bounding | None = None, *, effort: str = "fast", values: Bounds | None = None
) -> Tensor:
    """Bound the constant of `out[a] - out[b]` over all inputs, for every pair of outputs.

    Args:
        captured: a model with one vector of K outputs.
        bounding: what it may cost; without limits if None.
        effort: `"fast"`: the closed forms; `"tight"`: the certificate optimised for the differences.
        values: the bounds of all nodes over all inputs, where they were taken already.

    Returns:
        `[K, K]` in float64, symmetric, 0 on the diagonal; `inf` where there is no finite bound.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 2, bias=False).requires_grad_(False)
        >>> layer.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) is layer.weight
        True
        >>> round(float(difference_constants(Captured.of(layer.eval(), torch.zeros(1, 2)))[0, 1]), 4)
        5.0
    """
    size, device = math.prod(captured.graph.output_shape), captured.double.inputs[0].value.device
    limits = bounding or Bounding()
    known = upper_sides(captured, limits, proofs=False).nodes if values is None else values
    whole = known[captured.graph.output].log10
    bound = torch.full((size, size), math.sqrt(2) * ceiling10(whole) * (1 + 1e-12), dtype=torch.float64, device=device)
    for way, budget in limits.efforts(effort) if math.isfinite(whole) else ():
        found = budget.share(0.5).attempt(partial(_certificate, captured, budget, known, way, size), lambda: None)
        if found is None:
            continue
        diagonal = found.q.diagonal()
        both = diagonal[:, None] + diagonal[None, :]
        # the sum cancels where two outputs move together: its rounding is added
        squared = (both - 2 * found.q).clamp(min=0.0) + 1e-12 * both
        bound = torch.minimum(bound, squared.sqrt() * 10.0**found.log10_scale * (1 + 1e-9))
    return bound.fill_diagonal_(0.0)


def _certificate(captured: Captured, budget: Budget, values: Bounds, effort: str, size: int) -> Certified | None:
    """Return the ellipsoid of the output, or None where the graph is too wide for one, or time is up."""
    with torch.no_grad():
        steps = plan(captured.segments, values)
    if steps is None:
        return None
    pairs = directions("difference", size).to(steps.output.device) if effort == "tight" and size <= PAIRED else None
    most = 1 if effort == "fast" else None
    found = optimise(steps, steps=most, budget=budget.share(0.3), directions=pairs)
    return None if found is None else accounted(steps, found) or found
