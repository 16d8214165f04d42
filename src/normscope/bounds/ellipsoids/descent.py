"""Better multipliers for the ellipsoid engine: L-BFGS on a smooth bound of a plan, smoothed less and less.

The gradient of the bound with respect to a state Q is a sum of few dyads c z z^T and stays one on the way back, so that
it costs products with vectors only: a step sends z = (z_kept, z_u) to z_h + F^T T F Q z_h with z_h = z_kept + F^T M^T
z_u, and the derivative in log sigma_i is the sum of c (w_i^2 - e_i^2 z_{u,i}^2/sigma_i), w = (I - S Q_vv S)^-1 S F Q
z_h. The notation is that of `ellipsoid`.

- The multipliers of a step are sigma = exp(s)/(y^T Q_vv y) with y held fixed: a step keeps its place when earlier ones
  change. Any s is tried; those that are not feasible are found out by the Cholesky factorization.
- A largest eigenvalue is smoothed from above, trace(Q^p)^(1/p).
- wall * xi^T (I - S Q_vv S)^-1 xi, for a few random xi, is added at every step: the bound itself may not see the
  direction in which a step is about to become infeasible.
- Where no more than norm(du) <= e norm(dv) is known and nothing else is kept, sigma = 1/lambda_max(Q_vv) is the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import Budget, check_time
from ...core.log10 import power10
from .ellipsoid import SHRUNK, advance, balanced, image, invert
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

    def run(self, choose: Mapping[str, StepMultipliers] | _Weighted) -> ReverseRun | None:
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
                kept, uncertain = operation.kept.numel(), operation.known
                joint = q if operation.form is None else image(q, operation.form, operation.kept)
                if _closed(operation):
                    done, sigma = self._close(operation, joint)
                else:
                    qvv = joint[kept:, kept:]
                    place = choose.place(operation, qvv) if isinstance(choose, _Weighted) else choose[operation.name]
                    done, sigma = self._pass(operation, place, joint)
                if done is None:
                    return None
                if isinstance(done, Whole):
                    q = torch.eye(uncertain.size, dtype=q.dtype, device=q.device) * done.spread
                else:
                    centre, inverse, short = uncertain.centre, done.inverse, uncertain.everywhere
                    q = advance(joint, kept, centre, sigma, done.spread, rounded=False, inverse=inverse, short=short)
                    walls += float((done.probed * done.probe).sum())
                sigmas[operation.name] = sigma.double() * power10(-2.0 * log / math.log(10.0))
            scale = float(q.diagonal().mean())
            if not math.isfinite(scale):
                return None
            scale = scale if scale > 0 else 1.0
            q, log = q / scale, log + math.log(scale) / 2
            way.append((done, scale))
        output = self._output(image(q, self.plan.output))
        if output is None:
            return None
        value, smooth, dyads = output
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
        slopes: dict[str, tuple[Tensor, Tensor]] = {}
        for index, (done, scale) in reversed(list(enumerate(record.way))):
            c = c / scale
            if isinstance(done, StateChange):
                z = done.matrix.mT @ z if index else z
            elif isinstance(done, Whole):
                held = float((z.square() @ c).sum() * done.spread)
                z, c = done.dyads[0], held * done.dyads[1]
            else:
                z, c, slopes[done.step.name] = self._back(done, z, c)
            if z.shape[1] > 2 * z.shape[0]:
                try:
                    c, z = torch.linalg.eigh((z * c) @ z.mT)
                except torch.linalg.LinAlgError:
                    return None
        return slopes

    def _back(self, done: Passage, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return the dyads before a step, and its own gradient with the curvature."""
        step, uncertain = done.step, done.step.known
        count = step.kept.numel()
        last = z[count:]
        if uncertain.centre is None:
            moved = last.new_zeros(len(done.probe), last.shape[1])
        else:
            moved = uncertain.centre.mT @ last if uncertain.whole else uncertain.centre[:, None] * last
        w = done.inverse @ (done.root[:, None] * (done.joint[count:] @ torch.cat([z[:count], moved])))
        back = moved if step.form is None else step.form.mT @ moved
        back = back.index_add(0, step.kept, z[:count]) if count else back
        pushed, held = w.square() @ c, (last.square() @ c) * done.spread
        walled = self.wall * (done.probed * (done.probed - done.probe)).sum(1)
        curve = (pushed.abs() + walled.abs()) * (2.0 * done.inverse.diagonal() - 1.0)
        if uncertain.whole:
            slope, curve = (pushed + walled).sum()[None] - held.sum(), curve.sum()[None] + held.abs().sum()
        else:
            slope, curve = pushed - held + walled, curve + held.abs()
        # the state also sets the scale of sigma and the wall
        aside = torch.cat([done.root[:, None] * torch.cat([w, done.probed], 1), done.scale_vector[:, None]], 1)
        aside = aside if step.form is None else step.form.mT @ aside
        z = torch.cat([back + aside[:, : w.shape[1]], aside[:, w.shape[1] :]], 1)
        c = torch.cat([c, c.new_full((PROBES,), self.wall), -slope.sum()[None] / done.reference])
        return z, c, (slope, curve)


