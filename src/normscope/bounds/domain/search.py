"""Points of a domain where the Jacobian is large: ascent that never leaves the domain."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...core.budget import Budget
from ...core.rounding import inward
from ...graph.ir import Graph
from ..attack import gradients
from ..backward import differentiable
from ..passes import passes
from .domain import Domain

STEPS, WORK, FEWEST = 200, 5e9, 2
"""Gradients of the ascent through small networks, multiplications over all of them, gradients through large ones."""
STARTS, POWERS = 3, 8


def steepest(
    domain: Domain, graph: Graph, points: Tensor, *, budget: Budget, seed: int
) -> tuple[float, tuple[Tensor, Tensor] | None]:
    """Return log10 of the largest norm(J v) found at a point inside and a unit v, and both; `-inf` without one.

    Args:
        domain: where to stay.
        graph: the network in float64.
        points: flat float64 points to start from; those outside are left out.
        budget: of the ascent; a step is one gradient.
        seed: of the first directions.
    """
    inside = points[domain.inside(points)]
    if not len(inside):
        return -math.inf, None
    own = budget.search("the search for steep points", passes(graph, STEPS, work=WORK, least=FEWEST))
    generator = torch.Generator().manual_seed(seed)
    best, witness = -math.inf, None
    with sdpa_kernel(SDPBackend.MATH):
        climb = _Climb(domain, graph, own, generator)
        ranked = sorted((climb.gain(point) for point in inside[: 4 * STARTS]), key=lambda found: -found[0])
        for gain, point, direction in ranked[:STARTS]:
            found = climb.run(gain, point, direction)
            if found[0] > best:
                best, witness = found[0], (found[1], found[2])
    return inward(best, 1e-9), witness


class _Climb:
    """Power iteration for the direction, gradient steps for the point, halved until they stay inside."""

    def __init__(self, domain: Domain, graph: Graph, budget: Budget, generator: torch.Generator) -> None:
        self.domain, self.graph, self.budget, self.generator = domain, differentiable(graph), budget, generator

    def function(self, point: Tensor) -> Tensor:
        return self.graph.run(*self.graph.split(point)).reshape(-1)

    def gain(self, point: Tensor, direction: Tensor | None = None) -> tuple[float, Tensor, Tensor]:
        """Return norm(J v) after a few power steps from a direction, the point and v."""
        if direction is None:
            direction = torch.randn(point.shape, generator=self.generator, dtype=torch.float64).to(point)
        direction = direction / direction.norm()
        best = (0.0, point, direction)
        with torch.enable_grad():
            x = point.detach().requires_grad_(True)
            value = self.function(x)
            dual = torch.zeros_like(value, requires_grad=True)
            (pulled,) = gradients_of(value, x, dual)
            if pulled is None or not pulled.requires_grad:
                return best
            for _ in range(POWERS):
                (pushed,) = torch.autograd.grad(pulled, dual, direction, retain_graph=True)
                size = float(pushed.norm())
                if size > best[0] and math.isfinite(size):
                    best = (size, point, direction)
                (back,) = torch.autograd.grad(value, x, pushed, retain_graph=True)
                if not float(back.norm()) > 0:
                    break
                direction = back / back.norm()
        return best

    def run(self, gain: float, point: Tensor, direction: Tensor) -> tuple[float, Tensor, Tensor]:
        """Climb from a point."""
        rate = 0.05 * (float(point.norm()) or 1.0)
        while rate > 1e-4 * (float(point.norm()) or 1.0) and self.budget.spend():
            uphill = self._uphill(point, direction)
            if uphill is None:
                break
            moved = point + rate * uphill
            if bool(self.domain.inside(moved[None])[0]):
                found = self.gain(moved, direction)
                if found[0] > gain:
                    gain, point, direction = found
                    rate *= 1.5
                    continue
            rate /= 2
        return gain, point, direction

    def _uphill(self, point: Tensor, direction: Tensor) -> Tensor | None:
        """Return the unit gradient of log norm(J v) by the point, None where there is none."""
        with torch.enable_grad():
            x = point.detach().requires_grad_(True)
            value = self.function(x)
            dual = torch.zeros_like(value, requires_grad=True)
            (pulled,) = gradients_of(value, x, dual)
            if pulled is None or not pulled.requires_grad:
                return None
            (pushed,) = torch.autograd.grad(pulled, dual, direction, create_graph=True)
            score = pushed.square().sum()
            (grad,) = gradients(score, (x,))
        size = math.nan if grad is None else float(grad.norm())
        return None if grad is None or not (math.isfinite(size) and size > 0) else grad.detach() / size


def gradients_of(value: Tensor, x: Tensor, dual: Tensor) -> tuple[Tensor | None, ...]:
    """Return the product of a dual vector with the Jacobian, to be differentiated again."""
    if not value.requires_grad:
        return (None,)
    return torch.autograd.grad(value, x, dual, create_graph=True, allow_unused=True)
