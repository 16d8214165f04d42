"""The optimised certificate: multipliers of the ellipsoid engine found by Adam, and what they prove.

With any weights d > 0 of the units of a step and any share theta in (0, 1), sigma = theta d/lambda_max(D^(1/2) Q_vv
D^(1/2)) is feasible: Adam moves log d and the logit of theta. The search starts from the closed form, never worse than
the product of norms, or from better. A figure is taken only from multipliers whose Cholesky factorizations all went
through in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import Budget, Progress, affordable, check_time
from ...core.log10 import power10
from ...core.rounding import UNIT
from ..linalg.certify import certify as largest_eigenvalue
from ..minimise import minimise
from .ellipsoid import SHRUNK, Uncertain, advance, balanced, image_above, invert, largest, prove_inverse
from .ellipsoid_plan import EllipsoidPlan, EllipsoidStep, StateChange, image_cost

SMALLEST_DENOMINATOR = 1e-30
"""Denominators are at least this, so that nothing is divided by zero; single precision holds it too."""
VANISHED = 1e-240
"""Entries this small beside the others of a state may have lost their squares: such a run is no certificate."""
MOST_SEARCH_STEPS, FEWEST_SEARCH_STEPS = 80, 12
"""Steps of the search, through narrow networks and through the widest; a step is one gradient of the bound."""
WORK = 3e10
"""Sizes of layers cubed, summed over all of them and over all steps: wide networks take fewer steps."""
STARTS = ((0.0, 0.0), (0.5, 0.85))
"""The starts: to which power the weights of the closed form even out the units, and what is added to the logit of
theta. The second has theta = 0.7 for a ReLU."""
RATE, LAST_RATE = 0.3, 0.01
"""The length of the first step of Adam, and of the last one that the budget allows."""
SETTLED, PATIENCE = 1e-5, 10
"""So many steps in a row that gain less than this relatively, together, end the search."""
TIGHTENING = "the optimised certificate"
"""How messages name the search."""
COUNTED = 3.0
"""How many times the multiplications of a step it takes to prove it."""
SINGLE = 256
"""States of this width and more are searched in single precision; a figure is always taken in float64."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate: the output's ellipsoid and the multipliers that prove it.

    Attributes:
        log10: of the bound on the Lipschitz constant.
        log10_scale: log10 of the factor of `q` (for the constant, not its square).
        q: the output's ellipsoid `[K, K]` in units of the scale.
        sigma: the multipliers of every nonlinear node, by name.
    """

    log10: float
    log10_scale: float
    q: Tensor
    sigma: Mapping[str, Tensor]

    def along(self, directions: Tensor) -> Tensor:
        """Return log10 of the constant of d^T f for every row d of `directions` `[P, K]`."""
        values = ((directions @ self.q) * directions).sum(-1).clamp(min=0.0)
        # differences of outputs that are nearly equal cancel: count what rounding can have taken
        values = values + 2.0**-44 * ((directions.abs() @ self.q.abs()) * directions.abs()).sum(-1)
        return values.log10() / 2 + self.log10_scale


def moves(plan: EllipsoidPlan) -> int:
    """Return how many steps the search for multipliers of a plan takes at most, fewer if it is wide."""
    cost = sum(step.cost for step in plan.steps)
    return affordable(MOST_SEARCH_STEPS, cost, work=WORK, least=FEWEST_SEARCH_STEPS, device=plan.output.device)


def optimise(
    plan: EllipsoidPlan, *, steps: int | None = None, budget: Budget | None = None, directions: Tensor | None = None
) -> Certified | None:
    """Return the best certificate found; None if not even the start is feasible in float64.

    There are `moves(plan)` steps if `steps` is absent, the starts are the first; the closed form is always evaluated.
    With `directions`, the constants of d^T f for its rows d are wanted, jointly.
    """
    steps, whole = moves(plan) if steps is None else steps, budget or Budget()
    with torch.no_grad():
        if plan.width >= SINGLE:
            certificate = certify(plan, _search(plan.to(torch.float32), whole.search(TIGHTENING, steps), directions))
            if certificate is not None:
                return certificate
        return certify(plan, _search(plan, whole.search(TIGHTENING, steps), directions))


def _search(plan: EllipsoidPlan, budget: Budget, directions: Tensor | None) -> Mapping[str, Tensor]:
    """Return the best multipliers found; none if no start is feasible."""
    search = _MultiplierSearch(plan, budget, None if directions is None else directions.to(plan.output))
    budget.attempt(search.run, lambda: None)
    return search.sigma


class _MultiplierSearch:
    """Minimises the bound of a plan, or with `directions` the mean of log bounds of d^T f over its rows d.

    `value` is the natural logarithm of the best bound so far, `sigma` are its multipliers by node.
    """

    def __init__(self, plan: EllipsoidPlan, budget: Budget, directions: Tensor | None) -> None:
        self.plan, self.budget, self.directions = plan, budget, directions
        self.value, self.sigma = math.inf, dict[str, Tensor]()
        self.places: dict[str, tuple[Tensor, Tensor]] = {}
        self.start = STARTS[0]

    def run(self) -> None:
        """Evaluate the starts, and climb down from the best of them."""
        best: dict[str, tuple[Tensor, Tensor]] = {}
        self.budget.spend()
        for start in STARTS:
            before, self.start, self.places = self.value, start, {}
            self.evaluate()
            best = self.places if self.value < before else best
            if math.isfinite(self.value) and self.budget.late:
                return
        leaves = [leaf.requires_grad_(True) for pair in best.values() for leaf in pair]
        if leaves:
            self.places, steps = best, moves(self.plan)
            decay = (LAST_RATE / RATE) ** (1 / steps)
            worst = [self.plan.output.new_full((1,), math.inf)]
            minimise(leaves, self.evaluate, worst, turns=self._turns(), rate=RATE, betas=(0.8, 0.95), decay=decay)

    def _turns(self) -> Iterator[None]:
        """Yield until the budget is over or nothing is gained any more."""
        values = [self.value]
        with Progress("tightening") as progress:
            while self.budget.spend():
                yield
                values.append(self.value)
                progress.step(f"10^{self.value / math.log(10.0):.4f}")
                if len(values) > PATIENCE and values[-1 - PATIENCE] - self.value < SETTLED:
                    return

    def evaluate(self) -> tuple[Tensor]:
        """Return the natural logarithm of the bound, `[1]`, and remember the multipliers of the smallest."""
        done = run(self.plan, self._choose)
        squared = largest(done.q)[None]
        if self.directions is not None:
            squared = ((self.directions @ done.q) * self.directions).sum(-1)
        value = squared.clamp(min=SMALLEST_DENOMINATOR).log().mean()[None] / 2 + done.log10_scale * math.log(10.0)
        if float(value.detach()) < self.value:
            self.value, self.sigma = float(value.detach()), dict(done.sigma)
        return (value,)

    def _choose(self, step: EllipsoidStep, uncertain: Uncertain, qvv: Tensor, log: float) -> Tensor:
        """Return multipliers of a step, from its place or, at a start, from one that it is given."""
        if step.name not in self.places:
            weights, factor = balanced(uncertain, alone=step.kept.numel() == 0)
            evened, shift = self.start
            theta = (factor * weights.amax()).clamp(SMALLEST_DENOMINATOR, 1.0 - 64.0 * torch.finfo(weights.dtype).eps)
            if not uncertain.whole:
                diagonal = qvv.detach().diagonal()
                weights = (
                    weights * (diagonal / diagonal.mean().clamp(min=SMALLEST_DENOMINATOR)).clamp(min=1e-12) ** -evened
                )
            self.places[step.name] = weights.clamp(min=SMALLEST_DENOMINATOR).log(), theta.logit() + shift
        logs, logit = self.places[step.name]
        weights = (logs - logs.detach().amax()).exp()
        root = weights.sqrt().expand(len(qvv))
        top = largest(qvv * root[:, None] * root).clamp(min=SMALLEST_DENOMINATOR)
        shrunk = max(SHRUNK, 64.0 * torch.finfo(weights.dtype).eps)
        return (1.0 - shrunk) * logit.sigmoid() * weights / top


@dataclass(frozen=True, slots=True)
class PlanRun:
    """One run of a plan: the output's ellipsoid in units of 2^exponent of the start, and the multipliers by node."""

    log10_scale: float
    exponent: int
    q: Tensor
    sigma: Mapping[str, Tensor]


