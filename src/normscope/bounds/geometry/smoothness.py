"""`smoothness`: the largest learning rate at which gradient descent is stable, and the loss along gradient steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...calls.batches import LossFunction
from ...calls.stand_ins import accepts_graph
from ...core.budget import Budget, Progress
from ...core.codec import JsonForm
from ...core.errors import check_counts, check_numbers, check_positive
from ...core.untouched import Mode, outside_inference_mode, unwrapped
from ...products.objective import Objective
from ...report.document import FigureResult, figures_form
from ...theory.losses import Loss

REACH = (0.5, 1.0, 2.0, 4.0)
"""Multiples of the learning rate at which the loss is measured along a step (Santurkar et al. take 1/2 to 4)."""
RATIO = 1.1
"""The search ends when the unstable learning rate is at most this many times the stable one."""
DOUBLINGS = 40
"""Learning rates are tried within this many doublings of the first."""

DEFINITIONS = {
    "largest stable learning rate": "plain gradient descent over all batches, from these weights, for the stated "
    "number of steps: stable if every loss is finite and the last is not above the first",
    "loss range": "the smallest and the largest loss at w - t g, t from half the learning rate to four times it",
    "gradient predictiveness": "the largest norm(grad(w - t g) - grad(w)) over the same t: how far the gradient there "
    "is from the one here",
    "effective beta": "the largest norm(grad(w - t g) - grad(w)) / norm(t g) over the same t: the curvature that the "
    "step meets",
}
"""What each figure of the result means, by its name; papers define some of them differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothStep:
    """One step of gradient descent: the loss where it starts, and the figures along the line that it follows."""

    step: int
    loss: float
    gradient_norm: float
    least_loss: float
    most_loss: float
    predictiveness: float
    effective_beta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothness(FigureResult):
    """How smooth a loss is along gradient descent. Prints as a table; in a notebook as HTML.

    Attributes:
        name, mode: the model's class and the mode that was measured.
        learning_rate: the learning rate of the steps in `steps`.
        steps: one entry per step.
        stable: the largest learning rate whose trial was stable.
        unstable: the smallest learning rate above it whose trial was unstable; `inf` where none was found.
        trial_steps: how many steps a trial had.
        trials: the learning rates that were tried, each with the last loss, in the order of the trials.
        gradients: how many gradients were computed.
        definitions: what the figures mean.
        notes: what the reader must know.
    """

    page = "normscope.bounds.pages.curvature:smoothness_document"
    JSON: ClassVar[JsonForm] = figures_form("smoothness", "smoothness")

    name: str
    mode: str
    learning_rate: float
    steps: tuple[SmoothStep, ...]
    stable: float
    unstable: float
    trial_steps: int
    trials: tuple[tuple[float, float], ...]
    gradients: int
    definitions: tuple[tuple[str, str], ...] = tuple(DEFINITIONS.items())
    notes: tuple[str, ...] = ()

    @property
    def effective_beta(self) -> float:
        """The largest effective beta of all steps."""
        return max((step.effective_beta for step in self.steps), default=math.nan)


