"""A normalizer's input on one batch: its variances and the constants that follow (theory: normalizers).

What runs on the device is a variance per set; the figures are made of it on the host, or on the device where there are
too many sets to send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...listening.normalizer_seen import NormalizerSeen
from .array_segments import ArraySegments

DOMINATED = 10.0
"""A variance below this many eps: eps decides what the normalizer does."""
CONSTANT = 1e-6
"""A share of eps: an input with a smaller variance is constant as far as the normalizer can tell."""
DEAD_SCALE = 1e-4
"""A scale below this share of the largest one lets nothing through."""
MOST = 2048
"""Variances of a normalizer that are sent to the host one by one; more are summed up on the device."""
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


def measure(seen: NormalizerSeen) -> Tensor:
    """Return `QUANTITIES` as one vector, on the device."""
    variance, eps = seen.variance, seen.eps
    logs = torch.log10(variance)
    constants = constant(seen.divisor, seen.free, eps)
    scale = scales(seen)
    gains = constants if scale is None else constants * scale
    figures = [
        logs.mean(),
        logs.min(),
        logs.max(),
        torch.log10(constants.max()),
        torch.log10(gains.max()),
        _share(variance < DOMINATED * eps),
        _share(variance <= CONSTANT * eps),
    ]
    nothing = variance.max() * float("nan")
    dead = ratio = spread = nothing
    if seen.gamma is not None:
        size = abs(seen.gamma)
        dead = _share(size <= DEAD_SCALE * size.max())
    if seen.running_variance is not None:
        relative = torch.log10((variance + eps) / (seen.running_variance + eps)).reshape(-1)
        ratio, spread = relative.mean(), relative.std(correction=0)
    return torch.stack([*figures, dead, ratio, spread])


def scales(seen: NormalizerSeen) -> Any:
    """Return the largest abs(gamma) of every group; None without scales."""
    if seen.gamma is None:
        return None
    size = abs(seen.gamma).reshape(seen.variance.shape[-1], -1)
    return size.amax(1) if isinstance(size, Tensor) else size.max(1)


def constant(variance: Any, free: int, eps: float) -> Any:
    """Return the Jacobian norm of a set without its scale: 1/s, eps/s^3 for one free dimension, 0 for none."""
    deviation = (variance + eps) ** 0.5
    if free >= 2:
        return 1.0 / deviation
    return eps / deviation**3 if free == 1 else 0.0 * deviation


def _share(flags: Tensor) -> Tensor:
    return flags.float().mean()


def measure_all(many: Sequence[NormalizerSeen]) -> np.ndarray:
    """Return `QUANTITIES` of several normalizers on the host, one row each: `measure`, in few calls."""
    if not many:
        return np.zeros((0, len(QUANTITIES)))
    flat = [np.asarray(seen.variance) for seen in many]
    pieces = ArraySegments(flat)
    eps = np.repeat([seen.eps for seen in many], pieces.counts)
    free = np.repeat([seen.free for seen in many], pieces.counts)
    divisor = pieces.values
    if any(seen.stored for seen in many):
        parts = [np.broadcast_to(s.divisor, v.shape).reshape(-1) for s, v in zip(many, flat, strict=True)]
        divisor = np.concatenate(parts)
    scale = np.concatenate(
        [np.ones(v.size) if (s := scales(seen)) is None else np.broadcast_to(s, v.shape).reshape(-1)
         for seen, v in zip(many, flat, strict=True)]
    )  # fmt: skip
    with np.errstate(all="ignore"):
        columns = figures(pieces, pieces.values, divisor, eps=eps, free=free, scale=scale)
        rest = np.full((len(many), 3), math.nan)
        scaled = [index for index, seen in enumerate(many) if seen.gamma is not None]
        if scaled:
            sizes = ArraySegments([np.abs(many[index].gamma) for index in scaled])
            rest[scaled, 0] = dead_share(sizes, sizes.values)
        stored = [index for index, seen in enumerate(many) if seen.running_variance is not None]
        if stored:
            own = ArraySegments(
                [(flat[i].reshape(-1) + many[i].eps) / (many[i].running_variance + many[i].eps) for i in stored]
            )
            rest[stored, 1:] = np.column_stack(relative(own, own.values))
    return np.column_stack([*columns, rest])


def figures(pieces: ArraySegments, variance: Any, divisor: Any, *, eps: Any, free: Any, scale: Any) -> list[np.ndarray]:
    """Return the first seven of `QUANTITIES` of several normalizers, each figure a column.

    Args:
        pieces: which sets belong to which normalizer.
        variance: the variance of every set.
        divisor: the variance that it is divided by.
        eps: the stabiliser of every set.
        free: dimensions of every set, see `NormalizerSeen`.
        scale: the largest abs(gamma) of every set.
    """
    deviation = np.sqrt(divisor + eps)
    constants = 1.0 / deviation
    if free.min() < 2:
        constants = np.where(free >= 2, constants, np.where(free == 1, eps / deviation**3, 0.0))
    logs = np.log10(variance)
    return [
        pieces.mean(logs),
        pieces.of(np.minimum, logs),
        pieces.of(np.maximum, logs),
        np.log10(pieces.of(np.maximum, constants)),
        np.log10(pieces.of(np.maximum, constants * scale)),
        pieces.mean(variance < DOMINATED * eps),
        pieces.mean(variance <= CONSTANT * eps),
    ]


def dead_share(pieces: ArraySegments, sizes: np.ndarray) -> np.ndarray:
    """Return the share of the scales of each normalizer that let nothing through."""
    largest = np.repeat(pieces.of(np.maximum, sizes), pieces.counts)
    return pieces.mean(sizes <= DEAD_SCALE * largest)


def relative(pieces: ArraySegments, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of log10 of the ratios of each part."""
    logs = np.log10(ratios)
    mean = pieces.mean(logs)
    return mean, np.sqrt(np.maximum(pieces.mean(logs**2) - mean**2, 0.0))
