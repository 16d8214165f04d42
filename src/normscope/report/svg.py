"""Charts as inline SVG: pure functions from a `Chart` to markup. Colours and fonts come from the style sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass

from .cells import NOT_MEASURED, format_cell, visible
from .document import Chart, Series
from .scale import Scale, scale, tick_text, ticks

COLOURS = 6
"""Classes `s0` to `s5` of the style sheet; a seventh series starts over, with another shape."""

CROWDED = 60
"""From this many labels on, lines have no dots and marks are small."""

LANE = 18.0
"""Pixels beyond the finite range, where infinite values are marked."""

CHARACTER = 6.4
"""Pixels of one letter of a label, about."""

TILT = 50.0
"""Degrees by which labels under an upright chart are turned, where they do not fit side by side."""

SPACING = 19.0
"""Pixels between turned labels, at least."""

NARROW = 860.0
"""Pixels along the labels of an upright chart; hundreds of labels get more, and scroll."""

FEW = 12
"""Up to this many labels a sideways chart writes the values beside its bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The plot area inside the picture, and where labels and values fall in it."""

    sideways: bool
    count: int
    left: float
    top: float
    width: float
    height: float
    right: float
    bottom: float
    scale: Scale
    tilt: float = 0.0

    @property
    def band(self) -> float:
        """Pixels that one label has along its axis."""
        return (self.height if self.sideways else self.width) / max(self.count, 1)

    def middle(self, index: int) -> float:
        """Return the middle of a label's band, from the start of its axis."""
        return (index + 0.5) * self.band

    def across(self, value: float) -> float:
        """Return where a value stands, from the low end of its axis; infinite ones stand in their lanes."""
        length = self.width if self.sideways else self.height
        start = LANE if self.scale.below else 0.0
        stop = length - (LANE if self.scale.above else 0.0)
        if math.isinf(value):
            return length - LANE / 2 if value > 0 else LANE / 2
        return start + (stop - start) * self.scale.share(value)

    def point(self, along: float, across: float) -> tuple[float, float]:
        """Return x and y of a place along the labels and across the values."""
        if self.sideways:
            return self.left + across, self.top + along
        return self.left + along, self.top + self.height - across

    def box(self, along: float, breadth: float, low: float, high: float) -> dict[str, float]:
        """Return x, y, width and height of a bar in the middle of `along`."""
        (x1, y1), (x2, y2) = self.point(along - breadth / 2, low), self.point(along + breadth / 2, high)
        return {"x": min(x1, x2), "y": min(y1, y2), "width": abs(x2 - x1), "height": abs(y2 - y1)}


def chart_svg(chart: Chart) -> str:
    """Return a chart as one `<svg>` element.

    Every label has a group of class `place` with a `<title>`: browsers show it when the pointer rests there, and the
    page's script makes a quicker tooltip of it that arrow keys reach too. Names are escaped.

    Args:
        chart: what to draw.

    Returns:
        Markup without ids, styles or scripts; empty if no value of the chart was measured.
    """
    extent = scale(chart)
    if extent is None or not chart.labels:
        return ""
    frame = _frame(chart, extent)
    whole = (frame.left + frame.width + frame.right, frame.top + frame.height + frame.bottom)
    return _tag(
        "svg",
        *_grid(frame),
        *_names(chart, frame),
        _tag("text", _text(chart.axis), class_="axis", **_axis_place(frame, whole)) if chart.axis else "",
        *(_line(series, number, frame) for number, series in enumerate(chart.series) if series.style == "line"),
        *(_place(chart, index, frame) for index in range(frame.count)),
        *_rules(chart, frame),
        class_=f"chart{' sideways' if chart.sideways else ' long' if frame.width > 1.5 * NARROW else ''}",
        viewBox=f"0 0 {_number(whole[0])} {_number(whole[1])}",
        width=whole[0],
        height=whole[1],
        role="img",
        aria_label=chart.title or chart.axis or "chart",
    )


