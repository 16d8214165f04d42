"""Figures that depend on the data, as members of a list that was fixed before: what a union bound over them costs."""

from __future__ import annotations

import math


def power_of_two(log10_value: float) -> tuple[float, float]:
    """Return log10 of the next power of two above a value, and the factor that its share of delta is smaller by.

    Over all whole k the shares `1/(1.5 (|k|+1)(|k|+2))` add up to 1.

    Example:
        >>> exponent, factor = power_of_two(math.log10(3.0))
        >>> round(10**exponent), round(factor, 6)
        (4, 18.0)
    """
    if math.isinf(log10_value):
        return log10_value, 1.0
    k = math.ceil(log10_value / math.log10(2.0) - 1e-12)
    return k * math.log10(2.0), 1.5 * (abs(k) + 1) * (abs(k) + 2)


def quantiles(margins: list[float]) -> list[float]:
    """Return positive margins to try, at fixed shares of the samples; the bounds that use them allow any."""
    if not margins:
        return []
    places = {min(len(margins) - 1, int(share * len(margins))) for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)}
    return sorted({margins[place] for place in places if margins[place] > 0})
