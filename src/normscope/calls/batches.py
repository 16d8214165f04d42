"""Batches of the data as inputs and targets, kept so that every evaluation of the loss uses the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor, nn

from ..core.errors import InputError, describe_error
from ..theory.losses import TRAINING_LOSSES, Loss, named
from .call import Call, arguments, select
from .data_reader import Batches, inputs_and_labels

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch: how the model is called, the targets of the loss (None without any), and the number of samples."""

    call: Call
    targets: Any
    samples: int


def kept_batches(model: nn.Module, data: Any, limit: int | None, *, own_loss: bool, labels: Any = None) -> list[Batch]:
    """Read batches once and keep them on the model's device: one that shuffles would give another loss each time."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"batches is a whole number from 1 on, or None for all, not {limit!r}")
    return list(islice(placed_batches(model, data, own_loss=own_loss, labels=labels), limit))


def placed_batches(model: nn.Module, data: Any, *, own_loss: bool = False, labels: Any = None) -> Iterator[Batch]:
    """Yield batches one by one on the model's device, as `kept_batches` reads them."""
    for batch in Batches(model, data, labels=labels, with_loss=not own_loss):
        inputs, targets = (batch, None) if own_loss else inputs_and_labels(model, batch, expected=True)
        call = arguments(model, inputs)
        yield Batch(call=call, targets=targets, samples=call.count)


def loss_function(loss: LossFunction | str | Loss | None) -> LossFunction | None:
    """Return the loss as a function of outputs and targets; None stands for the loss that the model itself returns."""
    if loss is None or (callable(loss) and not isinstance(loss, Loss)):
        return loss
    if not isinstance(loss, str | Loss):
        raise InputError(f"loss is a {type(loss).__name__}: pass a function of outputs and targets, or a name")
    training_loss = TRAINING_LOSSES.get(loss) if isinstance(loss, str) and loss != "cross_entropy" else None
    if training_loss is not None:
        return partial(_training_loss, training_loss)
    named_loss = named(loss)

    def mean(output: Any, targets: Tensor) -> Tensor:
        rows = select(output, None)
        rows = rows.reshape(-1, rows.shape[-1])
        goals = targets.reshape(-1) if named_loss.targets == "classes" else targets.reshape(rows.shape)
        return named_loss.rows(rows, goals).mean()

    return mean


def _training_loss(function: LossFunction, output: Any, targets: Tensor) -> Tensor:
    """Return a loss of torch; targets of as many entries as the output get its shape, which torch would broadcast."""
    values = select(output, None)
    return function(values, targets.reshape(values.shape) if targets.numel() == values.numel() else targets)


def loss_of(function: LossFunction | None, output: Any, batch: Batch) -> Tensor:
    """Return the loss of a model's output as a scalar."""
    if function is None:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is None:
            raise InputError("the model returns no loss of its own: pass loss=, a function of outputs and targets")
    else:
        try:
            loss = function(output) if batch.targets is None else function(output, batch.targets)
        except InputError:
            raise
        except Exception as error:
            passed = "outputs alone (the batches have no targets)" if batch.targets is None else "outputs and targets"
            raise InputError(f"the loss raises {describe_error(error)}: it is called with {passed}") from error
    if not isinstance(loss, Tensor):
        raise InputError(f"the loss is a {type(loss).__name__}: it must be a tensor with one entry")
    if loss.numel() != 1:
        raise InputError(f"the loss has shape {tuple(loss.shape)}: it must be a scalar, such as the mean over a batch")
    return loss.reshape(())
