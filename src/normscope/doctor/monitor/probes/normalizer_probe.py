"""A normalizer's input on one batch: its variances and the constants that follow (theory: normalizers).

What runs on the device is a variance per set; the figures are made of it on the host, or on the device where there are
too many sets to send. `BatchNorms` reads the variances off the running ones, which a forward in train mode moves
towards the batch's: all layers lie one behind the other, so that a forward costs three small copies however many there
are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....listening.calls import NormalizerSeen
from . import ArraySegments

DOMINATED_EPS = 10.0
"""A variance below this many eps: eps decides what the normalizer does."""
CONSTANT_EPS_SHARE = 1e-6
"""A share of eps: an input with a smaller variance is constant as far as the normalizer can tell."""
DEAD_SCALE_SHARE = 1e-4
"""A scale below this share of the largest one lets nothing through."""
MAX_SENT_VARIANCES = 2048
"""Variances of a normalizer that are sent to the host one by one; more are summed up on the device."""
MIN_MOMENTUM = 0.01
"""Momentum of a BatchNorm below which the rounding of its running variance would show."""
RESOLVED_SHARE = 1e-6
"""A batch variance below this share of the running one, divided by the momentum, cannot be read off it."""
QUANTITIES = (
    "log10_variance", "log10_variance_min", "log10_variance_max", "log10_constant", "log10_gain", "dominated",
    "constant", "dead", "log10_running", "running_spread",
)  # fmt: skip
"""What is measured of a normalizer.

- `log10_variance`: mean over its sets (channels of BatchNorm, rows of LayerNorm, ...) of log10 of the biased variance;
  `log10_variance_min`, `log10_variance_max`: of the smallest and the largest.
- `log10_constant`: log10 of the largest Jacobian norm on the batch without the scale: 1/sqrt(var + eps) as a rule.
- `log10_gain`: of max abs(gamma)/sqrt(var + eps), the same with the scale.
- `dominated`, `constant`: shares of the sets with var < 10 eps, and with var <= 1e-6 eps.
- `dead`: share of the scales below 1e-4 of the largest.
- `log10_running`, `running_spread`: mean and standard deviation over the channels of log10 of (batch variance + eps)
  over (running variance + eps).
