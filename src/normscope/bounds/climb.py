"""Both sides of a captured graph: every rung with one lower side, and branch and bound where it is asked for."""

from __future__ import annotations

from dataclasses import replace

from ..core.bracket import Bracket
from ..core.budget import Budget
from .bounding import Bounding, cut_short
from .captured import Captured
from .lower import lower_side
from .patterns import closer
from .rungs import Rungs, upper_sides

EXACT_RTOL = 1e-6
"""Where the two sides count as met in branch and bound."""


def climb(
    captured: Captured,
    bounding: Bounding,
    observed: Bracket | None,
    seed: int,
    effort: str = "fast",
    *,
    search: bool = True,
    proofs: bool = True,
) -> Rungs:
    """Return every rung, with one lower side shared by all that bound the network.

    Without `search` the lower side comes from pairs at the batch alone; `proofs` keeps what a checker needs.
    """
    rungs = upper_sides(captured, bounding, effort, proofs=proofs)
    lower = lower_side(captured, bounding, observed, seed, enough=rungs["best"].log10_upper, search=search)
    best = lower.under(rungs["best"])
    if effort == "exact":
        best = exact(captured, bounding, rungs, best)
        rungs = replace(rungs, brackets=rungs.brackets | {"exact": best})
    return shared(rungs, best, lower.search, observed)


def shared(rungs: Rungs, best: Bracket, search: Budget, observed: Bracket | None) -> Rungs:
    """Return rungs with the lower side of the best one; Jacobian norms `observed` at the batch are the last rung."""
    brackets = {
        name: replace(b, log10_lower=best.log10_lower, witness=best.witness, notes=best.notes) if b.holds else b
        for name, b in rungs.items()
        if name != "best"
    }
    brackets = {name: cut_short(rung, search) for name, rung in brackets.items()} | {"best": best}
    return replace(rungs, brackets=brackets if observed is None else brackets | {"observed": observed})


def exact(captured: Captured, bounding: Bounding, rungs: Rungs, bracket: Bracket) -> Bracket:
    """Close a bracket further by branch and bound over activation patterns, where the network allows it."""
    budget = bounding.budget
    return budget.attempt(
        lambda: closer(captured.segments, rungs.plan, bracket, captured.certain, budget=budget, rtol=EXACT_RTOL),
        lambda: cut_short(bracket, budget),
    )
