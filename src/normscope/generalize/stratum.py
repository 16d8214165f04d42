"""Rounding figures that depend on the data to a fixed list, and the cost of a union bound over that list."""

from __future__ import annotations

import math


def power_of_two(log10_value: float) -> tuple[float, float]:
    """Return log10 of the next power of two 2^k above a value, and the inverse of its share of delta.

    The shares `1/(1.5 (|k|+1)(|k|+2))` add up to 1 over all integers k.
    """
    if math.isinf(log10_value):
        return log10_value, 1.0
    k = math.ceil(log10_value / math.log10(2.0) - 1e-12)
    return k * math.log10(2.0), 1.5 * (abs(k) + 1) * (abs(k) + 2)


def quantiles(margins: list[float]) -> list[float]:
    """Return positive margins to try: those at fixed shares of the samples, whose margins are given in ascending order.

    The bounds that use them hold for any margin.
    """
    if not margins:
        return []
    shares = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
    indices = {min(len(margins) - 1, int(share * len(margins))) for share in shares}
    return sorted({margins[index] for index in indices if margins[index] > 0})