Choose = Callable[[EllipsoidStep, Uncertain, Tensor, float], Tensor]
"""The multipliers of a step, from what is known of it, Q_vv, and log10 of Q_vv's scale."""


def run(plan: EllipsoidPlan, choose: Choose, *, proven: bool = False) -> PlanRun:
    """Run a plan with the multipliers that `choose` gives.

    Scales are powers of two, so that they do not round; a run that is `proven` counts all the other roundings.
    """
    start, exponent, log = max(plan.start.values()), 0, max(plan.start.values())
    q: Tensor | None = None
    sigmas: dict[str, Tensor] = {}
    for operation in plan.operations:
        check_time(COUNTED * operation.cost if proven else operation.cost, plan.output.device)
        slack = (operation.slack or 0.0) if proven else None
        if isinstance(operation, StateChange):
            q = image_above(q, operation.matrix, slack=slack)
        else:
            assert q is not None
            step, kept = operation.known, operation.kept.numel()
            joint = q if operation.form is None else image_above(q, operation.form, operation.kept, slack)
            sigma = choose(operation, step, joint[..., kept:, kept:], log)
            how = prove_inverse if proven else invert
            q = advance(joint, kept, step.centre, sigma, step.spread(sigma), invert=how)
            sigmas[operation.name] = sigma.detach().double() * power10(-2.0 * log)
        sizes = q.detach().diagonal(dim1=-2, dim2=-1)
        top = float(sizes.max())
        if 0.0 < top < math.inf:
            shift = max(math.frexp(top)[1], -1000) // 2 * 2
            q, exponent = q * 2.0**-shift, exponent + shift
            log = start + 0.5 * exponent * math.log10(2.0)
        if bool((sizes <= VANISHED * top).any()) and vanished(operation, sizes / top):
            q = q * math.nan
    check_time(COUNTED * image_cost(plan.output) if proven else image_cost(plan.output), plan.output.device)
    slack = (plan.output_slack or 0.0) if proven else 0.0
    return PlanRun(log, exponent, image_above(q, plan.output, slack=slack), sigmas)


