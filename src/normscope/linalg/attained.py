"""What a vector proves of a norm from below: its gain, less the rounding of one application of the map."""

from __future__ import annotations

import math

from torch import Tensor

from ..core.rounding import UNIT, gamma, inward
from .convolution import Convolution
from .linear_map import LinearMap, Matrix


def attained(linear: LinearMap, vector: Tensor) -> tuple[float, Tensor]:
    """Return log10 of the gain of a vector, rounded inward, and the vector scaled to norm 1 (float64)."""
    vector = vector.double()
    norm = vector.norm()
    if not bool(norm > 0.0):
        return -math.inf, vector
    vector = vector / norm
    image = linear.apply(vector[None])
    if not isinstance(linear, Convolution | Matrix):
        image = image * (1.0 - gamma(4.0 * (linear.in_size + linear.out_size) + 64.0))
    largest = float(image.abs().max())
    if largest == 0.0 or not math.isfinite(largest):
        return -math.inf, vector
    gain = float((image / largest).norm()) / float(vector.norm())
    value = inward(gain, (_apply_error(linear) + linear.slack) / (gain * largest)) + math.log10(largest)
    return value - 4.0 * UNIT * max(abs(value), abs(math.log10(largest)), 1.0), vector


def _apply_error(linear: LinearMap) -> float:
    """Return a bound on the rounding error of one float64 application to a unit vector (a guess for other kinds)."""
    if isinstance(linear, Convolution | Matrix):
        weight = linear.weight.double().flatten(2) if linear.weight.ndim > 2 else linear.weight.double()[:, :, None]
        largest = float(weight.abs().max())
        if largest == 0.0:
            return 0.0
        copies = linear.copies() if isinstance(linear, Convolution) else 1.0
        taps = float((weight / largest).norm(dim=(0, 1)).sum()) * copies
        vanished = 2.0**-1074 * weight.shape[2] * max(weight.shape[:2]) * math.sqrt(linear.out_size)
        return gamma(2.0 * weight.shape[2] * max(weight.shape[:2]) + 64.0) * taps * largest + vanished
    return 0.0
