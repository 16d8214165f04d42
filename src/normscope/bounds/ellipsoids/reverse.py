"""The bound of a plan as a smooth function of its multipliers, with a gradient that costs products with vectors only.

The gradient of the bound with respect to a state Q is a sum of few dyads c z z^T and stays one on the way back: a step
sends z = (z_kept, z_u) to z_h + F^T T F Q z_h with z_h = z_kept + F^T M^T z_u, and the derivative in log sigma_i is the
sum of c (w_i^2 - e_i^2 z_{u,i}^2/sigma_i), w = (I - S Q_vv S)^-1 S F Q z_h. The notation is that of `ellipsoid`.

- The multipliers of a step are sigma = exp(s)/(y^T Q_vv y) with y held fixed: a step keeps its place when earlier ones
  change. Any s is tried; those that are not feasible are found out by the Cholesky factorization.
- A largest eigenvalue is smoothed from above, trace(Q^p)^(1/p).
- wall * xi^T (I - S Q_vv S)^-1 xi, for a few random xi, is added at every step: the bound itself may not see the
  direction in which a step is about to become infeasible.
- Where no more than norm(du) <= e norm(dv) is known and nothing else is kept, sigma = 1/lambda_max(Q_vv) is the best.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.log10 import power10
from .ellipsoid import SHRUNK, advance, image, invert
from .ellipsoid_plan import EllipsoidPlan, EllipsoidStep, StateChange

PROBES = 4
"""The wall of a step is measured along this many random vectors."""
TINY = 1e-30
"""Denominators are at least this, so that nothing is divided by zero; single precision holds it too."""
_USED = 1e-9
"""Eigenvalues whose share in a smoothed one is smaller are left out of its gradient."""


@dataclass(frozen=True, slots=True)
class StepMultipliers:
    """The multipliers sigma = exp(s)/(y^T Q_vv y) of a step.

    Attributes:
        relative_log: s, one entry per unit: the logarithm of sigma relative to the scale that y and Q_vv set.
        scale_vector: y, which stays as it is while s is searched for.
    """

    relative_log: Tensor
    scale_vector: Tensor


@dataclass(frozen=True, slots=True)
class Passage:
    """One step of a run, with what its reverse needs."""

    step: EllipsoidStep
    joint: Tensor
    root: Tensor
    inverse: Tensor
    spread: Tensor
    scale_vector: Tensor
    reference: float
    probe: Tensor
    probed: Tensor


@dataclass(frozen=True, slots=True)
class Whole:
    """A step that is bounded by a smoothed largest eigenvalue: `dyads` are its gradient over its own value."""

    step: EllipsoidStep
    spread: Tensor
    dyads: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class ReverseRun:
    """One run: natural logarithms of the bound and of what is minimised, multipliers by node, and the way back."""

    value: float
    objective: float
    sigma: Mapping[str, Tensor]
    way: list[tuple[StateChange | Passage | Whole, float]]
    dyads: tuple[Tensor, Tensor]


class Smooth:
    """A plan as a function of the places of its `free` steps, those with multipliers to choose.

    `power` is p of the smoothed eigenvalues, `wall` the weight of the walls.
    """

    def __init__(self, plan: EllipsoidPlan, directions: Tensor | None = None) -> None:
        self.plan, self.directions = plan, directions
        self.free = [step for step in plan.steps if not _closed(step)]
        self.power, self.wall = 2.0, 0.1
        self._generator = torch.Generator().manual_seed(0)
        self._probes: dict[str, Tensor] = {}

    def run(self, choose: Mapping[str, StepMultipliers] | Start) -> ReverseRun | None:
        """Run the plan; None where the multipliers are not feasible."""
        log = max(self.plan.start.values()) * math.log(10.0)
        q: Tensor | None = None
        way: list[tuple[StateChange | Passage | Whole, float]] = []
        sigmas: dict[str, Tensor] = {}
        walls = 0.0
        for operation in self.plan.operations:
            check_time(operation.cost, self.plan.output.device)
            done: StateChange | Passage | Whole | None
            if isinstance(operation, StateChange):
                q, done = image(q, operation.matrix), operation
            else:
                assert q is not None
                kept, known = operation.kept.numel(), operation.known
                joint = q if operation.form is None else image(q, operation.form, operation.kept)
                if _closed(operation):
                    done, sigma = self._close(operation, joint)
                else:
                    qvv = joint[kept:, kept:]
                    place = choose.place(operation, qvv) if isinstance(choose, Start) else choose[operation.name]
                    done, sigma = self._pass(operation, place, joint)
                if done is None:
                    return None
                if isinstance(done, Whole):
                    q = torch.eye(known.size, dtype=q.dtype, device=q.device) * done.spread
                else:
                    how = {"inverse": done.inverse, "short": known.everywhere}
                    q = advance(joint, kept, known.centre, sigma, done.spread, rounded=False, **how)
                    walls += float((done.probed * done.probe).sum())
                sigmas[operation.name] = sigma.double() * power10(-2.0 * log / math.log(10.0))
            scale = float(q.diagonal().mean())
            if not math.isfinite(scale):
                return None
            scale = scale if scale > 0 else 1.0
            q, log = q / scale, log + math.log(scale) / 2
            way.append((done, scale))
        found = self._output(image(q, self.plan.output))
        if found is None:
            return None
        value, smooth, dyads = found
        return ReverseRun(value + log, smooth + log + self.wall * walls, sigmas, way, dyads)

    def _pass(self, step: EllipsoidStep, place: StepMultipliers, joint: Tensor) -> tuple[Passage | None, Tensor]:
        """Give a step the multipliers of its place; None if they are not feasible."""
        qvv = joint[step.kept.numel() :, step.kept.numel() :]
        reference = float(place.scale_vector @ (qvv @ place.scale_vector))
        sigma = place.relative_log.exp() / max(reference, TINY)
        root = sigma.sqrt()
        inverse = invert(qvv * root[:, None] * root)
        if bool(inverse[0, 0].isnan()) or not 0.0 < reference < math.inf:
            return None, sigma
        probe, spread = self._probe(step.name, qvv), step.known.spread(sigma)
        return Passage(step, joint, root, inverse, spread, place.scale_vector, reference, probe, inverse @ probe), sigma

    def _close(self, step: EllipsoidStep, qvv: Tensor) -> tuple[Whole | None, Tensor]:
        """Bound a step as a whole by the smoothed largest eigenvalue; None if it is not positive."""
        radius = step.known.radius
        smoothed = self._smoothed(qvv)
        if smoothed is None:
            return None, radius
        log, vectors, weights = smoothed
        shrunk = max(SHRUNK, 64.0 * torch.finfo(radius.dtype).eps)
        sigma = torch.full_like(radius, (1.0 - shrunk) * math.exp(-log))
        form = vectors if step.form is None else step.form.mT @ vectors
        return Whole(step, radius.square() / sigma, (form, weights)), sigma

    def _smoothed(self, q: Tensor) -> tuple[float, Tensor, Tensor] | None:
        """Return log trace(Q^p)^(1/p) and its gradient as dyads; None unless Q has a positive eigenvalue."""
        if not bool(q.isfinite().all()):
            return None
        values, vectors = torch.linalg.eigh(q)
        top = float(values[-1])
        if not top > 0:
            return None
        shares = (values.clamp(min=0.0) / top) ** self.power
        total = float(shares.sum())
        used = shares > _USED
        return math.log(top) + math.log(total) / self.power, vectors[:, used], shares[used] / values[used] / total

    def _probe(self, name: str, like: Tensor) -> Tensor:
        """Return the random vectors of a step, the same at every call."""
        if name not in self._probes:
            drawn = torch.randn(len(like), PROBES, generator=self._generator, dtype=torch.float64)
            self._probes[name] = drawn.to(like) / math.sqrt(drawn.numel())
        return self._probes[name]

    def _output(self, q: Tensor) -> tuple[float, float, tuple[Tensor, Tensor]] | None:
        """Return the logarithm of the bound, what is minimised of it, and its gradient in the last state."""
        if self.directions is not None:
            squared = ((self.directions @ q) * self.directions).sum(-1).clamp(min=TINY)
            value = float(squared.log().mean()) / 2
            if not math.isfinite(value):
                return None
            weighted = self.directions.mT @ (self.directions / (2 * len(squared) * squared)[:, None])
            values, vectors = torch.linalg.eigh(weighted)
            return value, value, (self.plan.output.mT @ vectors, values)
        smoothed = self._smoothed(q)
        if smoothed is None:
            return None
        log, vectors, weights = smoothed
        top = float((vectors[:, -1] @ q) @ vectors[:, -1])
        return math.log(top) / 2, log / 2, (self.plan.output.mT @ vectors, weights / 2)

    def reverse(self, record: ReverseRun) -> dict[str, tuple[Tensor, Tensor]] | None:
        """Return by free step the gradient of a run in s, and about the diagonal of the second derivative.

        None where numbers too far apart spoil it.
        """
        z, c = record.dyads
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for index, (done, scale) in reversed(list(enumerate(record.way))):
            c = c / scale
            if isinstance(done, StateChange):
                z = done.matrix.mT @ z if index else z
            elif isinstance(done, Whole):
                held = float((z.square() @ c).sum() * done.spread)
                z, c = done.dyads[0], held * done.dyads[1]
            else:
                z, c, found[done.step.name] = self._back(done, z, c)
            if z.shape[1] > 2 * z.shape[0]:
                try:
                    c, z = torch.linalg.eigh((z * c) @ z.mT)
                except torch.linalg.LinAlgError:
                    return None
        return found

    def _back(self, done: Passage, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return the dyads before a step, and its own gradient with the curvature."""
        step, known = done.step, done.step.known
        count = step.kept.numel()
        last = z[count:]
        if known.centre is None:
            moved = last.new_zeros(len(done.probe), last.shape[1])
        else:
            moved = known.centre.mT @ last if known.whole else known.centre[:, None] * last
        w = done.inverse @ (done.root[:, None] * (done.joint[count:] @ torch.cat([z[:count], moved])))
        back = moved if step.form is None else step.form.mT @ moved
        back = back.index_add(0, step.kept, z[:count]) if count else back
        pushed, held = w.square() @ c, (last.square() @ c) * done.spread
        walled = self.wall * (done.probed * (done.probed - done.probe)).sum(1)
        curve = (pushed.abs() + walled.abs()) * (2.0 * done.inverse.diagonal() - 1.0)
        if known.whole:
            slope, curve = (pushed + walled).sum()[None] - held.sum(), curve.sum()[None] + held.abs().sum()
        else:
            slope, curve = pushed - held + walled, curve + held.abs()
        # the state also sets the scale of sigma and the wall
        aside = torch.cat([done.root[:, None] * torch.cat([w, done.probed], 1), done.scale_vector[:, None]], 1)
        aside = aside if step.form is None else step.form.mT @ aside
        z = torch.cat([back + aside[:, : w.shape[1]], aside[:, w.shape[1] :]], 1)
        c = torch.cat([c, c.new_full((PROBES,), self.wall), -slope.sum()[None] / done.reference])
        return z, c, (slope, curve)


class Start(ABC):
    """Chooses the places of a first run."""

    @abstractmethod
    def place(self, step: EllipsoidStep, qvv: Tensor) -> StepMultipliers:
        """Return the place of a step, from the ellipsoid of its operand."""


def _closed(step: EllipsoidStep) -> bool:
    """Say whether the best multiplier of a step is known."""
    return step.known.centre is None and step.kept.numel() == 0