def _closed(step: EllipsoidStep) -> bool:
    """Say whether the best multiplier of a step is known."""
    return step.known.centre is None and step.kept.numel() == 0


POWER, SHARPEST = 2.0, 4096.0
"""The power p of the smoothed largest eigenvalue trace(Q^p)^(1/p): the search begins with the first and ends with the
second, where smoothing adds next to nothing."""
WALL, LOWEST = 0.1, 1e-6
"""The weight of the walls around infeasible multipliers: the search begins with the first and ends with the second."""
SMOOTHED = 1e-3
"""A step that gains less than this share of what smoothing adds to the bound makes the search smooth less."""
FARTHEST = 0.5
"""No step changes the logarithm of a multiplier by more than this."""
SHORTER, TRIES = 0.4, 12
"""A step that fails is shortened by the first factor, at most as often as the second says."""
MEMORY = 10
"""L-BFGS remembers this many steps."""
SETTLED, PATIENCE = 5e-6, 3
"""So many steps in a row that gain less than this relatively end the search."""
SHIFTS = (0.85, 0.4, 1.4, 0.0)
"""Added to the logit of theta for the starts with even weights: for a ReLU theta = 0.7, 0.6, 0.8 and 0.5."""
EXACT, COLD, WARM = 96, 40, 8
"""Up to this size the starts take largest eigenvalues exactly; above by so many power steps, at first and later."""


class Descent:
    """Minimises the bound of a plan; it starts from the best of the closed form and of weights that even out the units.

    With `directions`, the bounds of d^T f for its rows d, jointly. The first step of the budget are the starts, one of
    which is always tried. `value` is the natural logarithm of the best bound (its mean over the directions), infinite
    if no start is feasible, and `sigma` are its multipliers by node.
    """

    def __init__(self, plan: EllipsoidPlan, directions: Tensor | None = None, *, budget: Budget | None = None) -> None:
        self.smooth, self.budget = Smooth(plan, directions), budget or Budget()
        self.value, self.sigma = math.inf, dict[str, Tensor]()
        self._history: list[tuple[Tensor, Tensor, float]] = []
        self._small, self._length = 0, 1.0
        self._places: dict[str, StepMultipliers] = {}
        self.budget.spend()
        self._begin()

    def _begin(self) -> None:
        """Take the best of the starts."""
        warm: dict[str, Tensor] = {}
        self.smooth.power = SHARPEST
        for evened, shift in ((0.0, 0.0), *((0.5, shift) for shift in SHIFTS)):
            start = _Weighted(evened, shift, warm)
            before = self.value
            self._keep(self.smooth.run(start))
            if self.value < before:
                self._places = start.places
            if not self.smooth.free:
                return
            if math.isfinite(self.value) and self.budget.late:
                break
        self.smooth.power, self.smooth.wall = POWER, WALL
        if math.isfinite(self.value):
            self._point = torch.cat([self._places[step.name].relative_log for step in self.smooth.free])
            self._stay()

    def _keep(self, record: ReverseRun | None) -> ReverseRun | None:
        if record is not None and record.value < self.value:
            self.value, self.sigma = record.value, dict(record.sigma)
        return record

    def _at(self, point: Tensor) -> ReverseRun | None:
        """Run the plan at a point."""
        sizes = [len(self._places[step.name].relative_log) for step in self.smooth.free]
        parts = zip(self.smooth.free, point.split(sizes), strict=True)
        return self._keep(
            self.smooth.run({s.name: StepMultipliers(log, self._places[s.name].scale_vector) for s, log in parts})
        )

    def _slopes(self, record: ReverseRun) -> tuple[Tensor, Tensor] | None:
        """Return the gradient and about the diagonal of the second derivative; None where they are not finite."""
        slopes = self.smooth.reverse(record)
        if slopes is None:
            return None
        gradient = torch.cat([slopes[step.name][0] for step in self.smooth.free])
        curvature = torch.cat([slopes[step.name][1] for step in self.smooth.free])
        if not bool(gradient.isfinite().all() & curvature.isfinite().all()):
            return None
        return gradient, curvature + 1e-3 * curvature.mean() + 1e-12

    def _stay(self) -> bool:
        """Take stock again where the search stands, after the smoothing has changed; say whether that is feasible."""
        record = self._at(self._point)
        slopes = None if record is None else self._slopes(record)
        if record is None or slopes is None:
            self.smooth.free = []
            return False
        self._record, (self._gradient, self._curvature) = record, slopes
        return True

    def step(self) -> bool:
        """Move once; say whether another step may help."""
        if not self.smooth.free or not math.isfinite(self.value):
            return False
        along = self._direction()
        slope = float(along @ self._gradient)
        length, record = min(1.0, self._length / SHORTER), None
        for _ in range(TRIES):
            record = self._at(self._point + length * along)
            if record is not None and record.objective <= self._record.objective + 1e-4 * length * slope:
                break
            length, record = SHORTER * length, None
        self._length = 1.0 if record is None else length
        if record is None:
            if self._history:
                self._history = []
                return True
            return self._sharpen(4.0)
        gained = self._record.objective - record.objective
        slopes = self._slopes(record)
        if slopes is None:
            return False
        gradient, curvature = slopes
        moved, turned = length * along, gradient - self._gradient
        product = float(moved @ turned)
        if product > 1e-12 * float(moved.norm() * turned.norm()):
            self._history = [*self._history, (moved, turned, product)][-MEMORY:]
        self._point, self._record = self._point + moved, record
        self._gradient, self._curvature = gradient, curvature
        blur = record.objective - record.value
        if (
            gained < max(SMOOTHED * blur, SETTLED)
            and blur > SETTLED
            and self._sharpen(2.0 if gained > SETTLED else 4.0)
        ):
            return True
        self._small = self._small + 1 if gained < SETTLED else 0
        return self._small < PATIENCE

    def _direction(self) -> Tensor:
        """Return a direction of descent, no entry above `FARTHEST`."""
        rest, factors = self._gradient.clone(), []
        for moved, turned, product in reversed(self._history):
            factors.append(float(moved @ rest) / product)
            rest -= factors[-1] * turned
        along = rest / self._curvature
        if self._history:
            _, turned, product = self._history[-1]
            along = along * (product / float(turned @ (turned / self._curvature)))
        for (moved, turned, product), factor in zip(self._history, reversed(factors), strict=True):
            along += moved * (factor - float(turned @ along) / product)
        if not float(along @ self._gradient) > 0:
            self._history = []
            along = self._gradient / self._curvature
        return -along * min(1.0, FARTHEST / max(float(along.abs().max()), TINY))

    def _sharpen(self, factor: float) -> bool:
        """Smooth less; say whether there was anything left to sharpen."""
        if self.smooth.wall < LOWEST:
            return False
        self.smooth.power, self.smooth.wall = min(factor * self.smooth.power, SHARPEST), self.smooth.wall / factor
        return self._stay()


