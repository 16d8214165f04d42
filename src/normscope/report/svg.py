"""Charts as inline SVG: pure functions from a `Chart` to markup. Colours and fonts come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..core.markup import escaped
from .document import Chart, Series
from .drawing import (
    AxisScale,
    Frame,
    arrow,
    beginning,
    grid_lines,
    is_finite,
    number_text,
    rule_lines,
    scale,
    shorten_name,
    tag,
)
from .words import format_cell

COLOURS = 6
"""Classes `s0` to `s5` of the style sheet; a seventh series starts over, with another shape."""

CROWDED = 60
"""From this many labels on, lines have no dots and marks are small."""

CHARACTER = 6.4
"""The approximate width of one letter of a label, in pixels."""

TILT = 50.0
"""Degrees by which labels below a chart are turned where they do not fit side by side."""

SPACING = 19.0
"""The least distance between turned labels, in pixels."""

WIDTH, NARROW = 860.0, 372.0
"""The pixels along the labels of a wide picture, without the names of its rules; and the whole of a narrow one."""

NOTE = 16.0
"""Pixels below the labels for the note on the beginning that is left out of them."""

FEW = 12
"""Up to this many labels a sideways chart writes the values beside its bars."""


def chart_svg(chart: Chart, *, narrow: bool = False) -> str:
    """Return a chart as one `<svg>` element.

    Every label has a group of class `place` with a `<title>`: browsers show it when the pointer rests there, and the
    page's script turns it into a quicker tooltip that arrow keys reach as well. Names are escaped.
    """
    extent = scale(chart)
    if extent is None or not chart.labels:
        return ""
    prefix = "" if chart.sideways else beginning(chart.labels)
    named = replace(chart, labels=tuple(label.removeprefix(prefix) for label in chart.labels))
    frame = (_sideways if chart.sideways else _upright)(named, extent, narrow)
    if prefix:
        frame = replace(frame, bottom=frame.bottom + NOTE)
    lines = [(series, number) for number, series in enumerate(chart.series) if series.style == "line"]
    return tag(
        "svg",
        *grid_lines(frame),
        *_names(named, frame),
        *_notes(chart, prefix, frame),
        *(line for series, number in lines for line in _lines(chart, series, number, frame)),
        *(_place(chart, index, frame) for index in range(frame.count)),
        *rule_lines(chart.rules, frame),
        class_=f"chart{' sideways' if chart.sideways else ''}",
        viewBox=f"0 0 {number_text(frame.whole[0])} {number_text(frame.whole[1])}",
        width=frame.whole[0],
        height=frame.whole[1],
        role="img",
        aria_label=chart.title or chart.axis or "chart",
    )


def swatch(series: Series, number: int) -> str:
    """Return the legend's small picture of a series: its colour and its shape."""
    drawn: str
    if series.style == "spans":
        drawn = tag("rect", class_="span", x=7, y=1, width=8, height=12, rx=2)
    elif series.style == "line":
        line = tag("path", class_=f"line{_faint(series)}", d="M1 7H21")
        drawn = line + tag("circle", class_=f"mark{_faint(series)}", cx=11, cy=7, r=3)
    else:
        drawn = _glyph(number, 11.0, 7.0, 4.0)
    return tag(
        "svg", drawn, class_=f"swatch {_colour(number)}", viewBox="0 0 22 14", width=22, height=14, aria_hidden="true"
    )


def _sideways(chart: Chart, extent: AxisScale, narrow: bool) -> Frame:
    count, most = len(chart.labels), _longest(chart, narrow)
    left = min(max(map(len, chart.labels)), most) * CHARACTER + 18
    right = 48.0 if narrow else 62.0
    return Frame(
        sideways=True,
        count=count,
        left=left,
        top=10.0,
        width=(NARROW - right if narrow else WIDTH) - left,
        height=(26.0 if narrow else 30.0) * count,
        right=right,
        bottom=44.0,
        scale=extent,
        narrow=narrow,
    )


