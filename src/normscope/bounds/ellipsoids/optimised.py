"""The optimised certificate: multipliers of the ellipsoid engine found by descent, and what they prove.

The search starts from the closed form, never worse than the product of norms, or from better. A figure is taken only
from multipliers whose Cholesky factorizations all went through in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import Budget, affordable, check_time
from ...core.log10 import power10
from ...core.progress import Progress
from .descent import Descent
from .ellipsoid import Uncertain, advance, image_above, largest
from .ellipsoid_plan import EllipsoidPlan, EllipsoidStep, StateChange, image_cost

VANISHED = 1e-240
"""Entries this small beside the others of a state may have lost their squares: such a run is no certificate."""
STEPS, FEWEST = 400, 12
"""Steps of the search, through narrow networks and through the widest. A step is one gradient of the bound of all
layers, and the few evaluations of the search along it."""
WORK = 3e10
"""Sizes of layers cubed, summed over all of them and over all steps: wide networks take fewer steps."""
TIGHTENING = "the optimised certificate"
"""How messages name the search."""
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
    return affordable(STEPS, cost, work=WORK, least=FEWEST, device=plan.output.device)


def optimise(
    plan: EllipsoidPlan, *, steps: int | None = None, budget: Budget | None = None, directions: Tensor | None = None
) -> Certified | None:
    """Return the best certificate found; None if not even the start is feasible in float64.

    Args:
        plan: what to run.
        steps: of the search, the starts are the first; `moves(plan)` if absent. The closed form is always evaluated.
        budget: what the search is a part of; its deadline may cut the search short.
        directions: rows d of the outputs d^T f whose constants are wanted, jointly; the whole output if absent.
    """
    steps, whole = moves(plan) if steps is None else steps, budget or Budget()
    with torch.no_grad():
        if plan.width >= SINGLE:
            found = certify(plan, _search(plan.to(torch.float32), whole.search(TIGHTENING, steps), directions))
            if found is not None:
                return found
        return certify(plan, _search(plan, whole.search(TIGHTENING, steps), directions))


def _search(plan: EllipsoidPlan, budget: Budget, directions: Tensor | None) -> Mapping[str, Tensor]:
    """Return the best multipliers found; none if no start is feasible."""
    rows = None if directions is None else directions.to(plan.output)
    search = budget.attempt(lambda: Descent(plan, rows, budget=budget), lambda: None)
    if search is None:
        return {}
    with Progress("tightening") as progress:
        while budget.spend() and budget.attempt(search.step, lambda: False):
            progress.step(f"10^{search.value / math.log(10.0):.4f}")
    return search.sigma


@dataclass(frozen=True, slots=True)
class PlanRun:
    """One run of a plan: log10 of the scale, the output's ellipsoid in that scale, and the multipliers by node."""

    log10_scale: float
    q: Tensor
    sigma: Mapping[str, Tensor]


Choose = Callable[[EllipsoidStep, Uncertain, Tensor, float], Tensor]
"""The multipliers of a step, from what is known of it, Q_vv, and log10 of Q_vv's scale."""


def run(plan: EllipsoidPlan, choose: Choose, known: Callable[[EllipsoidStep], Uncertain] | None = None) -> PlanRun:
    """Run a plan with the multipliers that `choose` gives; `known` overrides what the plan knows of its steps."""
    log = max(plan.start.values())
    q: Tensor | None = None
    sigmas: dict[str, Tensor] = {}
    for operation in plan.operations:
        check_time(operation.cost, plan.output.device)
        if isinstance(operation, StateChange):
            q = operation.matrix @ operation.matrix.mT if q is None else image_above(q, operation.matrix)
        else:
            assert q is not None
            step = operation.known if known is None else known(operation)
            qvv = q if operation.form is None else image_above(q, operation.form)
            sigma = choose(operation, step, qvv, log)
            form = q if operation.form is None else operation.form  # not read where nothing is kept
            q = advance(q, form, qvv, operation.kept, step, sigma)
            sigmas[operation.name] = sigma.detach() * power10(-2.0 * log)
        sizes = q.detach().diagonal(dim1=-2, dim2=-1)
        scale = float(sizes.mean())
        if scale > 0 and math.isfinite(scale):
            q, log = q / scale, log + math.log10(scale) / 2
        if known is None and bool((sizes <= VANISHED * scale).any()) and vanished(operation, sizes / scale):
            q = q * math.nan
    check_time(image_cost(plan.output), plan.output.device)
    q = plan.output @ plan.output.mT if q is None else image_above(q, plan.output)
    return PlanRun(log, q, sigmas)


def vanished(operation: StateChange | EllipsoidStep, sizes: Tensor) -> bool:
    """Say whether an entry that need not be zero may have lost its square; what is kept only grows."""
    lost = sizes <= VANISHED
    if isinstance(operation, StateChange):
        return bool((lost & (operation.matrix.abs().amax(-1) > 0)).any())
    own = lost[..., -operation.known.size :]
    known = operation.known
    if known.whole or known.centre is None:
        return bool(own.any())
    return bool((own & ((known.centre != 0) | (known.radius != 0))).any())


def certify(plan: EllipsoidPlan, sigma: Mapping[str, Tensor]) -> Certified | None:
    """Evaluate given multipliers in float64: None unless there are some and every factorization goes through."""
    if any(step.name not in sigma for step in plan.steps):
        return None
    with torch.no_grad():
        found = run(plan, lambda step, known, qvv, log: sigma[step.name] * power10(2.0 * log))
        if not bool(found.q.isfinite().all()):
            return None
        q = found.q + torch.diag(lost(plan.output))
        top = float(largest(q))
    value = found.log10_scale + math.log10(top) / 2 if top > 0 else -math.inf
    return Certified(value, found.log10_scale, q, sigma)


def lost(form: Tensor) -> Tensor:
    """Bound what underflow can take from the diagonal of F Q F^T, for a state Q with entries near 1."""
    sizes = form.abs().amax(-1)
    return torch.where(sizes > 0, 1e-290 * sizes.amax().square() + 1e-305, 0.0)
