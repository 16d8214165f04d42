"""`flow`: gradient flow as a differential equation, gradient descent beside it, and what each of them conserves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from normscope.theory import Loss
from normscope.toolkit import (
    Budget,
    Directions,
    FigureResult,
    JsonForm,
    LossFunction,
    Objective,
    Progress,
    check_numbers,
    check_positive,
    find_directions,
    outside_inference_mode,
    unwrapped,
    verify_directions,
)

SLICE = 21
"""How many points a slice through the loss has."""
DOUBLINGS = 2.0
"""A slice along the scaling goes from a quarter of the weights to four times the weights."""
LEAST_RTOL = 1e-13
"""The least relative tolerance of each entry that SciPy takes."""
MIN_TOLERANCE = 1e-300
"""A tolerance of weights that are all zero."""
DEFINITIONS = {
    "gradient flow": "dw/dt = -grad L(w), integrated with adaptive steps of order 5 whose error is held below rtol",
    "gradient descent": "w - lr grad L(w), one step for every lr of time",
    "conserved": "the squared norm of every group of weights whose scale has no effect: the gradient is orthogonal to "
    "it, so the flow keeps it and a step of descent adds lr^2 norm(grad)^2",
    "trajectory on the circle": "one such group, that which turns fastest at the start: the angle between it and its "
    "first direction, and its norm over the first",
}
"""What each figure of the result means, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPoint:
    """One moment of a path of the weights.

    Attributes:
        time: the time of the flow; for descent, the learning rate times the number of steps.
        loss: the loss at that time.
        drift: the largest change of a conserved squared norm, relative to its value at the start; None if no squared
            norm is conserved.
        angle: by how much the shown group of weights has turned, in radians; None if no group is shown.
        radius: the norm of the shown group, relative to its norm at the start; None if no group is shown.
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
        name, mode: the model's class and the mode that was measured.
        learning_rate: the learning rate of gradient descent.
        rtol: the tolerance of a step of the flow.
        flow, descent: the two paths.
        conserved: how many squared norms gradient flow conserves.
        growth_defect: the largest difference between what a step of descent adds to such a norm and
            lr^2 norm(grad)^2, relative to the squared norm; None if no squared norm is conserved.
        group: the parameter whose group of weights the trajectory on the circle shows; empty if no group is shown.
        distance: the distance between the ends of the two paths, relative to the distance that the flow covered.
        slices: the loss along lines through the start: pairs (position, loss) by direction; the position counts
            multiples of lr times the gradient (`gradient`), or doublings of the scale-invariant weights (`scaling`).
        finished: whether the flow reached the end time.
        gradients: how many gradients were computed.
        definitions: what the figures mean.
        notes: what the reader must know.
    """

    page = "normscope_lab.pages.flow:flow_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="flow", noun="result of normscope_lab.flow", write="write one with to_json(path)", nan=True
    )

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
    data: Any,
    *,
    labels: Any = None,
    loss: LossFunction | str | Loss | None = None,
    time: float = 1.0,
    lr: float = 0.1,
    rtol: float = 1e-5,
    mode: Literal["train", "eval"] | None = None,
    batches: int | None = None,
    evaluations: int = 2000,
    max_seconds: float | None = None,
) -> Flow:
    """Follow gradient flow and gradient descent from the weights of a model, and watch what each conserves.

    The weights are put back afterwards.

    Args:
        model: any `torch.nn.Module`.
        data: as in `normscope.hessian`.
        labels: as in `normscope.hessian`.
        loss: as in `normscope.hessian`.
        time: how far to follow the flow; descent takes time/lr steps.
        lr: the learning rate of gradient descent.
        rtol: the error of a step of the flow, relative to the norm of all weights.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        batches: read at most this many batches of the data; None for all.
        evaluations: how many gradients the flow may compute; a step takes about six.
        max_seconds: cuts short what takes longer, and `notes` say so.

    Returns:
        The figures: `.flow` and `.descent` as points, `.conserved`, `.slices`.

    Raises:
        InputError: as in `normscope.hessian`, or `time`, `lr` or `rtol` is no number above 0.

    Example:
        >>> import math, torch, normscope_lab as lab
        >>> model = torch.nn.Linear(1, 1, bias=False).double()
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> found = lab.flow(model, (one, 0 * one), loss="mse", rtol=1e-8)
        >>> ratio = found.flow[-1].loss / found.flow[0].loss  # w falls as exp(-2 t)
        >>> abs(ratio - math.exp(-4.0)) < 1e-6
        True
    """
    check_numbers(rtol=rtol, max_seconds=max_seconds)
    check_positive(time=time, lr=lr, rtol=rtol)
    objective = Objective(unwrapped(model), data, labels=labels, loss=loss, mode=mode, batches=batches)
    budget = Budget(evaluations, max_seconds=max_seconds, what="the flow")
    without_effect = find_directions(objective)
    with objective.measuring(), Progress("gradient flow") as progress:
        paths = _Paths(objective, without_effect, budget, progress)
        flow_points, flow_end = paths.flow(time, lr, rtol)
        descent_points, descent_end = paths.descent(time, lr)
        slices = paths.slices(lr)
    covered = float((flow_end - paths.start).double().norm())
    finished = flow_points[-1].time >= time * (1 - 1e-9)
    notes = list(dict.fromkeys((*paths.directions.notes, *budget.cuts)))
    if not finished:
        notes.append(f"the flow ended at time {flow_points[-1].time:.3g} of {time:g}: raise evaluations, or rtol")
    return Flow(
        name=type(objective.model).__name__,
        mode=objective.mode,
        learning_rate=float(lr),
        rtol=rtol,
        flow=tuple(flow_points),
        descent=tuple(descent_points),
        conserved=paths.directions.count,
        growth_defect=paths.growth_defect,
        group=paths.shown_name,
        distance=float((flow_end - descent_end).double().norm()) / covered if covered else 0.0,
        slices=slices,
        finished=finished,
        gradients=objective.gradients,
        notes=tuple(notes),
    )