def _upright(chart: Chart, extent: AxisScale, narrow: bool) -> Frame:
    count, most = len(chart.labels), _longest(chart, narrow)
    # Turned names of layers reach beyond the left end of the axis, and the left margin must hold them.
    left, right = (40.0, 10.0)
    if not narrow:  # beside the plot stand the names of reference values
        left, right = 52.0, 16.0 + max((CHARACTER * len(name) for name, _ in chart.rules), default=0.0)
    width = NARROW - left - right if narrow else WIDTH
    band = width / count
    lengths = {index: len(shorten_name(chart.labels[index], most)) * CHARACTER for index in _labelled(count, band)}
    tilt = TILT if max(lengths.values()) > band - 8 else 0.0
    turn = math.radians(tilt)
    out = max(length * math.cos(turn) - band * (index + 0.5) + 12 for index, length in lengths.items())
    return Frame(
        sideways=False,
        count=count,
        left=max(left, out),
        top=30.0,
        width=width - (max(left, out) - left if narrow else 0.0),
        height=190.0 if narrow else 220.0,
        right=right,
        bottom=max(lengths.values()) * math.sin(turn) + 28,
        scale=extent,
        tilt=tilt,
        narrow=narrow,
    )


def _longest(chart: Chart, narrow: bool) -> int:
    """Return the largest number of letters in a label."""
    return (20 if narrow else 34) if chart.sideways else (16 if narrow else 22)


def _labelled(count: int, band: float) -> range:
    """Return the labels for which there is room: every one, or every second, third, ..."""
    return range(0, count, max(1, math.ceil(SPACING / band)))


def _names(chart: Chart, frame: Frame) -> Iterator[str]:
    most = _longest(chart, frame.narrow)
    for index in range(frame.count) if frame.sideways else _labelled(frame.count, frame.band):
        x, y = frame.point(frame.middle(index), 0.0)
        name = escaped(shorten_name(chart.labels[index], most))
        if frame.sideways:
            yield tag("text", name, class_="label", x=frame.left - 10, y=y + 4, text_anchor="end")
        else:
            turned = f" rotate(-{number_text(frame.tilt)})" if frame.tilt else ""
            across, down = number_text(x + (4 if turned else 0)), number_text(y + (14 if turned else 18))
            at = f"translate({across} {down}){turned}"
            yield tag("text", name, class_="label", transform=at, text_anchor="end" if turned else "middle")


def _notes(chart: Chart, prefix: str, frame: Frame) -> Iterator[str]:
    """Yield what is left out of the names, and what the values are."""
    width, height = frame.whole
    if prefix:
        text = f"left out of the names: {escaped(prefix)}"
        yield tag("text", text, class_="axis", x=width - 4, y=height - 5, text_anchor="end")
    if chart.axis and frame.sideways:
        middle = width / 2 if frame.narrow else frame.left + frame.width / 2
        yield tag("text", escaped(chart.axis), class_="axis", x=middle, y=height - 6, text_anchor="middle")
    elif chart.axis:
        yield tag("text", escaped(chart.axis), class_="axis", x=2.0 if frame.narrow else frame.left, y=14.0)


def _lines(chart: Chart, series: Series, number: int, frame: Frame) -> Iterator[str]:
    """Yield a line for each path of a series."""
    for path in (range(len(chart.labels)),) if series.paths is None else series.paths:
        steps, joined = [], False
        for index in path:
            value = series.values[index]
            if not is_finite(value):
                joined = False
                continue
            x, y = frame.point(frame.middle(index), frame.across(value or 0.0))
            steps.append(f"{'L' if joined else 'M'}{number_text(x)} {number_text(y)}")
            joined = True
        if steps:
            yield tag("path", class_=f"line {_colour(number)}{_faint(series)}", d="".join(steps))


def _place(chart: Chart, index: int, frame: Frame) -> str:
    length = frame.width if frame.sideways else frame.height
    band = tag("rect", class_="band", **frame.box(frame.middle(index), frame.band, 0.0, length))
    marks = [mark for number, series in enumerate(chart.series) for mark in _marks(chart, series, number, index, frame)]
    if frame.narrow:
        return "".join(marks)
    return tag("g", tag("title", escaped(hover_text(chart, index))), band, *marks, class_="place")


def hover_text(chart: Chart, index: int) -> str:
    """Return the text of one label's tooltip: the label, then a line for each series that was measured there."""
    lines = []
    for series in chart.series:
        ends = [series.values[index]] + ([series.until[index]] if series.until else [])
        ends = ends[1:] if series.until and not any(series.values) else ends  # bars that begin at zero
        shown = [format_cell(end, "number") for end in ends if end is not None]
        if shown:
            lines.append(f"{series.name}: {' to '.join(dict.fromkeys(shown))}")
    return "\n".join((chart.labels[index], *(lines or ["not measured"])))


