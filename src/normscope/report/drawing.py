"""The tools that draw charts and curves: the value axis, tags that escape, the plot area, its grid, arrows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.markup import escaped
from .document import Chart, Series
from .words import NOT_MEASURED

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


LANE = 18.0
"""Pixels beyond each end of the finite range, in which infinite values are marked."""

PATH = re.compile(r"[\w.]+")
"""Matches the path of a module."""

COMMON = 0.75
"""A common beginning is left out of names, and stated once, if at least this share of the names has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The plot area inside the picture, and the positions of labels and values in it."""

    sideways: bool
    count: int
    left: float
    top: float
    width: float
    height: float
    right: float
    bottom: float
    scale: AxisScale
    tilt: float = 0.0
    narrow: bool = False
    ends: tuple[float, float] = (0.0, 1.0)
    """The ends of a numeric axis of labels."""

    @property
    def whole(self) -> tuple[float, float]:
        """Width and height of the picture."""
        return self.left + self.width + self.right, self.top + self.height + self.bottom

    @property
    def band(self) -> float:
        """The number of pixels that each label has along its axis."""
        return (self.height if self.sideways else self.width) / max(self.count, 1)

    def middle(self, index: int) -> float:
        """Return the middle of a label's band, from the start of its axis."""
        return (index + 0.5) * self.band

    def along(self, x: float) -> float:
        """Return the distance of a point of a numeric axis from its start, in pixels."""
        low, high = self.ends
        return (x - low) / (high - low) * self.width

    def across(self, value: float) -> float:
        """Return the distance of a value from the low end of its axis; infinite values lie in lanes beyond the ends."""
        length = self.width if self.sideways else self.height
        start = LANE if self.scale.below else 0.0
        stop = length - (LANE if self.scale.above else 0.0)
        if math.isinf(value):
            return length - LANE / 2 if value > 0 else LANE / 2
        return start + (stop - start) * self.scale.share(value)

    def point(self, along: float, across: float) -> tuple[float, float]:
        """Return x and y of a point, given its distances along the axis of labels and along the axis of values."""
        if self.sideways:
            return self.left + across, self.top + along
        return self.left + along, self.top + self.height - across

    def box(self, along: float, breadth: float, low: float, high: float) -> dict[str, float]:
        """Return x, y, width and height of a bar that is centred at `along`."""
        (x1, y1), (x2, y2) = self.point(along - breadth / 2, low), self.point(along + breadth / 2, high)
        return {"x": min(x1, x2), "y": min(y1, y2), "width": abs(x2 - x1), "height": abs(y2 - y1)}


