"""Branch and bound over activation patterns: small piecewise linear networks, down to the exact constant.

Every unit with two slopes is undecided, below its kink or above it. A node of the search tree fixes some units; the
ellipsoid certificate with those slopes fixed bounds every pattern below it. The node with the largest bound is split at
the unit whose uncertainty weighs most. A pattern is ruled out only where it is proven that no input has it
(`farkas.py`); otherwise it is kept, so that the largest bound left is an upper bound at any time.
A pattern with an interior point gives a lower bound there: inside its cell the network is linear.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...core.bracket import Bracket, Evidence
from ...core.budget import Budget, affordable
from ...core.progress import Progress
from ..ellipsoids.ellipsoid import Uncertain
from ..ellipsoids.ellipsoid_plan import EllipsoidPlan
from ..ellipsoids.optimised import Parameters, run
from ..evaluation import Values
from ..proofs.proof import Proof
from ..secants import Confirmer, Secant
from ..segments import Segments
from .feasibility import Answer, Feasibility
from .kinks import kinks

BATCH = 32
"""This many nodes of the search tree are split at a time."""
ROUNDS = 12
"""Steps of Adam on the multipliers of a new node, from those of its parent."""
STEPS, FEWEST, WORK = 100_000, 2_000, 2e11
"""Steps of the search through the smallest networks and through the largest, and sizes of layers cubed, summed over
all of them and over all steps. A step is one evaluation of the certificate of one pattern."""
BRANCHING = "the search over activation patterns"
"""How messages name this search."""
ROOM = 1e-10
"""Room for the rounding of a bound, relative to its log10."""
SAMPLES, STARTS, TRIED = 2048, 4, 8
"""Random inputs looked at from below, patterns climbed from, and flips asked for an input before a climb ends."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One node of the tree: which units are decided, by step: -1 below the kink, +1 above, 0 open."""

    signs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = field(repr=False)
    bound: float = math.inf

    @property
    def open(self) -> int:
        """How many units are undecided."""
        return sum(int((signs == 0).sum()) for signs in self.signs)


@dataclass(slots=True)
class PatternsFound:
    """Where the search stands.

    Attributes:
        log10_upper, log10_lower: the bounds.
        point: whose cell attains the lower one.
        nodes, ruled_out: how much was done.
        ended: whether its steps were used up, or the clock ended it.
    """

    log10_upper: float
    log10_lower: float
    point: Tensor | None = None
    nodes: int = 0
    ruled_out: int = 0
    ended: bool = False

    def closed(self, rtol: float) -> bool:
        """Say whether the two sides have met."""
        return self.log10_upper <= self.log10_lower + math.log10(1.0 + rtol)


def closer(
    segments: Segments, plan: EllipsoidPlan | None, bracket: Bracket, values: Values, *, budget: Budget, rtol: float
) -> Bracket:
    """Return a GLOBAL bracket with both sides improved by the search; a note says why if it does not apply."""
    slopes = None if plan is None else kinks(segments, plan)
    if plan is None or slopes is None:
        note = "no branch and bound: it takes small networks of linear maps, ReLUs, leaky ReLUs and absolute values"
        return replace(bracket, notes=(*bracket.notes, note))
    own = budget.search(BRANCHING, steps(plan))
    found = PatternSearch(segments, plan, slopes).run(
        bracket.log10_lower, rtol=rtol, budget=own, enough=bracket.log10_upper
    )
    lower, witness = bracket.log10_lower, bracket.witness
    if found.point is not None:
        graph = segments.graph
        secant = _inside(values, found.point.repeat(math.prod(plan.leading)).to(graph.flat()))
        if secant.log10 > lower and secant.pair is not None:
            lower, witness = secant.log10, (graph.split(secant.pair[0]), graph.split(secant.pair[1]))
    upper = max(found.log10_upper + ROOM, lower)
    better = upper < bracket.log10_upper
    upper = min(upper, bracket.log10_upper)
    met = upper <= lower + math.log10(1.0 + rtol) + ROOM
    done = f"{found.nodes} nodes, {found.ruled_out} patterns ruled out"
    return replace(
        bracket,
        log10_lower=lower,
        log10_upper=upper,
        method="exact" if better else bracket.method,
        evidence=Evidence.NUMERICAL if better else bracket.evidence,
        witness=witness,
        converged=met,
        advice=None if met else own.advice(bracket.advice) if own.cut else _advice(found, rtol, own),
        notes=(*bracket.notes, f"activation patterns: {done}"),
        proof=replace(bracket.proof, given=("branch and bound over activation patterns",))
        if better and isinstance(bracket.proof, Proof)
        else bracket.proof,
    )


