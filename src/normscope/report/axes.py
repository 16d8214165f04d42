"""Charts and curves on the axes of matplotlib, which loads when something is first plotted."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from .document import Chart, Curve, Curves, Document, Series
from .svg import AxisScale, is_finite, scale, scale_of, shorten_name

if TYPE_CHECKING:
    import matplotlib.axes

LABEL_LETTERS = 28
"""The longest name of a label; longer ones are shortened."""
MOST_LABELS = 24
"""How many labels an axis names at most."""
EDGE = 0.03
"""How far beyond the finite values infinite ones are marked, as a share of the range."""
NARROW = 1e-3
"""Values that differ by less are drawn on an axis of three times this width."""
GLYPHS = ("o", "s", "^", "D", "v", "P")
"""The marks of series, in their order."""


def plot_document(document: Document, ax: matplotlib.axes.Axes | None, name: str) -> matplotlib.axes.Axes:
    """Draw the first chart of a document; `name` is what the result is called in errors.

    Raises:
        InputError: matplotlib is not installed, or the document has no chart.
    """
    drawn = next((block for block in document.blocks if isinstance(block, Chart | Curves)), None)
    if drawn is None:
        raise InputError(
            f"the page of this {name} has no chart to plot: its table is in to_pandas(), its page in to_html(path)"
        )
    return plot(drawn, ax)


def plot(block: Chart | Curves, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
    """Draw what the page shows as SVG (`picture`) on axes of matplotlib, and return these.

    Args:
        block: the chart or the curves.
        ax: the axes; None for those of a new figure.

    Raises:
        InputError: matplotlib is not installed.
    """
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise InputError("plot needs matplotlib: pip install normscope[plot]") from error
        ax = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")[1]
    if isinstance(block, Chart):
        _draw_chart(block, ax)
    else:
        _draw_curves(block, ax)
    ax.set_title(block.title, wrap=True)
    if len(ax.get_legend_handles_labels()[1]) > 1:
        ax.legend(fontsize="small")
    return ax


@cache
def series_colours() -> tuple[str, ...]:
    """Return the colours of series on light paper, from the style sheet of the page."""
    sheet = (files("normscope.report") / "templates" / "light.css").read_text(encoding="utf-8")
    return tuple(re.findall(r"--s\d: (#\w+)", sheet))


def _colour(number: int) -> str:
    return series_colours()[number % len(series_colours())]


def _draw_chart(chart: Chart, ax: matplotlib.axes.Axes) -> None:
    """Draw values by label: labels along the bottom, or down the left side where the chart is sideways."""
    extent = scale(chart) or scale_of([])
    places = range(len(chart.labels))
    for number, series in enumerate(chart.series):
        if any(value is not None for value in series.values):
            _draw_series(chart, series, number, extent, ax)
    for name, value in chart.rules:
        (ax.axvline if chart.sideways else ax.axhline)(value, linestyle=":", color="0.4", label=name)
    _widen(ax, chart.sideways)
    step = max(1, -(-len(chart.labels) // MOST_LABELS))
    names = [shorten_name(chart.labels[place], LABEL_LETTERS) for place in places[::step]]
    if chart.sideways:
        ax.set_yticks(places[::step], names)
        ax.set_ylim(max(len(places), 3) - 0.5, -0.5)
        ax.set_xlabel(chart.axis)
    else:
        upright = sum(map(len, names)) < 60
        ax.set_xticks(places[::step], names, rotation=0 if upright else 45, ha="center" if upright else "right")
        ax.set_ylabel(chart.axis)


def _widen(ax: matplotlib.axes.Axes, sideways: bool) -> None:
    """Widen an axis of values that differ by rounding alone, so that its ticks can be read."""
    low, high = ax.get_xlim() if sideways else ax.get_ylim()
    if high - low < NARROW:
        (ax.set_xlim if sideways else ax.set_ylim)(low - NARROW, high + NARROW)


def _draw_series(chart: Chart, series: Series, number: int, extent: AxisScale, ax: matplotlib.axes.Axes) -> None:
    """Draw one series of a chart; infinite values stand at the edge."""
    colour, alpha = _colour(number), 0.4 if series.faint else 1.0
    style: dict[str, Any] = {"color": colour, "alpha": alpha}
    values = _on_paper(series.values, extent)
    if series.until is not None:
        ends = _on_paper(series.until, extent)
        spans = [(place, a, b) for place, (a, b) in enumerate(zip(values, ends)) if a == a and b == b]
        draw = ax.barh if chart.sideways else ax.bar
        heights: dict[str, Any] = {"left" if chart.sideways else "bottom": [min(a, b) for _, a, b in spans]}
        lengths = [max(abs(b - a), 0.004 * (extent.high - extent.low)) for _, a, b in spans]
        draw([place for place, _, _ in spans], lengths, 0.5, label=series.name, **heights, **style)
        return
    paths = series.paths if series.paths is not None else (tuple(range(len(values))),)
    joined = [[(place, values[place]) for place in path] for path in paths] if series.style == "line" else []
    for index, points in enumerate(joined):
        label = series.name if index == 0 else None
        _plot([p for p, _ in points], [v for _, v in points], chart.sideways, ax, marker=".", label=label, **style)
    if series.style == "marks":
        _plot(
            range(len(values)), values, chart.sideways, ax,
            marker=GLYPHS[number % len(GLYPHS)], linestyle="none", label=series.name, **style,
        )  # fmt: skip
    for place, value in enumerate(series.values):
        if value is not None and math.isinf(value):
            arrow = (">" if value > 0 else "<") if chart.sideways else ("^" if value > 0 else "v")
            _plot([place], [values[place]], chart.sideways, ax, marker=arrow, linestyle="none", **style)


def _plot(along: Sequence[float], across: Sequence[float], sideways: bool, ax: Any, **style: Any) -> None:
    ax.plot(*((across, along) if sideways else (along, across)), **style)


def _on_paper(values: Sequence[float | None], extent: AxisScale) -> list[float]:
    """Return values as they are drawn: NaN for a gap, and infinite ones at the edge of the finite range."""
    room = EDGE * (extent.high - extent.low)
    return [
        math.nan
        if value is None
        else value
        if is_finite(value) or math.isnan(value)
        else (extent.high + room if value > 0 else extent.low - room)
        for value in values
    ]


def _curve_colour(curve: Curve, number: int) -> Any:
    """Return the colour of a curve: by its depth in the network, or one of its own."""
    if curve.depth is None:
        return _colour(number)
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * curve.depth)


def _draw_curves(curves: Curves, ax: matplotlib.axes.Axes) -> None:
    """Draw curves over a numeric axis, with reference values and events."""
    extent = scale_of([value for curve in curves.curves for _, value in curve.points if not math.isnan(value)])
    for number, curve in enumerate(curves.curves):
        values = _on_paper([value for _, value in curve.points], extent)
        marker = "o" if len(values) < 3 else None
        ax.plot(
            [x for x, _ in curve.points], values, color=_curve_colour(curve, number), label=curve.name, marker=marker
        )
    for name, value in curves.rules:
        ax.axhline(value, linestyle=":", color="0.4", label=name)
    for kind in dict.fromkeys(mark.kind for mark in curves.marks):
        for index, mark in enumerate(one for one in curves.marks if one.kind == kind):
            ax.axvline(mark.x, color="tab:red", alpha=0.6, linewidth=1.0, label=kind if index == 0 else None)
    if curves.span is not None:
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, curves.span[0]), max(high, curves.span[1]))
    ax.set_xlabel(curves.along)
    ax.set_ylabel(curves.axis)