def _marks(chart: Chart, series: Series, number: int, index: int, frame: Frame) -> Iterator[str]:
    value = series.values[index]
    along = frame.middle(index) + _shift(chart, number, frame)
    radius = 3.6 if frame.count <= CROWDED else min(2.4, max(1.6, 0.5 * frame.band))
    if series.until is not None:
        yield from _span(chart, series, number, index, frame)
        return
    if value is None or math.isnan(value):
        return
    x, y = frame.point(along, frame.across(value))
    if math.isinf(value):
        yield arrow(frame, along, value, _colour(number))
    elif series.style == "marks":
        yield _glyph(number, x, y, radius)
        if _written(chart) and all(other.values[index] is None for other in chart.series if other is not series):
            yield tag("text", format_cell(value, "log10"), class_="figure", x=x + 10, y=y + 4)
    elif frame.count <= CROWDED or _alone(series, index):
        yield tag("circle", class_=f"mark {_colour(number)}{_faint(series)}", cx=x, cy=y, r=radius - 0.6)


def _span(chart: Chart, series: Series, number: int, index: int, frame: Frame) -> Iterator[str]:
    ends = [
        end for end in (series.values[index], (series.until or ())[index]) if end is not None and not math.isnan(end)
    ]
    if not ends:
        return
    spans = [k for k, other in enumerate(chart.series) if other.until is not None and other.until[index] is not None]
    breadth = min(0.7 * frame.band / len(spans), 16.0)
    shift = (spans.index(number) - (len(spans) - 1) / 2) * 0.75 * frame.band / len(spans)
    along = frame.middle(index) + shift
    low, high = frame.across(min(ends)), frame.across(max(ends))
    if high - low < 3.0:  # a closed bracket must still be visible
        low, high = (low + high) / 2 - 1.5, (low + high) / 2 + 1.5
    yield tag(
        "rect", class_=f"span {_colour(number)}", rx=min(2.0, breadth / 3), **frame.box(along, breadth, low, high)
    )
    for end in {end for end in ends if math.isinf(end)}:
        yield arrow(frame, along, end, _colour(number))
    if _written(chart):
        x, y = frame.point(along, high)
        yield tag("text", format_cell(ends[-1], "log10"), class_="figure", x=x + 10, y=y + 4)


def _shift(chart: Chart, number: int, frame: Frame) -> float:
    """Return by how much to shift the marks of one of several series, so that equal values are all visible."""
    marks = [index for index, series in enumerate(chart.series) if series.style == "marks"]
    together = len(marks) < 3 and len(marks) < len(chart.series)  # a median belongs on the middle of its bar
    if together or number not in marks or frame.band < 8 * len(marks):
        return 0.0
    return 7.0 * (marks.index(number) - (len(marks) - 1) / 2)


def _written(chart: Chart) -> bool:
    """Whether values are written beside the bars: in a sideways chart of few labels whose first series has bars."""
    return chart.sideways and len(chart.labels) <= FEW and chart.series[0].style == "spans"


def _alone(series: Series, index: int) -> bool:
    """Whether no line joins a value to a neighbour, so that it needs a dot to be visible."""
    before = series.values[index - 1] if index else None
    after = series.values[index + 1] if index + 1 < len(series.values) else None
    return not is_finite(before) and not is_finite(after)


def _glyph(number: int, x: float, y: float, r: float) -> str:
    """Return the mark of a series: a circle, a square, a diamond or a triangle."""
    kind = f"mark {_colour(number)}"
    match number % 4:
        case 0:
            return tag("circle", class_=kind, cx=x, cy=y, r=r)
        case 1:
            return tag("rect", class_=kind, x=x - 0.9 * r, y=y - 0.9 * r, width=1.8 * r, height=1.8 * r)
        case 2:
            side = number_text(1.3 * r)
            return tag(
                "path",
                class_=kind,
                d=f"M{number_text(x)} {number_text(y - 1.3 * r)}l{side} {side}l-{side} {side}l-{side}-{side}z",
            )
        case _:
            down = f"l{number_text(1.2 * r)} {number_text(2.2 * r)}h-{number_text(2.4 * r)}z"
            return tag("path", class_=kind, d=f"M{number_text(x)} {number_text(y - 1.2 * r)}{down}")


def _faint(series: Series) -> str:
    return " faint" if series.faint else ""


def _colour(number: int) -> str:
    return f"s{number % COLOURS}"
