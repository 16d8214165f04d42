"""Running statistics of what flows through a layer: memory of one batch, on the data's device, no waiting for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.log10 import log10
from .audit_result import Variance
from .examined import NormalizerOverData, Site, UnitsSeen, WeightOverData

DECADES = 40
"""Variances are counted in a histogram of log10 from -40 to 40; the extremes are exact whatever they are."""

BINS_PER_DECADE = 64
"""A bin is 3.7 % wide, and so is the error of a median."""


class SetTally:
    """The variances of many small sets: rows of LayerNorm, groups of GroupNorm, root mean squares of RMSNorm."""

    def __init__(self, site: Site, kind: str, eps: float, weight: Tensor | None, positions: int = 1) -> None:
        self.site, self.kind, self.eps, self.weight, self.positions = site, kind, eps, weight, positions
        self.entries = 0
        self.samples = 0
        self._counts: Tensor | None = None

    def add(self, sets: Tensor, samples: int) -> None:
        """Count sets given as rows, `[sets, entries]`; sets with the same scales come `positions` apart."""
        if not sets.numel():
            return
        values = sets.double()
        centred = values if self.kind == "rms" else values - values.mean(1, keepdim=True)
        variances = centred.square().mean(1)
        if self._counts is None:
            self.entries, self.samples = sets.shape[1], samples
            self._counts = torch.zeros(2 * DECADES * BINS_PER_DECADE, dtype=torch.float64, device=sets.device)
            self._total = torch.zeros(3, dtype=torch.float64, device=sets.device)
            self._least = torch.full((self.positions,), math.inf, dtype=torch.float64, device=sets.device)
            self._most = torch.zeros((), dtype=torch.float64, device=sets.device)
        self.entries, self.samples = min(self.entries, sets.shape[1]), min(self.samples, samples)
        exponents = variances.clamp(10.0**-DECADES, 10.0**DECADES).log10()
        self._counts += torch.histc(exponents, bins=len(self._counts), min=-DECADES, max=DECADES)
        self._total += torch.stack(
            [torch.ones_like(variances).sum(), (variances < 1).sum(), (variances < 10 * self.eps).sum()]
        )
        self._least = torch.minimum(self._least, variances.reshape(-1, self.positions).amin(0))
        self._most = torch.maximum(self._most, variances.max())

    def seen(self) -> NormalizerOverData | None:
        """Return the summary, or None if nothing was counted or the values were not finite."""
        if self._counts is None or not bool(torch.isfinite(self._most)):
            return None
        sets, below, dominated = self._total.tolist()
        reached = self._counts.cumsum(0) >= sets / 2
        least, most = log10(float(self._least.min())), log10(float(self._most))
        bin_ = int(reached.int().argmax())
        median = (bin_ + 0.5) / BINS_PER_DECADE - DECADES if bin_ else least  # the first bin holds all that is smaller
        variance = Variance(
            log10_min=least,
            log10_median=min(max(median, least), most),
            log10_max=most,
            share_below_one=below / sets,
            share_eps=dominated / sets,
            sets=int(sets),
            entries=self.entries,
            eps=self.eps,
        )
        return NormalizerOverData(
            site=self.site,
            kind=self.kind,
            eps=self.eps,
            entries=self.entries,
            samples=self.samples,
            variance=variance,
            weight=_kept(self.weight),
            least_variance=_kept(self._least),
        )


class ChannelTally:
    """BatchNorm's channels: mean and variance over all the data, and how the variance moves from batch to batch."""

    def __init__(
        self, site: Site, eps: float, weight: Tensor | None, running: Sequence[Tensor | None], *, uses_running: bool
    ) -> None:
        self.site, self.eps, self.weight = site, eps, weight
        # copies, where they are: a run in train mode moves the originals
        self.running = tuple(None if tensor is None else tensor.detach().clone() for tensor in running)
        self.uses_running = uses_running
        self.entries = self.samples = 0
        self.batches = 0
        self._count = self._width = 0

    def add(self, x: Tensor) -> None:
        """Count one batch `[samples, channels, ...]` (Chan's update of mean and sum of squares)."""
        channels = x.shape[1]
        if not x.numel() or (self.batches and channels != self._width):
            self.entries = 0 if x.numel() else self.entries  # a layer that changes its width has no channels to follow
            return
        values = x.detach().double().transpose(0, 1).reshape(channels, -1)
        count, mean = values.shape[1], values.mean(1)
        variance = (values - mean[:, None]).square().mean(1)
        if not self.batches:
            self._mean, self._squares = torch.zeros_like(mean), torch.zeros_like(mean)
            self._batch_mean, self._batch_squares = torch.zeros_like(mean), torch.zeros_like(mean)
            self._batch_least, self._width = variance, channels
            self.entries, self.samples = count, x.shape[0]
        self.entries, self.samples = min(self.entries, count), min(self.samples, x.shape[0])
        shift, total = mean - self._mean, self._count + count
        self._mean = self._mean + shift * (count / total)
        self._squares = self._squares + variance * count + shift.square() * (self._count * count / total)
        self._count = total
        self.batches += 1
        step = variance - self._batch_mean
        self._batch_mean = self._batch_mean + step / self.batches
        self._batch_least = torch.minimum(self._batch_least, variance)
        self._batch_squares = self._batch_squares + step * (variance - self._batch_mean)

    def seen(self) -> NormalizerOverData | None:
        """Return the summary, or None if nothing was counted, the width changed or the values were not finite."""
        if not self.batches or not self.entries or not bool(torch.isfinite(self._squares).all()):
            return None
        within = not self.uses_running
        variances = (self._batch_mean if within else self._squares / self._count).cpu()
        spread = None
        if self.batches >= 4:
            deviation = (self._batch_squares / (self.batches - 1)).sqrt().cpu()
            relative = (deviation / variances)[variances > 0]
            spread = float(relative.median()) if len(relative) else None
        ordered = variances.sort().values
        variance = Variance(
            log10_min=log10(float(ordered[0])),
            log10_median=log10(float(ordered[len(ordered) // 2])),
            log10_max=log10(float(ordered[-1])),
            share_below_one=float((variances < 1).double().mean()),
            share_eps=float((variances < 10 * self.eps).double().mean()),
            sets=len(variances),
            entries=self.entries,
            eps=self.eps,
        )
        return NormalizerOverData(
            site=self.site,
            kind="batch",
            eps=self.eps,
            entries=self.entries,
            samples=self.samples,
            variance=variance,
            weight=_kept(self.weight),
            channel_mean=self._mean.cpu(),
            channel_variance=variances,
            least_variance=self._batch_least.cpu() if within else variances,
            running_mean=_kept(self.running[0]),
            running_variance=_kept(self.running[1]),
            batch_spread=spread,
            uses_running=self.uses_running,
        )


class WeightTally:
    """Root mean squares of a weight layer's input and output."""

    def __init__(self, site: Site, given: Tensor, made: Tensor) -> None:
        self.site, self.shapes = site, (tuple(given.shape), tuple(made.shape))
        self._sums = torch.zeros(2, dtype=torch.float64, device=made.device)
        self._counts = [0, 0]

    def add(self, given: Tensor, made: Tensor) -> None:
        """Count one call."""
        norms = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (given, made)]
        self._sums += torch.stack(norms).square()
        self._counts = [self._counts[0] + given.numel(), self._counts[1] + made.numel()]

    def seen(self) -> WeightOverData:
        """Return the summary."""
        squares = [value / max(count, 1) for value, count in zip(self._sums.tolist(), self._counts, strict=True)]
        return WeightOverData(
            site=self.site,
            input_shape=self.shapes[0],
            output_shape=self.shapes[1],
            rms_input=math.sqrt(squares[0]),
            rms_output=math.sqrt(squares[1]),
        )


class UnitsTally:
    """Which channels of a ReLU were ever positive."""

    def __init__(self, site: Site, channel: int) -> None:
        self.site, self.channel = site, channel
        self._alive: Tensor | None = None
        self._changed = False

    def add(self, made: Tensor) -> None:
        """Count one call; a layer that changes its width from call to call is left out."""
        alive = (made > 0).transpose(0, self.channel).flatten(1).any(1)
        self._changed = self._changed or (self._alive is not None and self._alive.shape != alive.shape)
        if not self._changed:
            self._alive = alive if self._alive is None else self._alive | alive

    def seen(self) -> UnitsSeen | None:
        """Return the summary, or None if nothing was counted or the width changed."""
        return None if self._alive is None or self._changed else UnitsSeen(site=self.site, dead=~self._alive.cpu())


def _kept(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().double().cpu().clone()
