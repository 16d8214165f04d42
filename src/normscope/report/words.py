"""How values, numbers, shapes, names and lists of them are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.errors import visible as visible
from ..core.log10 import power10

if TYPE_CHECKING:
    from .document import Cell, CellFormat

NOT_MEASURED = "-"


def format_cell(value: Cell, kind: CellFormat) -> str:
    """Return `value` as a reader sees it.

    Example:
        >>> [format_cell(exponent, "factor") for exponent in (-10.0, 3.2525, float("-inf"), -400.0)]
        ['1e-10', '1790', '0', '1e-400']
    """
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        return value
    match kind:
        case "log10":
            return f"{value if abs(value) >= 0.005 else 0.0:.2f}"  # -0.001 would otherwise be written -0.00
        case "factor":
            rounded = float(f"{power10(value):.3g}")
            return f"{rounded:g}" if math.isinf(value) or abs(value) < 300 else f"1e{value:+.0f}"
        case "percent":
            return f"{100 * value:.1f} %"
        case "seconds":
            return f"{value:.1f} s"
        case "number":
            return f"{value + 0.0:.4g}"
        case "count":
            return f"{value:,}"
        case "text" | "sentence" | "name":
            return str(value)


def factor(exponent: float) -> str:
    """Return 10**exponent as a short decimal, or as a power of ten where the decimal would be long.

    Args:
        exponent: log10 of the factor; `-inf` is zero.

    Returns:
        A few characters.

    Example:
        >>> factor(1.0), factor(12.345), factor(float("-inf"))
        ('10', '10^12.35', '0')
    """
    if math.isinf(exponent):
        return "infinity" if exponent > 0 else "0"
    return f"{10.0**exponent:.3g}" if -3 <= exponent < 3 else f"10^{exponent:.2f}"


LEVELS = {"info": "note", "warning": "warning", "error": "error"}
"""How pages name the severities of findings; JSON and the command line keep the severities' own names."""


def pluralise(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 layer`, `1,200 layers`.

    Args:
        number: how many.
        noun: the word for one.
        plural: the word for any other number, if it is not the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def memory(size: int) -> str:
    """Return a number of bytes with its unit.

    Example:
        >>> memory(512), memory(29_008), memory(102_400_000)
        ('512 B', '29.0 kB', '102.4 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size} B"


def shape(sizes: Sequence[int] | None) -> str | None:
    """Return a tensor's shape as `64x3x32x32`, or None for none; a scalar is `scalar`."""
    if sizes is None:
        return None
    return "x".join(map(str, sizes)) or "scalar"


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def listed(names: Sequence[str], *, most: int = 3) -> str:
    """Return names joined by commas, the first `most` of them and how many more there are.

    Example:
        >>> listed(["a", "b", "c", "d"], most=2)
        'a, b and 2 more'
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Return values as one line of block characters, as high as their own range; a NaN is a gap."""
    count = len(values)
    if count > width:
        values = [values[(index + 1) * count // width - 1] for index in range(width)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, high = min(finite), max(finite)

    def block(value: float) -> str:
        if math.isnan(value):
            return " "
        if math.isinf(value):
            return BLOCKS[-1] if value > 0 else BLOCKS[0]
        return BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] if high > low else BLOCKS[3]

    return "".join(map(block, values))
