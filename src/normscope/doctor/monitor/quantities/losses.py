"""The loss of a step, and the figures that a loop observes from record to record, of which every loss counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from ....core.errors import InputError
from ...facts.loss_graph import without_factor
from ..transfer import Arriving, Transfer
from .loss_parts import LossParts
from .quantity import MeasuredStep, Probe, Quantity, RecordDraft, read_number

LOSS = Quantity(
    "record", "loss", "what the loop observed in the step, or, where it observes none, its backward began with"
)
OF_LOSSES = (
    Quantity("metrics", "loss_mean", "the mean of the losses of all steps since the record before that are finite"),
    Quantity("metrics", "loss_least", "the least of them"),
    Quantity("metrics", "loss_largest", "the largest of them"),
    Quantity("metrics", "loss_largest_at", "its step"),
    Quantity("metrics", "loss_count", "how many losses there are"),
    Quantity("metrics", "loss_broken", "how many of them are not finite"),
    Quantity("metrics", "loss_broken_at", "the step of the first of these"),
    Quantity("metrics", "loss_broken_infinite", "1 where it is infinite, 0 where it is NaN"),
    Quantity("metrics", "loss_jump", "the first loss that is a hundred times the one before it, if there is any"),
    Quantity("metrics", "loss_jump_from", "the one before it"),
    Quantity("metrics", "loss_jump_at", "its step"),
)
WAITING_FIGURES = 64
"""Figures that wait on a device together, before they are sent to the host."""
JUMP_RATIO = 100.0
"""A loss over that of the step before, from which on it has jumped."""


class Losses(Probe):
    """Keeps the losses of a step: those that the loop observes, or those that its backwards begin with.

    Attributes:
        observed: all that the loop has observed since the record before, by name.
        heard: the loss of the last backward that began, without its scale.
    """

    quantities = (LOSS, *OF_LOSSES)

    def __init__(self, step: MeasuredStep, memory: None) -> None:
        super().__init__(step, memory)
        self.observed: Mapping[str, Observed] = {}
        self.heard: Tensor | None = None
        self._observed, self._heard = StepLosses(), StepLosses()
        self._sent: Arriving | None = None

    @property
    def abandoned(self) -> bool:
        """Whether the batch of the forward that was seen was left out: it has a loss but left no gradient."""
        groups = self.step.optimizer.param_groups
        return self._observed.unused and all(p.grad is None for g in groups for p in g["params"])

    def observe_loss(self, loss: Tensor | float) -> None:
        if not (self._observed and self.step.has_gradients):
            self._observed.add(loss)
            parts = self.step.probe(LossParts)
            parts.memory.is_observed = True
            parts.read(loss)

    def hear_loss(self, loss: Tensor, alone: bool) -> None:
        parts = self.step.probe(LossParts)
        if not alone:  # the last loss in front of the step is the one that counts
            self._heard, parts.reading = StepLosses(), None
        parts.read(loss)
        value = without_factor(loss)
        if value is not loss and parts.reading is not None and parts.reading.figures is not None:
            own = parts.reading.figures[0].to(value)  # the scale of a GradScaler may make it infinite
            value = torch.where(value.isfinite(), value, own)
        self._heard.add(value.detach())
        self.heard = value.detach()

    def finish(self) -> None:
        losses = self._observed if self._observed or self.step.probe(LossParts).memory.is_observed else self._heard
        self._sent = self.step.send_any(losses.mean() if losses else None)

    def fill(self, record: RecordDraft) -> None:
        record.loss = read_number(self._sent)
        record.metrics = summarise({name: figures.open() for name, figures in self.observed.items()})


class StepLosses:
    """Collects the losses of the batches of one step; nothing is read from the device."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._used: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._losses)

    @property
    def unused(self) -> bool:
        """Whether there are losses, and no gradient came from any of them."""
        return bool(self._losses) and not self._used

    def add(self, loss: Tensor | float) -> None:
        """Add the loss of a batch, and listen whether a gradient comes from it."""
        number = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss), dtype=torch.float64)
        self._losses.append(number.reshape(1).clone())
        index, used = len(self._losses) - 1, self._used
        if isinstance(loss, Tensor) and loss.requires_grad and not loss.is_leaf:
            loss.register_hook(lambda grad: used.add(index))
        else:
            used.add(index)

    def mean(self) -> Tensor:
        """Return the mean of those that a gradient came from, or of all where none came from any."""
        chosen = [loss for index, loss in enumerate(self._losses) if index in self._used] or self._losses
        if len(chosen) == 1:
            return chosen[0]
        alike = [loss.to(chosen[0].device, torch.float64) for loss in chosen]
        return torch.cat(alike).mean(0, keepdim=True)


