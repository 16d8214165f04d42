"""`flow`: gradient flow as a differential equation, gradient descent beside it, and what each of them conserves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.budget import Budget
from ..core.codec import JsonForm
from ..core.errors import InputError
from ..core.options import check_numbers
from ..core.progress import Progress
from ..core.untouched import outside_inference_mode, unwrapped
from ..theory.losses import Loss
from .batches import LossFunction
from .directions import Directions, directions
from .figure_result import FigureResult, figures_form
from .objective import Objective
from .runge_kutta import integrate
from .verified_directions import verified

SLICE = 21
"""Points of a slice through the loss."""
DOUBLINGS = 2.0
"""A slice along the scaling goes from a quarter to four times the weights."""
DEFINITIONS = {
    "gradient flow": "dw/dt = -grad L(w), integrated with adaptive steps of order 5 whose error is held below rtol",
    "gradient descent": "w - lr grad L(w), one step for every lr of time",
    "conserved": "the squared norm of every group of weights whose scale has no effect: the gradient is orthogonal to "
    "it, so the flow keeps it and a step of descent adds lr^2 norm(grad)^2",
    "trajectory on the circle": "one such group, that which turns fastest at the start: the angle between it and its "
    "first direction, and its norm over the first",
}
"""What the figures are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPoint:
    """One moment of a path.

    Attributes:
        time: learning rate times steps for descent.
        loss: there.
        drift: the largest change of a conserved squared norm, relative to the first; None without any.
        angle: that the shown group has turned by, in radians; None without one.
        radius: its norm over the first.
    """

    time: float
    loss: float
    drift: float | None = None
    angle: float | None = None
    radius: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(FigureResult):
    """Gradient flow and gradient descent from the same weights. Prints as a table; in a notebook as HTML.

    Attributes:
        name, mode: of the model.
        learning_rate: of gradient descent.
        rtol: of the flow.
        flow, descent: the two paths.
        conserved: how many squared norms gradient flow conserves.
        growth_defect: the largest difference between what a step of descent adds to such a norm and
            lr^2 norm(grad)^2, relative to the squared norm; None without any.
        group: the parameter that the trajectory on the circle is of; empty without one.
        distance: norm of the difference of the two ends, relative to the way that the flow went.
        slices: the loss along lines through the start: pairs (place, loss) by direction; `gradient` in multiples of
            lr times the gradient, `scaling` in doublings of the scale-invariant weights.
        finished: whether the flow reached the end time.
        gradients: how many it took.
        definitions: what the figures are.
        notes: what the reader must know.
    """

    page = "flow:flow_document"
    JSON: ClassVar[JsonForm] = figures_form("flow", "flow")

    name: str
    mode: str
    learning_rate: float
    rtol: float
    flow: tuple[PathPoint, ...]
    descent: tuple[PathPoint, ...]
    conserved: int
    growth_defect: float | None
    group: str
    distance: float
    slices: dict[str, tuple[tuple[float, float], ...]]
    finished: bool
    gradients: int
    definitions: tuple[tuple[str, str], ...] = tuple(DEFINITIONS.items())
    notes: tuple[str, ...] = ()


@outside_inference_mode
def flow(
    model: nn.Module,
    loss_fn: LossFunction | str | Loss | None,
    loader: Any,
    *,
    time: float = 1.0,
    lr: float = 0.1,
    rtol: float = 1e-5,
    mode: str | None = None,
    batches: int | None = None,
    evaluations: int = 2000,
    max_seconds: float | None = None,
) -> Flow:
    """Follow gradient flow and gradient descent from the weights of a model, and watch what each conserves.

    The weights are put back afterwards.

    Args:
        model: any `torch.nn.Module`.
        loss_fn: as in `normscope.hessian`.
        loader: as in `normscope.hessian`.
        time: how far to follow the flow; descent takes time/lr steps.
        lr: the learning rate of gradient descent.
        rtol: the error of a step of the flow, relative to the norm of all weights.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        batches: read at most this many of the loader; None for all.
        evaluations: gradients that the flow may take, about six a step.
        max_seconds: cuts short what takes longer, and `notes` say so.

    Returns:
        `.flow` and `.descent` as points, `.conserved`, `.slices`.

    Raises:
        InputError: as `normscope.hessian`, or a time or learning rate that is none.

    Example:
        >>> import math, torch, normscope as ns
        >>> model = torch.nn.Linear(1, 1, bias=False).double()
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> found = ns.flow(model, torch.nn.functional.mse_loss, (one, 0 * one), rtol=1e-8)
        >>> ratio = found.flow[-1].loss / found.flow[0].loss  # w falls as exp(-2 t)
        >>> abs(ratio - math.exp(-4.0)) < 1e-6
        True
    """
    check_numbers(rtol=rtol, max_seconds=max_seconds)
    for name, value in (("time", time), ("lr", lr), ("rtol", rtol)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"{name} is a number above 0, not {value!r}")
    objective = Objective(unwrapped(model), loss_fn, loader, mode=mode, batches=batches)
    budget = Budget(evaluations, max_seconds=max_seconds, what="the flow")
    found = directions(objective)
    with objective.measuring(), Progress("gradient flow") as progress:
        paths = _Paths(objective, found, budget, progress)
        flowed, ended = paths.flow(time, lr, rtol)
        descended, other = paths.descent(time, lr)
        slices = paths.slices(lr)
    way = float((ended - paths.start).double().norm())
    done = flowed[-1].time >= time * (1 - 1e-9)
    notes = list(dict.fromkeys((*paths.directions.notes, *budget.cuts)))
    if not done:
        notes.append(f"the flow ended at time {flowed[-1].time:.3g} of {time:g}: raise evaluations, or rtol")
    return Flow(
        name=type(objective.model).__name__,
        mode=objective.mode,
        learning_rate=float(lr),
        rtol=rtol,
        flow=tuple(flowed),
        descent=tuple(descended),
        conserved=paths.directions.count,
        growth_defect=paths.defect,
        group=paths.name,
        distance=float((ended - other).double().norm()) / way if way else 0.0,
        slices=slices,
        finished=done,
        gradients=objective.gradients,
        notes=tuple(notes),
    )


