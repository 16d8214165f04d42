"""The lower side of a captured graph: Jacobians at the batch, and pairs of inputs found from there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from ..core.bracket import Bracket
from ..core.budget import Budget
from ..core.errors import JacobianError
from .bounding import Bounding, cut_short
from .captured import Captured
from .evaluation import ESTIMATED
from .global_attack import lower_bound
from .passes import multiplications, passes
from .point import STEP_PASSES, first_samples, jacobian_norms
from .secants import Secant

ATTACK_STEPS, ATTACK_FEWEST = 600, 6
"""Steps of the search from below, gradients and pairs in float64, through small networks and through the largest."""

ATTACK_WORK = 1.5e10
"""Multiplications that all steps of the search from below may take together, one forward pass counted for each."""

PAIRS_WORK = 2e9
"""Multiplications of one pass up to which pairs along directions seen are confirmed where no search is asked for."""

PAIRS_POINTS, PAIRS_FEWER = 3, 1e8
"""Points at which such pairs are tried, those with the largest Jacobians; and multiplications of one pass above which
only the first is, where no search is asked for."""

OBSERVED_SAMPLES, OBSERVED_STEPS, OBSERVED_FEWEST = 8, 60, 4
"""Jacobians are taken at so many samples of the batch, each in so many steps of Lanczos; large networks take fewer."""

OBSERVED_WORK = 1.5e11
"""Multiplications for these Jacobians."""

OBSERVED_SHARE, ATTACK_SHARE = 0.3, 0.7
"""Of the time that is left, where it is limited: what the Jacobians may take, and what the search from below may, whose
pairs are then confirmed."""

OBSERVED_RTOL = 1e-2
"""How closely these Jacobian norms are taken: they are compared with bounds, and start a search."""

USUAL_STEPS = 10
"""Steps of Lanczos that most networks need."""

NOT_SEARCHED = "the lower side comes from the Jacobians at the data, without a search: lipschitz searches further"
TOO_LARGE = "the network is large and no search was asked for, so there is no lower side: lipschitz searches for one"
BELOW = "the search from below"

Witness = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Two inputs, each as the tensors that the graph takes."""


def observed(captured: Captured, seed: int, budget: Budget | None = None) -> Bracket:
    """Return the Jacobian norms at the first samples of the batch; raises JacobianError where there is none.

    How many samples and steps there are is counted from shapes, so that `audit`, `ladder` and `lipschitz` see the
    same Jacobians and start the same search from them.
    """
    graph, work = captured.graph, OBSERVED_WORK / STEP_PASSES
    samples = passes(graph, OBSERVED_SAMPLES, work=work / USUAL_STEPS)
    there = 1 if graph.samples is None else len(graph.samples)
    samples = there if 2 * samples > there else samples  # the graph of the whole batch exists already
    steps = passes(graph, OBSERVED_STEPS, work=work, samples=samples, least=OBSERVED_FEWEST)
    return jacobian_norms(
        captured.model,
        first_samples(captured.batch, samples) if graph.per_sample else captured.batch,
        mode=captured.mode,
        output=captured.output,
        rtol=OBSERVED_RTOL,
        steps=steps,
        seed=seed,
        graph=captured.traced,
        budget=budget,
    )


def observed_if_any(captured: Captured, bounding: Bounding, seed: int) -> Bracket | None:
    """Return the Jacobian norms at the batch, or None where there are none or no time is left for them."""
    budget = Budget() if captured.tiny else bounding.budget.share(OBSERVED_SHARE)
    try:
        return budget.attempt(lambda: observed(captured, seed, budget), lambda: None)
    except JacobianError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerSide:
    """What was found from below; it completes every bracket of the same network.

    Attributes:
        log10: of the slope between two inputs; `-inf` where none was found.
        witness: the two inputs.
        notes: what is said of it.
        search: the budget that it was searched with.
        whole: what that is a part of.
    """

    log10: float = -math.inf
    witness: Witness | None = None
    notes: tuple[str, ...] = ()
    search: Budget
    whole: Budget

    def under(self, bracket: Bracket) -> Bracket:
        """Return a bracket with this lower side, which says what the clock cut short."""
        notes = (*bracket.notes, *self.notes)
        known = replace(bracket, log10_lower=self.log10, witness=self.witness, notes=notes)
        return cut_short(known, self.search, self.whole)


def lower_side(
    captured: Captured,
    bounding: Bounding,
    seen: Bracket | None,
    seed: int,
    *,
    enough: float = math.inf,
    search: bool = True,
) -> LowerSide:
    """Look for pairs of inputs where the Jacobian was seen to be largest, and search from there.

    Nothing can be gained once a pair meets `enough`, log10 of the upper side. Without `search` the pairs at the batch
    are all, and the result says so.
    """
    whole, tiny = bounding.budget, captured.tiny
    if not search and multiplications(captured.graph) > PAIRS_WORK:
        return LowerSide(notes=(TOO_LARGE,), search=whole, whole=whole)
    steps = passes(captured.graph, ATTACK_STEPS, work=ATTACK_WORK, least=ATTACK_FEWEST)
    below = whole.share(ATTACK_SHARE).search(BELOW, steps)
    values = (Budget() if tiny else below).attempt(lambda: captured.certain, lambda: None)
    found = Secant()
    if values is not None:
        found = (Budget() if tiny else whole).attempt(
            lambda: lower_bound(
                captured.graph,
                captured.double,
                budget=below,
                seed=seed,
                promising=_promising(captured, seen, search=search),
                enough=enough,
                values=values,
                climb=search,
                leave=not tiny,
            ),
            Secant,
        )
    notes = () if search else (NOT_SEARCHED,)
    return LowerSide(
        log10=found.log10,
        witness=witness_of(captured, found),
        notes=(*notes, ESTIMATED) if found.estimated else notes,
        search=below,
        whole=whole,
    )


def witness_of(captured: Captured, found: Secant) -> Witness | None:
    """Return a pair as the tensors that the graph takes; None without one."""
    if found.pair is None:
        return None
    u, v = found.pair
    return captured.double.split(u), captured.double.split(v)


def _promising(captured: Captured, seen: Bracket | None, *, search: bool) -> list[tuple[Tensor, Tensor | None]]:
    """Return the points with the largest Jacobians, each with the direction that grows most, if that is known."""
    if seen is None or not seen.per_sample:
        return []
    ranked = sorted(zip(seen.per_sample, captured.points), key=lambda pair: -pair[0].log10_lower)
    few = PAIRS_POINTS if search or multiplications(captured.graph) <= PAIRS_FEWER else 1
    return [(point, one.witness if one.witness.numel() == point.numel() else None) for one, point in ranked[:few]]
