"""`radii_document`: certified radii as the report a person reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from ...report.cells import format_cell
from ...report.document import Block, Cell, Chart, Column, Document, Figure, Figures, Notice, Series, Table, Text
from ...report.scale import tick_text
from ...report.words import counted, listed, shape
from .radii import COLUMNS, Radii

STEPS = 36
"""Radii at which the curve is drawn, about."""
LISTED = 2000
"""Samples in the table of a page; more are in the JSON file alone."""
FEW = 16
"""Up to this many samples are listed on a terminal."""

FRAME = (("none", 0.0), ("all", 1.0))
"""What a share of samples lies between."""

READING_THE_CURVE = (
    "Certified: the share of samples that are right and provably stay so however they are changed within the radius. "
    "Under attack: the share for which a strong search found no such change. The truth lies between the two. Radii are "
    "l2 distances in the units of the model's input."
)
READING_THE_SAMPLES = (
    "The label provably wins within the certified radius; at the attacked radius a change was found, and confirmed in "
    "float64, that makes another class win. 0 is a sample that is wrong as it stands, inf no change found."
)


def radii_document(radii: Radii, *, brief: bool = False, at: Sequence[float] | None = None) -> Document:
    """Return the report of certified radii: the curve first, then every sample.

    Args:
        radii: what `normscope.certified_radius` or `Radii.from_json` returned; nothing is computed again.
        brief: for a terminal: the headline, the accuracies by radius, and the samples if they are few.
        at: the radii of the table of accuracies; round numbers if not given.
    """
    blocks = _brief(radii, at) if brief else _full(radii, at)
    return Document(title=f"Certified radii of {radii.name}", blocks=tuple(blocks))


def radii_blocks(radii: Radii) -> tuple[Block, ...]:
    """Return curve, accuracies and samples as blocks for a page of something larger, such as an audit."""
    return (*_chart(radii), accuracy_table(radii), _samples(radii, title="Radii by sample"))


def headline(radii: Radii) -> str:
    """Return the outcome in two sentences."""
    right = format_cell(radii.clean_accuracy, "percent")
    first = f"{right} of {counted(len(radii), 'sample')} are put into their class."
    own = [radius for radius, kept in zip(radii.radius, radii.right, strict=True) if kept]
    if not own:
        return first
    second = f"For half of those the class provably cannot change within {median(own):.3g}"
    found = [at for at, kept in zip(radii.attacked, radii.right, strict=True) if kept and at is not None]
    if found and math.isfinite(median(found)):
        second += f"; the attack needs {median(found):.3g} to change half of them"
    return f"{first} {second}."


def accuracy_table(radii: Radii, at: Sequence[float] | None = None, *, title: str = "Accuracy by radius") -> Table:
    """Return certified accuracy and accuracy under attack at several radii.

    Args:
        radii: what was found.
        at: the radii; round numbers if not given.
        title: stands above the table.
    """
    points = radii.curve(at)
    columns = [
        Column(title="radius", kind="number", help="l2 distance in the units of the model's input"),
        Column(title="certified", kind="percent", help="right, and provably right within the radius"),
    ]
    rows: list[tuple[float | None, ...]] = [(point.radius, point.certified) for point in points]
    if points and points[0].attacked is not None:
        columns.append(Column(title="under attack", kind="percent", help="no change within the radius was found"))
        rows = [(*row, point.attacked) for row, point in zip(rows, points, strict=True)]
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), caption=READING_THE_CURVE)


def compared_radii(radii: Mapping[str, Radii], at: Sequence[float]) -> Table:
    """Return one row per network: its accuracy, what is certified at several radii, and what the attack leaves there.

    Args:
        radii: by the name of the network, for the same samples.
        at: the radii.
    """
    columns = [Column(title="network"), Column(title="accuracy", kind="percent", help="of the samples certified")]
    for word, note in (
        ("certified", "right, and provably right within"),
        ("attacked", "still right under attack within"),
    ):
        columns += [Column(title=f"{word} {tick_text(r)}", kind="percent", help=f"{note} {tick_text(r)}") for r in at]
    rows: list[tuple[Cell, ...]] = []
    for name, found in radii.items():
        points = found.curve(at)
        certified, attacked = (point.certified for point in points), (point.attacked for point in points)
        rows.append((name, found.clean_accuracy, *certified, *attacked))
    title = "Accuracy within a radius: certified, and under attack"
    hurried = [name for name, found in radii.items() if not found.converged]
    more = f" The budget ran out for {listed(hurried)}: more may be certified there." if hurried else ""
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), caption=READING_THE_CURVE + more)


def compared_curves(radii: Mapping[str, Radii]) -> tuple[Chart, ...]:
    """Return the curves of several networks: certified accuracy in one chart, accuracy under attack in another."""
    widest = max(radii.values(), key=lambda found: found.reach(STEPS)[-1])
    places = widest.reach(STEPS)
    labels = tuple(tick_text(place) for place in places)
    certified = [
        Series(name=n, style="line", values=tuple(p.certified for p in r.curve(places))) for n, r in radii.items()
    ]
    attacked = [
        Series(name=n, style="line", values=tuple(p.attacked for p in r.curve(places))) for n, r in radii.items()
    ]
    return tuple(
        Chart(title=title, labels=labels, series=tuple(series), axis="share of the samples", rules=FRAME)
        for title, series in (
            ("Certified accuracy by radius", certified),
            ("Accuracy under attack by radius", attacked),
        )
        if any(value is not None for item in series for value in item.values)
    )


def _full(radii: Radii, at: Sequence[float] | None) -> list[Block]:
    return [
        Text(heading="Summary", body=headline(radii)),
        Figures(items=tuple(_figures(radii))),
        *_unsettled(radii),
        Text(heading="Accuracy by radius"),
        *_chart(radii),
        accuracy_table(radii, at, title=""),
        Text(heading="Samples"),
        _samples(radii),
        *([Text(heading="Notes")] if radii.notes else []),
        *(Text(body=note) for note in radii.notes),
        Text(heading="Provenance"),
        _provenance(radii),
    ]


def _brief(radii: Radii, at: Sequence[float] | None) -> list[Block]:
    return [
        Text(body=headline(radii)),
        *_unsettled(radii),
        accuracy_table(radii, at, title="accuracy by radius"),
        *([_samples(radii, title="radii by sample", brief=True)] if len(radii) <= FEW else []),
        *(Text(body=f"Note: {note}") for note in radii.notes),
    ]


def _figures(radii: Radii) -> list[Figure]:
    own = [radius for radius, kept in zip(radii.radius, radii.right, strict=True) if kept]
    found = [at for at, kept in zip(radii.attacked, radii.right, strict=True) if kept and at is not None]
    items = [Figure(label="accuracy", value=radii.clean_accuracy, kind="percent", note=counted(len(radii), "sample"))]
    if own:
        items.append(
            Figure(label="median certified radius", value=median(own), kind="number", note="of the samples put right")
        )
    if found:
        items.append(
            Figure(label="median attacked radius", value=median(found), kind="number", note="smallest change found")
        )
    return items


def _unsettled(radii: Radii) -> list[Block]:
    if radii.converged:
        return []
    line = (("", radii.advice),) if radii.advice else ()
    return [
        Notice(level="warning", heading="the search did not end: radii are certified, but could be larger", lines=line)
    ]


def _chart(radii: Radii) -> list[Block]:
    places = radii.reach(STEPS)
    points = radii.curve(places)
    series = [Series(name="certified", style="line", values=tuple(point.certified for point in points))]
    if points[0].attacked is not None:
        left = tuple(point.attacked for point in points)
        series.append(Series(name="under attack", style="line", values=left))
    return [
        Chart(
            title="Certified, and under attack" if len(series) > 1 else "Certified accuracy",
            labels=tuple(tick_text(place) for place in places),
            series=tuple(series),
            axis="share of the samples",
            rules=FRAME,
        )
    ]


def _samples(radii: Radii, *, title: str = "", brief: bool = False) -> Table:
    columns: tuple[Column, ...] = (
        Column(title="sample", kind="count"),
        Column(title="label", kind="count"),
        Column(title="predicted", kind="count"),
        Column(title="margin", kind="number", help="the label's output above the largest other one"),
        Column(title="certified", kind="number", help="within this radius the label provably wins"),
        Column(
            title="attacked", kind="number", help="length of the smallest change found that makes another class win"
        ),
        Column(title="by", kind="name", help="bounds over the ball, or the constant over all inputs"),
        Column(title="evidence", kind="name"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (index, *(getattr(radii, name)[index] for name in COLUMNS[:-1]), radii.evidence[index].name)
        for index in range(len(radii))
    )
    if brief:  # the evidence is the same for all, as a rule
        columns, rows = columns[:-1], tuple(row[:-1] for row in rows)
    more = f" {len(rows) - LISTED:,} more are left out here." if len(rows) > LISTED else ""
    return Table(title=title, columns=columns, rows=rows[:LISTED], caption=READING_THE_SAMPLES + more)


def _provenance(radii: Radii) -> Table:
    columns = (Column(title="what", kind="name"), Column(title="value"))
    rows = (
        *radii.provenance.items(),
        ("input of one sample", shape(radii.input_shape) or "unknown"),
        ("classes", str(radii.classes)),
        ("effort", radii.effort),
        ("tolerance of the radii", f"{radii.rtol:g}"),
        *(() if radii.seconds is None else (("time", format_cell(radii.seconds, "seconds")),)),
    )
    return Table(columns=columns, rows=rows)
