"""Charts as inline SVG, and the tools that draw them: the value axis, tags that escape, the plot area, arrows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..core.errors import escaped
from .document import Chart, Series
from .words import NOT_MEASURED, format_cell

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
    """Return round values in `[low, high]`: multiples of 1, 2 or 5 times a power of ten."""
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
    return svg_tag(
        frame.whole,
        *grid_lines(frame),
        *_names(named, frame),
        *_notes(chart, prefix, frame),
        *(line for series, number in lines for line in _lines(chart, series, number, frame)),
        *(_place(chart, index, frame) for index in range(frame.count)),
        *rule_lines(chart.rules, frame),
        class_=f"chart{' sideways' if chart.sideways else ''}",
        role="img",
        aria_label=chart.title or chart.axis or "chart",
    )


def swatch(series: Series, number: int) -> str:
    """Return the legend's small picture of a series: its colour and its shape."""
    drawn: str
    if series.style == "spans":
        drawn = tag("rect", class_="span", x=7, y=1, width=8, height=12, rx=2)
    elif series.style == "line":
        line = tag("path", class_=f"line{' faint' if series.faint else ''}", d="M1 7H21")
        drawn = line + tag("circle", class_=f"mark{' faint' if series.faint else ''}", cx=11, cy=7, r=3)
    else:
        drawn = _glyph(number, 11.0, 7.0, 4.0)
    return swatch_tag(drawn, _colour(number))


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
            yield tag("path", class_=f"line {_colour(number)}{' faint' if series.faint else ''}", d="".join(steps))


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
        yield tag(
            "circle", class_=f"mark {_colour(number)}{' faint' if series.faint else ''}", cx=x, cy=y, r=radius - 0.6
        )


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


def _colour(number: int) -> str:
    return f"s{number % COLOURS}"
