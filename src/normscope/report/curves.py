"""Curves over a numeric axis: fewer points, lines of text, and inline SVG.

Colours and fonts of pictures come from the style sheet.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy

from ..core.errors import escaped
from .document import Column, Curve, Curves, Mark, Table
from .svg import Frame, arrow, grid_lines, number_text, rule_lines, scale_of, svg_tag, swatch_tag, tag, ticks
from .words import format_cell, sparkline

Point = tuple[float, float]

MOST_POINTS = 200
"""About this many points of a curve are kept, which is more than a screen shows."""

ALL_POINTS = 5000
"""About this many points of all curves of a picture together are kept."""

LEAST_POINTS = 60
"""At least this many points of a curve are kept, however many curves there are."""

PLACES = 60
"""The largest number of stretches of the axis that a pointer can rest on."""

NAMED = 8
"""The text of a stretch names up to this many curves; of more, the largest and the smallest."""

MOST_LINES = 24
"""A terminal shows up to this many curves; of more, those that moved most."""


def points_each(curves: int) -> int:
    """Return how many points a curve should have where there are so many curves."""
    return min(MOST_POINTS, max(LEAST_POINTS, ALL_POINTS // max(curves, 1)))


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Return fewer points that draw the same curve: the ends, and the smallest and largest of every stretch.

    Args:
        points: pairs (x, value) in order; where some are NaN, some of these are kept.
        most: the largest number of points to return, 5 or more.

    Returns:
        Some of the points, in order; every peak is among them.

    Example:
        >>> thinned([(step, float(step == 700)) for step in range(1000)], most=5)
        ((0, 0.0), (1, 0.0), (700, 1.0), (999, 0.0))
    """
    if len(points) <= most:
        return tuple(points)
    values = numpy.array([value for _, value in points], dtype=float)
    missing = numpy.isnan(values)
    lows, highs = numpy.where(missing, math.inf, values), numpy.where(missing, -math.inf, values)
    stretches = max((most - 2) // (3 if missing.any() else 2), 1)
    inner = len(points) - 2
    kept = {0, len(points) - 1}
    for stretch in range(stretches):
        start, stop = 1 + stretch * inner // stretches, 1 + (stretch + 1) * inner // stretches
        gaps = missing[start:stop]
        if not gaps.all():
            kept.add(start + int(lows[start:stop].argmin()))
            kept.add(start + int(highs[start:stop].argmax()))
        if gaps.any():
            kept.add(start + int(gaps.argmax()))
    return tuple(points[index] for index in sorted(kept))


def as_table(curves: Curves) -> Table | None:
    """Return curves as lines of text: each with its ends, its range and its course, for a terminal."""
    drawn = [(curve.name, [value for _, value in curve.points]) for curve in curves.curves if curve.points]
    if not drawn:
        return None
    moved = {name: abs(values[-1] - values[0]) for name, values in drawn}  # one that ends in NaN moved most
    chosen = sorted(moved, key=lambda name: -math.inf if math.isnan(moved[name]) else -moved[name])[:MOST_LINES]
    rows = []
    for name, values in drawn:
        if name in chosen:
            numbers = [value for value in values if not math.isnan(value)]
            least, most = min(numbers, default=None), max(numbers, default=None)
            rows.append((name, values[0], values[-1], least, most, sparkline(values)))
    left = len(drawn) - len(rows)
    xs = [x for curve in curves.curves for x, _ in curve.points]
    ends = f"{curves.along} {count_text(min(xs))} to {count_text(max(xs))}"
    kinds = [Column(title, "number") for title in ("first", "last", "least", "most")]
    return Table(
        title=f"{curves.title} ({curves.axis}, {ends})" if curves.axis else f"{curves.title} ({ends})",
        columns=(Column("curve", "name"), *kinds, Column("course", "name")),
        rows=tuple(rows),
        caption=f"Those that moved most; {left:,} more are in the HTML report." if left else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStretch:
    """A stretch of the numeric axis in which something was measured: its ends, and the text that a pointer shows."""

    start: float
    stop: float
    text: str


def places(curves: Curves) -> Iterator[MeasuredStretch]:
    """Yield the stretches that a pointer can rest on: one for each x, or stretches of equal width where x are many."""
    xs = sorted({x for curve in curves.curves for x, _ in curve.points} | {mark.x for mark in curves.marks})
    width = (xs[-1] - xs[0]) / PLACES if len(xs) > PLACES else 0.0
    by_bin = itertools.groupby(xs, lambda x: min(int((x - xs[0]) / width), PLACES - 1) if width else x)
    groups = [list(members) for _, members in by_bin]
    ends = [groups[0][0], *((one[-1] + other[0]) / 2 for one, other in itertools.pairwise(groups)), groups[-1][-1]]
    own_places = [[x for x, _ in curve.points] for curve in curves.curves]
    for group, start, stop in zip(groups, ends, ends[1:]):
        read = []
        for curve, own in zip(curves.curves, own_places):
            last = bisect.bisect_right(own, group[-1]) - 1
            if last >= 0 and own[last] >= group[0]:
                read.append((curve.name, curve.points[last][1]))
        happened = [mark.name for mark in curves.marks if group[0] <= mark.x <= group[-1]]
        span = " to ".join(dict.fromkeys(count_text(x) for x in (group[0], group[-1])))
        lines = [f"{curves.along} {span}", *_value_lines(read)]
        lines += happened[:3] + ([f"and {len(happened) - 3} more"] if len(happened) > 3 else [])
        yield MeasuredStretch(start=start, stop=stop, text="\n".join(lines))


def _value_lines(values: list[tuple[str, float]]) -> list[str]:
    """Return a line for each curve; where curves are many, for the largest and the smallest alone."""
    many = len(values) > NAMED
    if many:
        values = sorted(values, key=lambda pair: -math.inf if math.isnan(pair[1]) else -pair[1])
    lines = [f"{name}: {format_cell(value, 'number')}" for name, value in values]
    half = NAMED // 2
    return [*lines[:half], f"… {len(lines) - NAMED} between", *lines[-half:]] if many else lines


def count_text(value: float) -> str:
    """Return a number of the numeric axis as text: a count with thousands separators, or a short decimal."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.6g}"


DEPTHS = 10
"""Classes `d0` to `d9` of the style sheet: colours from the first layer to the last."""

COLOURS = 6
"""Classes `s0` to `s5` of the style sheet, for curves without a depth."""

DOTTED = 40
"""Each point has a dot in a picture of up to this many points."""

THIN = 8
"""Lines are thin in a picture of more curves than this."""

WIDTH, NARROW, HEIGHT = 940.0, 372.0, 270.0
"""The width of the picture on a wide and on a narrow screen, and the height of the plot, in pixels."""

NARROW_POINTS = 50
"""The largest number of points of a curve in a narrow picture."""


def curves_svg(curves: Curves, *, narrow: bool = False) -> str:
    """Return curves as one `<svg>` element with groups of class `place` for the pointer, as in `chart_svg`."""
    if narrow:
        few = (replace(curve, points=thinned(curve.points, NARROW_POINTS)) for curve in curves.curves)
        curves = replace(curves, curves=tuple(few))
    frame = _plot(curves, narrow)
    if frame is None:
        return ""
    return svg_tag(
        frame.whole,
        *grid_lines(frame),
        *_steps(curves, frame),
        tag("text", escaped(curves.axis), class_="axis", x=2 if narrow else frame.left, y=14) if curves.axis else "",
        *rule_lines(curves.rules, frame),
        *_happened(curves.marks, frame),
        *(_curve(curves, number, frame) for number in range(len(curves.curves))),
        *(_place(place, frame) for place in (() if narrow else places(curves))),
        class_="chart curves thin" if len(curves.curves) > THIN else "chart curves",
        role="img",
        aria_label=curves.title or curves.axis or "curves",
    )


def curve_swatch(curve: Curve, number: int) -> str:
    """Return the legend's small picture of a curve: its colour."""
    return swatch_tag(tag("path", class_="line", d="M1 7H21"), colour(curve, number))


def depth_ramp() -> str:
    """Return the legend's picture of all colours by depth."""
    steps = (tag("rect", class_=f"span d{index}", x=14 * index, y=2, width=14.5, height=10) for index in range(DEPTHS))
    return swatch_tag("".join(steps), width=140.0)


def mark_swatch(level: str) -> str:
    """Return the legend's picture of a mark on the numeric axis."""
    return swatch_tag(tag("g", tag("path", d="M11 12l-4.5-8h9z"), class_=f"happened {level}"))


def colour(curve: Curve, number: int) -> str:
    """Return the class that colours a curve."""
    if curve.depth is None:
        return f"s{number % COLOURS}"
    return f"d{min(int(curve.depth * DEPTHS), DEPTHS - 1)}"


def _plot(curves: Curves, narrow: bool) -> Frame | None:
    """Return the plot area; None where nothing was measured."""
    points = [point for curve in curves.curves for point in curve.points]
    values = [value for _, value in points if not math.isnan(value)]
    if not values:
        return None
    xs = [*(x for x, _ in points), *(mark.x for mark in curves.marks)]
    low, high = min(xs), max(xs)
    room = 0.5 if low == high else 0.0
    beside = max((6.4 * len(name) for name, _ in curves.rules), default=0.0)
    left, right = (44.0, 12.0) if narrow else (56.0, 24.0 + beside)
    return Frame(
        sideways=False,
        count=1,
        left=left,
        top=34.0,
        width=(NARROW if narrow else WIDTH) - left - right,
        height=200.0 if narrow else HEIGHT,
        right=right,
        bottom=42.0,
        scale=scale_of(values, also=[*(value for _, value in curves.rules), *(curves.span or ())]),
        narrow=narrow,
        ends=(low - room, high + room),
    )


def _steps(curves: Curves, frame: Frame) -> Iterator[str]:
    """Yield the ticks of the numeric axis; they are whole numbers where every x is one."""
    whole = all(x == round(x) for curve in curves.curves for x, _ in curve.points)
    for tick in ticks(*frame.ends, about=4 if frame.narrow else 8):
        if whole and abs(tick - round(tick)) > 1e-9:
            continue
        x, y = frame.point(frame.along(tick), 0.0)
        text = count_text(round(tick) if whole else tick)
        yield tag("line", class_="grid", x1=x, y1=y, x2=x, y2=y + 5)
        yield tag("text", text, class_="tick", x=x, y=y + 19, text_anchor="middle")
    x, y = frame.point(frame.width, 0.0)
    yield tag("text", escaped(curves.along), class_="axis", x=x, y=y + 36, text_anchor="end")


def _curve(curves: Curves, number: int, frame: Frame) -> str:
    """Return one group with the curve's line, its lone points and its infinite or NaN values."""
    curve = curves.curves[number]
    kind = colour(curve, number)
    dotted = sum(len(other.points) for other in curves.curves) <= DOTTED
    pieces: list[list[tuple[float, float]]] = [[]]
    drawn: list[str] = []
    broken = False  # whether the value before was NaN: of several in a row, the first is marked
    for x, value in curve.points:
        if math.isnan(value) and not broken:
            px, py = frame.point(frame.along(x), frame.height)
            drawn.append(tag("text", "NaN", class_=f"nan {kind}", x=px, y=py + 11, text_anchor="middle"))
        broken = math.isnan(value)
        if not math.isfinite(value):
            pieces.append([])
            if math.isinf(value):
                drawn.append(arrow(frame, frame.along(x), value, kind))
            continue
        px, py = frame.point(frame.along(x), frame.across(value))
        pieces[-1].append((px, py))
        if dotted:
            drawn.append(tag("circle", class_=f"mark {kind}", cx=px, cy=py, r=3))
    path = "".join(path_text(piece) for piece in pieces if piece)
    line = tag("path", class_=f"line {kind}", d=path) if path else ""
    return tag("g", line, *drawn, class_="curve")


def path_text(points: list[tuple[float, float]]) -> str:
    """Return a line through points; each point but the first is given relative to the one before, in fewer letters."""
    (x, y), *others = [(round(10 * px), round(10 * py)) for px, py in points]
    written = f"M{number_text(x / 10)} {number_text(y / 10)}l"
    for nx, ny in others:
        written += f" {_tenths(nx - x)} {_tenths(ny - y)}".replace(" -", "-")
        x, y = nx, ny
    # A line of length zero shows its round cap, so that a lone point is visible.
    return written if others else f"{written}0 0"


def _tenths(value: int) -> str:
    """Return tenths of a pixel in the shortest form that SVG reads: `-.3` for minus three."""
    whole, rest = divmod(abs(value), 10)
    return f"{'-' if value < 0 else ''}{whole or ('' if rest else 0)}{f'.{rest}' if rest else ''}"


def _happened(marks: tuple[Mark, ...], frame: Frame) -> Iterator[str]:
    """Yield events on the axis: where several fall on the same spot, the most serious of them."""
    order = ("info", "warning", "error")
    by_spot: dict[int, Mark] = {}
    for mark in marks:
        spot = round(frame.along(mark.x) / 4)
        if spot not in by_spot or order.index(mark.level) > order.index(by_spot[spot].level):
            by_spot[spot] = mark
    for mark in by_spot.values():
        (x, low), (_, high) = frame.point(frame.along(mark.x), 0.0), frame.point(0.0, frame.height)
        head = tag("path", d=f"M{number_text(x)} {number_text(high)}l-4.5-8h9z")
        yield tag("g", tag("line", x1=x, y1=high, x2=x, y2=low), head, class_=f"happened {mark.level}")


def _place(place: MeasuredStretch, frame: Frame) -> str:
    left, right = frame.along(place.start), frame.along(place.stop)
    if right == left:  # a lone point still needs a width on which the pointer can rest
        left, right = left - 8, right + 8
    band = tag("rect", class_="band", **frame.box((left + right) / 2, right - left, 0.0, frame.height))
    return tag("g", tag("title", escaped(place.text)), band, class_="place")
