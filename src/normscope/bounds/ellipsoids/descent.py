"""Better multipliers for the ellipsoid engine: L-BFGS on the smooth bound of `reverse`, smoothed less and less."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.budget import Budget
from .ellipsoid import balanced
from .ellipsoid_plan import EllipsoidPlan, EllipsoidStep
from .reverse import TINY, ReverseRun, Smooth, Start, StepMultipliers

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
        found = self.smooth.reverse(record)
        if found is None:
            return None
        gradient = torch.cat([found[step.name][0] for step in self.smooth.free])
        curvature = torch.cat([found[step.name][1] for step in self.smooth.free])
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


class _Weighted(Start):
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
        found = StepMultipliers((sigma * (scale_vector @ (qvv @ scale_vector))).log(), scale_vector)
        self.places[step.name] = found
        return found

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