"""
OPTIONAL = ("dead", "log10_running", "running_spread")
"""Quantities that not every normalizer has: NaN there says so."""


def measure(many: Sequence[NormalizerSeen]) -> Tensor:
    """Return `QUANTITIES` of normalizers that are alike (`likeness`) on the device, one row each, in few kernels."""
    first, eps = many[0], many[0].eps
    variance = torch.stack([normalizer.variance for normalizer in many])
    running = _stack_like(variance, [normalizer.running_variance for normalizer in many])
    sets, logs = variance.flatten(1), torch.log10(variance).flatten(1)
    constants = jacobian_norm(running[:, None] if first.stored and running is not None else variance, first.free, eps)
    gamma = _stack_like(variance, [normalizer.gamma for normalizer in many])
    gains = constants
    dead = ratio = spread = sets[:, 0] * float("nan")
    if gamma is not None:
        size = gamma.abs().flatten(1)
        gains = constants * size.reshape(len(many), 1, variance.shape[-1], -1).amax(3)
        dead = _share(size <= DEAD_SCALE_SHARE * size.amax(1, keepdim=True))
    if running is not None:
        relative = torch.log10((variance + eps) / (running[:, None] + eps)).flatten(1)
        ratio, spread = relative.mean(1), relative.std(1, correction=0)
    columns = [
        logs.mean(1),
        *torch.aminmax(logs, dim=1),
        torch.log10(constants.flatten(1).amax(1)),
        torch.log10(gains.flatten(1).amax(1)),
        _share(sets < DOMINATED_EPS * eps),
        _share(sets <= CONSTANT_EPS_SHARE * eps),
    ]
    return torch.stack([*columns, dead, ratio, spread], dim=1)


def likeness(normalizer: NormalizerSeen) -> Hashable:
    """Return what normalizers must share that are measured together."""
    tensors = (normalizer.variance, normalizer.gamma, normalizer.running_variance)
    shapes = tuple(None if tensor is None else (tensor.shape, tensor.device) for tensor in tensors)
    return shapes, normalizer.variance.dtype, normalizer.eps, normalizer.free, normalizer.stored


def _stack_like(variance: Tensor, tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return tensors as one, in the precision of the variances; None where there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(present).to(variance) if present else None


def group_scales(normalizer: NormalizerSeen) -> Any:
    """Return the largest abs(gamma) of every group; None without scales."""
    if normalizer.gamma is None:
        return None
    size = abs(normalizer.gamma).reshape(normalizer.variance.shape[-1], -1)
    return size.amax(1) if isinstance(size, Tensor) else size.max(1)


def jacobian_norm(variance: Any, free: int, eps: float) -> Any:
    """Return the Jacobian norm of a set without its scale: 1/s, eps/s^3 for one free dimension, 0 for none."""
    deviation = (variance + eps) ** 0.5
    if free >= 2:
        return 1.0 / deviation
    return eps / deviation**3 if free == 1 else 0.0 * deviation


def _share(flags: Tensor) -> Tensor:
    return flags.float().mean(1)


def measure_all(many: Sequence[NormalizerSeen]) -> np.ndarray:
    """Return `QUANTITIES` of several normalizers on the host, one row each: as `measure`."""
    if not many:
        return np.zeros((0, len(QUANTITIES)))
    flat = [np.asarray(normalizer.variance) for normalizer in many]
    pieces = ArraySegments(flat)
    eps = np.repeat([normalizer.eps for normalizer in many], pieces.counts)
    free = np.repeat([normalizer.free for normalizer in many], pieces.counts)
    variance = divisor = pieces.values
    if any(normalizer.stored for normalizer in many):
        parts = [np.broadcast_to(s.divisor, v.shape).reshape(-1) for s, v in zip(many, flat, strict=True)]
        divisor = np.concatenate(parts)
    scale = np.concatenate(
        [np.ones(v.size) if (s := group_scales(normalizer)) is None else np.broadcast_to(s, v.shape).reshape(-1)
         for normalizer, v in zip(many, flat, strict=True)]
    )  # fmt: skip
    with np.errstate(all="ignore"):
        deviation, logs = np.sqrt(divisor + eps), np.log10(variance)
        constants = np.where(free >= 2, 1.0 / deviation, np.where(free == 1, eps / deviation**3, 0.0))
        columns = [
            pieces.mean(logs),
            pieces.of(np.minimum, logs),
            pieces.of(np.maximum, logs),
            np.log10(pieces.of(np.maximum, constants)),
            np.log10(pieces.of(np.maximum, constants * scale)),
            pieces.mean(variance < DOMINATED_EPS * eps),
            pieces.mean(variance <= CONSTANT_EPS_SHARE * eps),
        ]
        rest = np.full((len(many), 3), math.nan)
        scaled = [index for index, normalizer in enumerate(many) if normalizer.gamma is not None]
        if scaled:
            sizes = ArraySegments([np.abs(many[index].gamma) for index in scaled])
            largest = np.repeat(sizes.of(np.maximum, sizes.values), sizes.counts)
            rest[scaled, 0] = sizes.mean(sizes.values <= DEAD_SCALE_SHARE * largest)
        stored = [index for index, normalizer in enumerate(many) if normalizer.running_variance is not None]
        if stored:
            ratios = ArraySegments(
                [(flat[i].reshape(-1) + many[i].eps) / (many[i].running_variance + many[i].eps) for i in stored]
            )
            logs = np.log10(ratios.values)
            mean = ratios.mean(logs)
            rest[stored, 1:] = np.column_stack([mean, np.sqrt(np.maximum(ratios.mean(logs**2) - mean**2, 0.0))])
    return np.column_stack([*columns, rest])


class BatchNorms:
    """Several BatchNorms with their eps and the values behind each of their variances.

    Args:
        modules: each with a running variance in float32 or float64, on one device.
        first: what the first call of each module showed.

    Attributes:
        first: that, without tensors.
        ends: where each begins in what lies one behind the other, and where the last one ends.
    """

    def __init__(self, modules: Sequence[Any], first: Sequence[NormalizerSeen]) -> None:
        self._modules = list(modules)
        self.first = [normalizer.without_tensors() for normalizer in first]
        self.ends = np.cumsum([0, *(module.running_var.numel() for module in modules)])

    def ready(self) -> bool:
        """Whether they still use and move their statistics as they did."""
        return all(
            m.training and m.track_running_stats and m.momentum and m.momentum >= MIN_MOMENTUM for m in self._modules
        )

    def now(self) -> tuple[Tensor, Tensor]:
        """Return copies of all running variances and of how often they were moved."""
        running = torch.cat([module.running_var for module in self._modules])
        return running, torch.stack([module.num_batches_tracked for module in self._modules])

    def moved(self, before: tuple[Tensor, Tensor]) -> Moved:
        """Return what a forward did to the running variances.

        Args:
            before: what `now` returned before it.
        """
        running, count = self.now()
        scales = [torch.ones_like(m.running_var) if m.weight is None else m.weight for m in self._modules]
        return Moved(
            norms=self,
            before=before[0],
            after=running,
            calls=count - before[1],
            gamma=torch.cat(scales).detach(),
            momenta=[module.momentum for module in self._modules],
        )

    def seen(self, moved: Moved, index: int) -> NormalizerSeen:
        """Return what a call of one of them showed, where the numbers are: on the device, or arrays on the host."""
        own, entries = slice(self.ends[index], self.ends[index + 1]), self.first[index].entries or 1
        read = _read_variance(moved.before[own], moved.after[own], moved.momenta[index], (entries - 1) / entries)
        return self.describe(moved, index, own, read[None])

    def describe(self, moved: Moved, index: int, own: slice, variance: Any) -> NormalizerSeen:
        """Return one of them with its variances, its place among all, and the rest of what a forward showed of it."""
        gamma = None if self._modules[index].weight is None else moved.gamma[own]
        eps, running = self._modules[index].eps, moved.before[own]
        return replace(self.first[index], variance=variance, eps=eps, gamma=gamma, running_variance=running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What one forward did to the running variances: tensors on the device, or arrays on the host.

    Attributes:
        norms: the BatchNorms that it ran, by their places one behind the other.
        before, after, gamma: running variances and scales, one layer behind the other; ones where it has no scale.
        calls: how often each layer was called: only of one that was called once the variance can be read off.
        momenta: the momentum of each layer.
    """

    norms: BatchNorms
    before: Any
    after: Any
    gamma: Any
    calls: Any
    momenta: list[float]

    def seen(self) -> list[NormalizerSeen]:
        """Return what a call of each of them showed; all of them at once, on the host."""
        norms, ends = self.norms, self.norms.ends
        counts, entries = np.diff(ends), np.array([float(first.entries or 1) for first in norms.first])
        step, unbiased = np.repeat(self.momenta, counts), np.repeat((entries - 1.0) / entries, counts)
        with np.errstate(invalid="ignore", over="ignore"):  # an infinite running variance tells nothing of a batch: NaN
            variance = _read_variance(self.before, self.after, step, unbiased)[None]
        parts = [slice(*pair) for pair in pairwise(ends.tolist())]
        return [norms.describe(self, index, own, variance[:, own]) for index, own in enumerate(parts)]


def _read_variance(before: Any, after: Any, step: Any, unbiased: Any) -> Any:
    """Return the biased variances of a batch that moved running ones by a share; below a share of those is rounding."""
    spread = (before + (after - before) / step).clip(min=before * (RESOLVED_SHARE / step))
    return (spread * unbiased).clip(min=0.0)
