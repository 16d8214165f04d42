"""Branch and bound over activation patterns: small piecewise linear networks, down to the exact constant.

Every unit with two slopes is open, below its kink or above it. A node of the search tree decides some units; the
ellipsoid certificate with their slopes fixed bounds every pattern below it. The node with the largest bound is split at
the units whose uncertainty weighs most. A pattern is ruled out only where it is proven that no input has it; otherwise
it is kept, so that the largest bound left is an upper bound at any time. A pattern with an interior point gives a lower
bound there: inside its cell the network is linear.

In the cell of a pattern a decided unit with slope s_i reads v_i = W_i (x, s v) + c_i, on its side: side_i v_i >= 0. An
open unit hands on a value of which nothing is known. HiGHS looks for the input that is furthest inside. What it says of
a cell that is thin or far away cannot be relied upon, and no tolerance would do, since inputs may be arbitrarily large.
So its multipliers y only name the rows of G z <= h that may contradict each other. They do if y is positive on the
inequalities, y G = 0 exactly and y h < 0 (Farkas). Where these rows are one more than the variables they read, y is the
only solution of a square system, and an enclosure of it, with all rounding, shows the signs (Rump 2010, section 10:
norm(I - R A) < 1). Every other pattern is kept, which can only make the bound larger.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.bracket import Bracket, Evidence
from ..core.budget import Budget, affordable
from ..core.log10 import ceiling10
from ..core.rounding import UNIT, gamma
from ..linalg.convolution_map import Convolution
from ..linalg.folding import slice_map
from ..linalg.linear_map import Diagonal, Identity, LinearMap, Matrix, Reindex
from ..linalg.operator_norms import upper
from ..linalg.writing import lost, write_out
from ..rules.effects import Elementwise, Linear
from ..rules.registry import activation_of
from .captured import Bounding, Captured, cut_short
from .ellipsoids.ellipsoid import Uncertain, balanced, largest
from .ellipsoids.ellipsoid_plan import EllipsoidPlan, EllipsoidStep, StateChange
from .ellipsoids.optimised import run
from .evaluation import Values
from .lower import lower_bound
from .minimise import minimise
from .proofs.proof import Proof
from .rungs import Rungs
from .segments import Segments

SPLIT, ROUNDS, PROGRAM = 3, 12, 20
"""Units that a node is split at, steps of Adam on the multipliers of a node, and steps that a linear program counts."""
STEPS, FEWEST, WORK = 100_000, 2_000, 5e10
"""Steps of the search through the smallest networks and through the largest, and sizes of layers cubed, summed over
all of them and over all steps. A step is one evaluation of the certificate of one node."""
MOST_UNITS = 128
"""Networks with more units are not tried: a tree of so many steps would not get anywhere."""
REACH = 120.0
"""log10 of the largest or smallest product of coefficients along the network: squares of others might be no floats."""
LOG10_ROOM, ROOM = 1e-10, 1.0 + 1e-9
"""Room for the rounding of the bound of a node, in log10, and for that of any sum of positive numbers taken here."""
TINY = 1e-30
"""The multiplier of decided units, which need none: roots of 0 have no slope."""
INSIDE = 1e-9
"""How far inside its cell, relative to the rows, an input must be to count."""
EQUAL, WEAK, STRICT = 0.0, 1.0, 2.0
"""Kinds of rows of a linear program."""
ENTRIES, ROUNDING = 8.0 * UNIT, 1e-13
"""How far products of two numbers may be off, and maps and constants made of several layers, relative to their size."""


def closer(
    segments: Segments, plan: EllipsoidPlan | None, bracket: Bracket, values: Values, *, budget: Budget, rtol: float
) -> Bracket:
    """Return a GLOBAL bracket with both sides improved by the search; a note says why if it does not apply."""
    slopes = None if plan is None else two_slopes(segments, plan)
    if plan is None or slopes is None:
        units = f"up to {MOST_UNITS} ReLUs, leaky ReLUs and absolute values"
        note = f"no branch and bound: it takes networks of linear maps and {units}, with coefficients of moderate size"
        met = bracket.converged and _meet(bracket.log10_lower, bracket.log10_upper, rtol)
        advice = bracket.advice or (None if met else note)
        return replace(bracket, converged=met, advice=advice, notes=(*bracket.notes, note))
    steps = affordable(STEPS, sum(step.cost for step in plan.steps), work=WORK, least=FEWEST, device=slopes.device)
    own = budget.search("the search over activation patterns", steps)
    search = PatternSearch(segments, plan, slopes, bracket.log10_lower, bracket.log10_upper)
    search.run(rtol, own)
    lower, witness, graph, proof = bracket.log10_lower, bracket.witness, segments.graph, bracket.proof
    if search.point is not None:
        inside = search.point.repeat(math.prod(plan.leading)).to(graph.flat())
        jacobian = torch.autograd.functional.jacobian(lambda x: graph.run(*graph.split(x)).reshape(-1), inside)
        pair = inside, torch.linalg.svd(jacobian, full_matrices=False)[2][0]
        secant = lower_bound(graph, graph, budget=Budget(), promising=[pair], values=values, climb=False)
        if secant.log10 > lower and secant.pair is not None:
            lower, witness = secant.log10, (graph.split(secant.pair[0]), graph.split(secant.pair[1]))
    upper = max(search.log10_upper, lower)
    better, upper = upper < bracket.log10_upper, min(upper, bracket.log10_upper)
    met = _meet(lower, upper, rtol)
    if better and isinstance(proof, Proof):
        proof = replace(proof, given=("branch and bound over activation patterns",))
    return replace(
        bracket,
        log10_lower=lower,
        log10_upper=upper,
        method="exact" if better else bracket.method,
        evidence=Evidence.NUMERICAL if better else bracket.evidence,
        witness=witness,
        converged=met,
        advice=None if met else own.advice(bracket.advice) if own.cut else _advice(search, rtol, own),
        notes=(*bracket.notes, f"activation patterns: {search.nodes} nodes, {search.ruled_out} patterns ruled out"),
        proof=proof,
    )


def _meet(log10_lower: float, log10_upper: float, rtol: float) -> bool:
    """Say whether two sides agree to a tolerance."""
    return log10_upper <= log10_lower + math.log10(1.0 + rtol) + LOG10_ROOM


def _advice(search: PatternSearch, rtol: float, budget: Budget) -> str:
    """Return why the sides did not meet."""
    if search.closed(rtol):
        return "the tree closed on a cell in which no pair of inputs confirms its slope: it is very thin or far away"
    if search.ended:
        return f"{budget.what} ended after its {budget.steps:,.0f} steps: the network is too large for it"
    return "a pattern could be neither reached nor ruled out in floating point, and more steps do not help"


def two_slopes(segments: Segments, plan: EllipsoidPlan) -> Tensor | None:
    """Return the slopes of all units below and above zero, `[2, units]`; None where there is no such search."""
    graph, slopes = segments.graph, []
    for step in plan.steps:
        activation = activation_of(graph.node(step.name))
        pair = None if activation is None or activation.evidence is not Evidence.PROVEN else activation.two_slopes
        if pair is None or not isinstance(segments.effects[step.name], Elementwise):
            return None
        slopes.append(torch.tensor(pair, dtype=torch.float64)[:, None].expand(2, step.known.size))
    if not slopes or not set(plan.start) <= {item.name for item in graph.inputs}:
        return None
    matrices = [*slopes, plan.output, *(step.form for step in plan.steps if step.form is not None)]
    matrices += [change.matrix for change in plan.operations if isinstance(change, StateChange)]
    logs = [matrix[matrix != 0].log10().abs() for matrix in map(torch.abs, matrices)]
    rows = [row.reshape(math.prod(plan.leading), -1) for row in _constants(segments, plan)]
    alike = all(bool((row == row[:1]).all()) for row in rows)  # else slices have different patterns
    moderate = sum(float(log.amax()) for log in logs if log.numel()) < REACH
    together = torch.cat(slopes, dim=1).to(plan.output.device)
    return together if alike and moderate and together.shape[1] <= MOST_UNITS else None


class PatternSearch:
    """Best-first search for `log10_lower`, attained in the cell of `point`, and `log10_upper`, a bound at any time."""

    def __init__(
        self, segments: Segments, plan: EllipsoidPlan, slopes: Tensor, lower: float = -math.inf, upper: float = math.inf
    ) -> None:
        self.plan, (self.low, self.high) = plan, slopes
        self.cells = Cells(segments, plan, slopes.cpu().numpy())
        self.log10_lower, self.log10_upper = lower, upper
        self.point: Tensor | None = None
        self.nodes, self.ruled_out, self.ended = 0, 0, False
        self._heap: list[tuple[float, int, Tensor, Tensor, Tensor]] = []

    def closed(self, rtol: float) -> bool:
        """Return whether the two sides have met."""
        return self.log10_upper <= self.log10_lower + math.log10(1.0 + rtol)

    def run(self, rtol: float, budget: Budget) -> None:
        """Search until the sides meet or the budget is over."""
        starts = [balanced(step.known, alone=step.kept.numel() == 0) for step in self.plan.steps]
        thetas = torch.stack([(factor * weights.amax()).clamp(1e-12, 1 - 1e-12) for weights, factor in starts])
        undecided, kept = torch.zeros_like(self.low), -math.inf
        self._push(undecided[None], torch.cat([undecided, thetas.logit()]), self.log10_upper, budget)
        while True:
            self.log10_upper = max([kept, self.log10_lower, *(-top for top, *_ in self._heap[:1])])
            self.ended = budget.over
            if self.ended or self.closed(rtol) or self.log10_upper == kept or not self._heap:
                return
            bound, _, signs, parameters, units = heapq.heappop(self._heap)
            few = int((signs != 0).sum()) <= self.cells.inputs  # in general position all of these occur
            impossible, point = (False, None) if few and len(units) else self.cells.ask(signs, budget)
            if impossible:
                self.ruled_out += 1
            elif len(units):
                sides = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).to(signs)] * len(units))
                children = signs.repeat(2 ** len(units), 1)
                children[:, units] = sides.reshape(len(children), len(units))
                self._push(children, parameters, -bound, budget)
            elif point is None:
                kept = max(kept, -bound)
            else:
                self.log10_lower, self.point = -bound, point

    def _push(self, signs: Tensor, parameters: Tensor, above: float, budget: Budget) -> None:
        """Bound the children of a node, by a few steps of Adam on their multipliers, and put them on the heap."""
        self.nodes += len(signs)
        budget.spend(ROUNDS * len(signs))
        centre = torch.where(signs == 0, (self.low + self.high) / 2, torch.where(signs < 0, self.low, self.high))
        radius = torch.where(signs == 0, (self.high - self.low).abs() / 2, 0.0).requires_grad_(True)
        parameters = parameters.repeat(len(signs), 1).requires_grad_(True)
        start = (torch.full_like(signs[:, 0], math.inf), parameters.detach().clone(), torch.zeros_like(signs))
        best, kept, slope = minimise(
            [parameters],
            lambda: (self._log10(centre, radius, parameters), parameters),  # -inf where nothing gets through
            start,
            turns=range(0 if budget.late else ROUNDS),
            rate=0.15,
            betas=(0.8, 0.95),
            watched=[radius],
        )
        influence = (slope * radius.detach()).abs()
        for row, bound in enumerate((best + LOG10_ROOM).tolist()):
            weights, units = influence[row].topk(min(SPLIT, len(self.low)))
            order = -min(bound, above), self.nodes - row
            heapq.heappush(self._heap, (*order, signs[row], kept[row], units[weights > 0]))

    def _log10(self, centre: Tensor, radius: Tensor, parameters: Tensor) -> Tensor:
        """Return log10 of the bounds of nodes: sigma = theta d/lambda_max(D^(1/2) Q_vv D^(1/2)) is always feasible."""
        sizes = [step.known.size for step in self.plan.steps]
        logs, logits = parameters.split([sum(sizes), len(sizes)], dim=1)
        parts = (part.split(sizes, dim=1) for part in (centre, radius, logs))
        parts_of = {step.name: part for step, *part in zip(self.plan.steps, *parts, logits.T, strict=True)}

        def choose(step: EllipsoidStep, uncertain: Uncertain, qvv: Tensor, log: float) -> Tensor:
            weights = balanced(uncertain, alone=True)[0].clamp(min=TINY) * parts_of[step.name][2].exp()
            top = largest(weights.sqrt()[..., :, None] * qvv * weights.sqrt()[..., None, :]).clamp(min=1e-300)
            return torch.where(uncertain.radius > 0, (parts_of[step.name][3].sigmoid() / top)[:, None] * weights, TINY)

        done = run(self.plan, choose, lambda s: Uncertain(parts_of[s.name][0], parts_of[s.name][1], s.known.size))
        return largest(done.q).clamp(min=0.0).log10() / 2 + done.log10_scale


class Cells:
    """The cells of a network: by unit its row over inputs and units, how far that may be off, and its constant."""

    def __init__(self, segments: Segments, plan: EllipsoidPlan, slopes: np.ndarray) -> None:
        copies, count = math.prod(plan.leading), slopes.shape[1]
        sizes = {item.name: item.value.numel() // copies for item in segments.graph.inputs}
        self.inputs, self.slopes = sum(sizes.values()), slopes
        sizes |= {step.name: step.known.size for step in plan.steps}
        ends = dict(zip(sizes, itertools.accumulate(sizes.values()), strict=True))
        self.rows, self.off = np.zeros((2, count, self.inputs + count))
        for step in plan.steps:
            units = slice(ends[step.name] - sizes[step.name] - self.inputs, ends[step.name] - self.inputs)
            for source, linear in segments.atoms[step.name].operands[0].items():
                one, read = slice_map(linear, plan.leading), slice(ends[source] - sizes[source], ends[source])
                assert one is not None, "the plan would not have been made"
                self.rows[units, read] = write_out(one).cpu().numpy()
                self.off[units, read] = _doubt(one, self.rows[units, read])
        constants = [row.reshape(copies, -1)[0].cpu().numpy() for row in _constants(segments, plan)]
        self.constants = np.concatenate(constants)
        self.sizes = np.linalg.norm(self.rows, axis=1) + np.abs(self.constants)
        self.constants_off = ROUNDING * self.sizes * self.off.any(axis=1)
        first, behind = np.split(np.where(self.off > 0.0, np.nan, self.rows), [self.inputs], axis=1)
        self.varying = (first != 0.0).any(axis=1) & ~np.isnan(first).any(axis=1) & (behind == 0.0).all(axis=1)

    def ask(self, signs: Tensor, budget: Budget) -> tuple[bool, Tensor | None]:
        """Return whether a pattern (-1 below, 1 above, 0 open) is proven not to occur, and an input that has it."""
        from scipy.optimize import linprog  # most of the time that importing this package would take

        decided = np.flatnonzero(signs.cpu().numpy())
        side, count = signs.cpu().numpy()[decided], len(decided)
        if not count or not budget.spend(PROGRAM):
            return False, None
        own, slopes, zeros = np.zeros((count, self.rows.shape[1])), np.ones(self.rows.shape[1]), np.zeros(count)
        own[np.arange(count), self.inputs + decided] = 1.0
        slopes[self.inputs + decided] = np.where(side < 0, *self.slopes[:, decided])
        unequal, equal, constants = -side[:, None] * own, own - self.rows[decided] * slopes, self.constants[decided]
        solved = linprog(
            np.append(np.zeros(own.shape[1]), -1.0),
            A_ub=np.column_stack([unequal, self.sizes[decided]]),
            b_ub=zeros,
            A_eq=np.column_stack([equal, zeros]),
            b_eq=constants,
            bounds=[(None, None)] * own.shape[1] + [(None, 1.0)],
            method="highs",
            options={"time_limit": budget.seconds} if budget.limited else {},
        )
        if solved.status != 0 or budget.late:
            return False, None
        if solved.x[-1] > INSIDE:
            return False, torch.from_numpy(solved.x[: self.inputs])
        matrix, sides = np.vstack([unequal, equal]), np.append(zeros, constants)
        off = np.vstack([0.0 * own, np.abs(slopes) * self.off[decided] + ENTRIES * np.abs(equal)])
        sides_off = np.append(zeros, self.constants_off[decided] + ENTRIES * np.abs(constants))
        y = -np.append(solved.ineqlin.marginals, solved.eqlin.marginals)
        kinds = np.append(np.where(self.varying[decided], STRICT, WEAK), EQUAL + zeros)
        return contradictory(matrix, off, sides, sides_off, kinds, y), None


def contradictory(
    matrix: np.ndarray, off: np.ndarray, sides: np.ndarray, sides_off: np.ndarray, kinds: np.ndarray, y: np.ndarray
) -> bool:
    """Return whether the rows that a solver's multipliers y point at are proven to contradict each other.

    Rows are G z = h (`EQUAL`), G z <= h (`WEAK`), or that with G z < h almost everywhere inside any cell (`STRICT`); G
    and h may be off by `off` and `sides_off`.
    """
    for faint in (0.0, 1e-9):  # the smallest multipliers may be rounding
        rows = np.flatnonzero(np.abs(y) > faint * np.abs(y).max(initial=0.0))
        read = np.flatnonzero((np.abs(matrix[rows]) + off[rows] > 0.0).any(axis=0))
        if len(rows) != len(read) + 1:
            continue
        enclosed = _enclosed(matrix[np.ix_(rows, read)], off[np.ix_(rows, read)], y[rows])
        if enclosed is None or not (enclosed[0] > enclosed[1])[kinds[rows] > EQUAL].all():
            continue
        slack = sides_off[rows] @ (np.abs(enclosed[0]) + enclosed[1]) + np.abs(sides[rows]) @ enclosed[1]
        zero = not (sides[rows].any() or sides_off[rows].any())  # then y h = 0 is enough where a row is strict
        if (zero and STRICT in kinds[rows]) or math.fsum(sides[rows] * enclosed[0]) + slack * ROOM + 1e-250 < 0.0:
            return True
    return False


def _enclosed(matrix: np.ndarray, off: np.ndarray, guess: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the y with y G = 0 that is as long as a guess, and how far each entry may be off; None if not unique.

    Unknowns are y in powers of two near the guess, equations those of the columns, likewise scaled, and one that fixes
    the length of y.
    """
    count, powers = len(matrix), np.exp2(np.rint(np.log2(np.abs(guess))))
    square = np.vstack([matrix.T * powers, np.sign(guess)])
    lengths = np.exp2(np.rint(np.log2(np.abs(square).max(axis=1, keepdims=True).clip(min=1e-100))))
    square, off = square / lengths, np.vstack([off.T * powers, np.zeros(count)]) / lengths + 1e-150
    target = np.append(np.zeros(count - 1), np.abs(guess / powers).sum() / lengths[-1])
    try:
        inverse, y = np.linalg.inv(square), np.linalg.solve(square, target)
    except np.linalg.LinAlgError:
        return None
    with np.errstate(all="ignore"):
        size, rounding = np.abs(inverse), gamma(count + 4.0)
        apart = np.abs(np.eye(count) - inverse @ square) + size @ (rounding * np.abs(square) + off)
        residual = np.abs(target - square @ y) + (rounding * np.abs(square) + off) @ np.abs(y) + rounding * target
        factor = float(apart.sum(axis=1).max()) * ROOM
        radius = float((size @ residual).max()) * ROOM / (1.0 - factor) * ROOM
    return (y * powers, radius * powers) if factor < 0.5 and math.isfinite(radius) else None


