"""`Document`: text, figures, tables, charts and notices as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Self, TypeVar

from ..core.codec import JsonForm, Saved
from ..core.shown import Shown

CellFormat = Literal["text", "sentence", "name", "count", "number", "log10", "factor", "percent", "seconds"]
"""The kind of values in a column; renderers format cells by it, so that cells stay plain values.

A factor is stored as its log10 and shown as the plain number. A name is text that is never broken over lines. A column
of sentences gets much room on a page; on a narrow page each row of its table becomes one block.
"""

Cell = str | int | float | None
"""One value of a table; `None` stands for a value that was not measured."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, the kind of its values, and a sentence that explains it (`help`)."""

    title: str
    kind: CellFormat = "text"
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns.

    Attributes:
        columns: one per cell of a row.
        rows: the cells, unformatted.
        title: the text above the table.
        caption: the text below it, which says how to read it.

    Raises:
        ValueError: a row has more or fewer cells than there are columns.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {index} of table {self.title!r}: {len(row)} cells, {len(self.columns)} columns")


Read = Callable[[Item], Any] | str
"""How a value is read from an item: by a function, or by a path of attributes such as `norm.log10_upper`."""


def read_from(item: Item, read: Read[Item]) -> Any:
    """Return a value of an item; a path gives None where one of its attributes is None."""
    if not isinstance(read, str):
        return read(item)
    value: Any = item
    for name in read.split("."):
        value = None if value is None else getattr(value, name)
    return value


@dataclass(frozen=True, slots=True)
class ReadColumn(Generic[Item]):
    """A column, and how its cell is read from what a row stands for."""

    title: str
    kind: CellFormat
    read: Read[Item]
    help: str = ""


