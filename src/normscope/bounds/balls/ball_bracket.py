"""`ball_bracket`: the bracket of scope BALL, certified over each ball (`ball.py`), with pairs inside it from below.

Pairs that the network drives far apart are searched in all balls at once, in float64; what counts is confirmed pair by
pair (`Confirmer` in `evaluation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...core.bracket import Bracket, Evidence, Scope
from ...core.budget import Budget, attempt, check_time
from ...core.effort import Effort
from ...core.errors import InputError
from ...core.log10 import log10
from ...core.rounding import Upper
from ..evaluation import ESTIMATED, Confirmer, Secant, Values
from ..graph_weights import passes
from ..lower import ATTACK_WORK, BELOW, AdamStep, gradients, witness_of
from ..operators.local.local import flat
from ..traced_network import BoundSettings, TracedNetwork, cut_short
from .ball import Balls, Over

ATTACK_FEWEST = 4
"""Steps of the search from below, through the largest networks and most centres."""


def ball_bracket(
    captured: TracedNetwork,
    bounding: BoundSettings | None = None,
    *,
    radius: float,
    effort: Effort = Effort.FAST,
    global_upper: Upper | None = None,
    seed: int = 0,
) -> Bracket:
    """Bracket the l2 constant of a captured model over the ball around every sample of its batch (`per_sample`).

    The witness is a pair of inputs inside the ball (for radius 0 there is none). `global_upper` is a bound over all
    inputs, where one is known: no ball exceeds it.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).eval()
        >>> ball_bracket(TracedNetwork.of(model, torch.ones(4, 2)), radius=0.1).scope.value
        'ball'
    """
    if radius is None or isinstance(radius, bool) or not math.isfinite(float(radius)) or float(radius) < 0:
        raise InputError(f"a ball needs a radius, a finite number >= 0, not {radius!r}")
    size, limits = float(radius), bounding or BoundSettings()
    tried = [
        budget.attempt(partial(_over, captured, limits, size, way), lambda: None)
        for way, budget in limits.efforts(effort)
    ]
    overs = [over for over in tried if over is not None]
    if not overs:
        return _everywhere(captured, limits.budget, global_upper)
    return _measured(captured, limits, size, overs, global_upper, seed)


def _over(captured: TracedNetwork, bounding: BoundSettings, radius: float, effort: Effort) -> Over:
    """Bound every ball from above."""
    balls = Balls(captured, bounding=bounding)
    if effort == Effort.FAST:
        check_time(balls.cost, balls.centres.device)
    over = balls.over(radius, effort=effort)
    _ = over.constant, over.ellipsoid, over.reason  # nothing is left to be worked out later
    return over


def _everywhere(captured: TracedNetwork, budget: Budget, global_upper: Upper | None) -> Bracket:
    """Return what holds over all inputs as the bracket of every ball, where the clock leaves no time for more."""
    samples = 1 if captured.graph.samples is None else len(captured.graph.samples)
    steps = passes(captured.graph, SEARCH_STEPS, work=ATTACK_WORK, least=ATTACK_FEWEST, samples=samples)
    budget.search(BELOW, steps).leave_out()
    upper = global_upper or Upper.infinite("max_seconds left no time for the balls")
    one = Bracket(
        log10_lower=-math.inf,
        log10_upper=upper.log10,
        evidence=min(Evidence.NUMERICAL, upper.evidence),
        method="global",
        scope=Scope.BALL,
        mode=captured.graph.mode,
        reason=upper.reason,
        input_shape=captured.graph.input_shape,
    )
    one = cut_short(one, budget)
    return replace(one, per_sample=(one,) * samples, notes=captured.graph.notes)


def _measured(
    captured: TracedNetwork,
    bounding: BoundSettings,
    radius: float,
    overs: list[Over],
    global_upper: Upper | None,
    seed: int,
) -> Bracket:
    """Search pairs inside every ball, and join them with the upper sides."""
    over, centres = overs[-1], overs[-1].balls.centres
    steps = passes(captured.graph, SEARCH_STEPS, work=ATTACK_WORK, least=ATTACK_FEWEST, samples=len(centres))
    below = bounding.budget.share(0.3).search(BELOW, steps)
    pairs = bounding.budget.attempt(
        lambda: strongest_pairs(captured.certain, centres, over.radius, budget=below, seed=seed),
        lambda: [Secant()] * len(centres),
    )
    brackets = []
    for i, secant in enumerate(pairs):
        upper, method = min(_upper(one, i, global_upper) for one in overs)
        lower = secant.log10
        if radius == 0 and over.expanded is not None:
            lower = log10(float(over.expanded.least[i]))
        brackets.append(
            Bracket(
                log10_lower=lower,
                log10_upper=upper,
                evidence=Evidence.NUMERICAL if global_upper is None else min(Evidence.NUMERICAL, global_upper.evidence),
                method=method,
                scope=Scope.BALL,
                mode=captured.graph.mode,
                witness=witness_of(captured, secant),
                reason=over.reason or "no finite bound over the ball" if upper == math.inf else None,
                advice=over.advice,
                input_shape=captured.graph.input_shape,
            )
        )
    brackets = [cut_short(bracket, bounding.budget) for bracket in brackets]
    return _widest(captured, brackets, estimated=any(secant.estimated for secant in pairs))


def _widest(captured: TracedNetwork, brackets: Sequence[Bracket], *, estimated: bool) -> Bracket:
    """Return the bracket that spans the largest constant over the balls, from those of single balls."""
    top = max(brackets, key=lambda bracket: bracket.log10_upper)
    strongest = max(brackets, key=lambda bracket: bracket.log10_lower)
    return Bracket(
        log10_lower=strongest.log10_lower,
        log10_upper=top.log10_upper,
        evidence=min(bracket.evidence for bracket in brackets),
        method=top.method,
        scope=Scope.BALL,
        mode=captured.graph.mode,
        witness=strongest.witness,
        reason=top.reason,
        converged=top.converged,
        advice=top.advice,
        input_shape=captured.graph.input_shape,
        per_sample=tuple(brackets),
        notes=(*captured.graph.notes, *captured.unrolled.notes, *((ESTIMATED,) if estimated else ())),
    )


def _upper(over: Over, i: int, global_upper: Upper | None) -> tuple[float, str]:
    """Return log10 of one ball's bound and the method that gave it."""
    value = float(over.constant[i])
    method = "composition over the ball"
    if over.expanded is not None and float(over.expanded.constant[i]) <= value:
        method = "centre and radius"
    elif float(over.ellipsoid[i]) <= value:
        method = "ellipsoid over the ball"
    exponent = log10(value) if value < math.inf else math.inf
    exponent += 4e-16 * max(1.0, abs(exponent)) if math.isfinite(exponent) else 0.0
    if global_upper is not None and global_upper.log10 <= exponent:
        return global_upper.log10, "global"
    return exponent, method


