"""The layers of a run as tables: the first, the last, the smallest and the largest value of each quantity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..monitor.probes.updates import HISTOGRAM_BINS
from ..monitor.record import Kind as LayerKind
from ..monitor.record import LayerRecord
from ..monitor.run import Run
from ..report.curves import sparkline
from ..report.document import Cell, Column, Kind, Table

Course = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """A column with the last value of a quantity."""

    quantity: str
    title: str
    kind: Kind = "log10"
    help: str = ""


WEIGHTS = (
    Last(
        quantity="norm_error",
        title="error",
        kind="number",
        help="Decades by which the last norm may be off; one that may be off by more than 0.02 is not shown.",
    ),
    Last(quantity="norm_age", title="age", kind="count", help="Steps since the last norm was measured."),
    Last(quantity="log10_folded", title="folded", help="log10 of the norm with the normalizer behind it, last."),
    Last(
        quantity="folded_error", title="error folded", kind="number", help="Decades by which that may be off, likewise."
    ),
    Last(quantity="log10_size", title="size", help="log10 of the Frobenius norm, last."),
    Last(quantity="log10_gradient", title="gradient", help="log10 of the norm of the gradient, last."),
    Last(quantity="log10_effective_lr", title="effective lr", help="log10 of lr/norm² or lr/norm, last."),
    Last(quantity="rotation", title="rotation", kind="number", help="Angle of one step in radians, last."),
)
NORMALIZERS = (
    Last(quantity="log10_variance_min", title="smallest", help="log10 of the smallest variance, last."),
    Last(quantity="log10_variance_max", title="largest", help="log10 of the largest variance, last."),
    Last(quantity="log10_constant", title="constant", help="log10 of the largest Jacobian norm without scale, last."),
    Last(quantity="log10_gain", title="gain", help="log10 of the same with the scale, last."),
    Last(quantity="dominated", title="near eps", kind="percent", help="Share of the variances below 10 eps, last."),
    Last(quantity="dead", title="dead", kind="percent", help="Share of the scales that let nothing through, last."),
    Last(quantity="log10_running", title="to running", help="log10 of batch over running variance, mean, last."),
)
COURSE = (
    ("first", "at the first measurement"),
    ("last", "at the last measurement"),
    ("least", "the smallest of the run"),
    ("most", "the largest of the run"),
)


def layer_tables(run: Run) -> list[Table | None]:
    """Return the weights by operator norm, the normalizers by input variance, and the histograms of the full tier."""
    weights: list[tuple[Column, Callable[[LayerRecord], Cell]]] = [
        (Column(title="feeds", kind="name", help="The normalizer behind it."), lambda layer: layer.normalizer),
        (
            Column(title="invariant", kind="name", help="What can be rescaled without changing the output."),
            lambda layer: layer.invariant,
        ),
    ]
    normalizers: list[tuple[Column, Callable[[LayerRecord], Cell]]] = [
        (Column(title="eps", kind="number"), lambda layer: layer.eps)
    ]
    return [
        _table(run, "weight", "log10_norm", "Weights: operator norm (log10)", weights, WEIGHTS),
        _table(run, "normalizer", "log10_variance", "Normalizers: input variance (log10)", normalizers, NORMALIZERS),
        histogram_table(run),
    ]


def histogram_table(run: Run) -> Table | None:
    """Return histograms of every weight and its gradient, at the first and the last step; None if none was taken."""
    records = [record for record in run.records if record.histograms]
    if not records:
        return None
    columns: list[tuple[Column, list[Cell]]] = [
        (Column(title="layer", kind="name"), [layer.name for layer in run.of("weight")])
    ]
    for what in ("weight", "gradient"):
        for when, record in (("first", records[0]), ("last", records[-1])):
            rows = record.histograms.get(what) or (None,) * len(run.of("weight"))
            sizes: list[Cell] = [None if row is None else row[0] for row in rows]
            spreads: list[Cell] = [
                None if row is None else sparkline([n or 0.0 for n in row[1:]], HISTOGRAM_BINS) for row in rows
            ]
            step = f"at step {record.step:,}"
            columns.append((Column(title=f"{what}s, {when}", kind="name", help=f"Shares in 33 bins, {step}."), spreads))
            size = Column(title="size", kind="number", help=f"Root mean square of the entries, {step}.")
            columns.append((size, sizes))
    return Table(
        title="Histograms of weights and gradients",
        columns=tuple(column for column, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns))),
        caption="From -4 to 4 times the root mean square, 0 in the middle; the outermost bins hold what is beyond.",
    )


def _table(
    run: Run,
    kind: LayerKind,
    quantity: str,
    title: str,
    known: list[tuple[Column, Callable[[LayerRecord], Cell]]],
    lasts: Sequence[Last],
) -> Table | None:
    layers = run.of(kind)
    if not layers or not run.records:
        return None
    course = run.course(kind, quantity)
    columns: list[tuple[Column, list[Cell]]] = [
        (Column(title="layer", kind="name"), [layer.name for layer in layers]),
        (Column(title="kind", kind="name"), [layer.family for layer in layers]),
    ]
    columns += [(column, [read(layer) for layer in layers]) for column, read in known]
    spans = [ends(course.get(layer.name, ())) for layer in layers]
    for index, (name, meaning) in enumerate(COURSE):
        columns.append((Column(title=name, kind="log10", help=f"log10, {meaning}."), [cells[index] for cells in spans]))
    for last in lasts:
        cells: list[Cell] = list(run.last(kind, last.quantity))
        columns.append((Column(title=last.title, kind=last.kind, help=last.help), cells))
    kept = [(column, cells) for column, cells in columns if any(cell is not None for cell in cells)]
    return Table(title=title, columns=tuple(column for column, _ in kept), rows=tuple(zip(*(c for _, c in kept))))


def ends(course: Course) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the first, the last, the smallest and the largest value of a course; None where nothing was measured."""
    if not course:
        return None, None, None, None
    numbers = [value for _, value in course if not math.isnan(value)]
    return course[0][1], course[-1][1], min(numbers, default=None), max(numbers, default=None)
