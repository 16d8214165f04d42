"""`radii_document`: certified radii as the report a person reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from ...report.document import (
    Block,
    Cell,
    Chart,
    Column,
    Document,
    Figure,
    Figures,
    Notice,
    ReadColumn,
    Series,
    Table,
    Text,
    tabulate,
)
from ...report.glossary import glossary
from ...report.svg import tick_text, ticks
from ...report.words import format_cell, listed, pluralise, shape
from ..radius.radii import COLUMNS, Point, Radii

CURVE_POINTS = 36
"""The curve is drawn at about this many radii."""
LISTED = 2000
"""The table of a page lists up to this many samples; the JSON file holds all."""
FEW = 16
"""Up to this many samples are listed on a terminal."""
FRAME = (("none", 0.0), ("all", 1.0))
"""The least and the largest share of samples."""

READING_THE_CURVE = (
    "Certified: the share of samples that are right and provably stay so however they are changed within the radius. "
    "Under attack: the share for which a strong search found no such change. The truth lies between the two. Radii are "
    "l2 distances in the units of the model's input."
)
READING_WITHOUT_LABELS = (
    "Certified: the share of samples whose class provably stays what it is however they are changed within the radius. "
    "Under attack: the share for which a strong search found no change of class. The truth lies between the two. Radii "
    "are l2 distances in the units of the model's input. No labels were given: whether a class is right is not known."
)
READING_THE_SAMPLES = (
    "The class provably wins within the certified radius; at the attacked radius a change was found, and confirmed in "
    "float64, that makes another class win. 0 is a sample that is wrong as it stands, inf no change found."
)


def radii_document(radii: Radii, *, brief: bool = False, at: Sequence[float] | None = None) -> Document:
    """Return the report of certified radii: the curve first, then every sample."""
    blocks = _brief(radii, at) if brief else _full(radii, at)
    return Document(title=f"Certified radii of {radii.name}", blocks=tuple(blocks))


def radii_blocks(radii: Radii) -> tuple[Block, ...]:
    """Return the curve, the accuracies and the samples as blocks for a larger page, such as an audit's."""
    named = accuracy_table(radii, title="Accuracy by radius" if radii.labelled else "Share by radius")
    return (*_chart(radii), replace(named, caption=""), _samples(radii, title="Radii by sample"))


def headline(radii: Radii) -> str:
    """Return the outcome in one or two sentences; without labels nothing is said about right and wrong."""
    right, count = sum(radii.right), len(radii)
    all_right = "The sample is" if count == 1 else f"All {count:,} samples are"
    which = all_right if right == count else f"{right:,} of {count:,} are"
    first = f"{which} classified correctly. " if radii.labelled else ""
    own, attacked = _of_right(radii)
    if not own:
        return first.strip() or f"The class of {pluralise(count, 'sample')} was examined; none is decided."
    whose = "those" if radii.labelled else pluralise(count, "sample")
    second = f"For half of {whose} the class provably cannot change within {median(own):.3g}"
    if attacked and math.isfinite(median(attacked)):
        second += f"; the attack needs {median(attacked):.3g} to change half of them"
    return f"{first}{second}."


def _of_right(radii: Radii) -> tuple[list[float], list[float]]:
    """Return the certified and the attacked radii of the samples that are right."""
    right = [index for index, kept in enumerate(radii.right) if kept]
    attacked = (radii.attacked[index] for index in right)
    return [radii.radius[index] for index in right], [radius for radius in attacked if radius is not None]


def accuracy_table(radii: Radii, at: Sequence[float] | None = None, *, title: str = "Accuracy by radius") -> Table:
    """Return certified accuracy and accuracy under attack at several radii."""
    columns: tuple[ReadColumn[Point], ...] = (
        ReadColumn("radius", "number", "radius", "l2 distance in the units of the model's input"),
        ReadColumn("certified", "percent", "certified", f"{_kept(radii)} within the radius"),
        ReadColumn("under attack", "percent", "attacked", "no change within the radius was found"),
    )
    return tabulate(radii.curve(at), columns, title=title, caption=_reading(radii), drop_empty=True)


def _reading(radii: Radii) -> str:
    return READING_THE_CURVE if radii.labelled else READING_WITHOUT_LABELS


def _kept(radii: Radii) -> str:
    return "right, and provably right" if radii.labelled else "the class provably stays what it is"


def compared_radii(radii: Mapping[str, Radii]) -> Table:
    """Return one row per network: its accuracy, what is certified at several radii, and what the attack leaves there.

    These are round numbers just below the median of what is certified, and of what attacks find.
    """
    at = _instructive(radii)
    columns = [Column("network")]
    labelled = all(one.labelled for one in radii.values())
    if labelled:
        columns.append(Column("accuracy", "percent", "of the samples certified"))
    for word, note in (
        ("certified", "right, and provably right within"),
        ("attacked", "still right under attack within"),
    ):
        columns += [Column(f"{word} {tick_text(r)}", "percent", f"{note} {tick_text(r)}") for r in at]
    rows: list[tuple[Cell, ...]] = []
    for name, one in radii.items():
        points = one.curve(at)
        certified, attacked = (point.certified for point in points), (point.attacked for point in points)
        rows.append((name, *((one.clean_accuracy,) if labelled else ()), *certified, *attacked))
    title = f"{'Accuracy' if labelled else 'Share'} within a radius: certified, and under attack"
    hurried = [name for name, one in radii.items() if not one.converged]
    more = f" The budget ran out for {listed(hurried)}: more may be certified there." if hurried else ""
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), caption=_reading(_widest(radii)) + more)


