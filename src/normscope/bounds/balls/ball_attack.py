"""The lower side of a BALL bracket: pairs of inputs inside each ball that the network drives far apart.

All centres are searched at once, in float64; what counts is confirmed pair by pair (`secants.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ...core.budget import Budget, attempt
from ...rules.local.local import flat
from ..evaluation import Values
from ..global_attack import AdamStep, gradients
from ..secants import Confirmer, Secant

Function = Callable[[Tensor], Tensor]
WIDTHS = (1.0, 0.3, 0.05, 3e-3, 2e-4)
"""Half the distance between the two points of a pair, relative to the radius, in the order they are tried."""
INSIDE = 1 - 1e-6
"""How much of the radius is used: rounding must not carry a point out of its ball."""
POWERS, ASCENTS = 8, 30
"""How many gradients find a direction at every start, and how many climb from there."""
STEPS = 4 * (POWERS + ASCENTS)
"""The steps of the whole search, from four starts; a step is one gradient of all balls together."""


def strongest_pairs(values: Values, centres: Tensor, radius: Tensor, *, budget: Budget, seed: int = 0) -> list[Secant]:
    """Return per centre `[B, n]` the largest secant slope found inside its ball, with its pair; radius 0 holds none.

    A step of the budget is one gradient of all balls together. One start is always tried.
    """
    found = [Secant()] * len(centres)
    if not bool((radius > 0).any()) or centres.shape[1] == 0 or not values.can_prove:
        return found
    steps = values.steps
    function: Function = lambda x: flat(steps.values(x)[steps.output])  # noqa: E731
    search = _BallAscent(function, centres, radius[:, None] * INSIDE, budget, seed)
    budget.attempt(search.run, lambda: None)
    confirmer = Confirmer(values)
    for i, pairs in enumerate(search.best):
        for _, u, v in pairs:
            secant = attempt(partial(confirmer.secant, u, v, above=found[i].log10), Secant)
            found[i] = secant if secant.log10 > found[i].log10 else found[i]
    return found


class _BallAscent:
    """Ascent on the secant slope inside every ball at once; keeps the best few pairs of every centre."""

    def __init__(self, function: Function, centres: Tensor, radius: Tensor, budget: Budget, seed: int) -> None:
        self.function, self.centres, self.radius, self.budget = function, centres, radius, budget
        self.generator = torch.Generator(device="cpu").manual_seed(seed)
        self.best: list[list[tuple[float, Tensor, Tensor]]] = [[] for _ in centres]

    def run(self) -> None:
        """Look along the top direction at every start, then climb from each of them."""
        starts: list[tuple[Tensor, Tensor, float]] = []
        for offset, width in self.starts():
            if starts and self.budget.over:
                break
            direction = self.top_direction(offset)
            for half in WIDTHS:
                self.keep(offset, half * self.radius * direction)
            starts.append((offset, direction, width))
        for offset, direction, width in starts:
            if self.budget.over:
                break
            self.climb(offset, direction, width=width)

    def starts(self) -> Iterator[tuple[Tensor, float]]:
        """Yield the centre, then towards zero (normalizers are steepest there), then points on and in the sphere."""
        yield torch.zeros_like(self.centres), 0.1
        size = self.centres.norm(dim=1, keepdim=True) / math.sqrt(self.centres.shape[1])
        yield self.drawn_in(1e-2 * size * self.noise() - self.centres), 1e-3
        for far, width in ((1.0, 0.05), (0.5, 0.01)):
            offset = self.noise()
            yield far * self.radius * offset / offset.norm(dim=1, keepdim=True).clamp(min=1e-300), width

    def noise(self) -> Tensor:
        return torch.randn(self.centres.shape, generator=self.generator, dtype=torch.float64).to(self.centres)

    def keep(self, offset: Tensor, half: Tensor) -> None:
        """Remember the pairs centre + offset +- half, drawn into the ball, where they are steep."""
        with torch.no_grad():
            u, v = (self.centres + self.drawn_in(offset + sign * half) for sign in (1.0, -1.0))
            slope = (self.function(u) - self.function(v)).norm(dim=1) / (u - v).norm(dim=1)
        for i, value in enumerate(slope.tolist()):
            if math.isfinite(value):
                self.best[i] = sorted([*self.best[i], (value, u[i], v[i])], key=lambda pair: -pair[0])[:3]

    def drawn_in(self, offset: Tensor) -> Tensor:
        size = offset.norm(dim=1, keepdim=True)
        return offset * torch.clamp(self.radius / size.clamp(min=1e-300), max=1.0)

    def top_direction(self, offset: Tensor) -> Tensor:
        """A few power steps on J^T J by finite differences: only a search direction."""
        direction = self.noise()
        direction = direction / direction.norm(dim=1, keepdim=True)
        step = 1e-3 * self.radius
        for _ in range(POWERS):
            with torch.enable_grad():
                x = (self.centres + offset).detach().requires_grad_(True)
                value = self.function(x)
                with torch.no_grad():
                    change = (self.function(x + step * direction) - value) / step.clamp(min=1e-300)
                (pulled,) = gradients(value, (x,), change)
            if pulled is None:
                break
            size = pulled.norm(dim=1, keepdim=True)
            usable = size.isfinite() & (size > 0)
            direction = torch.where(usable, pulled / torch.where(usable, size, 1.0), direction)
            if not self.budget.spend():
                break
        return direction

    def climb(self, offset: Tensor, along: Tensor, *, width: float) -> None:
        """Adam on the middle and the direction of the pair."""
        half = width * self.radius
        ascents = AdamStep(offset), AdamStep(offset)
        rates = [rate / math.sqrt(offset.shape[1]) for rate in (0.1 * self.radius, 0.2 * torch.ones_like(self.radius))]
        for count in range(1, ASCENTS + 1):
            if not self.budget.spend():
                break
            offset, along = offset.detach().requires_grad_(True), along.detach().requires_grad_(True)
            with torch.enable_grad():
                unit = along / along.norm(dim=1, keepdim=True)
                u, v = (self.centres + self.drawn_in(offset + sign * half * unit) for sign in (1.0, -1.0))
                change = (self.function(u) - self.function(v)).pow(2).sum(1) / (u - v).pow(2).sum(1)
                grads = gradients(change.clamp(min=1e-60).log().sum(), (offset, along))
            moves = []
            for ascent, grad, rate in zip(ascents, grads, rates, strict=True):
                if grad is None:
                    return
                grad = grad.nan_to_num(0.0, 0.0, 0.0)
                moves.append(ascent.of(grad / grad.norm(dim=1, keepdim=True).clamp(min=1e-300), rate))
            along = along.detach() + moves[1]
            offset, along = self.drawn_in(offset.detach() + moves[0]), along / along.norm(dim=1, keepdim=True)
            if count % 10 == 0:
                self.keep(offset, half * along)
        for narrow in (0.1 * half, 0.01 * half):
            self.keep(offset, narrow * along)