def swatch(series: Series, number: int) -> str:
    """Return the legend's small picture of a series: its colour and its shape.

    Args:
        series: what the legend explains.
        number: its place among the series of the chart.
    """
    drawn: str
    if series.style == "spans":
        drawn = _tag("rect", class_="span", x=7, y=1, width=8, height=12, rx=2)
    elif series.style == "line":
        drawn = _tag("path", class_="line", d="M1 7H21") + _tag("circle", class_="mark", cx=11, cy=7, r=3)
    else:
        drawn = _glyph(number, 11.0, 7.0, 4.0)
    return _tag(
        "svg", drawn, class_=f"swatch {_colour(number)}", viewBox="0 0 22 14", width=22, height=14, aria_hidden="true"
    )


def _frame(chart: Chart, extent: Scale) -> Frame:
    count = len(chart.labels)
    if chart.sideways:
        left = min(max(map(len, chart.labels)), 34) * CHARACTER + 18
        return Frame(
            sideways=True,
            count=count,
            left=left,
            top=10.0,
            width=860 - left,
            height=30.0 * count,
            right=62.0,
            bottom=44.0,
            scale=extent,
        )
    width = min(max(NARROW, 2.0 * count), 3.0 * NARROW)
    band = width / count
    lengths = {index: len(_short(chart.labels[index], 26)) * CHARACTER for index in _labelled(count, band)}
    tilt = TILT if max(lengths.values()) > band - 8 else 0.0
    turn = math.radians(tilt)
    left = max(52.0, *(length * math.cos(turn) - band * (index + 0.5) + 12 for index, length in lengths.items()))
    return Frame(
        sideways=False,
        count=count,
        left=left,
        top=30.0,
        width=width,
        height=260.0,
        right=16.0 + max((CHARACTER * len(name) for name, _ in chart.rules), default=0.0),
        bottom=max(lengths.values()) * math.sin(turn) + 28,
        scale=extent,
        tilt=tilt,
    )


def _labelled(count: int, band: float) -> range:
    """Which labels have room to be written: every one, or every second, third, ..."""
    return range(0, count, max(1, math.ceil(SPACING / band)))