def _instructive(radii: Mapping[str, Radii]) -> list[float]:
    """Return radii at which networks are likely to differ: below the median certified and the median attacked one."""
    sides = (
        [value for one in radii.values() for value in one.radius],
        [value for one in radii.values() for value in one.attacked if value is not None],
    )
    finite = [[value for value in side if 0 < value < math.inf] for side in sides]
    return sorted({ticks(0.0, median(side), about=3)[-1] for side in finite if side}) or [1.0]


def compared_curves(radii: Mapping[str, Radii]) -> tuple[Chart, ...]:
    """Return the curves of several networks: certified accuracy in one chart, accuracy under attack in another."""
    sizes = _widest(radii).reach(CURVE_POINTS)
    labels = tuple(tick_text(size) for size in sizes)
    titles = {
        "certified": "Samples that provably keep their class, by the size of the change",
        "attacked": "Samples that keep their class under attack, by the size of the change",
    }
    charts = []
    for side, title in titles.items():
        series = tuple(
            Series(name=name, style="line", values=tuple(getattr(point, side) for point in one.curve(sizes)))
            for name, one in radii.items()
        )
        if any(value is not None for item in series for value in item.values):
            charts.append(Chart(title=title, labels=labels, series=series, axis="share of the samples", rules=FRAME))
    return tuple(charts)


def _widest(radii: Mapping[str, Radii]) -> Radii:
    return max(radii.values(), key=lambda one: one.reach(CURVE_POINTS)[-1])


def _full(radii: Radii, at: Sequence[float] | None) -> list[Block]:
    provenance = (
        *radii.provenance.items(),
        ("input of one sample", shape(radii.input_shape) or "unknown"),
        ("classes", str(radii.classes)),
        ("effort", radii.effort),
        ("tolerance of the radii", f"{radii.rtol:g}"),
        *(() if radii.seconds is None else (("time", format_cell(radii.seconds, "seconds")),)),
    )
    shown: list[Block] = [
        Text(heading="Verdict", body=headline(radii), lead=True),
        Figures(items=tuple(_figures(radii))),
        *_chart(radii),
        *_warn_unsettled(radii),
        Text(heading="Accuracy by radius" if radii.labelled else "Share by radius", folded=True),
        accuracy_table(radii, at, title=""),
        Text(heading="Samples", folded=True),
        _samples(radii),
        Text(heading="About these figures", folded=True),
        *(Text(body=note) for note in radii.notes),
        Table(columns=(Column("what", "name"), Column("value")), rows=provenance),
    ]
    return [*shown, *glossary(shown)]


def _brief(radii: Radii, at: Sequence[float] | None) -> list[Block]:
    return [
        Text(body=headline(radii), lead=True),
        *_warn_unsettled(radii),
        accuracy_table(radii, at, title="accuracy by radius" if radii.labelled else "share by radius"),
        *([_samples(radii, title="radii by sample", brief=True)] if len(radii) <= FEW else []),
        *(Text(body=f"Note: {note}") for note in radii.notes),
    ]


def _figures(radii: Radii) -> list[Figure]:
    own, attacked = _of_right(radii)
    of = "of the samples that are right" if radii.labelled else f"of {pluralise(len(radii), 'sample')}"
    items = []
    if radii.labelled:
        note = pluralise(len(radii), "sample")
        items.append(Figure(label="Accuracy", value=radii.clean_accuracy, kind="percent", note=note))
    if own:
        label, term = "No change up to this size can change the class", "certified radius"
        items.append(Figure(label=label, value=median(own), kind="number", note=f"median {of}", term=term))
    if attacked:
        label = "A change of this size was found that does"
        items.append(Figure(label=label, value=median(attacked), kind="number", note=f"median {of}, by an attack"))
    return items


def _warn_unsettled(radii: Radii) -> list[Block]:
    heading = "the search did not end: radii are certified, but could be larger"
    lines = (("", radii.advice),) if radii.advice else ()
    return [] if radii.converged else [Notice(level="warning", heading=heading, lines=lines)]


def _chart(radii: Radii) -> list[Block]:
    sizes = radii.reach(CURVE_POINTS)
    points = radii.curve(sizes)
    series = [Series(name="certified", style="line", values=tuple(point.certified for point in points))]
    if points[0].attacked is not None:
        left = tuple(point.attacked for point in points)
        series.append(Series(name="under attack", style="line", values=left))
    return [
        Chart(
            title="How many samples keep their class, by the size of the change",
            labels=tuple(tick_text(size) for size in sizes),
            series=tuple(series),
            axis="share of the samples",
            rules=FRAME,
            caption=_reading(radii),
            term="certified radius",
        )
    ]


def _samples(radii: Radii, *, title: str = "", brief: bool = False) -> Table:
    columns: tuple[Column, ...] = (
        Column("sample", "count"),
        Column("label", "count", "the class that was given"),
        Column("predicted", "count", "the class that the model gives"),
        Column("margin", "number", "the output of the class above the largest other one"),
        Column("certified", "number", "within this radius the class provably wins"),
        Column("attacked", "number", "length of the smallest change found that makes another class win"),
        Column("by", "name", "bounds over the ball, or the constant over all inputs"),
        Column("evidence", "name"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (index, *(getattr(radii, name)[index] for name in COLUMNS[:-1]), radii.evidence[index].name)
        for index in range(len(radii))
    )
    if not radii.labelled:
        columns, rows = (columns[0], *columns[2:]), tuple((row[0], *row[2:]) for row in rows)
    if brief:  # the evidence is usually the same for all samples
        columns, rows = columns[:-1], tuple(row[:-1] for row in rows)
    more = f" {len(rows) - LISTED:,} more are left out here." if len(rows) > LISTED else ""
    return Table(title=title, columns=columns, rows=rows[:LISTED], caption=READING_THE_SAMPLES + more)