class _Paths:
    """Both paths from one start, and what is read off along them."""

    def __init__(self, objective: Objective, found: Directions, budget: Budget, progress: Progress) -> None:
        self.objective, self.budget, self.progress = objective, budget, progress
        self.start = objective.vector()
        self.loss, self.gradient = objective.gradient()
        self.directions = verified(objective, found, self.gradient)
        self.squares = self.directions.lengths(self.start).square()
        self.defect: float | None = 0.0 if self.directions.count else None
        self.member, self.name = self._shown()

    def _shown(self) -> tuple[Tensor | None, str]:
        """Return the entries of the group that turns fastest at the start, and the parameter it belongs to."""
        if not self.directions.count:
            return None, ""
        speed = self.directions.lengths(self.gradient) / self.squares.sqrt().clamp(min=1e-300)
        member = (self.directions.group == int(speed.argmax())).nonzero()[:, 0]
        place = int(member[0])
        for name, parameter in self.objective.parameters.items():
            if place < parameter.numel():
                return member, name
            place -= parameter.numel()
        raise AssertionError

    def _point(self, time: float, loss: float, vector: Tensor) -> PathPoint:
        if self.member is None:
            return PathPoint(time=time, loss=loss)
        moved = (self.directions.lengths(vector).square() / self.squares.clamp(min=1e-300) - 1).abs()
        first, own = self.start[self.member].double(), vector[self.member].double()
        one = first / first.norm()
        across = own - (own @ one) * one
        return PathPoint(
            time=time,
            loss=loss,
            drift=float(moved.max()),
            angle=math.atan2(float(across.norm()), float(own @ one)),
            radius=float(own.norm() / first.norm()),
        )

    def flow(self, time: float, lr: float, rtol: float) -> tuple[list[PathPoint], Tensor]:
        """Follow the flow; return its points and where it ended."""
        points: list[PathPoint] = []
        losses: list[float] = []

        def slope(vector: Tensor) -> Tensor:
            self.objective.place(vector)
            loss = self.objective.loss()
            if not math.isfinite(loss):
                return torch.full_like(vector, math.inf)
            loss, gradient = self.objective.gradient()
            losses.append(loss)
            self.budget.spend()
            self.progress.step(f"loss {loss:.4g}")
            return -gradient

        value = self.start
        for place in integrate(slope, self.start, end=time, first=lr / 10, rtol=rtol):
            points.append(self._point(place.time, losses[-1], place.value))
            value = place.value
            if self.budget.over:
                break
        return points, value

    def descent(self, time: float, lr: float) -> tuple[list[PathPoint], Tensor]:
        """Take steps of gradient descent; return the points and where it ended."""
        value, points = self.start, [self._point(0.0, self.loss, self.start)]
        self.objective.place(value)
        loss, gradient = self.objective.gradient()
        for step in range(1, round(time / lr) + 1):
            moved = value - lr * gradient
            if self.defect is not None:
                lengths = self.directions.lengths
                added = lengths(moved).square() - lengths(value).square() - lr**2 * lengths(gradient).square()
                self.defect = max(self.defect, float((added.abs() / self.squares.clamp(min=1e-300)).max()))
            value = moved
            self.objective.place(value)
            self.progress.step(f"step {step}")
            loss = self.objective.loss()
            if not math.isfinite(loss) or self.budget.late:
                break
            loss, gradient = self.objective.gradient()
            points.append(self._point(step * lr, loss, value))
        return points, value

    def slices(self, lr: float) -> dict[str, tuple[tuple[float, float], ...]]:
        """Return the loss along the gradient and along the scaling."""
        found: dict[str, tuple[tuple[float, float], ...]] = {}
        places = torch.linspace(-DOUBLINGS, DOUBLINGS, SLICE, dtype=torch.float64).tolist()

        def along(moved: Any) -> tuple[tuple[float, float], ...]:
            points = []
            for place in places:
                self.objective.place(moved(place))
                points.append((place, self.objective.loss()))
            return tuple(points)

        found["gradient"] = along(lambda place: self.start - place * lr * self.gradient)
        if self.directions.count:
            member = self.directions.group >= 0
            found["scaling"] = along(lambda place: torch.where(member, 2.0**place * self.start, self.start))
        return found
