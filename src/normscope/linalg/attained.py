"""A lower bound on a norm from one vector: its gain, less the rounding of one application of the map."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.rounding import UNIT, gamma, inward
from ..core.sizes import norm as l2
from .convolution_map import Convolution
from .entries import absolute_entries
from .linear_map import Composite, LinearMap, Matrix, Repeated, Sum

SPACING = 2.0**-1074
"""The spacing of the smallest floats: the error of a product or a sum that underflows."""


def attained(linear: LinearMap, vector: Tensor) -> tuple[float, Tensor]:
    """Return log10 of the gain of a vector, rounded inward, and the vector scaled to norm 1 (float64)."""
    vector = vector.double()
    norm = vector.norm()
    if not bool(norm > 0.0):
        return -math.inf, vector
    vector = vector / norm
    image, error = _image(linear, vector[None])
    largest = float(image.abs().max())
    if largest == 0.0 or not math.isfinite(largest) or not math.isfinite(error):
        return -math.inf, vector
    gain = float((image / largest).norm()) / float(vector.norm())
    value = inward(gain, (error + linear.slack) / largest / gain) + math.log10(largest)
    return value - 4.0 * UNIT * max(abs(value), abs(math.log10(largest)), 1.0), vector


def _image(linear: LinearMap, vector: Tensor) -> tuple[Tensor, float]:
    """Return the image of a unit vector, and a bound on its rounding error (an estimate for maps given as code)."""
    if isinstance(linear, Convolution | Matrix):
        return linear.apply(vector), _apply_error(linear)
    carried = _carried(linear, vector, torch.zeros_like(vector))
    if carried is not None:
        image, error = carried
        return image, float(l2(error)) * (1.0 + gamma(error.numel() + 8.0))
    image = linear.apply(vector)
    return image, gamma(4.0 * (linear.in_size + linear.out_size) + 64.0) * float(l2(image))


def _carried(linear: LinearMap, value: Tensor, error: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the image of a batch of vectors and a bound on its error, entry by entry.

    The vectors are known to within `error`. The bound covers parts that cancel each other, weights that are known to
    within a slack, and values that underflow on the way. The result is None where a part is given as code.
    """
    found = _through(linear, value, error)
    if found is None or linear.slack == 0.0:
        return found
    sizes = l2((value.abs() + error).flatten(1), 1).reshape(-1, *[1] * len(linear.out_shape))
    return found[0], found[1] + (1.0 + 1e-9) * linear.slack * sizes


def _through(linear: LinearMap, value: Tensor, error: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what `_carried` returns, for a map whose weights are exact."""
    match linear:
        case Composite(parts=parts):
            found: tuple[Tensor, Tensor] | None = (value, error)
            for part in parts:
                found = None if found is None else _carried(part, *found)
            return found
        case Repeated(inner=inner):
            slices = _carried(inner, value.reshape(-1, *inner.in_shape), error.reshape(-1, *inner.in_shape))
            return slices and (slices[0].reshape(-1, *linear.out_shape), slices[1].reshape(-1, *linear.out_shape))
        case Sum(terms=terms):
            known = [found for found in (_carried(term, value, error) for term in terms) if found is not None]
            if len(known) < len(terms):
                return None
            images, errors = (torch.stack(items) for items in zip(*known, strict=True))
            return images.sum(0), (errors.sum(0) + gamma(len(known)) * images.abs().sum(0)) * (1.0 + 1e-12)
    spread = absolute_entries(linear)
    if spread is None:
        return None
    count = 2.0 * linear.in_size + 64.0
    moved = spread.apply(error + gamma(count) * value.abs()) * (1.0 + 2.0 * gamma(count))
    return linear.apply(value), moved + 4.0 * count * SPACING


def _apply_error(linear: Convolution | Matrix) -> float:
    """Return a bound on the norm of the rounding error of one float64 application to a unit vector."""
    weight = linear.weight.double().flatten(2) if linear.weight.ndim > 2 else linear.weight.double()[:, :, None]
    largest = float(weight.abs().max())
    if largest == 0.0:
        return 0.0
    copies = linear.copies() if isinstance(linear, Convolution) else 1.0
    taps = float((weight / largest).norm(dim=(0, 1)).sum()) * copies
    vanished = SPACING * weight.shape[2] * max(weight.shape[:2]) * math.sqrt(linear.out_size)
    return gamma(2.0 * weight.shape[2] * max(weight.shape[:2]) + 64.0) * taps * largest + vanished
