"""The loops that runs share, with their optimizers, schedules and validation, and how good a model is in the end."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .data import Data, batches

Watch = Callable[[nn.Module, Optimizer], AbstractContextManager[Any]]
"""`with watch(model, optimizer) as run:` stands around a loop; `run` has `observe(loss=)` and `log_metrics(...)`."""
MakeOptimizer = Callable[[nn.Module], Optimizer]


@dataclass(frozen=True)
class Loop:
    """So many steps under a watch."""

    watch: Watch
    steps: int

    def train(
        self,
        data: Data | None,
        model: nn.Module,
        optimizer: Optimizer | MakeOptimizer,
        *,
        loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
        objective: Callable[..., Tensor] | None = None,
        batch: int = 32,
        change: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
        plant: Callable[[nn.Module], object] | None = None,
        clear: bool | Callable[[int], bool] = True,
        goes: bool | Callable[[int], bool] = True,
        clip: float | None = None,
        schedule: Any = None,
        then: Callable[[int], None] | None = None,
        validate: int | None = None,
        report: str | None = "forward",
        number: bool = False,
        as_it_is: bool = False,
    ) -> None:
        """Train as a user would, watched.

        Args:
            data: What to train on, and what to validate on; None if the objective has its own.
            model: The model, which is put into train mode.
            optimizer: Its optimizer, or what makes one of the model.
            loss: The loss of outputs and targets.
            objective: The loss of the step, the inputs and the targets (of the step alone without data), in its place.
            batch: The size of a batch.
            change: Changes the batch of a step.
            plant: Changes the model before all else.
            clear: Whether gradients are cleared, at all or at a step.
            goes: Whether the optimizer steps, at all or at a step.
            clip: The largest norm of the gradient.
            schedule: A schedule of the learning rate, or what makes one of the optimizer, stepped after each step.
            then: Called after each step.
            validate: Log the loss and the accuracy on the validation data each so many steps.
            report: Behind what the loss is reported (forward, backward or step), or that it is a metric; None if never.
            number: Report the loss as a number and not as a tensor.
            as_it_is: Leave the modes of the modules as they are.
        """
        if plant is not None:
            plant(model)
        optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(model)
        schedule = schedule(optimizer) if callable(schedule) else schedule
        if not as_it_is:
            model.train()
        stream = batches(data, batch) if data is not None else None
        with self.watch(model, optimizer) as run:
            for step in range(self.steps):
                parts = (step, *next(stream)) if stream is not None else (step,)
                if change is not None:
                    parts = (step, *change(*parts))
                if clear(step) if callable(clear) else clear:
                    optimizer.zero_grad()
                value = loss(model(parts[1]), parts[2]) if objective is None else objective(*parts)
                if report == "forward":
                    run.observe(loss=value.item() if number else value)
                value.backward()
                if report == "backward":
                    run.observe(loss=value.item() if number else value)
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                if goes(step) if callable(goes) else goes:
                    optimizer.step()
                if report == "step":
                    run.observe(loss=value.item() if number else value)
                if report == "metric":
                    run.log_metrics(loss=value.item())
                if schedule is not None:
                    schedule.step()
                if then is not None:
                    then(step)
                if validate is not None and (step + 1) % validate == 0:
                    log_validation(run, model, data, loss)

    def fit(
        self, data: Data | None, model: nn.Module, optimizer: Any, *, judge: Data | None = None, **options: Any
    ) -> float:
        """Train and return how good the model is on the validation data, of `judge` if given."""
        self.train(data, model, optimizer, **options)
        judge = judge or data
        return explained(model, judge) if judge.held_y.is_floating_point() else accuracy(model, judge)


def when(broken: bool, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value, changed if it is to be broken."""
    return change(value) if broken else value


def pretrain(data: Data, model: nn.Module, optimizer: Optimizer | MakeOptimizer, steps: int) -> None:
    """Train a classifier before the watch begins."""
    optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(model)
    for _, (x, y) in zip(range(steps), batches(data)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def log_validation(
    run: Any, model: nn.Module, data: Data, loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy
) -> None:
    """Log loss and accuracy on the validation data in eval mode, then go back to train mode."""
    model.eval()
    with torch.no_grad():
        output = model(data.held_x)
        figures = {"val_loss": loss(output, data.held_y).item()}
        if not data.held_y.is_floating_point() and output.ndim == 2:
            figures["val_accuracy"] = (output.argmax(1) == data.held_y).float().mean().item()
    run.log_metrics(**figures)
    model.train()


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> MakeOptimizer:
    """Return what makes SGD over all parameters that require a gradient."""
    return lambda model: torch.optim.SGD(_free(model), lr=rate, momentum=momentum, weight_decay=decay)


def adam(rate: float) -> MakeOptimizer:
    """Return what makes Adam over all parameters that require a gradient."""
    return lambda model: torch.optim.Adam(_free(model), lr=rate)


def _free(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def by(kind: type[Optimizer], *arguments: Any, **options: Any) -> MakeOptimizer:
    """Return what makes an optimizer of a kind over all parameters."""
    return lambda model: kind(model.parameters(), *arguments, **options)


def by_step(factor: Callable[[int], float]) -> Callable[[Optimizer], LambdaLR]:
    """Return what makes a schedule that multiplies the learning rate by a function of the step."""
    return lambda optimizer: LambdaLR(optimizer, factor)


# ------------------------------------------------------------------------------------------------------- how good it is


def or_minus_infinity(score: float | Tensor) -> float:
    """Return a score, minus infinity for NaN."""
    return float(score) if math.isfinite(float(score)) else -math.inf


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """Return the accuracy on the validation data in eval mode; classes are the second axis of two or the last."""
    output = model.eval()(data.held_x)
    return (output.argmax(-1) == data.held_y).float().mean().item() if output.isfinite().all() else -math.inf


@torch.no_grad()
def explained(model: nn.Module, data: Data) -> float:
    """Return the explained variance on the validation data in eval mode."""
    output = model.eval()(data.held_x)
    output = output[0] if isinstance(output, tuple) else output
    wrong = output.float().reshape(data.held_y.shape) - data.held_y
    return or_minus_infinity(1 - wrong.square().mean() / data.held_y.var(correction=0))
