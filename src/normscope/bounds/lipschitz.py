"""`lipschitz`: the bracket of a model's Lipschitz constant, in one of four scopes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from torch import nn

from ..calls.data_reader import Batches
from ..calls.stand_ins import accepts_graph
from ..core.bracket import Bracket, Evidence, Scope
from ..core.effort import SEARCHING, Effort
from ..core.errors import InputError, check_numbers
from ..core.rounding import Upper
from ..core.untouched import Mode, outside_inference_mode
from .balls.ball_bracket import ball_bracket
from .bounds_by_method import upper_sides
from .data.streaming import data_quantile
from .lower import lower_side, observed_if_any
from .outputs import per_output
from .point import jacobian_norms
from .proofs.proof import Proof
from .traced_network import BoundSettings, OnMissing, TracedNetwork, check_option

Sides = Literal["both", "upper", "lower"]
"""Which sides of a bracket are worked on."""


@accepts_graph
@outside_inference_mode
def lipschitz(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    scope: Literal["global", "point", "ball", "data"] | Scope = Scope.GLOBAL,
    radius: float | None = None,
    effort: Literal["fast", "tight"] = "fast",
    sides: Sides = "both",
    per: Literal["output", "difference", "class"] | None = None,
    share: float = 0.99,
    confidence: float = 0.95,
    samples: int | None = None,
    mode: Mode | None = None,
    output: str | int | None = None,
    on_missing: OnMissing = "error",
    known: Mapping[str, float] | None = None,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Bracket:
    """Bracket the Lipschitz constant of a model.

    GLOBAL: over all inputs of the batch's shape; the upper side is the best of all methods (named in `method`), the
    lower side a pair of inputs confirmed in float64 (`witness`). In eval mode the function is the map of one sample.
    POINT: the Jacobian norm at each sample of the batch. BALL: over all inputs within `radius` (l2) of a sample, one
    bracket for each (`per_sample`); the lower side is a pair inside the ball, and no ball exceeds GLOBAL. DATA: the
    Jacobian norm that a share of the data's distribution does not exceed, with confidence, from the norms at samples of
    a loader. It speaks of fresh independent draws, not of shifted or adversarial inputs.

    Args:
        model: any `torch.nn.Module` (or its captured graph).
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set; token models start at their embeddings. The first batch is measured; for DATA
            as many as it takes. None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        scope: the inputs for which the bracket holds. `"global"`, `"point"`, `"ball"` or `"data"`.
        radius: of the balls, in the units of the model's input.
        effort: `"fast"`: norms and closed forms; `"tight"`: also the optimised certificate, until it settles or has
            taken its steps. Over balls `"tight"` relaxes every unit.
        sides: `"upper"` or `"lower"`: that side of GLOBAL alone, without the work on the other one, which is then 0 or
            `+inf`. The search from below is most of the work on small networks.
        per: `"output"` or `"difference"`: also one bracket for every output, or for every difference of two outputs
            (logits i < j in the order of `itertools.combinations`), in `per_output`, for GLOBAL. For DATA `"class"`:
            also the quantiles of the samples of each class, for which the data have labels and are read to
            their end (`per_class`).
        mode: `"train"`, `"eval"`, or None for the mode the model is in. Train mode is a map of the whole batch.
        output: which output to measure, by name or number, for models with several.
        on_missing: `"error"`: operators without a rule raise one error that lists them; `"inf"`: go on with `+inf`.
        share: with `scope="data"`: the share of the distribution, between 0 and 1.
        confidence: with `scope="data"`: the confidence of each side, between 0 and 1.
        samples: with `scope="data"`: how many samples to read; None for as many as the confidence takes (299 for a
            share of 0.99 at 0.95, of which the largest norm is the limit). More samples give a smaller limit.
        known: constants for modules nobody can see into, by module path.
        rtol: how tight the norms of single layers are asked to be.
        max_seconds: the time limit of the whole call: searches that take longer are cut short, and the report says what
            was cut (`converged`, `advice`). The trace of the model, which every figure needs, does not count. Closed
            forms come first: they may end a quarter of the limit later (ten seconds at most), and have a second from
            the trace on; what does not fit is replaced by cheaper bounds, and otherwise no upper side is above that of
            `effort="fast"` without a limit. DATA has none: no batch is begun after the limit. Without a limit every
            search takes its own number of steps, and the same call gives the same figures.
        seed: the seed of the search from below.

    Returns:
        The bracket; `+inf` comes with the reason and the module that makes it so. For DATA a `DataBracket`, which also
        has the norm at every sample and names the samples with the largest ones (`largest`).

    Raises:
        InputError: the model does not accept the batch, or holds NaN; or an option is not what it can be.
        CaptureError: the model cannot be traced (GLOBAL); POINT still works.
        MissingRuleError: operators without a rule, listed with module path and source line.
        JacobianError: POINT of a model without a derivative there, or that cannot be traced and whose backward is not
            the derivative of its forward.

    Example:
        >>> import torch, normscope as ns
        >>> bracket = ns.lipschitz(torch.nn.Linear(2, 2, bias=False).requires_grad_(False), torch.zeros(1, 2))
        >>> bracket.lower <= bracket.upper
        True

    Reference: Than et al., Lemma 5 and Theorem 9, with the corrections of this project's documentation.
    """
    try:
        scope = Scope(scope)
    except ValueError:
        raise InputError(f'scope is "global", "point", "ball" or "data", not {scope!r}') from None
    check_option(on_missing)
    asked = Effort.of(effort, *SEARCHING)
    check_numbers(radius=radius, rtol=rtol, max_seconds=max_seconds, seed=seed)
    _check_scope(scope, radius=radius, per=per)
    _check_sides(sides, scope, per=per)
    if scope is Scope.DATA:
        return data_quantile(
            model,
            data,
            labels=labels,
            share=share,
            confidence=confidence,
            samples=samples,
            mode=mode,
            output=output,
            rtol=rtol,
            max_seconds=max_seconds,
            seed=seed,
            per=per,
        )
    bounding = BoundSettings.within(max_seconds, rtol=rtol)
    batches = Batches(model, data, labels=labels)
    batch = batches.first
    if scope is Scope.POINT:
        budget = bounding.closed_forms
        norms = jacobian_norms(model, batch, mode=mode, output=output, rtol=rtol, seed=seed, budget=budget)
        return batches.noted(norms)
    captured = TracedNetwork.of(model, batch, bounding, mode=mode, output=output, on_missing=on_missing, known=known)
    if radius is not None:
        return batches.noted(_over_balls(captured, bounding, radius, asked, seed))
    return batches.noted(_over_all_inputs(captured, bounding, asked, sides, per, seed))


def _check_scope(scope: Scope, *, radius: float | None, per: str | None) -> None:
    """Refuse options that the scope does not have, and ask for those that it needs."""
    if per is not None and scope not in (Scope.GLOBAL, Scope.DATA):
        raise InputError('per= splits GLOBAL and DATA figures: use scope="global" or scope="data"')
    if (radius is None) == (scope is Scope.BALL):
        raise InputError('scope="ball" needs radius=, and the other scopes have none')


def _check_sides(sides: str, scope: Scope, *, per: str | None) -> None:
    """Refuse one side alone where both are found together."""
    if sides not in get_args(Sides):
        raise InputError(f'sides is "both", "upper" or "lower", not {sides!r}')
    if sides == "both":
        return
    if scope is not Scope.GLOBAL:
        raise InputError(f'sides={sides!r} is for scope="global": the other scopes find both at once')
    if per is not None:
        raise InputError('per= works on both sides together: leave sides="both"')


def _not_asked(captured: TracedNetwork) -> Bracket:
    """Return the bracket of a lower side alone before that is known."""
    return Bracket(
        log10_lower=-math.inf,
        log10_upper=math.inf,
        evidence=Evidence.PROVEN,
        method="none",
        mode=captured.graph.mode,
        reason="the upper side was not asked for",
        input_shape=captured.graph.input_shape,
        notes=captured.graph.notes,
    )


def _over_all_inputs(
    captured: TracedNetwork, bounding: BoundSettings, effort: Effort, sides: str, per: str | None, seed: int
) -> Bracket:
    """Return the bracket of scope GLOBAL."""
    if sides == "lower":
        at_data = observed_if_any(captured, bounding, seed)
        return lower_side(captured, bounding, at_data, seed).under(_not_asked(captured))
    rungs = upper_sides(captured, bounding, effort)
    best = rungs["best"]
    if sides == "upper":
        return replace(best, notes=(*best.notes, "the lower side was not asked for: 0 stands in its place"))
    observed = observed_if_any(captured, bounding, seed)
    bracket = lower_side(captured, bounding, observed, seed, enough=best.log10_upper).under(best)
    if per is None:
        return bracket
    each = per_output(captured, bounding, rungs.nodes, bracket, per=per, effort=effort, seed=seed)
    return replace(bracket, per_output=each)


def _over_balls(captured: TracedNetwork, bounding: BoundSettings, radius: float, effort: Effort, seed: int) -> Bracket:
    """Return the bracket of scope BALL: every sample is measured with its own masks and ids."""
    groups = captured.groups(bounding)
    if len(groups) == 1:
        return _balls_of(groups[0][1], bounding, radius, effort, seed)
    brackets: list[Bracket] = []
    samples: dict[int, Bracket] = {}
    for position, (numbers, part) in enumerate(groups):
        share = replace(bounding, budget=bounding.budget.share(1.0 / (len(groups) - position)))
        brackets.append(_balls_of(part, share, radius, effort, seed))
        samples |= dict(zip(numbers, brackets[-1].per_sample or (), strict=True))
    top = max(brackets, key=lambda bracket: bracket.log10_upper)
    steepest = max(brackets, key=lambda bracket: bracket.log10_lower)
    return replace(
        top,
        log10_lower=steepest.log10_lower,
        witness=steepest.witness,
        evidence=min(bracket.evidence for bracket in brackets),
        per_sample=tuple(samples[number] for number in sorted(samples)),
        notes=tuple(dict.fromkeys(note for bracket in brackets for note in bracket.notes)),
        proof=None,  # one file speaks of one network
    )


def _balls_of(captured: TracedNetwork, bounding: BoundSettings, radius: float, effort: Effort, seed: int) -> Bracket:
    """Return the bracket over balls; every ball has what a checker needs: the network, the centre, the radius.

    The model must give what the graph gives at the centres.
    """
    captured.check_at(*captured.points)
    best = upper_sides(captured, bounding, effort)["best"]
    global_upper = Upper(best.log10_upper, best.evidence, best.method, best.reason)
    bracket = ball_bracket(captured, bounding, radius=radius, effort=effort, global_upper=global_upper, seed=seed)
    assert isinstance(best.proof, Proof)
    proof = replace(best.proof, radius=radius)
    samples = [
        replace(one, proof=replace(proof, centre=centre))
        for one, centre in zip(bracket.per_sample or (), captured.points, strict=True)
    ]
    notes = tuple(dict.fromkeys((*bracket.notes, *best.notes)))
    return replace(bracket, per_sample=tuple(samples), proof=proof, notes=notes)
