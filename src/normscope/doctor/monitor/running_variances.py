"""The variances of BatchNorms, read off the running ones, which a forward in train mode moves towards the batch's.

All layers lie one behind the other, so that a forward costs three small copies however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...listening.calls import NormalizerSeen

MIN_MOMENTUM = 0.01
"""Momentum of a BatchNorm below which the rounding of its running variance would show."""
RESOLVED_SHARE = 1e-6
"""A batch variance below this share of the running one, divided by the momentum, cannot be read off it."""


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

    def changes_since(self, before: tuple[Tensor, Tensor]) -> Moved:
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