class _Paths:
    """The flow and the descent from one start, and the figures that are read off along them.

    Attributes:
        start: the weights as found.
        loss, gradient: both at the start.
        directions: the directions without effect that were verified.
        squares: the squared norm of every scale-invariant group at the start.
        growth_defect: see `Flow.growth_defect`; the descent fills it.
        shown: the entries of the group whose trajectory is shown; None if there is no group.
        shown_name: the parameter that the shown group belongs to.
    """

    def __init__(self, objective: Objective, without_effect: Directions, budget: Budget, progress: Progress) -> None:
        self.objective, self.budget, self.progress = objective, budget, progress
        self.start = objective.vector()
        self.loss, self.gradient = objective.gradient()
        self.directions = verify_directions(objective, without_effect, self.gradient)
        self.squares = self.directions.lengths(self.start).square()
        self.growth_defect: float | None = 0.0 if self.directions.count else None
        self.shown, self.shown_name = self._fastest_group()

    def _fastest_group(self) -> tuple[Tensor | None, str]:
        """Return the entries of the group that turns fastest at the start, and the parameter it belongs to."""
        if not self.directions.count:
            return None, ""
        speed = self.directions.lengths(self.gradient) / self.squares.sqrt().clamp(min=1e-300)
        entries = (self.directions.group == int(speed.argmax())).nonzero()[:, 0]
        position = int(entries[0])
        for name, parameter in self.objective.parameters.items():
            if position < parameter.numel():
                return entries, name
            position -= parameter.numel()
        raise AssertionError

    def _point(self, time: float, loss: float, vector: Tensor) -> PathPoint:
        """Return the figures of the path at one vector of weights."""
        if self.shown is None:
            return PathPoint(time=time, loss=loss)
        drifts = (self.directions.lengths(vector).square() / self.squares.clamp(min=1e-300) - 1).abs()
        first, now = self.start[self.shown].double(), vector[self.shown].double()
        unit = first / first.norm()
        across = now - (now @ unit) * unit
        return PathPoint(
            time=time,
            loss=loss,
            drift=float(drifts.max()),
            angle=math.atan2(float(across.norm()), float(now @ unit)),
            radius=float(now.norm() / first.norm()),
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
        for moment, value in integrate(slope, self.start, end=time, first=lr / 10, rtol=rtol):
            points.append(self._point(moment, losses[-1], value))
            if self.budget.over:
                break
        return points, value

    def descent(self, time: float, lr: float) -> tuple[list[PathPoint], Tensor]:
        """Take steps of gradient descent; return the points and where it ended."""
        value, points = self.start, [self._point(0.0, self.loss, self.start)]
        self.objective.place(value)
        loss, gradient = self.objective.gradient()
        for step in range(1, round(time / lr) + 1):
            stepped = value - lr * gradient
            self._check_growth(value, stepped, lr, gradient)
            value = stepped
            self.objective.place(value)
            self.progress.step(f"step {step}")
            loss = self.objective.loss()
            if not math.isfinite(loss) or self.budget.late:
                break
            loss, gradient = self.objective.gradient()
            points.append(self._point(step * lr, loss, value))
        return points, value

    def _check_growth(self, before: Tensor, after: Tensor, lr: float, gradient: Tensor) -> None:
        """Compare what a step of descent adds to the conserved squared norms with lr^2 norm(grad)^2."""
        if self.growth_defect is None:
            return
        lengths = self.directions.lengths
        difference = lengths(after).square() - lengths(before).square() - lr**2 * lengths(gradient).square()
        largest = float((difference.abs() / self.squares.clamp(min=1e-300)).max())
        self.growth_defect = max(self.growth_defect, largest)

    def slices(self, lr: float) -> dict[str, tuple[tuple[float, float], ...]]:
        """Return the loss along the gradient and along the scaling."""
        slices: dict[str, tuple[tuple[float, float], ...]] = {}
        positions = torch.linspace(-DOUBLINGS, DOUBLINGS, SLICE, dtype=torch.float64).tolist()

        def along(line: Callable[[float], Tensor]) -> tuple[tuple[float, float], ...]:
            points = []
            for position in positions:
                self.objective.place(line(position))
                points.append((position, self.objective.loss()))
            return tuple(points)

        slices["gradient"] = along(lambda position: self.start - position * lr * self.gradient)
        if self.directions.count:
            scaled = self.directions.group >= 0
            slices["scaling"] = along(lambda position: torch.where(scaled, 2.0**position * self.start, self.start))
        return slices


def integrate(
    slope: Callable[[Tensor], Tensor], start: Tensor, *, end: float, first: float, rtol: float
) -> Iterator[tuple[float, Tensor]]:
    """Yield the time and the solution of dw/dt = slope(w) after each step, the start first (Dormand and Prince 1980).

    `first` is the length of the first step. The error of a step is at most `rtol` times the norm of the start.
    """
    from scipy.integrate import RK45

    size = float(start.double().norm()) / math.sqrt(len(start))
    solver = RK45(
        lambda _, values: slope(torch.from_numpy(values).to(start)).double().cpu().numpy(),
        0.0,
        start.double().cpu().numpy(),
        end,
        first_step=min(first, end),
        rtol=LEAST_RTOL,  # The tolerance is one of the norm and not of each entry.
        atol=max(rtol * size, MIN_TOLERANCE),
    )
    yield 0.0, start
    while solver.status == "running":
        solver.step()
        if solver.status != "failed":
            yield float(solver.t), torch.from_numpy(solver.y).to(start)
