"""What the runs of the catalogue share: data split in two, batches, the usual loop, and how good a model is."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..fault_catalogue.parts import blob_images
from .case import Watch

# ------------------------------------------------------------------------------------------------------------- the data


class Data(NamedTuple):
    """Samples to train on and samples to validate on."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor


def split(x: Tensor, y: Tensor, held: int = 256) -> Data:
    """Keep the last samples for validation, in an order that `torch.manual_seed` fixes."""
    order = torch.randperm(len(x))
    train, rest = order[:-held], order[-held:]
    return Data(x[train], y[train], x[rest], y[rest])


@cache
def _all_digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits in 0..16 and their classes, or blobs in ten places where it is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        images, labels = blob_images(1797, classes=10, size=8)
        return 4 * images + 5, labels
    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.float32)[:, None], torch.tensor(digits.target)


def digits(count: int = 1797, *, flat: bool = False, raw: bool = False) -> Data:
    """Return images of digits (8 by 8), standardised unless raw."""
    images, labels = _all_digits()
    order = torch.randperm(len(images))[:count]
    images = images[order] if raw else (images[order] - 4.9) / 6.0
    return split(images.flatten(1) if flat else images, labels[order], held=count // 4)


def batches(data: Data, size: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled batches without end, epoch after epoch, the incomplete last ones left out."""
    while True:
        order = torch.randperm(len(data.x))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield data.x[chosen], data.y[chosen]


# ------------------------------------------------------------------------------------------------------------- the loop


def fit(
    watch: Watch,
    model: nn.Module,
    optimizer: Optimizer,
    data: Data,
    steps: int,
    *,
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
    batch: int = 32,
    change: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    clip: float | None = None,
    schedule: Any = None,
    then: Callable[[int], None] | None = None,
    validate: int | None = None,
) -> None:
    """Train as a user would, watched.

    Args:
        watch: Stands around the loop.
        model: The model, which is put into train mode.
        optimizer: Its optimizer.
        data: What to train on, and what to validate on.
        steps: How many steps to take.
        loss: The loss of outputs and targets.
        batch: The size of a batch.
        change: Changes the batch of a step.
        clip: The largest norm of the gradient.
        schedule: A schedule of the learning rate, stepped after each step.
        then: Called after each step.
        validate: Log the loss and the accuracy on the validation data each so many steps.
    """
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, batch)):
            if change is not None:
                x, y = change(step, x, y)
            optimizer.zero_grad()
            value = loss(model(x), y)
            run.observe(loss=value)
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            if then is not None:
                then(step)
            if validate is not None and (step + 1) % validate == 0:
                log_validation(run, model, data, loss)


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


def sgd(model: nn.Module, rate: float, momentum: float = 0.0, decay: float = 0.0) -> Optimizer:
    """Return SGD over all parameters that require a gradient."""
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(chosen, lr=rate, momentum=momentum, weight_decay=decay)


def adam(model: nn.Module, rate: float) -> Optimizer:
    """Return Adam over all parameters that require a gradient."""
    return torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate)


def by_step(optimizer: Optimizer, factor: Callable[[int], float]) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a schedule that multiplies the learning rate by a function of the step."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


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