def _grid(frame: Frame) -> Iterator[str]:
    about = 8 if frame.sideways else 7
    along = frame.band * frame.count
    ends = [(tick, tick_text(tick)) for tick in ticks(frame.scale.low, frame.scale.high, about=about)]
    ends += [(-math.inf, "-inf")] if frame.scale.below else []
    ends += [(math.inf, "inf")] if frame.scale.above else []
    for value, text in ends:
        (x1, y1), (x2, y2) = frame.point(0.0, frame.across(value)), frame.point(along, frame.across(value))
        kind = "grid" if math.isfinite(value) else "grid lane"
        yield _tag("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2)
        if frame.sideways:
            yield _tag("text", text, class_="tick", x=x2, y=y2 + 16, text_anchor="middle")
        else:
            yield _tag("text", text, class_="tick", x=x1 - 8, y=y1 + 4, text_anchor="end")


def _names(chart: Chart, frame: Frame) -> Iterator[str]:
    for index in range(frame.count) if frame.sideways else _labelled(frame.count, frame.band):
        x, y = frame.point(frame.middle(index), 0.0)
        if frame.sideways:
            name = _text(_short(chart.labels[index], 34))
            yield _tag("text", name, class_="label", x=frame.left - 10, y=y + 4, text_anchor="end")
        else:
            name = _text(_short(chart.labels[index], 26))
            turned = f" rotate(-{_number(frame.tilt)})" if frame.tilt else ""
            at = f"translate({_number(x + (4 if turned else 0))} {_number(y + (14 if turned else 18))}){turned}"
            yield _tag("text", name, class_="label", transform=at, text_anchor="end" if turned else "middle")


def _axis_place(frame: Frame, whole: tuple[float, float]) -> dict[str, float | str]:
    if frame.sideways:
        return {"x": frame.left + frame.width / 2, "y": whole[1] - 6, "text_anchor": "middle"}
    return {"x": frame.left, "y": 14.0}


def _rules(chart: Chart, frame: Frame) -> Iterator[str]:
    for name, value in chart.rules:
        across = frame.across(value)
        (x1, y1), (x2, y2) = frame.point(0.0, across), frame.point(frame.band * frame.count, across)
        yield _tag("line", class_="rule", x1=x1, y1=y1, x2=x2, y2=y2)
        place = {"x": x1 + 4, "y": y1 + 10} if frame.sideways else {"x": x2 + 6, "y": y2 + 4}
        yield _tag("text", _text(name), class_="rule-name", **place)


def _line(series: Series, number: int, frame: Frame) -> str:
    steps, joined = [], False
    for index, value in enumerate(series.values):
        if not _finite(value):
            joined = False
            continue
        x, y = frame.point(frame.middle(index), frame.across(value or 0.0))
        steps.append(f"{'L' if joined else 'M'}{_number(x)} {_number(y)}")
        joined = True
    return _tag("path", class_=f"line {_colour(number)}", d="".join(steps)) if steps else ""


def _place(chart: Chart, index: int, frame: Frame) -> str:
    length = frame.width if frame.sideways else frame.height
    band = _tag("rect", class_="band", **frame.box(frame.middle(index), frame.band, 0.0, length))
    marks = [mark for number, series in enumerate(chart.series) for mark in _marks(chart, series, number, index, frame)]
    return _tag("g", _tag("title", _text(hover_text(chart, index))), band, *marks, class_="place")


def hover_text(chart: Chart, index: int) -> str:
    """Return what the tooltip of one label says: the label, then a line per series measured there."""
    lines = []
    for series in chart.series:
        ends = [series.values[index]] + ([series.until[index]] if series.until else [])
        shown = [format_cell(end, "number") for end in ends if end is not None]
        if shown:
            lines.append(f"{series.name}: {' to '.join(dict.fromkeys(shown))}")
    return "\n".join((chart.labels[index], *(lines or ["not measured"])))


def _marks(chart: Chart, series: Series, number: int, index: int, frame: Frame) -> Iterator[str]:
    value = series.values[index]
    along, radius = frame.middle(index) + _shift(chart, number, frame), _radius(frame)
    if series.until is not None:
        yield from _span(chart, series, number, index, frame)
        return
    if value is None or math.isnan(value):
        return
    x, y = frame.point(along, frame.across(value))
    if math.isinf(value):
        yield _arrow(number, x, y, _direction(frame, value))
    elif series.style == "marks":
        yield _glyph(number, x, y, radius)
        if _written(chart) and all(other.values[index] is None for other in chart.series if other is not series):
            yield _tag("text", format_cell(value, "log10"), class_="figure", x=x + 10, y=y + 4)
    elif frame.count <= CROWDED or _alone(series, index):
        yield _tag("circle", class_=f"mark {_colour(number)}", cx=x, cy=y, r=radius - 0.6)


def _span(chart: Chart, series: Series, number: int, index: int, frame: Frame) -> Iterator[str]:
    ends = [
        end for end in (series.values[index], (series.until or ())[index]) if end is not None and not math.isnan(end)
    ]
    if not ends:
        return
    spans = [place for place, other in enumerate(chart.series) if other.style == "spans"]
    breadth = min(0.7 * frame.band / len(spans), 16.0)
    shift = (spans.index(number) - (len(spans) - 1) / 2) * 0.75 * frame.band / len(spans)
    along = frame.middle(index) + shift
    low, high = frame.across(min(ends)), frame.across(max(ends))
    if high - low < 3.0:  # a closed bracket is still to be seen
        low, high = (low + high) / 2 - 1.5, (low + high) / 2 + 1.5
    yield _tag(
        "rect", class_=f"span {_colour(number)}", rx=min(2.0, breadth / 3), **frame.box(along, breadth, low, high)
    )
    for end in {end for end in ends if math.isinf(end)}:
        x, y = frame.point(along, frame.across(end))
        yield _arrow(number, x, y, _direction(frame, end))
    if _written(chart):
        x, y = frame.point(along, high)
        yield _tag("text", format_cell(max(ends), "log10"), class_="figure", x=x + 10, y=y + 4)


def _radius(frame: Frame) -> float:
    return 3.6 if frame.count <= CROWDED else min(2.4, max(1.6, 0.5 * frame.band))


def _shift(chart: Chart, number: int, frame: Frame) -> float:
    """How far marks of several series stand apart where there is room, so that equal values are all seen."""
    marks = [place for place, series in enumerate(chart.series) if series.style == "marks"]
    together = len(marks) < 3 and len(marks) < len(chart.series)  # a median belongs on the middle of its bar
    if together or number not in marks or frame.band < 8 * len(marks):
        return 0.0
    return 7.0 * (marks.index(number) - (len(marks) - 1) / 2)


def _written(chart: Chart) -> bool:
    """Whether values stand beside the drawing: in a sideways chart of few labels whose first series is one of bars."""
    return chart.sideways and len(chart.labels) <= FEW and chart.series[0].style == "spans"


def _alone(series: Series, index: int) -> bool:
    before = series.values[index - 1] if index else None
    after = series.values[index + 1] if index + 1 < len(series.values) else None
    return not _finite(before) and not _finite(after)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _direction(frame: Frame, value: float) -> tuple[float, float]:
    sign = math.copysign(1.0, value)
    return (sign, 0.0) if frame.sideways else (0.0, -sign)


def _arrow(number: int, x: float, y: float, direction: tuple[float, float]) -> str:
    """An open arrow head that points out of the chart: an infinite value."""
    dx, dy = 5 * direction[0], 5 * direction[1]
    corners = ((x - dx - dy, y - dy + dx), (x + dx, y + dy), (x - dx + dy, y - dy - dx))
    path = "L".join(f"{_number(cx)} {_number(cy)}" for cx, cy in corners)
    return _tag("path", class_=f"infinite {_colour(number)}", d=f"M{path}Z")


def _glyph(number: int, x: float, y: float, r: float) -> str:
    kind = f"mark {_colour(number)}"
    match number % 4:
        case 0:
            return _tag("circle", class_=kind, cx=x, cy=y, r=r)
        case 1:
            return _tag("rect", class_=kind, x=x - 0.9 * r, y=y - 0.9 * r, width=1.8 * r, height=1.8 * r)
        case 2:
            side = _number(1.3 * r)
            return _tag(
                "path",
                class_=kind,
                d=f"M{_number(x)} {_number(y - 1.3 * r)}l{side} {side}l-{side} {side}l-{side}-{side}z",
            )
        case _:
            return _tag(
                "path",
                class_=kind,
                d=f"M{_number(x)} {_number(y - 1.2 * r)}l{_number(1.2 * r)} {_number(2.2 * r)}h-{_number(2.4 * r)}z",
            )


def _colour(number: int) -> str:
    return f"s{number % COLOURS}"


def _short(name: str, most: int) -> str:
    """The start and the end of a long name: the end tells layers apart, the start tells where they are."""
    if len(name) <= most:
        return name or NOT_MEASURED
    tail = (2 * most) // 3
    return f"{name[: most - tail - 1]}…{name[-tail:]}"


def _text(text: str) -> str:
    return html.escape(visible(text))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tag(name: str, *children: str, **attributes: str | float) -> str:
    """One element; `children` are markup already, attributes are escaped here."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_number(value) if isinstance(value, int | float) else _text(value)}"'
        for key, value in attributes.items()
    )
    inner = "".join(children)
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"