def grid_lines(frame: Frame) -> Iterator[str]:
    """Yield the grid lines of the value axis and their ticks, also those for infinite values."""
    about = (4 if frame.narrow else 8) if frame.sideways else 7
    along = frame.band * frame.count
    ends = [(tick, tick_text(tick)) for tick in ticks(frame.scale.low, frame.scale.high, about=about)]
    ends += [(-math.inf, "-inf")] if frame.scale.below else []
    ends += [(math.inf, "inf")] if frame.scale.above else []
    for value, text in ends:
        (x1, y1), (x2, y2) = frame.point(0.0, frame.across(value)), frame.point(along, frame.across(value))
        kind = "grid" if math.isfinite(value) else "grid lane"
        yield tag("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2)
        if frame.sideways:
            yield tag("text", text, class_="tick", x=x2, y=y2 + 16, text_anchor="middle")
        else:
            yield tag("text", text, class_="tick", x=x1 - 8, y=y1 + 4, text_anchor="end")


def rule_lines(rules: Sequence[tuple[str, float]], frame: Frame) -> Iterator[str]:
    """Yield reference values as dashed lines with their names."""
    for name, value in rules:
        across = frame.across(value)
        (x1, y1), (x2, y2) = frame.point(0.0, across), frame.point(frame.band * frame.count, across)
        yield tag("line", class_="rule", x1=x1, y1=y1, x2=x2, y2=y2)
        position: dict[str, str | float] = {"x": x1 + 4, "y": y1 + 10} if frame.sideways else {"x": x2 + 6, "y": y2 + 4}
        if frame.narrow and not frame.sideways:  # a narrow picture has no room beside the plot
            position = {"x": x2 - 2, "y": y2 - 4, "text_anchor": "end"}
        yield tag("text", escaped(name), class_="rule-name", **position)


def is_finite(value: float | None) -> bool:
    """Return whether a value was measured and is a finite number."""
    return value is not None and math.isfinite(value)


def arrow(frame: Frame, along: float, value: float, colour: str) -> str:
    """Return an open arrow head that points out of the chart, which stands for an infinite value."""
    x, y = frame.point(along, frame.across(value))
    reach = math.copysign(5.0, value)
    dx, dy = (reach, 0.0) if frame.sideways else (0.0, -reach)
    corners = ((x - dx - dy, y - dy + dx), (x + dx, y + dy), (x - dx + dy, y - dy - dx))
    path = "L".join(f"{number_text(cx)} {number_text(cy)}" for cx, cy in corners)
    return tag("path", class_=f"infinite {colour}", d=f"M{path}Z")


def shorten_name(name: str, most: int) -> str:
    """Return a long name in fewer letters: the words of a module path are clipped, other names lose their middle.

    Example:
        >>> shorten_name("1.layers.12.layer.0.normalization", 22), shorten_name("0.self_attn.out_proj", 16)
        ('1.laye.12.laye.0.norm', '0.self.out_proj')
    """
    if len(name) <= most:
        return name or NOT_MEASURED
    words = name.split(".")
    if len(words) > 1 and PATH.fullmatch(name):
        inner = (".".join((*(_clip_word(word, cap) for word in words[:-1]), words[-1])) for cap in range(most, 3, -1))
        every = (".".join(_clip_word(word, cap) for word in words) for cap in range(most, 0, -1))
        for clipped in (*inner, *every):
            if len(clipped) <= most:
                return clipped
    tail = (2 * most) // 3
    return f"{name[: most - tail - 1]}…{name[-tail:]}"


def _clip_word(word: str, most: int) -> str:
    return word if len(word) <= most else word[:most].rstrip("_") or word[:most]


def beginning(names: Sequence[str]) -> str:
    """Return the module path that most names begin with, including its last dot; empty where there is none.

    At least three quarters of the names must begin with it, and all names must still differ without it.

    Example:
        >>> beginning(["model.blocks.0.fc", "model.blocks.1.fc", "model.blocks.2.fc", "head"])
        'model.blocks.'
    """
    distinct = dict.fromkeys(names)
    tried = Counter(name[: at + 1] for name in distinct for at, letter in enumerate(name[:-1]) if letter == ".")
    common = [prefix for prefix, count in tried.items() if count > 1 and count >= COMMON * len(distinct)]
    for prefix in sorted(filter(PATH.fullmatch, common), key=len, reverse=True):
        if len({name.removeprefix(prefix) for name in distinct}) == len(distinct):
            return prefix
    return ""


def number_text(value: float) -> str:
    """Return a length with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, *children: str, **attributes: str | float) -> str:
    """Return one element; `children` must be markup already, and attributes are escaped here."""
    texts = {
        key.rstrip("_").replace("_", "-"): escaped(value) if isinstance(value, str) else number_text(value)
        for key, value in attributes.items()
    }
    written = "".join(f' {key}="{text}"' for key, text in texts.items())
    inner = "".join(children)
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def svg_tag(size: tuple[float, float], *children: str, **attributes: str | float) -> str:
    """Return an `<svg>` element of some width and height; its class comes first."""
    box = f"0 0 {number_text(size[0])} {number_text(size[1])}"
    first = {"class_": attributes.pop("class_")}
    return tag("svg", *children, **first, viewBox=box, width=size[0], height=size[1], **attributes)


def swatch_tag(drawn: str, kind: str = "", width: float = 22.0) -> str:
    """Return a small picture of a legend."""
    return svg_tag((width, 14.0), drawn, class_=f"swatch {kind}".rstrip(), aria_hidden="true")
