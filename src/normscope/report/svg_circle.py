"""Paths around a circle as inline SVG; colours and fonts come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.markup import escaped
from .curves import count_text
from .document import Circle, Curve
from .drawing import number_text, tag
from .scale import ticks
from .svg_curves import colour, path_text

WIDTH, NARROW = 940.0, 372.0
"""The width of the whole picture in pixels, on a wide and on a narrow screen."""

LEAST, MOST = 90.0, 420.0
"""The smallest and the largest height of the plot, in pixels."""

ROOM = 46.0
"""Pixels around the plot, for names and numbers."""

ARC = 60
"""How many straight lines the circle is drawn with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneView:
    """The visible part of the plane, turned such that the middle of all angles points up."""

    middle: float
    left: float
    top: float
    scale: float
    size: tuple[float, float]

    def point(self, angle: float, radius: float) -> tuple[float, float]:
        """Return the pixel coordinates of a point."""
        x, y = _flat(angle - self.middle, radius)
        return ROOM + (x - self.left) * self.scale, ROOM + (self.top - y) * self.scale


def circle_svg(circle: Circle, *, narrow: bool = False) -> str:
    """Return paths around a circle as one `<svg>` element with equal axes, as large as there is room for."""
    if not any(path.points for path in circle.paths):
        return ""
    low, high = _ends(circle)
    view = _view(circle, low, high, (NARROW if narrow else WIDTH) - 2 * ROOM)
    width, height = view.size
    ring = [view.point(low + (high - low) * step / ARC, 1.0) for step in range(ARC + 1)]
    return tag(
        "svg",
        tag("path", class_="rule ring", d=path_text(ring)),
        *_angles(view, low, high, 4 if narrow else 7),
        tag("text", escaped(circle.along), class_="axis", x=2, y=14) if circle.along else "",
        *(_path(path, number, view) for number, path in enumerate(circle.paths)),
        class_="chart curves",
        viewBox=f"0 0 {number_text(width)} {number_text(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=circle.title or "paths around a circle",
    )


def _ends(circle: Circle) -> tuple[float, float]:
    """Return the first and the last angle of the circle: those of the paths and a margin, at most one whole turn."""
    angles = [angle for path in circle.paths for angle, _ in path.points]
    room = 0.08 * (max(angles) - min(angles)) or 0.1
    low, high = min(angles) - room, max(angles) + room
    return low, min(high, low + 2 * math.pi)


def _view(circle: Circle, low: float, high: float, width: float) -> PlaneView:
    """Return the view that holds all paths and the circle between their angles."""
    middle = (low + high) / 2
    points = [_flat(angle - middle, radius) for path in circle.paths for angle, radius in path.points]
    points += [_flat(low + (high - low) * step / ARC - middle, 1.0) for step in range(ARC + 1)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    wide, tall = max(max(xs) - min(xs), 1e-9), max(max(ys) - min(ys), 1e-9)
    scale = min(width / wide, MOST / tall)
    height = max(tall * scale, LEAST)
    return PlaneView(
        middle=middle,
        left=(min(xs) + max(xs) - width / scale) / 2,
        top=(min(ys) + max(ys) + height / scale) / 2,
        scale=scale,
        size=(width + 2 * ROOM, height + 2 * ROOM),
    )


def _flat(angle: float, radius: float) -> tuple[float, float]:
    """Return x and y of a point; the angle 0 points up, and angles go round to the right."""
    return radius * math.sin(angle), radius * math.cos(angle)


def _angles(view: PlaneView, low: float, high: float, about: int) -> Iterator[str]:
    """Yield short lines across the circle at round angles, with their numbers inside it."""
    for angle in ticks(low, high, about=about):
        x, y = view.point(angle, 1.0)
        dx, dy = _flat(angle - view.middle, 1.0)
        yield tag("line", class_="grid", x1=x - 6 * dx, y1=y + 6 * dy, x2=x + 6 * dx, y2=y - 6 * dy)
        yield tag("text", count_text(angle), class_="tick", x=x - 20 * dx, y=y + 20 * dy + 4, text_anchor="middle")


def _path(path: Curve, number: int, view: PlaneView) -> str:
    """Return one group with the line of a path, and a dot at its end."""
    points = [view.point(angle, radius) for angle, radius in path.points]
    if not points:
        return ""
    kind = colour(path, number)
    x, y = points[-1]
    end = tag("circle", tag("title", escaped(path.name)), class_=f"mark {kind}", cx=x, cy=y, r=4)
    return tag("g", tag("path", class_=f"line {kind}", d=path_text(points)), end, class_="curve")