def tabulate(
    items: Iterable[Item],
    columns: Sequence[ReadColumn[Item]],
    *,
    title: str = "",
    caption: str = "",
    drop_empty: bool = False,
) -> Table:
    """Return a table with a row per item; `drop_empty` leaves out columns without a value, but never the first."""
    rows = list(items)
    read = [(column, [read_from(item, column.read) for item in rows]) for column in columns]
    if drop_empty:
        read = [(c, cells) for c, cells in read if c is columns[0] or any(cell not in (None, "") for cell in cells)]
    return Table(
        title=title,
        caption=caption,
        columns=tuple(Column(column.title, column.kind, column.help) for column, _ in read),
        rows=tuple(zip(*(cells for _, cells in read))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A paragraph, with a heading if a part of the document begins here. Words between backticks are names.

    Attributes:
        body: the paragraph.
        heading: the heading of the part that begins here.
        term: the term of the papers for what the heading says in plain words.
        folded: whether the part shows its heading alone until the reader opens it.
        inner: whether the part belongs to the part before it; a page's contents do not list inner parts.
        lead: whether the paragraph is the first thing that the reader should see.
    """

    body: str = ""
    heading: str = ""
    term: str = ""
    folded: bool = False
    inner: bool = False
    lead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One headline value: its name in plain words, the value, a few words that qualify it, and the papers' term."""

    label: str
    value: Cell
    kind: CellFormat = "text"
    note: str = ""
    term: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A few headline values, to be seen at a glance."""

    items: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the reader should see: how serious, a headline, where, and labelled sentences.

    Attributes:
        level: `"info"`, `"warning"` or `"error"`.
        heading: a few words.
        where: a module path or the like; may be empty.
        code: a short name by which tools and documents refer to it.
        lines: pairs (label, sentence) in reading order; a line without a label continues the line before it.
        more: lines that are folded away until the reader opens them; terminals leave them out at the level `"info"`.
    """

    level: Literal["info", "warning", "error"]
    heading: str
    where: str = ""
    code: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Things to do, in order, under a title; one alone has no number."""

    items: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glossary:
    """The meanings of terms, as pairs (term, sentence); the terms in other blocks of a page link to these."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One set of values of a chart.

    Attributes:
        name: the name in the legend.
        style: `"line"` joins the values, `"marks"` shows dots, `"spans"` bars from `values` to `until`.
        values: one per label; `None` leaves a gap, infinities are drawn at the edge and named in the hover text. A
            series of gaps alone keeps its colour from others and is not in the legend.
        until: the other ends of spans.
        paths: the positions of the labels that each line joins in turn; None joins every label with the next.
        faint: whether the series is drawn in the background of the others.
    """

    name: str
    style: Literal["line", "marks", "spans"]
    values: tuple[float | None, ...]
    until: tuple[float | None, ...] | None = None
    paths: tuple[tuple[int, ...], ...] | None = None
    faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Values by label, drawn.

    Attributes:
        labels: the names along the axis: layers in order, or methods.
        series: the values at the labels.
        title: the text above the chart.
        caption: the text below it, which says how to read it.
        axis: what the values are, e.g. "log10 of the gain".
        sideways: whether labels run down the left side and values along the bottom (for few, long labels).
        rules: reference values to mark, each with a name.
        term: the term of the papers for what the title says in plain words.

    Raises:
        ValueError: a series has more or fewer values than there are labels.
    """

    labels: tuple[str, ...]
    series: tuple[Series, ...]
    title: str = ""
    caption: str = ""
    axis: str = ""
    sideways: bool = False
    rules: tuple[tuple[str, float], ...] = ()
    term: str = ""

    def __post_init__(self) -> None:
        for series in self.series:
            ends = (series.values,) if series.until is None else (series.values, series.until)
            if any(len(values) != len(self.labels) for values in ends):
                raise ValueError(
                    f"series {series.name!r} of chart {self.title!r} does not fit {len(self.labels)} labels"
                )
            if (series.style == "spans") != (series.until is not None):
                raise ValueError(f"series {series.name!r} of chart {self.title!r}: spans, and only they, have `until`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve over a numeric axis.

    Attributes:
        name: the name in the legend and in the hover text.
        points: pairs (x, value), ascending in x; a NaN is a gap that is named in the hover text, infinities are drawn
            at the edge. `normscope.report.curves.thinned` reduces their number.
        depth: the position of the layer in its network, from 0 to 1, which the curve's colour shows; None gives the
            curve a colour of its own.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    depth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An event at one point of the numeric axis.

    Attributes:
        x: the point of the axis.
        name: what happened, for the hover text.
        level: how serious it is.
        kind: the legend's name for all marks of this kind, such as `alarm`.
    """

    x: float
    name: str
    level: Literal["info", "warning", "error"] = "info"
    kind: str = "alarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Curves over a numeric axis, drawn.

    Attributes:
        curves: the curves; those with a depth come in the order of the network.
        title: the text above the picture.
        caption: the text below it, which says how to read it.
        axis: what the values are, e.g. "log10 of the variance".
        along: what the numeric axis counts.
        marks: events along the numeric axis.
        rules: reference values, each with a name.
        span: a range that the value axis covers at least, so that two pictures can be compared.
        term: the term of the papers for what the title says in plain words.

    Raises:
        ValueError: the points of a curve are not in order, or a depth is outside of [0, 1].
    """

    curves: tuple[Curve, ...]
    title: str = ""
    caption: str = ""
    axis: str = ""
    along: str = "step"
    marks: tuple[Mark, ...] = ()
    rules: tuple[tuple[str, float], ...] = ()
    span: tuple[float, float] | None = None
    term: str = ""

    def __post_init__(self) -> None:
        for curve in self.curves:
            if any(not one[0] <= other[0] for one, other in zip(curve.points, curve.points[1:])):
                raise ValueError(f"curve {curve.name!r} of {self.title!r}: its points do not ascend")
            if curve.depth is not None and not 0.0 <= curve.depth <= 1.0:
                raise ValueError(f"curve {curve.name!r} of {self.title!r}: a depth of {curve.depth}")


Block = Table | Text | Figures | Notice | Steps | Glossary | Chart | Curves


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Blocks in reading order, under a title."""

    blocks: tuple[Block, ...]
    title: str = ""


class FigureResult(Saved, Shown):
    """A frozen result made of figures, any of which may be NaN."""

    __slots__ = ()

    @classmethod
    def of_fields(cls, **fields: Any) -> Self:
        """Return the result that has the fields of a file; a result that cannot be shown counts as damaged."""
        result = cls(**fields)
        result.document()
        return result


def figures_form(kind: str, function: str, left_out: tuple[str, ...] = (), sparse: tuple[str, ...] = ()) -> JsonForm:
    """Return the form of a result's JSON file."""
    noun, write = f"result of normscope.{function}", "write one with to_json(path)"
    return JsonForm(kind=kind, noun=noun, write=write, left_out=left_out, sparse=sparse, nan=True)


def part(heading: str, *blocks: Block | None, term: str = "", folded: bool = False) -> list[Block]:
    """Return blocks under a heading, or nothing at all where every block is None."""
    shown = [block for block in blocks if block is not None]
    return [Text(heading=heading, term=term, folded=folded), *shown] if shown else []
