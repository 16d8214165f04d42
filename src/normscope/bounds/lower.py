"""The lower side of a captured graph: Jacobians at the batch, and pairs of inputs found from there by ascent.

Search in the model's own precision, then confirm: a pair (u, v) in float64 proves norm(f(u) - f(v))/norm(u - v) from
below, less a bound on the rounding errors of both ends (`evaluation.py`). A Jacobian at a kink proves nothing:
x - (relu(x) - relu(-x)) has Jacobian 1 at 0 and constant 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..core.bracket import Bracket
from ..core.budget import Budget, attempt
from ..core.errors import JacobianError
from ..core.log10 import norm as l2
from .evaluation import ESTIMATED, Confirmer, Secant, Values, apart
from .graph.ir import Graph
from .graph_weights import multiplications, passes
from .point import STEP_PASSES, first_samples, jacobian_norms
from .traced_network import BoundSettings, TracedNetwork, cut_short

Function = Callable[[Tensor], Tensor]
PAIR_STEPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Half the distance between the two points of a pair, relative to the size of the input."""
MET = 4e-7
"""A pair whose log10 is this close to the upper side meets it."""


def lower_bound(
    graph: Graph,
    double: Graph,
    *,
    budget: Budget,
    seed: int = 0,
    restarts: int = 8,
    promising: Sequence[tuple[Tensor, Tensor | None]] = (),
    enough: float = math.inf,
    values: Values | None = None,
    climb: bool = True,
    leave: bool = True,
) -> Secant:
    """Return the largest secant slope found, with its pair, confirmed in float64 (`double`).

    A step of the budget is one gradient or one pair in float64; pairs are confirmed under the clock of the work that
    this is a part of. `promising` points have a direction to try first or None (the captured input if empty). Nothing
    can be gained once a pair meets `enough`, log10 of the upper side. Without `leave` one start is tried whatever the
    clock says; without `climb` only the pairs along the promising directions.
    """
    values = Values.of(double) if values is None else values
    if not values.can_prove:
        return Secant()
    generator = torch.Generator(device="cpu").manual_seed(seed)
    start = graph.flat().detach()
    searched = graph if start.dtype is torch.float32 else double
    candidates = Candidates(values)
    dtype = searched.flat().dtype
    starts = _starts(promising or [(start, None)], generator, restarts if climb else 0)

    def run(flat: Tensor) -> Tensor:
        return searched.run(*searched.split(flat)).reshape(-1)

    def search() -> None:
        for index, (point, direction) in enumerate(starts):
            if index > 0 and (budget.over or candidates.meet(enough - MET)):
                break
            for u, v in _climb_pairs(run, point.to(start.device, dtype), direction, generator, budget, climb):
                budget.spend()
                candidates.add(u.double(), v.double())

    (budget if leave else Budget()).attempt(search, lambda: None)
    return candidates.confirmed()


@dataclass(slots=True)
class InputPair:
    """Two flat float64 inputs, log10 of the slope between them as computed, and what they prove once it was asked."""

    slope: float
    u: Tensor
    v: Tensor
    proved: Secant | None = None


class Candidates:
    """Pairs by their slope as computed; only the best are confirmed, which takes several times as long.

    The steepest pairs of every order of distance are kept: rounding fakes the slopes of the closest ones.
    """

    kept = 2

    def __init__(self, values: Values) -> None:
        self.values, self.confirmer = values, Confirmer(values)
        self.pairs: dict[int, list[InputPair]] = {}

    def add(self, u: Tensor, v: Tensor) -> None:
        """Remember a pair of flat float64 inputs where it is steep."""
        length, (far, _) = float(l2(u - v)), apart(self.values.plain(torch.stack([u, v])))
        if not (math.isfinite(length) and math.isfinite(far) and length > 0 and far > 0):
            return
        near = self.pairs.setdefault(round(math.log10(length)), [])
        near.append(InputPair(math.log10(far) - math.log10(length), u, v))
        near.sort(key=lambda pair: -pair.slope)
        del near[self.kept :]

    def meet(self, enough: float) -> bool:
        """Say whether a pair proves a slope of at least so much; nothing is confirmed that could not."""
        steepest = max((pair.slope for near in self.pairs.values() for pair in near), default=-math.inf)
        return steepest >= enough and self.confirmed().log10 >= enough

    def confirmed(self) -> Secant:
        """Return the largest slope that a pair proves."""
        best = Secant()
        for pair in sorted((pair for near in self.pairs.values() for pair in near), key=lambda pair: -pair.slope):
            if pair.slope <= best.log10:
                break
            if pair.proved is None:
                pair.proved = attempt(partial(self.confirmer.secant, pair.u, pair.v), lambda: None)
            if pair.proved is not None and pair.proved.log10 > best.log10:
                best = pair.proved
        return best


