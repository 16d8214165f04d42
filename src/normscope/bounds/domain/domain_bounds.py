"""The bound of every method over a domain, and the points inside it that the lower side rests on."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.bracket import Bracket, Scope
from ...core.budget import Budget
from ...core.errors import JacobianError
from ...core.rounding import inward
from ...core.threads import math_attention
from ..applied import passes
from ..captured import Bounding, Captured
from ..derivative import Products, differentiable, find_bends, reach_of
from ..graph.ir import Graph
from ..lower import gradients
from ..point import BESIDE, NOISES
from ..rungs import Rungs, bracket_of, upper_sides
from ..segments import GraphSteps
from .derivative import derivative
from .domain import Domain
from .gains import product

MAX_GRADIENTS, ASCENT_MULTIPLICATIONS, MIN_GRADIENTS = 400, 5e9, 16
"""Gradients of the ascent through small networks, multiplications over all of them, gradients through large ones."""
POINTS_TRIED, ASCENTS, POWER_STEPS = 12, 3, 8
"""Points that are looked at, points that the ascent starts from, and power steps for the direction at a point."""
STRETCHES = (4 / 3, 5 / 3, 7 / 5, 9 / 7)
"""By which a direction is stretched to see how a product rounds otherwise."""
MAX_ROWS = 64
"""Up to this many outputs an operator that autograd differentiates only once is no obstacle."""


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
    """Complete a bracket over a domain with the largest Jacobian norm found at a point inside."""
    points = captured.points.double()
    value, witness = steepest(domain, captured.double, points, budget=bounding.budget, seed=seed)
    if witness is not None:
        captured.check_at(witness[0])
    return replace(bracket, log10_lower=value, witness=witness)


def steepest(
    domain: Domain, graph: Graph, points: Tensor, *, budget: Budget, seed: int
) -> tuple[float, tuple[Tensor, Tensor] | None]:
    """Return log10 of the largest norm(J v) found at a point inside and a unit v, and both; `-inf` without one.

    `graph` is the network in float64. The ascent starts at those of the flat `points` that lie inside, and never leaves
    the domain; a step of its budget is one gradient.
    """
    inside = points[domain.inside(points)]
    if not len(inside):
        return -math.inf, None
    steps = passes(graph, MAX_GRADIENTS, work=ASCENT_MULTIPLICATIONS, least=MIN_GRADIENTS)
    generator = torch.Generator().manual_seed(seed)
    with math_attention(), torch.enable_grad():
        climb = _Climb(domain, differentiable(graph), budget.search("the search for steep points", steps))
        starts: list[tuple[float, Tensor, Tensor]] = []
        for point in inside[:POINTS_TRIED]:
            if not (starts and climb.budget.over):
                direction = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
                starts.append(climb.gain(point, direction / direction.norm()))
        tops = [climb.run(*start) for start in sorted(starts, key=lambda start: -start[0])[:ASCENTS]]
        gain, point, direction = max(tops, key=lambda top: top[0])
        noise = climb.noise(gain, point, direction)
        shift = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
        beside = point + shift / shift.norm() * BESIDE * float(reach_of(point[None]))
        if noise == math.inf and bool(domain.inside(beside[None])[0]):
            gain, point, direction = climb.gain(beside, direction)
            noise = climb.noise(gain, point, direction)
    return (inward(gain, 1e-9 + noise / gain), (point, direction)) if noise < gain else (-math.inf, None)


@dataclass(frozen=True)
class _Climb:
    """Power iteration for the direction, gradient steps for the point, halved until they stay inside."""

    domain: Domain
    graph: Graph
    budget: Budget

    def function(self, rows: Tensor) -> Tensor:
        return self.graph.run(*self.graph.split(rows[0])).reshape(1, -1)

    def gain(self, point: Tensor, direction: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return norm(J v) after a few power steps from a unit direction, the point and v."""
        best = (0.0, point, direction)
        with suppress(JacobianError):
            products = Products(self.function, point[None])
            for turn in range(POWER_STEPS):
                if turn > 1 and not self.budget.spend():
                    break
                image = _push(products, direction)
                size = float(image.norm())
                if not math.isfinite(size):
                    break
                if size > best[0]:
                    best = (size, point, direction)
                (back,) = products.pull(image)
                if not float(back.norm()) > 0:
                    break
                direction = back / back.norm()
        return best

    def noise(self, gain: float, point: Tensor, direction: Tensor) -> float:
        """Return how far J v may be off, from products that are rounded in other ways: slopes may cancel.

        On a bend of the function J v is whatever torch gives, and infinitely far off, as is a gain of 0.
        """
        if not gain > 0:
            return math.inf
        products = Products(self.function, point[None])
        image, *others = (_push(products, direction * factor) / factor for factor in (1.0, *STRETCHES))
        if bool(find_bends(self.function, products.point, products.value, direction[None], image).any()):
            return math.inf
        return NOISES * max(float((image - other).norm()) for other in others)

    def run(self, gain: float, point: Tensor, direction: Tensor) -> tuple[float, Tensor, Tensor]:
        """Climb from a point."""
        rate = 0.05 * (float(point.norm()) or 1.0)
        while rate > 1e-4 * (float(point.norm()) or 1.0) and self.budget.spend():
            uphill = self._uphill(point, direction)
            if uphill is None:
                break
            moved = point + rate * uphill
            if bool(self.domain.inside(moved[None])[0]):
                reached = self.gain(moved, direction)
                if reached[0] > gain:
                    gain, point, direction = reached
                    rate *= 1.5
                    continue
            rate /= 2
        return gain, point, direction

    def _uphill(self, point: Tensor, direction: Tensor) -> Tensor | None:
        """Return the unit gradient of log norm(J v) by the point, None where there is none."""
        try:
            products = Products(self.function, point[None])
            (grad,) = gradients(_push(products, direction, again=True).square().sum(), (products.point,))
        except JacobianError:
            return None
        size = math.nan if grad is None else float(grad.norm())
        return None if grad is None or not (math.isfinite(size) and size > 0) else grad[0] / size


def _push(products: Products, direction: Tensor, *, again: bool = False) -> Tensor:
    """Return the Jacobian times a direction, by its rows where autograd differentiates an operator only once."""
    try:
        return products.push(direction[None], again=again)
    except (RuntimeError, NotImplementedError) as error:
        if products.value.numel() > MAX_ROWS:
            raise JacobianError("an operator is differentiated only once") from error
    return (products.rows() @ direction).to(direction)
