"""What a test of radii says, where margins are bounded by affine functions of the distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SHORT = 1e-3
"""By this share a radius stays short of where an affine bound ends: at the end itself a margin may be zero, and float32
would see either class there."""


@dataclass(frozen=True, slots=True)
class RadiusOutcome:
    """What a test of radii says.

    Attributes:
        left: lower bounds of the margins over the balls, `[B, K]`; +inf at the label.
        safe: radii within which no margin vanishes, `[B]`, at most those tested and as large where the test passed:
            an affine function below a margin over the whole ball is positive up to there.
    """

    left: Tensor
    safe: Tensor


def affine_outcome(gaps: Tensor, offset: Tensor, rates: Tensor, radius: Tensor) -> RadiusOutcome:
    """Return what affine bounds say: a margin is at least gap + offset - rate norm(x - centre) within the radius.

    `gaps` are the margins at the centres, `[B, K]`, less their rounding errors, +inf at the label; offsets are at most
    0.
    """
    start = gaps + torch.where(gaps == math.inf, 0.0, offset)
    fall = torch.where(radius[:, None] == 0, 0.0, rates * radius[:, None])
    left = torch.where(gaps == math.inf, math.inf, start - fall)
    ends = torch.where(start > 0, torch.where(rates > 0, start / rates, math.inf), 0.0) * (1 - SHORT)
    safe = torch.where(left.amin(1) > 0, radius, torch.minimum(ends.amin(1), radius))
    return RadiusOutcome(left, safe.nan_to_num(nan=0.0))
