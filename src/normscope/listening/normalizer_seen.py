"""What one call of a normalizer shows: a variance per set, and what it does with it.

A set is what is normalized together: a channel of BatchNorm, a row of LayerNorm, a group of one sample of GroupNorm.
Everything is computed on the device of the input, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..theory.normalizers import rms_epsilon
from .calls import FunctionCall


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerSeen:
    """One call of a normalizer.

    The tensors are arrays of numpy once they have been sent to the host.

    Attributes:
        family: `batch_norm`, `layer_norm`, ...
        variance: the variance of every set, `[*, groups]`: sets with the same scales lie along the first dimension.
        entries: how many values a set has.
        samples: the size of the batch.
        eps: the stabiliser.
        groups: sets of one sample with scales of their own; those of BatchNorm are counted by `variance` alone.
        gamma: every scale, those of a group next to each other; None without scales.
        mean: the mean of every channel, where the sets are channels and exact statistics were asked for.
        running_mean, running_variance: those of every channel before the call; None where there are none.
        stored: whether it divides by the running variance, a constant, instead of the batch's.
    """

    family: str
    variance: Any
    entries: int
    samples: int
    eps: float
    groups: int = 1
    gamma: Any = None
    mean: Any = None
    running_mean: Any = None
    running_variance: Any = None
    stored: bool = False

    @property
    def centred(self) -> bool:
        """Whether the mean is taken off first; RMSNorm does not."""
        return is_centred(self.family)

    @property
    def by_channel(self) -> bool:
        """Whether its sets are the channels of the whole batch."""
        return self.family == "batch_norm" or (self.family == "instance_norm" and self.stored)

    @property
    def divisor(self) -> Any:
        """The variances that it divides by."""
        return self.running_variance[None] if self.stored else self.variance

    @property
    def free(self) -> int:
        """Degrees of freedom of a set: its entries, less one where their mean is subtracted.

        They are 2 for stored statistics, where the constant is 1/s, as it is for any larger set.
        """
        return 2 if self.stored else self.entries - self.centred

    def without_tensors(self) -> NormalizerSeen:
        """Return what can be kept while variances and scales are on their way to the host."""
        return replace(self, variance=None, gamma=None, running_variance=None)


def normalizer_seen(call: FunctionCall, *, exact: bool = False) -> NormalizerSeen:
    """Return what a normalizer is about to do: in train mode the call moves the running statistics.

    It is called without gradients, as all functions here.

    Args:
        call: the call of the normalizer, before it runs.
        exact: take variances, and means of channels, in float64 by two passes; otherwise the variances alone, in
            float32 at least by one pass.
    """
    given, family = call.named(), call.name
    x, gamma = given["input"].detach(), given.get("weight")
    gamma = None if gamma is None else gamma.detach().clone()  # sharded scales are gathered for the run alone
    stored = not given.get("training" if family == "batch_norm" else "use_input_stats", True)
    if family == "batch_norm" or (family == "instance_norm" and stored):
        mean, variance = _channel_moments(x) if exact else (None, channel_variance(x))
        return NormalizerSeen(
            family=family,
            variance=variance,
            entries=x.numel() // x.shape[1],
            samples=len(x),
            eps=float(given["eps"]),
            gamma=gamma,
            mean=mean,
            running_mean=_copied(given.get("running_mean")) if exact else None,
            running_variance=_copied(given.get("running_var")),
            stored=stored,
        )
    eps = rms_epsilon(given["eps"], x.dtype) if family == "rms_norm" else float(given["eps"])
    sets, groups = set_count(family, given, x), set_positions(family, given, x)
    return rows_seen(family, x, sets=sets, groups=groups, eps=eps, gamma=gamma, exact=exact)


def rows_seen(
    family: str, x: Tensor, *, sets: int, eps: float, groups: int = 1, gamma: Tensor | None = None, exact: bool = False
) -> NormalizerSeen:
    """Return what a normalizer does whose sets are runs of consecutive entries of its input.

    Args:
        family: the family of the normalizer.
        x: its input.
        sets: how many sets there are.
        eps: the stabiliser.
        groups: sets of one sample with scales of their own.
        gamma: the scales.
        exact: as for `normalizer_seen`.
    """
    centred = is_centred(family)
    variance = (_exact_row_variance if exact else row_variance)(x, sets=sets, groups=groups, centred=centred)
    return NormalizerSeen(
        family=family,
        variance=variance,
        entries=x.numel() // max(sets, 1),
        samples=len(x),
        eps=eps,
        groups=groups,
        gamma=gamma,
    )


def is_centred(family: str) -> bool:
    """Whether a normalizer takes the mean off; what it divides by otherwise is the root mean square."""
    return family not in ("rms_norm", "rms")


def set_positions(family: str, given: Mapping[str, Any], x: Tensor) -> int:
    """Return how many sets of one sample have scales of their own: groups, channels, or one."""
    if family == "group_norm":
        return int(given["num_groups"])
    return int(x.shape[-2] if x.ndim == 2 else x.shape[1]) if family == "instance_norm" else 1


def set_count(family: str, given: Mapping[str, Any], x: Tensor) -> int:
    """Return how many sets a normalizer has; each is a run of consecutive entries."""
    if family == "group_norm":
        return int(x.shape[0] * given["num_groups"])
    if family == "instance_norm":
        return x.shape[:-1].numel() if x.ndim == 2 else int(x.shape[0] * x.shape[1])
    return x.shape[: x.ndim - len(given["normalized_shape"])].numel()


def channel_variance(x: Tensor) -> Tensor:
    """Return the variances `[1, channels]` of the channels of a BatchNorm's input `[samples, channels, ...]`."""
    return torch.var(_wide(x), dim=[0, *range(2, x.ndim)], correction=0)[None]


def row_variance(x: Tensor, *, sets: int, groups: int, centred: bool = True) -> Tensor:
    """Return the variances `[sets/groups, groups]` of the sets of LayerNorm, GroupNorm, InstanceNorm or RMSNorm.

    Args:
        x: its input; a set is a run of consecutive entries.
        sets: how many there are.
        groups: sets with scales of their own in one sample.
        centred: False for RMSNorm, whose "variance" is the mean square.
    """
    rows = _wide(x).reshape(sets, -1)
    variance = torch.var(rows, dim=1, correction=0) if centred else rows.square().mean(1)
    return variance.reshape(-1, groups)


def _exact_row_variance(x: Tensor, *, sets: int, groups: int, centred: bool) -> Tensor:
    """Return what `row_variance` returns, in float64 and by two passes."""
    values = x.double().reshape(sets, -1)
    values = values - values.mean(1, keepdim=True) if centred else values
    return values.square().mean(1).reshape(-1, groups)


def _channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return means `[channels]` and variances `[1, channels]` of the channels, in float64 and by two passes."""
    values = x.double().transpose(0, 1).reshape(x.shape[1], -1)
    mean = values.mean(1)
    return mean, (values - mean[:, None]).square().mean(1)[None]


def _wide(x: Tensor) -> Tensor:
    """Return values that can be squared and summed."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
