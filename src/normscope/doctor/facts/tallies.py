"""Running statistics of what flows through a layer: memory of one batch, on the data's device, no waiting for it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...auditing.audit_result import Variance
from ...core.log10 import log10
from ...listening.calls import NormalizerSeen, Site
from ..checking.examined import NormalizerOverData, UnitsOverData, WeightOverData

DECADES = 40
"""Variances are counted in a histogram of log10 from -40 to 40; the extremes are exact whatever they are."""

BINS_PER_DECADE = 64
"""A bin is 3.7 % wide, and so is the error of a median."""


class SetTally:
    """The variances of many small sets: rows of LayerNorm, groups of GroupNorm, mean squares of RMSNorm.

    Args:
        site: where the normalizer runs.
        first: what its first call showed.
    """

    def __init__(self, site: Site, first: NormalizerSeen) -> None:
        self.site, self.kind = site, first.family.removesuffix("_norm")
        self.eps, self.weight = first.eps, first.gamma
        self.entries, self.samples = first.entries, first.samples
        count, device = 2 * DECADES * BINS_PER_DECADE, first.variance.device
        self._counts = torch.zeros(count, dtype=torch.float64, device=device)
        self._total = torch.zeros(3, dtype=torch.float64, device=device)
        self._least = torch.full((first.groups,), math.inf, dtype=torch.float64, device=device)
        self._most = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, seen: NormalizerSeen) -> None:
        """Count the variances of one call."""
        variances = seen.variance.flatten()
        self.entries, self.samples = min(self.entries, seen.entries), min(self.samples, seen.samples)
        exponents = variances.clamp(10.0**-DECADES, 10.0**DECADES).log10()
        self._counts += torch.histc(exponents, bins=len(self._counts), min=-DECADES, max=DECADES)
        self._total += torch.stack(
            [torch.ones_like(variances).sum(), (variances < 1).sum(), (variances < 10 * self.eps).sum()]
        )
        self._least = torch.minimum(self._least, seen.variance.amin(0))
        self._most = torch.maximum(self._most, variances.max())

    def seen(self) -> NormalizerOverData | None:
        """Return the summary, or None if the values were not finite."""
        if not bool(torch.isfinite(self._most)):
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
    """BatchNorm's channels: mean and variance over all the data, and how the variance moves from batch to batch.

    Args:
        site: where the normalizer runs.
        first: what its first call showed.
    """

    def __init__(self, site: Site, first: NormalizerSeen) -> None:
        self.site, self.eps, self.weight = site, first.eps, first.gamma
        self.running = (first.running_mean, first.running_variance)
        self.uses_running = first.stored
        self.entries, self.samples = first.entries, first.samples
        self.batches = self._count = 0
        self._mean = self._squares = self._batch_mean = self._batch_squares = torch.zeros_like(first.mean)
        self._batch_least = first.variance[0]
        self._changed = False

    def add(self, seen: NormalizerSeen) -> None:
        """Count one batch (Chan's update of mean and sum of squares)."""
        if len(seen.mean) != len(self._mean):
            self._changed = True  # a layer that changes its width has no channels to follow
            return
        count, mean, variance = seen.entries, seen.mean, seen.variance[0]
        self.entries, self.samples = min(self.entries, count), min(self.samples, seen.samples)
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
        """Return the summary, or None if the width changed or the values were not finite."""
        if self._changed or not bool(torch.isfinite(self._squares).all()):
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
            log10_median=log10(float(ordered[(len(ordered) - 1) // 2])),
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
        if not made.numel():  # an expert that no sample was sent to
            return
        alive = (made > 0).transpose(0, self.channel).flatten(1).any(1)
        self._changed = self._changed or (self._alive is not None and self._alive.shape != alive.shape)
        if not self._changed:
            self._alive = alive if self._alive is None else self._alive | alive

    def seen(self) -> UnitsOverData | None:
        """Return the summary, or None if nothing was counted or the width changed."""
        return None if self._alive is None or self._changed else UnitsOverData(site=self.site, dead=~self._alive.cpu())


def _kept(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().double().cpu().clone()
