"""The growth of gradients in a deep network with BatchNorm before training (Yang et al. 2019)."""

from __future__ import annotations

import math
from typing import Literal

from ..core.errors import InputError

LIMIT = math.pi / (math.pi - 1.0)
"""The limit of the growth in a ReLU network with BatchNorm, as the batch becomes large."""


def relu_overlap(correlation: float) -> float:
    """Return `J(c) = (sqrt(1 - c^2) + (pi - arccos c) c)/pi`: twice the mean of relu(u) relu(v) at correlation c.

    Reference: Cho and Saul 2009, the arc-cosine kernel of order 1.
    """
    return (math.sqrt(1.0 - correlation**2) + (math.pi - math.acos(correlation)) * correlation) / math.pi


def batch_norm_growth(batch: int, activation: Literal["relu", "linear"] = "relu") -> float:
    """Return by how much a gradient's squared norm grows per layer, towards the input, in a fresh BatchNorm network.

    `(B-2)/(B-3)` for linear networks; for ReLU `[((B-1) + J'(c))/(1 - J(c)) - 1]/(B-3)` with `c = -1/(B-1)` and
    `J' = (pi - arccos c)/pi`, which tends to `pi/(pi - 1) = 1.467`.

    Assumes: wide layers with Gaussian weights, no skip connections, scale 1, a negligible eps, train mode, and layers
    far from both ends of the network.

    Args:
        batch: the number of independent values from which each variance is computed.
        activation: the activation behind each BatchNorm.

    Raises:
        InputError: the batch has fewer than four values, for which the growth is infinite.

    Example:
        >>> [round(batch_norm_growth(size), 3) for size in (8, 16, 64)]
        [1.788, 1.59, 1.493]

    Reference: Yang et al. 2019, A Mean Field Theory of Batch Normalization.
    """
    if batch <= 3:
        raise InputError(f"the growth is finite for batches of 4 or more, not of {batch}")
    if activation == "linear":
        return (batch - 2) / (batch - 3)
    correlation = -1.0 / (batch - 1)
    slope = (math.pi - math.acos(correlation)) / math.pi
    return (((batch - 1) + slope) / (1.0 - relu_overlap(correlation)) - 1.0) / (batch - 3)
