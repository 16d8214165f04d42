"""The figures that a loop observes step by step: kept where they are, one copy each, until a record takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor

from ..core.errors import InputError
from .transfer import Transfer

ROOM = 64
"""Figures that wait on a device together, before they are sent to the host."""
OF_LOSSES = ("loss_mean", "loss_least", "loss_largest", "loss_largest_at", "loss_count", "loss_broken",
             "loss_broken_at")  # fmt: skip
"""What a record says of the losses of all steps since the one before: mean, least, largest and its step, how many, how
many were not finite, and the step of the first of these, which are in no other figure."""


def checked(name: str, value: Tensor | float) -> None:
    """Raise InputError where a figure is not one real number."""
    if name in OF_LOSSES:
        raise InputError(f"{name} is a figure that is made of the losses: give yours another name")
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise InputError(f"{name} is a {value.dtype} tensor of shape {tuple(value.shape)}: pass one real number")
    elif not isinstance(value, Real):
        raise InputError(f"{name} is a {type(value).__name__}: pass a tensor with one entry, or a number")


class Taken:
    """The figures of one name since the last record, on their way to the host.

    Args:
        parts: the steps of each part, with its numbers or the transfer that brings them.
    """

    def __init__(self, parts: Sequence[tuple[list[int], list[float] | Transfer]]) -> None:
        self._parts = parts

    def arrived(self) -> bool:
        """Say whether opening it would not wait."""
        return all(part.arrived() for _, part in self._parts if isinstance(part, Transfer))

    def open(self) -> dict[int, float]:
        """Return the mean of every step, of its figures that are finite; NaN if none is."""
        found: dict[int, list[float]] = {}
        for steps, part in self._parts:
            numbers = part.open()["figures"].tolist() if isinstance(part, Transfer) else part
            for step, value in zip(steps, numbers, strict=False):  # the last part of a device may not be full
                found.setdefault(step, []).append(value)
        return {step: mean(numbers) for step, numbers in found.items()}


class Observed:
    """Keeps the figures of one name; a number on a device costs one copy there, and nobody waits for it."""

    def __init__(self) -> None:
        self._parts: list[tuple[list[int], list[float] | Transfer]] = []
        self._steps: list[int] = []
        self._values: list[float] | Tensor = []

    def add(self, step: int, value: Tensor | float) -> float | None:
        """Add a figure of a step; return it, unless it lies on a device, where it is not read."""
        number = None
        if isinstance(value, Tensor) and value.device.type != "cpu":
            room = self._values
            if not isinstance(room, Tensor) or room.device != value.device or len(self._steps) == ROOM:
                self._seal()
                dtype = torch.float32 if value.device.type == "mps" else torch.float64
                room = self._values = torch.zeros(ROOM, dtype=dtype, device=value.device)
            room[len(self._steps)].copy_(value.detach().reshape(()))
        else:
            if isinstance(self._values, Tensor):
                self._seal()
            assert isinstance(self._values, list), "a part that is sealed begins on the host"
            number = float(value.item() if isinstance(value, Tensor) else value)
            self._values.append(number)
        self._steps.append(step)
        return number

    def _seal(self) -> None:
        """End a part, and send it if it lies on a device."""
        if self._steps:
            held = self._values
            self._parts.append((self._steps, Transfer({"figures": held}) if isinstance(held, Tensor) else held))
        self._steps, self._values = [], []

    def take(self) -> Taken:
        """Return what was added since the last time."""
        self._seal()
        parts, self._parts = self._parts, []
        return Taken(parts)


def summary(figures: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return what a record says of the figures since the one before, by name: of losses `OF_LOSSES`, of others means.

    Args:
        figures: by name and step.

    Example:
        >>> found = summary({"loss": {0: 3.0, 1: 1.0, 2: float("nan")}, "accuracy": {0: 0.5, 1: 0.7}})
        >>> found["loss_mean"], found["loss_largest_at"], found["loss_count"], found["loss_broken"], found["accuracy"]
        (2.0, 0.0, 3.0, 1.0, 0.6)
    """
    found = {name: mean(list(steps.values())) for name, steps in figures.items() if steps and name != "loss"}
    losses = figures.get("loss", {})
    known = {step: value for step, value in losses.items() if math.isfinite(value)}
    if known:
        at = max(known, key=lambda step: known[step])
        figures_of = (mean(list(known.values())), min(known.values()), known[at], float(at))
        found |= dict(zip(OF_LOSSES, figures_of, strict=False))
    if losses:
        found |= {"loss_count": float(len(losses)), "loss_broken": float(len(losses) - len(known))}
    if len(known) < len(losses):
        found["loss_broken_at"] = float(min(step for step in losses if step not in known))
    return found


def mean(numbers: Sequence[float]) -> float:
    """Return the mean of those that are finite; without any, the first."""
    known = [value for value in numbers if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else numbers[0]