class _Weighted:
    """Takes sigma = theta d/lambda_max(D^(1/2) Q_vv D^(1/2)), d the closed form's weights times diag(Q_vv)^-evened."""

    def __init__(self, evened: float, shift: float, warm: dict[str, Tensor]) -> None:
        self.evened, self.shift, self.warm = evened, shift, warm
        self.places: dict[str, StepMultipliers] = {}

    def place(self, step: EllipsoidStep, qvv: Tensor) -> StepMultipliers:
        """Return the place of a step."""
        weights, factor = balanced(step.known, alone=step.kept.numel() == 0)
        theta = factor * float(weights.amax())
        if theta > 0:
            theta = 1.0 / (1.0 + (1.0 / theta - 1.0) * math.exp(-self.shift))
        if self.evened and not step.known.whole:
            diagonal = qvv.diagonal() / qvv.diagonal().mean()
            weights = weights * diagonal.clamp(min=1e-12) ** -self.evened
        root = (weights / weights.amax().clamp(min=TINY)).sqrt()
        top, vector = self._top(qvv * root[:, None] * root, step.name)
        scale_vector = root * vector if theta > 0 else torch.ones_like(vector)
        scale_vector = scale_vector / scale_vector.norm().clamp(min=TINY)
        sigma = theta * root.square() / max(top, TINY)
        place = StepMultipliers((sigma * (scale_vector @ (qvv @ scale_vector))).log(), scale_vector)
        self.places[step.name] = place
        return place

    def _top(self, matrix: Tensor, name: str) -> tuple[float, Tensor]:
        """Return the largest eigenvalue and its vector; above the size `EXACT` an upper estimate as a rule."""
        if len(matrix) <= EXACT:
            if not bool(matrix.isfinite().all()):
                return math.nan, torch.ones_like(matrix[0])
            values, vectors = torch.linalg.eigh(matrix)
            return float(values[-1]), vectors[:, -1]
        vector = self.warm.get(name, matrix.sum(1))
        for _ in range(WARM if name in self.warm else COLD):
            vector = matrix @ vector
            vector = vector / vector.norm().clamp(min=TINY)
        self.warm[name] = vector
        moved = matrix @ vector
        value = float(moved @ vector)
        return value + float((moved - value * vector).norm()), vector