def _starts(
    promising: Sequence[tuple[Tensor, Tensor | None]], generator: torch.Generator, restarts: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The data, then random points around it and around zero at several scales."""
    yield from promising
    point = promising[0][0]
    size = float(point.double().pow(2).mean().sqrt()) or 1.0
    for number in range(restarts):
        noise = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
        scale, centre = ((1e-3, 0.0), (1.0, 0.0), (0.1, 1.0), (10.0, 0.0))[number % 4]
        yield centre * point + scale * size * noise, None  # near zero first: there normalizers are steepest


def _climb_pairs(
    function: Function,
    point: Tensor,
    direction: Tensor | None,
    generator: torch.Generator,
    budget: Budget,
    climb: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs: along a direction that is known or from power iteration, then from ascent on the secant slope."""
    direction = _top_direction(function, point, generator, budget) if direction is None else direction.to(point)
    size = float(point.double().norm()) or 1.0
    for step in PAIR_STEPS:
        yield point + step * size * direction, point - step * size * direction
    if not climb:
        return
    centre, along = point.clone(), direction.clone()
    ascents = AdamStep(point), AdamStep(point)
    width = 0.02 * size
    for count in range(1, 31):
        if not budget.spend():
            break
        centre.requires_grad_(True)
        along.requires_grad_(True)
        with torch.enable_grad():
            unit = along / along.norm()
            change = function(centre + width * unit) - function(centre - width * unit)
            score = change.pow(2).sum().clamp(min=1e-60).log()
            grads = gradients(score, (centre, along))
        centre, along = centre.detach(), along.detach()
        usable = [grad for grad in grads if grad is not None and bool(torch.isfinite(grad).all())]
        if len(usable) < 2:
            break
        rates = (0.02 * size / math.sqrt(point.numel()), 0.1 / math.sqrt(point.numel()))
        moves = [ascent.of(grad, rate) for ascent, grad, rate in zip(ascents, usable, rates, strict=True)]
        centre, along = centre + moves[0], along + moves[1]
        along = along / along.norm()
        if count % 10 == 0:
            yield centre + width * along, centre - width * along
    for step in PAIR_STEPS[1:]:
        yield centre + step * size * along, centre - step * size * along


class AdamStep:
    """The steps of Adam for one tensor.

    `torch.optim.Adam` takes no rate per row, as balls of several radii need, and rounds in another order: in float32
    the pairs it ends at are other ones.
    """

    def __init__(self, like: Tensor) -> None:
        self.first, self.second, self.count = torch.zeros_like(like), torch.zeros_like(like), 0

    def of(self, grad: Tensor, rate: float | Tensor) -> Tensor:
        """Return the next step upwards; the rate is a number, or one for every row."""
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * grad
        self.second = 0.99 * self.second + 0.01 * grad * grad
        first, second = self.first / (1 - 0.9**self.count), self.second / (1 - 0.99**self.count)
        return rate * first / (second.sqrt() + 1e-30)


def gradients(value: Tensor, inputs: Sequence[Tensor], along: Tensor | None = None) -> tuple[Tensor | None, ...]:
    """Return gradients, or None where autograd has none to give (cut paths, operators without a derivative)."""
    if not value.requires_grad:
        return (None,) * len(inputs)
    try:
        return torch.autograd.grad(value, inputs, along, allow_unused=True, retain_graph=True)
    except (RuntimeError, NotImplementedError):
        return (None,) * len(inputs)


def _top_direction(function: Function, point: Tensor, generator: torch.Generator, budget: Budget) -> Tensor:
    """A few power steps on J^T J with finite-difference products: only a search direction, nothing is claimed of it."""
    direction = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
    direction = direction / direction.norm()
    size = float(point.double().norm()) or 1.0
    step = 1e-3 * size if point.dtype != torch.float64 else 1e-5 * size
    for _ in range(12):
        x = point.detach().requires_grad_(True)
        with torch.enable_grad():
            value = function(x)
            with torch.no_grad():
                change = (function(point + step * direction) - value) / step
            (pulled,) = gradients(value, (x,), change)
        length = math.nan if pulled is None else float(pulled.norm())
        if pulled is None or not math.isfinite(length) or length == 0:
            return direction
        direction = pulled.detach() / length
        if not budget.spend():
            break
    return direction


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


def observed(captured: TracedNetwork, seed: int, budget: Budget | None = None) -> Bracket:
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


def observed_if_any(captured: TracedNetwork, bounding: BoundSettings, seed: int) -> Bracket | None:
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
        joined = replace(bracket, log10_lower=self.log10, witness=self.witness, notes=notes)
        return cut_short(joined, self.search, self.whole)


def lower_side(
    captured: TracedNetwork,
    bounding: BoundSettings,
    at_data: Bracket | None,
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
    secant = Secant()
    if values is not None:
        secant = (Budget() if tiny else whole).attempt(
            lambda: lower_bound(
                captured.graph,
                captured.double,
                budget=below,
                seed=seed,
                promising=_promising(captured, at_data, search=search),
                enough=enough,
                values=values,
                climb=search,
                leave=not tiny,
            ),
            Secant,
        )
    notes = () if search else (NOT_SEARCHED,)
    return LowerSide(
        log10=secant.log10,
        witness=witness_of(captured, secant),
        notes=(*notes, ESTIMATED) if secant.estimated else notes,
        search=below,
        whole=whole,
    )


def witness_of(captured: TracedNetwork, secant: Secant) -> Witness | None:
    """Return a pair as the tensors that the graph takes; None without one. The model must give what the graph gives."""
    if secant.pair is None:
        return None
    u, v = secant.pair
    captured.check_at(u, v)
    return captured.double.split(u), captured.double.split(v)


def _promising(captured: TracedNetwork, at_data: Bracket | None, *, search: bool) -> list[tuple[Tensor, Tensor | None]]:
    """Return the points with the largest Jacobians, each with the direction that grows most, if that is known."""
    if at_data is None or not at_data.per_sample:
        return []
    ranked = sorted(zip(at_data.per_sample, captured.points), key=lambda pair: -pair[0].log10_lower)
    few = PAIRS_POINTS if search or multiplications(captured.graph) <= PAIRS_FEWER else 1
    return [(point, one.witness if one.witness.numel() == point.numel() else None) for one, point in ranked[:few]]
