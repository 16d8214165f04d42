"""The bound of every method over a domain, and the points inside it that the lower side rests on."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...core.bracket import Bracket, Scope
from ...core.errors import InputError
from ..bounding import Bounding
from ..captured import Captured
from ..rungs import Rungs, bracket_of, upper_sides
from ..unrolled import GraphSteps
from .derivative import derivative
from .domain import Domain
from .gains import product
from .steep_points import steepest


def over_domain(captured: Captured, domain: Domain) -> Captured:
    """Return a captured graph with the segments of its derivative at the points of a domain.

    Raises:
        InputError: the domain was recorded with another network.
    """
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

    Args:
        captured: over all inputs; no bound over the domain exceeds its own.
        domain: recorded with the same network.
        bounding: what it may cost; without limits if None.
        effort: `"fast"` or `"tight"`.
        everywhere: the bound over all inputs of the same effort, if it has been taken.

    Raises:
        InputError: the domain was recorded with another network, or the effort is `"exact"`.
    """
    if effort == "exact":
        raise InputError('effort="exact" is for scope="global": domains take "fast" or "tight"')
    bounding = bounding or Bounding()
    inside = over_domain(captured, domain)
    rungs = upper_sides(inside, bounding, effort, proofs=False, everywhere=False)
    found = dict(rungs)
    best = found.pop("best")
    gains = product(domain.conditions, domain.limits)
    if gains is not None:
        found["gains"] = bracket_of(inside, bounding, gains, "gains")
    everywhere = everywhere or upper_sides(captured, bounding, effort, proofs=False)["best"]
    found["global"] = replace(everywhere, method=f"global {everywhere.method}")
    smallest = min(found.values(), key=lambda rung: (rung.log10_upper, -rung.evidence))
    found["best"] = best if best.log10_upper <= smallest.log10_upper else smallest
    note = f"over all inputs whose inner values stay in the ranges seen at {domain.samples} samples"
    brackets = {
        name: replace(rung, scope=Scope.DOMAIN, proof=None, notes=(*rung.notes, note)) for name, rung in found.items()
    }
    return replace(rungs, brackets=brackets)


def with_steepest(captured: Captured, domain: Domain, bounding: Bounding, bracket: Bracket, seed: int) -> Bracket:
    """Complete a bracket over a domain with the largest Jacobian norm found at a point inside."""
    points = captured.points.double()
    value, witness = steepest(domain, captured.double, points, budget=bounding.budget, seed=seed)
    return replace(bracket, log10_lower=value, witness=witness)
