"""A normalizer's input on one batch: its variances and the constants that follow (theory: normalizers)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DOMINATED = 10.0
"""A variance below this many eps: eps decides what the normalizer does."""
CONSTANT = 1e-6
"""Of eps: such an input is constant as far as the normalizer can tell."""
DEAD_SCALE = 1e-4
"""A scale below this share of the largest one lets nothing through."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """What a normalizer normalizes on one batch.

    Attributes:
        variance: of every set, `[*, groups]`: sets with the same scales lie along the first dimension.
        entries: how many values a set has.
        eps: the stabiliser.
        scale: the largest abs(gamma) of every group, `[groups]` or one; None for ones.
        gamma: every scale, for the dead ones; None without scales.
        running: the running variance `[groups]`, if there is one.
    """

    variance: Tensor
    entries: int
    eps: float
    scale: Tensor | None = None
    gamma: Tensor | None = None
    running: Tensor | None = None


def channel_sets(x: Tensor, *, eps: float, gamma: Tensor | None = None, running: Tensor | None = None) -> Sets:
    """Return the channels of a BatchNorm, `[samples, channels, ...]`.

    Args:
        x: its input.
        eps: the stabiliser.
        gamma: the scales.
        running: the running variance.
    """
    dims = [0, *range(2, x.ndim)]
    variance = torch.var(_wide(x), dim=dims, correction=0)
    scale = None if gamma is None else gamma.detach().abs()
    return Sets(
        variance=variance[None], entries=x.numel() // x.shape[1], eps=eps, scale=scale, gamma=gamma, running=running
    )


def row_sets(x: Tensor, *, sets: int, groups: int, eps: float, gamma: Tensor | None, centred: bool = True) -> Sets:
    """Return the sets of LayerNorm, GroupNorm, InstanceNorm or RMSNorm: runs of consecutive entries.

    Args:
        x: its input.
        sets: how many there are.
        groups: sets with scales of their own in one sample.
        eps: the stabiliser.
        gamma: the scales; those of a group are consecutive.
        centred: False for RMSNorm, whose "variance" is the mean square.
    """
    rows = _wide(x).reshape(sets, -1)
    variance = torch.var(rows, dim=1, correction=0) if centred else rows.square().mean(1)
    scale = None if gamma is None else gamma.detach().abs().reshape(groups, -1).amax(1)
    return Sets(variance=variance.reshape(-1, groups), entries=rows.shape[1], eps=eps, scale=scale, gamma=gamma)


def measure(sets: Sets) -> Tensor:
    """Return `QUANTITIES` as one vector; NaN where a quantity does not apply."""
    variance, eps = sets.variance.to(torch.float32), sets.eps
    logs = variance.log10()
    constants = constant(variance, sets.entries, eps)
    gains = constants if sets.scale is None else constants * sets.scale.to(constants)
    nothing = variance.new_full((), float("nan"))
    dead = nothing
    if sets.gamma is not None:
        size = sets.gamma.detach().abs().to(torch.float32)
        dead = (size <= DEAD_SCALE * size.amax()).float().mean()
    ratio = spread = nothing
    if sets.running is not None:
        relative = ((variance + eps) / (sets.running.to(variance) + eps)).log10().flatten()
        ratio, spread = relative.mean(), relative.std(correction=0)
    return torch.stack(
        [
            logs.mean(),
            logs.amin(),
            logs.amax(),
            constants.amax().log10(),
            gains.amax().log10(),
            (variance < DOMINATED * eps).float().mean(),
            (variance <= CONSTANT * eps).float().mean(),
            dead,
            ratio,
            spread,
        ]
    )


def constant(variance: Tensor, entries: int, eps: float) -> Tensor:
    """Return the Jacobian norm of a set without its scale: 1/s, eps/s^3 for two entries, 0 for one."""
    deviation = (variance + eps).sqrt()
    if entries >= 3:
        return 1.0 / deviation
    return eps / deviation**3 if entries == 2 else torch.zeros_like(deviation)


def _wide(x: Tensor) -> Tensor:
    """Return values that can be squared and summed."""
    return x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
