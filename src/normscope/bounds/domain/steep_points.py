"""Points of a domain where the Jacobian is large: ascent that never leaves the domain."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.budget import Budget
from ...core.rounding import inward
from ...core.torch_settings import math_attention
from ...graph.ir import Graph
from ..autograd_check import differentiable
from ..derivative import Tangents
from ..global_attack import gradients
from ..passes import passes
from ..point import NOISES
from .domain import Domain

STEPS, WORK, FEWEST = 400, 5e9, 16
"""Gradients of the ascent through small networks, multiplications over all of them, gradients through large ones."""
MOST, STARTS, POWERS = 12, 3, 8
"""Points that are looked at, points that the ascent starts from, and power steps for the direction at a point."""
FACTORS = (4 / 3, 5 / 3, 7 / 5, 9 / 7)
"""By which a direction is stretched to see how a product rounds otherwise."""
FEW_OUTPUTS = 64
"""Up to this many outputs an operator that autograd differentiates only once is no obstacle."""


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
    with math_attention():
        climb = _Climb(domain, graph, own, generator)
        tried = [climb.gain(inside[0])]
        tried += [climb.gain(point) for point in inside[1:MOST] if not own.over]
        for gain, point, direction in sorted(tried, key=lambda found: -found[0])[:STARTS]:
            found = climb.run(gain, point, direction)
            if found[0] > best:
                best, witness = found[0], (found[1], found[2])
        noise = climb.noise(*witness) if witness is not None and best > 0 else math.inf
    value = inward(best, 1e-9 + noise / best) if noise < best else -math.inf
    return value, witness if value > -math.inf else None


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
            for turn in range(POWERS):
                if turn > 1 and not self.budget.spend():
                    break
                pushed = _pushed(value, x, direction)
                size = math.nan if pushed is None else float(pushed.detach().norm())
                if pushed is None or not math.isfinite(size):
                    break
                if size > best[0]:
                    best = (size, point, direction)
                (back,) = torch.autograd.grad(value, x, pushed.detach(), retain_graph=True)
                if not float(back.norm()) > 0:
                    break
                direction = back / back.norm()
        return best

    def noise(self, point: Tensor, direction: Tensor) -> float:
        """Return how far J v may be off, from products that are rounded in other ways: slopes may cancel."""
        with torch.enable_grad():
            x = point.detach().requires_grad_(True)
            value = self.function(x)
            found = [_pushed(value, x, direction * factor) for factor in (1.0, *FACTORS)]
        if any(pushed is None for pushed in found):
            return math.inf
        first, *others = (pushed.detach() for pushed in found if pushed is not None)
        pairs = zip(others, FACTORS, strict=True)
        return NOISES * max(float((first - other / factor).norm()) for other, factor in pairs)

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
            pushed = _pushed(self.function(x), x, direction)
            (grad,) = (None,) if pushed is None else gradients(pushed.square().sum(), (x,))
        size = math.nan if grad is None else float(grad.norm())
        return None if grad is None or not (math.isfinite(size) and size > 0) else grad.detach() / size


def _pushed(value: Tensor, x: Tensor, direction: Tensor) -> Tensor | None:
    """Return the Jacobian times a direction, to be differentiated again; None where autograd has none to give."""
    if not value.requires_grad:
        return None
    try:
        push = Tangents(value, x)
        return push(direction, again=True) if push.reaches else None
    except (RuntimeError, NotImplementedError):  # an operator that autograd differentiates only once
        return _by_rows(value, x, direction)


def _by_rows(value: Tensor, x: Tensor, direction: Tensor) -> Tensor | None:
    """Return the Jacobian times a direction, row by row, for few outputs."""
    if value.numel() > FEW_OUTPUTS:
        return None
    rows = [torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in value]
    return torch.stack([row @ direction for row in rows])
