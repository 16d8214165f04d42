"""Which networks have activation patterns: the two slopes of every unit, and whether the search can take them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...rules.effects import Elementwise
from ...rules.registry import activation_of
from ..ellipsoids.ellipsoid_plan import EllipsoidPlan, StateChange
from ..ellipsoids.optimised import EXACT
from ..segments import Segments
from .feasibility import offsets

MOST_UNITS = 512
"""Networks with more units are not tried: a tree of so many steps would not get anywhere."""
REACH = 120.0
"""log10 of the largest product of coefficients, and of the inverse of the smallest."""


def kinks(segments: Segments, plan: EllipsoidPlan) -> dict[str, tuple[Tensor, Tensor]] | None:
    """Return the slopes below and above zero of every unit by step; None unless all steps have just these two."""
    result = {}
    for step in plan.steps:
        node = segments.graph.node(step.name)
        known = activation_of(node) if isinstance(segments.effects[step.name], Elementwise) else None
        slopes = None if known is None or known.evidence is not Evidence.PROVEN else known.two_slopes
        if slopes is None:
            return None
        ones = torch.ones(step.known.size, dtype=torch.float64, device=step.known.radius.device)
        result[step.name] = (slopes[0] * ones, slopes[1] * ones)
    copies = math.prod(plan.leading)
    constant = offsets(segments)
    rows = [constant[segments.graph.node(step.name).refs[0]].reshape(copies, -1) for step in plan.steps]
    if not all(bool((row == row[:1]).all()) for row in rows):
        return None  # slices that differ in their constants have different patterns
    started = set(plan.start) <= {item.name for item in segments.graph.inputs}
    units = sum(step.known.size for step in plan.steps)
    small = units <= MOST_UNITS and plan.output.shape[0] <= EXACT
    return result if result and started and small and _within_reach(plan, result) else None


def _within_reach(plan: EllipsoidPlan, slopes: Mapping[str, tuple[Tensor, Tensor]]) -> bool:
    """Say whether no product of coefficients along the network can have a square that over- or underflows."""
    matrices = [*(turn.matrix for turn in plan.operations if isinstance(turn, StateChange)), plan.output]
    matrices += [step.form for step in plan.steps if step.form is not None]
    matrices += [torch.cat(pair) for pair in slopes.values()]
    sizes = [matrix[matrix != 0].abs().log10() for matrix in matrices if bool((matrix != 0).any())]
    least = sum(min(float(size.amin()), 0.0) for size in sizes)
    most = sum(max(float(size.amax()), 0.0) for size in sizes)
    return least > -REACH and most < REACH
