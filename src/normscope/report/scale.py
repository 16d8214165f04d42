"""The value axis of a chart: its range and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .document import Chart, Series

MARGIN = 0.06
"""The free space at each end of the axis, as a share of the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """A range of finite values, and whether infinite values are drawn below or above it."""

    low: float
    high: float
    below: bool = False
    above: bool = False

    def share(self, value: float) -> float:
        """Return the position of a finite value in the range: 0 at `low`, 1 at `high`."""
        return (value - self.low) / (self.high - self.low)


def scale(chart: Chart) -> AxisScale | None:
    """Return the range that holds every value and rule of a chart, or None if no value was measured."""
    values = [value for series in chart.series for value in measured(series)]
    return scale_of(values, also=[value for _, value in chart.rules]) if values else None


def scale_of(values: Sequence[float], *, also: Sequence[float] = ()) -> AxisScale:
    """Return the range that holds some values, with some margin; never empty."""
    finite = [value for value in (*values, *also) if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = MARGIN * (high - low) or 0.5
    return AxisScale(low=low - room, high=high + room, below=-math.inf in values, above=math.inf in values)


def measured(series: Series) -> Iterator[float]:
    """Yield the values of a series that are numbers, infinite ones too."""
    for values in (series.values, series.until or ()):
        yield from (value for value in values if value is not None and not math.isnan(value))


def ticks(low: float, high: float, *, about: int = 6) -> tuple[float, ...]:
    """Return round values in `[low, high]`: multiples of 1, 2 or 5 times a power of ten.

    Example:
        >>> ticks(-0.3, 4.2, about=5)
        (0.0, 1.0, 2.0, 3.0, 4.0)
    """
    rough = (high - low) / max(about, 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def tick_text(value: float) -> str:
    """Return the value of a tick in six digits, which hide the errors of binary fractions."""
    return f"{value + 0.0:.6g}"