def vanished(operation: StateChange | EllipsoidStep, sizes: Tensor) -> bool:
    """Say whether an entry that need not be zero may have lost its square; what is kept only grows."""
    lost = sizes <= VANISHED
    if isinstance(operation, StateChange):
        return bool((lost & (operation.matrix.abs().amax(-1) > 0)).any())
    own = lost[..., -operation.known.size :]
    uncertain = operation.known
    if uncertain.whole or uncertain.centre is None:
        return bool(own.any())
    return bool((own & ((uncertain.centre != 0) | (uncertain.radius != 0))).any())


def certify(plan: EllipsoidPlan, sigma: Mapping[str, Tensor]) -> Certified | None:
    """Evaluate given multipliers in float64: None unless there are some and every factorization goes through."""
    if any(step.name not in sigma for step in plan.steps):
        return None
    with torch.no_grad():
        done = run(plan, lambda step, uncertain, qvv, log: sigma[step.name] * power10(2.0 * log))
        if not bool(done.q.isfinite().all()):
            return None
        top = float(largest(done.q))
    value = done.log10_scale + math.log10(top) / 2 if top > 0 else -math.inf
    return Certified(value, done.log10_scale, done.q, sigma)


def is_exact(plan: EllipsoidPlan, inputs: Container[str]) -> bool:
    """Return whether every map of a plan was written out with a known error, from the inputs of the graph on.

    A plan that starts elsewhere rests on what is known of the values there.
    """
    bounded = plan.output_slack is not None and all(operation.slack is not None for operation in plan.operations)
    return bounded and all(name in inputs and value == 0.0 for name, value in plan.start.items())


def with_rounding(plan: EllipsoidPlan, certificate: Certified) -> Certified | None:
    """Return a certificate with the rounding of the recursion counted; None where it cannot be shown to hold.

    For a plan that `is_exact` it holds with all rounding; otherwise up to that of writing the maps out. The multipliers
    are whatever floats the search found: any are valid.
    """
    for step in plan.steps:
        uncertain = step.known
        if uncertain.centre is not None and (uncertain.whole or not bool((uncertain.radius > 0).all())):
            return None  # a centre map is itself a computed matrix, and a slope that is fixed is rounded
    sigma = {name: value.cpu().double() for name, value in certificate.sigma.items()}
    plan = plan.to(torch.float64, torch.device("cpu"))
    done = run(plan, lambda step, uncertain, qvv, log: sigma[step.name] * power10(2.0 * log), proven=True)
    if not bool(done.q.isfinite().all()):
        return None
    top = largest_eigenvalue([done.q[None]], delta=1e-12).bound
    if not math.isfinite(top) or top <= 0:
        return None
    log = 0.5 * math.log10(top) + done.log10_scale
    room = 16.0 * UNIT * max(1.0, abs(log), abs(done.exponent))
    return Certified(log + room, done.log10_scale + room, done.q.to(certificate.q.device), certificate.sigma)
