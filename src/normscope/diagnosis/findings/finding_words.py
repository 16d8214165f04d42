"""How findings write figures, and the figures they keep."""

from __future__ import annotations

import math

from ...core.log10 import power10


def figure(value: float) -> str:
    """Write a number with two digits: 0.031, 4.2e+06."""
    return f"{value:.2g}"


def power(exponent: float) -> str:
    """Write the number whose log10 is given; beyond the floats as a power of ten."""
    if math.isinf(exponent):
        return "0" if exponent < 0 else "infinity"
    return figure(power10(exponent)) if abs(exponent) < 300 else f"10^{exponent:.0f}"


def percent(share: float) -> str:
    """Write a share: 12 %, and less than 1 % as such."""
    return "less than 1 %" if 0.0 < share < 0.01 else f"{100 * share:.0f} %"


def figures(**numbers: float | int | None) -> dict[str, float | int | None]:
    """Return raw figures; what is not a number was not measured."""
    return {name: None if isinstance(n, float) and math.isnan(n) else n for name, n in numbers.items()}