Function = Callable[[Tensor], Tensor]
WIDTHS = (1.0, 0.3, 0.05, 3e-3, 2e-4)
"""Half the distance between the two points of a pair, relative to the radius, in the order they are tried."""
INSIDE = 1 - 1e-6
"""How much of the radius is used: rounding must not carry a point out of its ball."""
POWERS, ASCENTS = 8, 30
"""How many gradients find a direction at every start, and how many climb from there."""
SEARCH_STEPS = 4 * (POWERS + ASCENTS)
"""The steps of the whole search, from four starts; a step is one gradient of all balls together."""


def strongest_pairs(values: Values, centres: Tensor, radius: Tensor, *, budget: Budget, seed: int = 0) -> list[Secant]:
    """Return per centre `[B, n]` the largest secant slope found inside its ball, with its pair; radius 0 holds none.

    A step of the budget is one gradient of all balls together. One start is always tried.
    """
    secants = [Secant()] * len(centres)
    if not bool((radius > 0).any()) or centres.shape[1] == 0 or not values.can_prove:
        return secants
    steps = values.steps
    function: Function = lambda x: flat(steps.values(x)[steps.output])  # noqa: E731
    search = _BallAscent(function, centres, radius[:, None] * INSIDE, budget, seed)
    budget.attempt(search.run, lambda: None)
    confirmer = Confirmer(values)
    for i, pairs in enumerate(search.best):
        for _, u, v in pairs:
            secant = attempt(partial(confirmer.secant, u, v, above=secants[i].log10), Secant)
            secants[i] = secant if secant.log10 > secants[i].log10 else secants[i]
    return secants


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
            self.ascend(offset, direction, width=width)

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

    def ascend(self, offset: Tensor, along: Tensor, *, width: float) -> None:
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
