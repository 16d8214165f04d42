"""The bound of every method over a domain, and the points inside it that the lower side rests on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...core.bracket import Bracket, Scope
from ...core.errors import InputError, JacobianError
from ...core.log10 import log10
from ...core.log10 import norm as l2
from ...core.threads import math_attention
from ...graph.ir import Graph
from ..captured import Bounding, Captured
from ..derivative import Products, differentiable
from ..point import NOISES, JacobianNorms, batch_norms, first_samples
from ..rungs import Rungs, bracket_of, upper_sides
from ..segments import GraphSteps
from .derivative import derivative
from .domain import Domain
from .gains import product

MAX_SAMPLES = 12
"""Samples of a batch at which the lower side is looked for."""
STRETCHES = (4 / 3, 5 / 3, 7 / 5, 9 / 7)
"""By which a direction is stretched to see how a product rounds otherwise."""


def over_domain(captured: Captured, domain: Domain) -> Captured:
    """Return a captured graph with the segments of its derivative at the points of a domain, recorded with it."""
    domain.check(captured.double)
    with torch.no_grad():
        segments = derivative(GraphSteps(captured.double, captured.segments.effects), domain.limits)
    return replace(captured, segments=segments)


def domain_sides(
    captured: Captured,
    domain: Domain,
    bounding: Bounding | None = None,
    effort: str = "fast",
    *,
    everywhere: Bracket | None = None,
) -> Rungs:
    """Return the upper side of every method over a domain, of the blocks' gains, and of all inputs.

    `everywhere` is the bound over all inputs of the same effort, if it has been taken: no bound inside exceeds it.
    """
    if effort == "exact":
        raise InputError('effort="exact" is for scope="global": domains take "fast" or "tight"')
    bounding = bounding or Bounding()
    inside = over_domain(captured, domain)
    rungs = upper_sides(inside, bounding, effort, proofs=False, everywhere=False)
    sides = dict(rungs)
    best = sides.pop("best")
    gains = product(domain.conditions, domain.limits)
    if gains is not None:
        sides["gains"] = bracket_of(inside, bounding, gains, "gains")
    everywhere = everywhere or upper_sides(captured, bounding, effort, proofs=False)["best"]
    sides["global"] = replace(everywhere, method=f"global {everywhere.method}")
    smallest = min(sides.values(), key=lambda rung: (rung.log10_upper, -rung.evidence))
    sides["best"] = best if best.log10_upper <= smallest.log10_upper else smallest
    note = f"over all inputs whose inner values stay in the ranges seen at {domain.samples} samples"
    brackets = {
        name: replace(rung, scope=Scope.DOMAIN, proof=None, notes=(*rung.notes, note)) for name, rung in sides.items()
    }
    return replace(rungs, brackets=brackets)


def with_steepest(captured: Captured, domain: Domain, bounding: Bounding, bracket: Bracket, seed: int) -> Bracket:
    """Complete a bracket over a domain with the largest Jacobian norm at a sample of the batch that lies inside."""
    batch = first_samples(captured.batch, MAX_SAMPLES) if captured.graph.per_sample else captured.batch

    def norms_at_batch() -> JacobianNorms | None:
        return batch_norms(
            captured.model,
            batch,
            mode=captured.mode,
            output=captured.output,
            rtol=bounding.rtol,
            seed=seed,
            graph=captured.traced,
            budget=bounding.budget,
        )

    try:
        norms = bounding.budget.attempt(norms_at_batch, lambda: None)
    except JacobianError:
        norms = None
    if norms is None:
        return bracket
    # the domain is that of the map with the masks and ids of the captured sample
    rows = [row for row in captured.own_samples if row < len(norms.points)]
    points = norms.points[rows]
    lower = torch.where(domain.inside(points).cpu(), norms.lower[rows], 0.0)
    best = int(lower.argmax())
    point, direction = points[best], norms.directions[rows[best]].double()
    gain = min(float(lower[best]), _gain_along(captured.double, point, direction))
    if not gain > 0:
        return bracket
    return replace(bracket, log10_lower=log10(gain), witness=(point, direction))


def _gain_along(graph: Graph, point: Tensor, direction: Tensor) -> float:
    """Return norm(J v) less how far it may be off, from products that are rounded in other ways: slopes may cancel.

    Zero where an operator on the way is differentiated only once.
    """
    graph = differentiable(graph)
    try:
        with math_attention(), torch.enable_grad():
            products = Products(lambda rows: graph.run(*graph.split(rows[0])).reshape(1, -1), point[None])
            first, *others = (products.push(direction[None] * factor) / factor for factor in (1.0, *STRETCHES))
    except (JacobianError, RuntimeError, NotImplementedError):
        return 0.0
    return float(l2(first)) * (1 - 1e-9) - NOISES * max(float(l2(first - other)) for other in others)