def _doubt(linear: LinearMap, matrix: np.ndarray) -> float:
    """Return how far every entry of a map may be off that was written out; 0 for numbers as they are stored."""
    stored = isinstance(linear, Identity | Reindex | Matrix | Diagonal)
    if stored or (isinstance(linear, Convolution) and linear.padding_mode == "zeros"):
        return linear.slack
    rounded = linear.slack + ROUNDING * float(np.abs(matrix).max(initial=0.0))
    return max(rounded, ceiling10(lost(linear, upper).log10))  # what cancels is rounded all the same


def _constants(segments: Segments, plan: EllipsoidPlan) -> list[Tensor]:
    """Return what every step reads where the inputs and all units before it are zero."""
    values = {item.name: torch.zeros_like(item.value) for item in segments.graph.inputs}
    for node in segments.graph:
        values[node.name] = torch.zeros(node.shape, dtype=torch.float64, device=node.device)
        if isinstance(segments.effects[node.name], Linear):
            values[node.name] = node.evaluate([values[ref] for ref in node.refs])
    return [values[segments.graph.node(step.name).refs[0]] for step in plan.steps]


EXACT_RTOL = 1e-6
"""Where the two sides count as met in branch and bound."""


def exact(captured: Captured, bounding: Bounding, rungs: Rungs, bracket: Bracket) -> Bracket:
    """Close a bracket further by branch and bound over activation patterns, where the network allows it."""
    budget = bounding.budget
    return budget.attempt(
        lambda: closer(captured.segments, rungs.plan, bracket, captured.certain, budget=budget, rtol=EXACT_RTOL),
        lambda: cut_short(bracket, budget),
    )
