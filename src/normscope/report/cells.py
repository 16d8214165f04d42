"""How every renderer writes a value, by the kind of its column."""

from __future__ import annotations

from ..core.markup import visible as visible
from .document import Cell, Kind

NOT_MEASURED = "-"


def format_cell(value: Cell, kind: Kind) -> str:
    """Return `value` as a reader sees it.

    Example:
        >>> format_cell(5.6721, "log10"), format_cell(None, "log10"), format_cell(0.973, "percent")
        ('5.67', '-', '97.3 %')
    """
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        return value
    match kind:
        case "log10":
            return f"{_unsigned(value, 2):.2f}"
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


def _unsigned(value: float, digits: int) -> float:
    # -0.001 would otherwise be written -0.00.
    return value if abs(value) >= 0.5 * 10**-digits else 0.0
