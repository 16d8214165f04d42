"""Cisneros-Velarde, Chen, Koyejo and Banerjee 2025: the rate for weight-normalized networks, as Than quotes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNIT = 1e-4
"""A Frobenius norm counts as 1 if it is closer to 1 than this."""


def rate(log10_last: float, samples: int) -> float:
    """Return log10 of `rho_1^2/sqrt(m)`: the order of the bound; rho_1 is the norm of the last layer's weights."""
    return 2.0 * log10_last - 0.5 * math.log10(samples)


def is_normalized(log10_frobenius: Sequence[float]) -> bool:
    """Whether all layers but the last have weights of Frobenius norm 1."""
    return len(log10_frobenius) > 1 and all(abs(10.0 ** min(one, 10.0) - 1.0) < UNIT for one in log10_frobenius[:-1])
