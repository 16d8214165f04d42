"""BatchNorms read off their running variances: a forward in train mode moves them towards the batch's.

All layers lie one behind the other, so that a forward costs three small copies however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...listening.normalizer_seen import NormalizerSeen
from .array_segments import ArraySegments
from .normalizer_probe import dead_share, figures, relative

SLOWEST = 0.01
"""Momentum of a BatchNorm below which the rounding of its running variance would show."""
RESOLVED = 1e-6
"""A batch variance below this share of the running one, divided by the momentum, cannot be read off it."""


class BatchNorms:
    """Several BatchNorms with their eps and the values behind each of their variances.

    Args:
        modules: each with a running variance in float32 or float64, on one device.
        first: what the first call of each module showed.
    """

    def __init__(self, modules: Sequence[Any], first: Sequence[NormalizerSeen]) -> None:
        self._modules = list(modules)
        self._first = [replace(seen, variance=None, gamma=None, running_variance=None) for seen in first]
        self._counts = [module.running_var.numel() for module in modules]
        self._ends = np.cumsum([0, *self._counts])
        self._pieces = ArraySegments([np.zeros(count) for count in self._counts])
        self._eps = np.repeat([module.eps for module in modules], self._counts)
        self._free = np.repeat([seen.entries for seen in first], self._counts) - 1
        self._unbiased = self._free / (self._free + 1.0)

    def ready(self) -> bool:
        """Whether they still use and move their statistics as they did."""
        return all(m.training and m.track_running_stats and m.momentum and m.momentum >= SLOWEST for m in self._modules)

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
        """Return what a call of one of them showed, on the device."""
        own, module, first = slice(self._ends[index], self._ends[index + 1]), self._modules[index], self._first[index]
        step, entries, old = moved.momenta[index], first.entries, moved.before[own]
        spread = torch.maximum(torch.lerp(old, moved.after[own], 1.0 / step), old * (RESOLVED / step))
        variance = (spread * ((entries - 1) / entries)).clamp(min=0.0)
        gamma = None if module.weight is None else moved.gamma[own]
        return replace(first, variance=variance[None], eps=module.eps, gamma=gamma, running_variance=old)

    def rows(self, found: Mapping[Any, np.ndarray], momenta: Sequence[float]) -> np.ndarray:
        """Return the figures of all of them, one row each, on the host.

        Args:
            found: what a forward did: `before`, `after`, `gamma` and `calls` of a `Moved`, as they have arrived.
            momenta: the momentum of each of them.
        """
        old, new, size = found["before"], found["after"], np.abs(found["gamma"])
        step = np.repeat(momenta, self._counts)
        spread = np.maximum(old + (new - old) / step, old * (RESOLVED / step))  # below that it is rounding
        variance = np.maximum(spread * self._unbiased, 0.0)
        with np.errstate(all="ignore"):
            columns = figures(self._pieces, variance, variance, eps=self._eps, free=self._free, scale=size)
            dead = dead_share(self._pieces, size)
            dead[[module.weight is None for module in self._modules]] = np.nan
            return np.column_stack(
                [*columns, dead, *relative(self._pieces, (variance + self._eps) / (old + self._eps))]
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What one forward did to the running variances.

    Attributes:
        norms: the BatchNorms that it ran.
        before, after, gamma: running variances and scales, one layer behind the other; ones where it has no scale.
        calls: how often each layer was called: only of one that was called once the variance can be read off.
        momenta: the momentum of each layer.
    """

    norms: BatchNorms
    before: Tensor
    after: Tensor
    gamma: Tensor
    calls: Tensor
    momenta: list[float]