class Observed:
    """The figures of one name since the last record; numbers on a device are kept as they are, and sent together.

    Args:
        copies: whether each number on a device is copied at once: somebody writes over it later.

    Attributes:
        count: how many there are.
    """

    def __init__(self, *, copies: bool = False) -> None:
        self._sent: list[tuple[list[int], Transfer]] = []  # steps, and what brings their numbers
        self._numbers: list[tuple[int, float]] = []  # those that were read at once, by step
        self._waiting: list[tuple[int, Tensor, int]] = []  # steps, numbers on a device, and the version of each
        self.copies, self.count = copies, 0

    def add(self, step: int, value: Tensor | float) -> float | None:
        """Add a figure of a step; return it, unless it lies on a device, where it is not read."""
        self.count += 1
        if not isinstance(value, Tensor) or value.device.type == "cpu":
            number = float(value.item() if isinstance(value, Tensor) else value)
            self._numbers.append((step, number))
            return number
        if self._waiting and (len(self._waiting) == WAITING_FIGURES or self._waiting[0][1].device != value.device):
            self.send()
        kept = value.detach()
        if self._waiting and kept.data_ptr() == self._waiting[-1][1].data_ptr():  # as in a graph of CUDA
            self._waiting.pop()
            self.copies = True
        kept = kept.clone() if self.copies else kept
        self._waiting.append((step, kept, kept._version))
        return None

    def send(self) -> None:
        """Send what lies on a device to the host, less what was written over since: the next are copied at once."""
        kept = [(step, tensor) for step, tensor, version in self._waiting if tensor._version == version]
        self.copies = self.copies or len(kept) < len(self._waiting)
        if kept:
            self._sent.append(([step for step, _ in kept], Transfer([tensor for _, tensor in kept])))
        self._waiting = []

    def arrived(self) -> bool:
        """Return whether opening what was sent would not wait."""
        return all(transfer.arrived() for _, transfer in self._sent)

    def open(self) -> dict[int, float]:
        """Return the mean of every step that was sent, of its figures that are finite; NaN if none is."""
        by_step: dict[int, list[float]] = {}
        for step, value in self._numbers:
            by_step.setdefault(step, []).append(value)
        for steps, transfer in self._sent:
            for step, number in zip(steps, transfer.open(), strict=True):
                by_step.setdefault(step, []).append(float(number.item()))
        return {step: _finite_mean(numbers) for step, numbers in by_step.items()}


def summarise(figures: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return what a record says of the figures since the one before, by name: of losses `OF_LOSSES`, of others means.

    Args:
        figures: by name and step.

    Example:
        >>> summary = summarise({"loss": {0: 3.0, 1: 1.0, 2: float("nan")}, "accuracy": {0: 0.5, 1: 0.7}})
        >>> summary["loss_mean"], summary["loss_largest_at"], summary["loss_count"], summary["loss_broken"]
        (2.0, 0.0, 3.0, 1.0)
        >>> summary["accuracy"]
        0.6
    """
    summary = {name: _finite_mean(list(steps.values())) for name, steps in figures.items() if steps and name != "loss"}
    losses = figures.get("loss", {})
    finite = {step: value for step, value in losses.items() if math.isfinite(value)}
    if finite:
        at = max(finite, key=lambda step: finite[step])
        of_finite = (_finite_mean(list(finite.values())), min(finite.values()), finite[at], float(at))
        summary |= dict(zip((quantity.name for quantity in OF_LOSSES), of_finite, strict=False))
    steps = sorted(finite)
    jumps = [(one, two) for one, two in pairwise(steps) if finite[two] > JUMP_RATIO * finite[one] > 0.0]
    if jumps:
        one, two = jumps[0]
        summary |= {"loss_jump": finite[two], "loss_jump_from": finite[one], "loss_jump_at": float(two)}
    if losses:
        summary |= {"loss_count": float(len(losses)), "loss_broken": float(len(losses) - len(finite))}
    if len(finite) < len(losses):
        broken_at = min(step for step in losses if step not in finite)
        summary |= {"loss_broken_at": float(broken_at), "loss_broken_infinite": float(math.isinf(losses[broken_at]))}
    return summary


def _finite_mean(numbers: Sequence[float]) -> float:
    """Return the mean of those that are finite; without any, the first."""
    finite = [value for value in numbers if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else numbers[0]


def check_figure(name: str, value: Tensor | float) -> None:
    """Raise InputError where a figure is not one real number."""
    if name in {quantity.name for quantity in OF_LOSSES}:
        raise InputError(f"{name} is a figure that is made of the losses: give yours another name")
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise InputError(f"{name} is a {value.dtype} tensor of shape {tuple(value.shape)}: pass one real number")
    elif not isinstance(value, Real) and not (
        isinstance(value, np.ndarray) and value.size == 1 and np.isrealobj(value)
    ):
        raise InputError(f"{name} is a {type(value).__name__}: pass a tensor with one entry, or a number")
