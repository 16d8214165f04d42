"""Prepare curves for drawing: fewer points, one line of block characters, and the texts that a pointer shows."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from .document import Circle, Column, Curves, Table
from .words import format_cell

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

BLOCKS = "▁▂▃▄▅▆▇█"


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


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Return values as one line of block characters, as high as their own range; a NaN is a gap.

    Example:
        >>> sparkline([0.0, 1.0, 2.0, 3.0, float("nan"), 3.0])
        '▁▃▆█ █'
    """
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


def path_ends(circle: Circle) -> Table:
    """Return the ends of paths around a circle as lines of text, for a terminal."""
    rows = tuple((path.name, *path.points[-1]) for path in circle.paths if path.points)
    columns = (Column("path", "name"), *(Column(t, "number") for t in (circle.along, "radius")))
    return Table(title=circle.title, columns=columns, rows=rows, caption=circle.caption)


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
