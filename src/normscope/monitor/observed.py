"""The figures that a loop observes step by step, and how numbers come from the device: nobody waits for them.

`Observed` keeps what the loop gave at every step until a record takes it, `StepLosses` the losses of one measured step.
A `Transfer` brings small tensors to the host.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError

WAITING_FIGURES = 64
"""Figures that wait on a device together, before they are sent to the host."""
OF_LOSSES = ("loss_mean", "loss_least", "loss_largest", "loss_largest_at", "loss_count", "loss_broken",
             "loss_broken_at")  # fmt: skip
"""What a record says of the losses of all steps since the one before: mean, least, largest and its step, how many, how
many were not finite, and the step of the first of these, which are in no other figure."""


def check_figure(name: str, value: Tensor | float) -> None:
    """Raise InputError where a figure is not one real number."""
    if name in OF_LOSSES:
        raise InputError(f"{name} is a figure that is made of the losses: give yours another name")
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise InputError(f"{name} is a {value.dtype} tensor of shape {tuple(value.shape)}: pass one real number")
    elif not isinstance(value, Real):
        raise InputError(f"{name} is a {type(value).__name__}: pass a tensor with one entry, or a number")


class Observed:
    """The figures of one name since the last record; a number on a device costs one copy there, nobody waits for it."""

    def __init__(self) -> None:
        self._parts: list[tuple[list[int], list[float] | Transfer]] = []  # steps, and their numbers or what brings them
        self._steps: list[int] = []
        self._values: list[float] | Tensor = []

    def add(self, step: int, value: Tensor | float) -> float | None:
        """Add a figure of a step; return it, unless it lies on a device, where it is not read."""
        number = None
        if isinstance(value, Tensor) and value.device.type != "cpu":
            room = self._values
            if not isinstance(room, Tensor) or room.device != value.device or len(self._steps) == WAITING_FIGURES:
                self.send()
                dtype = torch.float32 if value.device.type == "mps" else torch.float64
                room = self._values = torch.zeros(WAITING_FIGURES, dtype=dtype, device=value.device)
            room[len(self._steps)].copy_(value.detach().reshape(()))
        else:
            if isinstance(self._values, Tensor):
                self.send()
            assert isinstance(self._values, list), "a part that was sent is followed by one on the host"
            number = float(value.item() if isinstance(value, Tensor) else value)
            self._values.append(number)
        self._steps.append(step)
        return number

    def send(self) -> None:
        """Send what lies on a device to the host."""
        if self._steps:
            values = self._values
            self._parts.append((self._steps, Transfer({"figures": values}) if isinstance(values, Tensor) else values))
        self._steps, self._values = [], []

    def arrived(self) -> bool:
        """Return whether opening what was sent would not wait."""
        return all(part.arrived() for _, part in self._parts if isinstance(part, Transfer))

    def open(self) -> dict[int, float]:
        """Return the mean of every step that was sent, of its figures that are finite; NaN if none is."""
        by_step: dict[int, list[float]] = {}
        for steps, part in self._parts:
            numbers = part.open()["figures"].tolist() if isinstance(part, Transfer) else part
            for step, value in zip(steps, numbers, strict=False):  # the last part of a device may not be full
                by_step.setdefault(step, []).append(value)
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
        summary |= dict(zip(OF_LOSSES, of_finite, strict=False))
    if losses:
        summary |= {"loss_count": float(len(losses)), "loss_broken": float(len(losses) - len(finite))}
    if len(finite) < len(losses):
        summary["loss_broken_at"] = float(min(step for step in losses if step not in finite))
    return summary


def _finite_mean(numbers: Sequence[float]) -> float:
    """Return the mean of those that are finite; without any, the first."""
    finite = [value for value in numbers if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else numbers[0]


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
        alike = [loss.to(chosen[0].device, torch.float64) for loss in chosen]
        return torch.cat(alike).mean(0, keepdim=True)


class Transfer:
    """Named tensors that are sent to the host as one tensor, and taken apart when they have arrived.

    Args:
        contents: tensors by name, on one device or several.
    """

    def __init__(self, contents: Mapping[Hashable, Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._flat: Tensor | None = None
        kinds: dict[tuple[torch.device, torch.dtype], dict[Hashable, Tensor]] = {}
        for name, tensor in contents.items():
            flat = tensor if tensor.ndim == 1 else tensor.reshape(-1)
            kinds.setdefault((tensor.device, tensor.dtype), {})[name] = flat
        self._sizes = {name: tensor.numel() for alike in kinds.values() for name, tensor in alike.items()}
        if not contents:
            return
        with torch.no_grad():
            device = next((device for device, _ in kinds if device.type != "cpu"), torch.device("cpu"))
            dtype = torch.float32 if device.type == "mps" else torch.float64
            parts = [torch.cat(list(alike.values())).to(device, dtype, non_blocking=True) for alike in kinds.values()]
            flat = parts[0] if len(parts) == 1 else torch.cat(parts)
            if device.type != "cuda":
                self._flat = flat.cpu()
                return
            self._flat = torch.empty(flat.shape, dtype=dtype, pin_memory=True)
            self._flat.copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def arrived(self) -> bool:
        """Return whether opening it would not wait."""
        return self._event is None or self._event.query()

    def open(self) -> dict[Hashable, np.ndarray]:
        """Return the numbers by name; waits for the device if they are not here yet."""
        if self._event is not None:
            self._event.synchronize()
        if self._flat is None:
            return {}
        numbers, by_name, first = self._flat.numpy(), {}, 0
        for name, size in self._sizes.items():
            by_name[name] = numbers[first : first + size]
            first += size
        return by_name