@accepts_graph
@outside_inference_mode
def smoothness(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    loss: LossFunction | str | Loss | None = None,
    lr: float = 0.1,
    steps: int = 5,
    trial_steps: int = 20,
    mode: Mode | None = None,
    batches: int | None = None,
    max_seconds: float | None = None,
) -> Smoothness:
    """Measure how smooth a loss is along gradient descent, and the largest learning rate at which descent is stable.

    Runs start from the weights as they are and leave them there. The definitions, which vary between papers, are in the
    result and are printed with it.

    Args:
        model: any `torch.nn.Module` (or its captured graph).
        data: as in `normscope.hessian`.
        labels: as in `normscope.hessian`.
        loss: as in `normscope.hessian`.
        lr: the learning rate of the measured steps, and of the first trial.
        steps: how many steps to measure; each takes five gradients; 0 for none.
        trial_steps: how many steps each trial of a learning rate has; 0 for no trial.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        batches: read at most this many batches of the data; None for all.
        max_seconds: cuts short what takes longer, and `notes` say so.

    Returns:
        `.stable`, `.unstable`, and `.steps` with the loss range, gradient predictiveness and effective beta of each.

    Raises:
        InputError: as in `normscope.hessian`, or the learning rate is no number above 0.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> found = ns.smoothness(model, (torch.ones(1, 1), torch.zeros(1, 1)), loss="mse")
        >>> found.stable <= 1.0 < found.unstable < 1.2, round(found.effective_beta, 4)  # the curvature is 2
        (True, 2.0)

    Reference: Santurkar et al. 2018, section 3.2.
    """
    check_numbers(max_seconds=max_seconds)
    check_positive(lr=lr)
    check_counts(steps=steps, trial_steps=trial_steps)
    objective = Objective(unwrapped(model), data, labels=labels, loss=loss, mode=mode, batches=batches)
    budget = Budget(max_seconds=max_seconds, what="the trials of learning rates")
    with objective.measuring(), Progress("smoothness") as progress:
        start = objective.vector()
        measured_steps = _measured_steps(objective, start, lr, steps, progress)
        trials: list[tuple[float, float]] = []

        def stable(rate: float) -> bool:
            progress.step(f"learning rate {rate:.3g}")
            first, last = _trial(objective, start, rate, trial_steps)
            trials.append((rate, last))
            return last <= first

        low, high = _bracket(stable, lr, budget) if trial_steps else (0.0, math.inf)
    return Smoothness(
        name=type(objective.model).__name__,
        mode=objective.mode,
        learning_rate=float(lr),
        steps=tuple(measured_steps),
        stable=low,
        unstable=high,
        trial_steps=trial_steps,
        trials=tuple(trials),
        gradients=objective.gradients,
        notes=budget.cuts,
    )


def _measured_steps(objective: Objective, start: Tensor, lr: float, steps: int, progress: Progress) -> list[SmoothStep]:
    """Follow gradient descent and measure the loss along each of its steps, while the loss is finite."""
    measured, here = [], start
    for step in range(steps):
        objective.place(here)
        loss, gradient = objective.gradient()
        norm = float(gradient.double().norm())
        losses, changes, betas = [loss], [0.0], [0.0]
        for reach in REACH:
            objective.place(here - reach * lr * gradient)
            progress.step(f"step {step}")
            loss_there, gradient_there = _finite_gradient(objective)
            losses.append(loss_there)
            changes.append(math.inf if gradient_there is None else float((gradient_there - gradient).double().norm()))
            betas.append(changes[-1] / (reach * lr * norm) if norm > 0 else 0.0)
        measured.append(
            SmoothStep(
                step=step,
                loss=loss,
                gradient_norm=norm,
                least_loss=min(losses),
                most_loss=max(losses),
                predictiveness=max(changes),
                effective_beta=max(betas),
            )
        )
        here = here - lr * gradient
        objective.place(here)
        if not math.isfinite(objective.loss()):
            break
    return measured


def _finite_gradient(objective: Objective) -> tuple[float, Tensor | None]:
    """Return the loss and its gradient; infinity and None where the loss is not finite."""
    value = objective.loss()
    if not math.isfinite(value):
        return math.inf, None
    value, gradient = objective.gradient()
    return value, gradient if bool(torch.isfinite(gradient).all()) else None


def _trial(objective: Objective, start: Tensor, rate: float, steps: int) -> tuple[float, float]:
    """Return the first and the last loss of a short run; the last is infinite if a loss on the way was not finite."""
    here, first = start, math.nan
    for step in range(steps):
        objective.place(here)
        loss, gradient = _finite_gradient(objective)
        first = loss if step == 0 else first
        if gradient is None:
            return first, math.inf
        here = here - rate * gradient
    objective.place(here)
    last = objective.loss()
    return first, last if math.isfinite(last) else math.inf


def _bracket(stable: Callable[[float], bool], lr: float, budget: Budget) -> tuple[float, float]:
    """Return the largest stable learning rate and the smallest unstable one above it, within a factor of RATIO."""
    low, high = (lr, math.inf) if stable(lr) else (0.0, lr)
    for _ in range(DOUBLINGS):
        if budget.late or (low > 0 and high < math.inf):
            break
        rate = 2 * low if high == math.inf else high / 2
        low, high = (rate, high) if stable(rate) else (low, rate)
    while low > 0 and high < math.inf and high / low > RATIO and not budget.late:
        rate = math.sqrt(low * high)
        low, high = (rate, high) if stable(rate) else (low, rate)
    return low, high