def steps(plan: EllipsoidPlan) -> int:
    """Return how many steps the search through a network takes at most."""
    cost = sum(float(step.known.size + step.kept.numel()) ** 3 for step in plan.steps)
    return affordable(STEPS, cost, work=WORK, least=FEWEST, device=plan.output.device)


def _advice(found: PatternsFound, rtol: float, budget: Budget) -> str:
    """Say why the sides did not meet."""
    if found.closed(rtol):
        return "the tree closed on a cell in which no pair of inputs confirms its slope: it is very thin or far away"
    if found.ended:
        return f"{BRANCHING} ended after its {budget.steps:,.0f} steps: the network is too large for it"
    return (
        "a pattern could be neither reached nor ruled out in floating point, and more steps do not help; in networks "
        "without biases all cells meet in one point and many are like that"
    )


def _inside(values: Values, point: Tensor) -> Secant:
    """Return the best confirmed secant slope of short pairs around a point, along its top singular direction."""
    graph = values.steps.graph
    x = point.clone().requires_grad_(True)
    with torch.enable_grad():
        jacobian = torch.autograd.functional.jacobian(lambda flat: graph.run(*graph.split(flat)).reshape(-1), x)
    direction = torch.linalg.svd(jacobian, full_matrices=False)[2][0]
    best, confirmer = Secant(), Confirmer(values)
    for step in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        reach = step * (float(point.norm()) or 1.0)
        found = confirmer.secant(point + reach * direction, point - reach * direction, above=best.log10)
        best = found if found.log10 > best.log10 else best
    return best


