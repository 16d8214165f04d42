"""`ball_bracket`: the bracket of scope BALL, certified over each ball (`ball.py`), with pairs inside it from below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...core.bracket import Bracket, Evidence, Scope
from ...core.budget import Budget, check_time
from ...core.errors import InputError
from ...core.log10 import log10
from ...core.rounding import Upper
from ..bounding import Bounding, cut_short
from ..captured import Captured
from ..evaluation import ESTIMATED
from ..lower import ATTACK_WORK, BELOW, witness_of
from ..passes import passes
from ..secants import Secant
from .ball import Balls, Over
from .ball_attack import STEPS, strongest_pairs

ATTACK_FEWEST = 4
"""Steps of the search from below, through the largest networks and most centres."""


def ball_bracket(
    captured: Captured,
    bounding: Bounding | None = None,
    *,
    radius: float,
    effort: str = "fast",
    global_upper: Upper | None = None,
    seed: int = 0,
) -> Bracket:
    """Bracket the l2 constant of a captured model over the ball around every sample of its batch.

    Args:
        captured: the model.
        bounding: what it may cost; without limits if None.
        radius: of the balls; 0 is the Jacobian at the sample.
        effort: `"fast"` or `"tight"`.
        global_upper: a bound over all inputs, where one is known: no ball exceeds it.
        seed: of the search from below.

    Returns:
        A bracket of scope BALL that spans the largest over the samples, with one bracket per sample (`per_sample`);
        the witness is a pair of inputs inside the ball (for radius 0 there is none).

    Raises:
        InputError: the radius is negative or not finite, or the effort is unknown.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).eval()
        >>> ball_bracket(Captured.of(model, torch.ones(4, 2)), radius=0.1).scope.value
        'ball'
    """
    if radius is None or isinstance(radius, bool) or not math.isfinite(float(radius)) or float(radius) < 0:
        raise InputError(f"a ball needs a radius, a finite number >= 0, not {radius!r}")
    size, limits = float(radius), bounding or Bounding()
    tried = [
        budget.attempt(partial(_over, captured, limits, size, way), lambda: None)
        for way, budget in limits.efforts(effort)
    ]
    overs = [over for over in tried if over is not None]
    if not overs:
        return _everywhere(captured, limits.budget, global_upper)
    return _measured(captured, limits, size, overs, global_upper, seed)


def _over(captured: Captured, bounding: Bounding, radius: float, effort: str) -> Over:
    """Bound every ball from above."""
    balls = Balls(captured, bounding=bounding)
    if effort == "fast":
        check_time(balls.cost, balls.centres.device)
    over = balls.over(radius, effort=effort)
    _ = over.constant, over.ellipsoid, over.reason  # nothing is left to be worked out later
    return over


def _everywhere(captured: Captured, budget: Budget, known: Upper | None) -> Bracket:
    """Return what holds over all inputs as the bracket of every ball, where the clock leaves no time for more."""
    samples = 1 if captured.graph.samples is None else len(captured.graph.samples)
    steps = passes(captured.graph, STEPS, work=ATTACK_WORK, least=ATTACK_FEWEST, samples=samples)
    budget.search(BELOW, steps).leave_out()
    upper = known or Upper.infinite("max_seconds left no time for the balls")
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
    captured: Captured, bounding: Bounding, radius: float, overs: list[Over], global_upper: Upper | None, seed: int
) -> Bracket:
    """Search pairs inside every ball, and join them with the upper sides."""
    over, centres = overs[-1], overs[-1].balls.centres
    steps = passes(captured.graph, STEPS, work=ATTACK_WORK, least=ATTACK_FEWEST, samples=len(centres))
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


def _widest(captured: Captured, brackets: Sequence[Bracket], *, estimated: bool) -> Bracket:
    """Return the bracket that spans the largest constant over the balls, from those of single balls."""
    top = max(brackets, key=lambda bracket: bracket.log10_upper)
    seen = max(brackets, key=lambda bracket: bracket.log10_lower)
    return Bracket(
        log10_lower=seen.log10_lower,
        log10_upper=top.log10_upper,
        evidence=min(bracket.evidence for bracket in brackets),
        method=top.method,
        scope=Scope.BALL,
        mode=captured.graph.mode,
        witness=seen.witness,
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
