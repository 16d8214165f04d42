"""`comparison_document`: what `ns.compare` shows; `compare_runs_document`: training runs side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..bounds.pages.measures import compared_measures
from ..core.errors import InputError
from ..core.finding import Severity
from ..doctor.monitor.run import Run
from ..doctor.pages.check import notices, tally
from ..doctor.pages.run import (
    NORM,
    PRODUCTS,
    VARIANCE,
    LayerPicture,
    Points,
    settings,
    steps_taken,
    total_curves,
    view_curves,
)
from ..report.document import Block, CellFormat, Column, Curves, Document, ReadColumn, Table, Text, part, tabulate
from ..report.glossary import glossary
from ..report.words import listed, pluralise, sentence
from .audit_comparison import compare_document, compare_values, compared_columns
from .comparison import Comparison, merged_order

NOT_SETTINGS = ("began",)
"""Entries that differ between any two runs, and that a comparison leaves out."""


def comparison_document(comparison: Comparison, *, brief: bool = False) -> Document:
    """Return audits, measures or runs as one comparison."""
    if comparison.runs:
        return compare_runs_document(comparison.runs, brief=brief)
    if comparison.measures:
        return compared_measures(comparison.measures, brief=brief)
    return compare_document(comparison.audits, brief=brief)


def compare_runs_document(runs: Mapping[str, Run], *, brief: bool = False) -> Document:
    """Return runs by the names to show, compared with the first; the brief form has no picture of all layers."""
    if len(runs) < 2:
        raise InputError(f"{pluralise(len(runs), 'run')} given: a comparison needs at least two")
    loss = _overlaid(runs, "loss", "Loss by step", "loss")
    products = [_overlaid(runs, key, f"Product: {name}", "log10 of the product") for key, name in PRODUCTS]
    gradient = _overlaid(runs, "log10_gradient", "Size of the whole gradient", "log10 of the norm")
    shown: list[Block] = [
        Text(heading="Verdict", body=_verdict(runs), lead=True),
        *([] if brief else [Text(body=_summary(runs))]),
        _headline_table(runs),
        *([] if loss is None else [loss]),
        *_alarms(runs),
        *part("Settings that differ", _settings_table(runs), folded=True),
        *part("Products", *products, term="printed product", folded=True),
        *part("Gradients", gradient, folded=True),
        *part("Normalizers", *_pictures(runs, VARIANCE, brief), _layer_table(runs, VARIANCE), folded=True),
        *part("Weights", *_pictures(runs, NORM, brief), _layer_table(runs, NORM), folded=True),
    ]
    shown += [] if brief else glossary(shown)
    return Document(title=f"Comparison of {listed(list(runs), most=4)}", blocks=tuple(shown))


def _verdict(runs: Mapping[str, Run]) -> str:
    """Return in one sentence in which runs alarms were raised, and which has the smallest loss."""
    wrong = [name for name, run in runs.items() if any(f.severity > Severity.INFO for f in run.findings)]
    clauses = [f"alarms were raised in {listed(wrong, most=4)}" if wrong else "no alarms in any of them"]
    losses = {name: loss for name, run in runs.items() if (loss := _end(run.total("loss"), -1)) is not None}
    finite = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    if len(losses) > 1 and finite:
        best = min(finite, key=lambda name: finite[name])
        clauses.append(f"the last loss is least in {best} ({finite[best]:.4g})")
    return sentence("; ".join(clauses))


def _summary(runs: Mapping[str, Run]) -> str:
    layers = [{(layer.kind, layer.name) for layer in run.layers} for run in runs.values()]
    return (
        f"{pluralise(len(runs), 'run')}, compared with {next(iter(runs))}: "
        f"{pluralise(len(set.union(*layers)), 'layer')} by "
        f"name, of which {len(set.intersection(*layers)):,} in every run. Figures are exponents of ten (log10) unless "
        "their heading says otherwise; a dash is not measured."
    )


def _headline_table(runs: Mapping[str, Run]) -> Table:
    def total(title: str, kind: CellFormat, quantity: str, index: int, help: str = "") -> ReadColumn[tuple[str, Run]]:
        return ReadColumn(title, kind, lambda named: _end(named[1].total(quantity), index), help)

    norms, folded = (
        "log10 of the product of the operator norms.",
        "log10 of the product with the normalizers folded in.",
    )
    columns: list[ReadColumn[tuple[str, Run]]] = [
        ReadColumn("run", "text", lambda named: named[0]),
        ReadColumn("model", "name", lambda named: named[1].metadata.get("model")),
        ReadColumn("steps", "count", lambda named: steps_taken(named[1])),
        total("first loss", "number", "loss", 0),
        total("last loss", "number", "loss", -1),
        total("norms, first", "log10", "log10_printed", 0, norms),
        total("norms, last", "log10", "log10_printed", -1),
        total("folded, first", "log10", "log10_folded", 0, folded),
        total("folded, last", "log10", "log10_folded", -1),
        ReadColumn("alarms", "name", lambda named: tally(named[1].findings)),
        ReadColumn(
            "overhead",
            "percent",
            lambda named: None if named[1].ended is None else named[1].ended.overhead,
            "Share of the time that watching took.",
        ),
        ReadColumn("end", "name", lambda named: None if named[1].ended is None else named[1].ended.how),
    ]
    return tabulate(runs.items(), columns, title="Headline figures")


def _end(points: Points, index: int) -> float | None:
    return points[index][1] if points else None


def _settings_table(runs: Mapping[str, Run]) -> Table | None:
    by_run = {name: settings(run) for name, run in runs.items()}
    keys = dict.fromkeys(key for values in by_run.values() for key in values if key not in NOT_SETTINGS)
    rows = [(key, *(values.get(key) for values in by_run.values())) for key in keys]
    different = tuple(row for row in rows if len(set(row[1:])) > 1)
    if not different:
        return None
    columns = (Column("setting", "name"), *(Column(name, "name") for name in runs))
    return Table(columns=columns, rows=different)


def _alarms(runs: Mapping[str, Run]) -> Iterator[Block]:
    if not any(run.findings for run in runs.values()):
        yield Text(body="No alarm was raised in any of them.")
        return
    for name, run in runs.items():
        yield Text(body=f"In {name}: {tally(run.findings)}.")
        yield from notices(run.findings)


def _overlaid(runs: Mapping[str, Run], quantity: str, title: str, axis: str) -> Curves | None:
    """Return one figure of the whole network as a picture with a curve per run; a run has one colour everywhere."""
    courses: dict[str, Points] = {name: run.total(quantity) for name, run in runs.items()}
    return total_curves(courses, title=title, axis=axis, logarithmic=quantity == "loss")


def _pictures(runs: Mapping[str, Run], view: LayerPicture, brief: bool) -> list[Curves]:
    """Return a picture per run, all with the same value axis."""
    if brief:
        return []
    values = [
        value
        for run in runs.values()
        for points in run.course(view.kind, view.quantity).values()
        for _, value in points
        if math.isfinite(value)
    ]
    span = (min(values), max(values)) if values else None
    pictures = ((name, view_curves(run, view, span=span)) for name, run in runs.items())
    drawn = [replace(picture, title=f"{view.title}: {name}") for name, picture in pictures if picture is not None]
    return [picture if picture is drawn[-1] else replace(picture, caption="") for picture in drawn]


def _layer_table(runs: Mapping[str, Run], view: LayerPicture) -> Table | None:
    """Return the last value of every layer in every run, and its difference from that in the first run."""
    lasts = [
        {name: points[-1][1] for name, points in run.course(view.kind, view.quantity).items()} for run in runs.values()
    ]
    order = merged_order([[layer.name for layer in run.of(view.kind)] for run in runs.values()])
    rows = []
    for name in order:
        values = [by_name.get(name) for by_name in lasts]
        if any(value is not None for value in values):
            rows.append((name, *compare_values(values)))
    title, columns = (
        f"{view.title}: at the last measurement (log10)",
        (Column("layer", "name"), *compared_columns(runs)),
    )
    return Table(title=title, columns=columns, rows=tuple(rows)) if rows else None