class PatternSearch:
    """Best-first search; every node is bounded by a certificate of its own."""

    def __init__(self, segments: Segments, plan: EllipsoidPlan, slopes: dict[str, tuple[Tensor, Tensor]]) -> None:
        self.plan, self.slopes = plan, slopes
        self.names = [step.name for step in plan.steps]
        self.feasible = Feasibility(segments, plan, slopes)
        self.counter = itertools.count()
        self.heap: list[tuple[float, int, Pattern]] = []
        self.settled = -math.inf
        self.found = PatternsFound(math.inf, -math.inf)

    def run(self, log10_lower: float, *, rtol: float, budget: Budget, enough: float = math.inf) -> PatternsFound:
        """Search until the sides meet or the budget is over: the upper side holds any time. `enough`: a known bound."""
        self.found.log10_lower, self.found.log10_upper = log10_lower, enough
        self._sample(budget.share(0.25))
        budget.spend(10 * ROUNDS)
        self._push([self._root(enough)], budget)
        with Progress("branching") as progress:
            while self.heap and not self.found.closed(rtol):
                batch = self._take(budget)
                if batch and not budget.spend(2 * ROUNDS * len(batch)):
                    self._return(batch)
                    self.found.ended = True
                    break
                if batch:
                    self._push(self._split(batch), budget)
                self._update()
                progress.step(f"{self.found.nodes} nodes, 10^{self.found.log10_upper:.5f}")
        self._update()
        return self.found

    def _sample(self, budget: Budget) -> None:
        """Look for a good pattern from below: those of random inputs, then flips of single units of the best."""
        signs = self.feasible.patterns(SAMPLES)
        values = self._norms(signs, budget)
        for index in values.argsort(descending=True)[:STARTS].tolist():
            if budget.over:
                break
            pattern, value = signs[index], float(values[index])
            self._offer(pattern, value, budget)
            while not budget.over:
                flipped = pattern[None] * (1.0 - 2.0 * torch.from_numpy(self.feasible.twins).abs())
                flips = self._norms(flipped, budget)
                for best in flips.argsort(descending=True)[:TRIED].tolist():
                    if float(flips[best]) <= value + 1e-9 or self._offer(flipped[best], float(flips[best]), budget):
                        break
                else:
                    break
                if float(flips[best]) <= value + 1e-9:
                    break
                pattern, value = flipped[best], float(flips[best])

    def _offer(self, signs: Tensor, value: float, budget: Budget) -> bool:
        """Take a decided pattern as the lower side if an input has it; say whether one does."""
        point = self.feasible.interior([signs], budget)
        if point is not None and value > self.found.log10_lower:
            self.found.log10_lower, self.found.point = value, point
        return point is not None

    def _norms(self, signs: Tensor, budget: Budget) -> Tensor:
        """Return log10 of the norm of the linear map under decided patterns `[P, units]`; -inf once no step is left."""
        sizes = [len(self.slopes[name][0]) for name in self.names]
        parts: list[Tensor] = []
        for chunk in signs.split(max(1, 2**19 // max(sizes) ** 2)):
            if not budget.spend(len(chunk)):
                parts.append(torch.full((len(chunk),), -math.inf, dtype=torch.float64))
                continue
            batch = [Pattern(tuple(row.split(sizes)), ()) for row in chunk.to(self.plan.output.device)]
            with torch.no_grad():
                parts.append(self._bound(batch, self._undecided(len(batch)), self._radii(batch)).cpu())
        return (torch.cat(parts) / math.log(10.0)).nan_to_num(-math.inf)

    def _undecided(self, count: int) -> Parameters:
        """Parameters that are not read: nothing is open."""
        free = Parameters.of(self.plan)
        return Parameters(
            {name: value.detach().expand(count, -1) for name, value in free.weights.items()},
            {name: value.detach().expand(count) for name, value in free.thetas.items()},
        )

    def _update(self) -> None:
        bounds = [-self.heap[0][0]] if self.heap else []
        self.found.log10_upper = max([*bounds, self.settled, self.found.log10_lower])

    def _root(self, bound: float) -> Pattern:
        free = Parameters.of(self.plan)
        sizes = [len(self.slopes[name][0]) for name in self.names]
        signs = torch.from_numpy(self.feasible.start).to(self.plan.output.device).split(sizes)
        return Pattern(signs, (*free.weights.values(), *free.thetas.values()), bound)

    def _take(self, budget: Budget) -> list[Pattern]:
        """Pop the most promising nodes; those ruled out or fully decided leave the tree."""
        batch: list[Pattern] = []
        while self.heap and len(batch) < BATCH:
            bound, _, pattern = heapq.heappop(self.heap)
            if -bound <= self.found.log10_lower:
                continue
            decided = pattern.open == 0
            answer = Answer()
            if decided or self.feasible.worth_asking(pattern.signs):
                answer = self.feasible.ask(pattern.signs, budget)
            if answer.impossible:
                self.found.ruled_out += 1
            elif decided:
                self._decided(-bound, answer)
            else:
                batch.append(pattern)
        return batch

    def _return(self, batch: Sequence[Pattern]) -> None:
        """Put nodes back on the heap as they are."""
        for pattern in batch:
            heapq.heappush(self.heap, (-pattern.bound, next(self.counter), pattern))

    def _decided(self, bound: float, answer: Answer) -> None:
        """A single pattern: its bound is the norm of a matrix, and a point inside its cell attains it."""
        if answer.point is None:
            self.settled = max(self.settled, bound)
        elif bound > self.found.log10_lower:
            self.found.log10_lower, self.found.point = bound, torch.from_numpy(answer.point)

    def _split(self, batch: Sequence[Pattern]) -> list[Pattern]:
        """Decide one unit of every node, and its twins, both ways: that whose uncertainty weighs most in its bound."""
        children = []
        twins = torch.from_numpy(self.feasible.twins).to(self.plan.output.device)
        for pattern, weight in zip(batch, self._influence(batch), strict=True):
            flat = int(weight.argmax())
            for side in (-1.0, 1.0):
                signs = torch.cat(pattern.signs)
                signs = torch.where(twins[flat] != 0, side * twins[flat], signs)
                sizes = [len(s) for s in pattern.signs]
                children.append(Pattern(tuple(signs.split(sizes)), pattern.parameters, pattern.bound))
        return children

    def _influence(self, batch: Sequence[Pattern]) -> Tensor:
        """Return for every open unit how fast the bound grows with its radius."""
        radii = [radius.requires_grad_(True) for radius in self._radii(batch)]
        free = self._parameters(batch)
        with torch.enable_grad():
            log = self._bound(batch, free, radii)
            grads = torch.autograd.grad(log.sum(), radii, allow_unused=True)
        parts = [
            torch.zeros_like(r) if g is None else (g.nan_to_num() * r).abs() for g, r in zip(grads, radii, strict=True)
        ]
        weights = torch.cat([p.detach() for p in parts], dim=-1)
        undecided = torch.stack([torch.cat(p.signs) == 0 for p in batch])
        return torch.where(undecided, weights, -1.0)

    def _radii(self, batch: Sequence[Pattern]) -> list[Tensor]:
        result = []
        for index, name in enumerate(self.names):
            low, high = self.slopes[name]
            signs = torch.stack([pattern.signs[index] for pattern in batch])
            result.append(torch.where(signs == 0, (high - low).abs() / 2, 0.0))
        return result

    def _bound(self, batch: Sequence[Pattern], free: Parameters, radii: Sequence[Tensor]) -> Tensor:
        """Return the natural logarithm of the bound of every node."""
        known = {}
        for index, name in enumerate(self.names):
            low, high = self.slopes[name]
            signs = torch.stack([pattern.signs[index] for pattern in batch])
            centre = torch.where(signs == 0, (low + high) / 2, torch.where(signs < 0, low, high))
            known[name] = Uncertain(centre, radii[index], centre.shape[-1])
        done = run(self.plan, free.choose, lambda step: known[step.name])
        return free.top(done.q, "output").clamp(min=0.0).log() / 2 + done.log10_scale * math.log(10.0)

    def _parameters(self, batch: Sequence[Pattern]) -> Parameters:
        stacked = [torch.stack(parts).detach() for parts in zip(*(p.parameters for p in batch), strict=True)]
        count = len(self.names)
        return Parameters(
            dict(zip(self.names, stacked[:count], strict=True)), dict(zip(self.names, stacked[count:], strict=True))
        )

    def _push(self, patterns: Sequence[Pattern], budget: Budget) -> None:
        """Bound new nodes, a few steps of Adam on their multipliers, and put them on the heap."""
        rounds = ROUNDS if self.found.nodes else 10 * ROUNDS
        self.found.nodes += len(patterns)
        free = self._parameters(patterns)
        for parameter in free.all:
            parameter.requires_grad_(True)
        adam = torch.optim.Adam(free.all, lr=0.15 if self.found.nodes > 1 else 0.1, betas=(0.8, 0.95))
        best = torch.full((len(patterns),), math.inf, dtype=torch.float64)
        kept = [p.detach().clone() for p in free.all]
        radii = self._radii(patterns)
        for index in range(rounds):
            if budget.late and (index or all(math.isfinite(p.bound) for p in patterns)):
                break  # what bounds the parent bounds its children
            with torch.enable_grad():
                log = self._bound(patterns, free, radii)
            now = log.detach()
            better = ~now.isnan() & (now < best)  # a pattern that lets nothing through has -inf
            best = torch.where(better, now, best)
            for held, parameter in zip(kept, free.all, strict=True):
                held[better] = parameter.detach()[better]
            adam.zero_grad()
            torch.where(log.isfinite(), log, 0.0).sum().backward()
            for parameter in free.all:
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            adam.step()
        for index, pattern in enumerate(patterns):
            bound = min(float(best[index]) / math.log(10.0) + ROOM, pattern.bound)
            self._return([Pattern(pattern.signs, tuple(k[index] for k in kept), bound)])
