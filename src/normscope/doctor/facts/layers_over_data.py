"""What normalizers, weight layers and ReLUs see over the data, each record beside the tally that adds it up.

Tallies are running statistics: memory of one batch, on the data's device, no waiting for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.log10 import log10
from ...listening.calls import NormalizerSeen, Site

DECADES = 40
"""Variances are counted in a histogram of log10 from -40 to 40; the extremes are exact whatever they are."""

BINS_PER_DECADE = 64
"""A bin is 3.7 % wide, and so is the error of a median."""
RELATIVE_CHANNEL = 1e-4
"""A channel against the largest of its layer; trained layers stay above a hundredth."""
CONSTANT = 1e-6
"""A share of eps: below it the deviation is under a thousandth of what the normalizer divides by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """The variance a normalizer saw at its input, over the data.

    A set is what is normalized together: a channel of BatchNorm (in eval mode over all the data, in train mode the mean
    of its variances within batches), a row of LayerNorm or RMSNorm, a group of GroupNorm, a channel of one sample for
    InstanceNorm (of all the data where it uses running statistics). For RMSNorm it is the mean square.

    Attributes:
        log10_min, log10_median, log10_max: over the sets; `-inf` is a variance of zero.
        share_below_one: of the sets, those with a variance below 1, where a normalizer that divides by it expands
            (BatchNorm in eval mode divides by its stored variances instead).
        share_eps: those with a variance below 10 eps, where eps decides the result.
        sets: how many sets were seen.
        entries: values in one set; for BatchNorm in one batch.
        eps: the stabiliser.
    """

    log10_min: float
    log10_median: float
    log10_max: float
    share_below_one: float
    share_eps: float
    sets: int
    entries: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerOverData:
    """A normalizer over the data.

    Attributes:
        site: where it runs.
        kind: `batch`, `layer`, `group`, `instance` or `rms`.
        eps: the stabiliser.
        entries: values normalized together; for BatchNorm the values per channel in the smallest batch seen.
        samples: independent samples behind one variance of BatchNorm: the smallest batch size seen.
        variance: the summary over its sets.
        weight: gamma, if it has one.
        channel_mean, channel_variance: BatchNorm only: of every channel (float64, on the CPU): over all the data where
            it uses running statistics, otherwise the mean of the variances within batches.
        least_variance: the smallest variance seen in any batch, by channel (BatchNorm, InstanceNorm), by group
            (GroupNorm), or one for all (LayerNorm, RMSNorm).
        running_mean, running_variance: BatchNorm only: the statistics it keeps, if it does.
        uses_running: whether it normalized with them (eval mode).
        batch_spread: BatchNorm only: the median over channels of the relative standard deviation of the variance from
            batch to batch; `None` with fewer than four batches.
    """

    site: Site
    kind: str
    eps: float
    entries: int
    samples: int
    variance: Variance
    weight: Tensor | None = None
    channel_mean: Tensor | None = None
    channel_variance: Tensor | None = None
    least_variance: Tensor | None = None
    running_mean: Tensor | None = None
    running_variance: Tensor | None = None
    uses_running: bool = False
    batch_spread: float | None = None

    @property
    def dead_scales(self) -> Tensor | None:
        """Which scales are negligible beside its largest; None if it has none."""
        if self.weight is None or not self.weight.numel():
            return None
        size = self.weight.abs().flatten()
        return size <= RELATIVE_CHANNEL * size.max()

    @property
    def constant_inputs(self) -> Tensor | None:
        """Which channels of BatchNorm saw a constant; None for the other normalizers."""
        return None if self.channel_variance is None else self.channel_variance <= CONSTANT * self.eps

    @property
    def stored_variance(self) -> Tensor | None:
        """The running variances it divided by; None where it divided by those of the data."""
        return self.running_variance if self.uses_running else None

    @property
    def log10_median(self) -> float:
        """log10 of the median variance it divided by."""
        stored = self.stored_variance
        if stored is None:
            return self.variance.log10_median
        return log10(float(stored.nan_to_num(nan=0.0).clamp(min=0.0).median()))  # what is no number is a finding

    @property
    def share_eps(self) -> float:
        """The share of the variances it divided by that are below 10 eps."""
        stored = self.stored_variance
        return self.variance.share_eps if stored is None else float((stored < 10.0 * self.eps).double().mean())

    @property
    def untaken(self) -> bool:
        """Whether it uses running statistics that still have the values they are born with."""
        if not self.uses_running or self.running_mean is None or self.running_variance is None:
            return False
        return bool((self.running_mean == 0).all()) and bool((self.running_variance == 1).all())


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
        self.running_mean, self.running_variance = first.running_mean, first.running_variance
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
            running_mean=_kept(self.running_mean),
            running_variance=_kept(self.running_variance),
            batch_spread=spread,
            uses_running=self.uses_running,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOverData:
    """A weight layer over the data.

    Attributes:
        site: where it runs.
        input_shape, output_shape: the shapes of its input and output in the first batch.
        rms_input, rms_output: root mean square of its input and output over the data.
    """

    site: Site
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    rms_input: float
    rms_output: float


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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsOverData:
    """A ReLU over the data: `dead[k]` says that channel k was never positive."""

    site: Site
    dead: Tensor


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


def send_to_host(tallies: Iterable[Any]) -> None:
    """Bring what tallies hold to the host, with one transfer for each type of numbers."""
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[Any, str, Tensor]]] = {}
    for tally in tallies:
        for name, value in vars(tally).items():
            if isinstance(value, Tensor) and value.device.type != "cpu":
                kinds.setdefault((value.device, value.dtype), []).append((tally, name, value.detach()))
    for held in kinds.values():
        here = torch.cat([value.reshape(-1) for *_, value in held]).cpu()
        for (tally, name, value), part in zip(held, here.split([value.numel() for *_, value in held]), strict=True):
            setattr(tally, name, part.view(value.shape))


def _kept(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().double().cpu().clone()
