"""`generalization_document`: generalization bounds as the report a person reads."""

from __future__ import annotations

import math

from ..core.log10 import log10_sum
from ..diagnosis.verdict import sentence
from ..generalize.bound import CERTIFIED, RATE, BoundRow
from ..generalize.generalization_table import Generalization
from ..report.document import Block, Chart, Column, Curve, Curves, Document, Figure, Figures, Series, Table, Text
from ..report.words import pluralise
from ..theory.sample_sizes import generalization_slack

SHOWN = 6.0
"""The largest exponent in charts: a bound above a million times the largest loss is drawn at the edge."""


def generalization_document(bounds: Generalization, *, brief: bool = False) -> Document:
    """Return the report: the verdict, the tables of bounds, conditions and terms, and on a page three charts."""
    blocks: list[Block] = [Text(body=_verdict(bounds), lead=True)]
    if not brief:
        blocks += [_figures(bounds), _terms(bounds), *_curves(bounds)]
    blocks += [_table(bounds, brief=brief), _conditions(bounds)]
    if not brief:
        blocks += [_summands(bounds)]
    blocks += [_parts(bounds)]
    blocks += [Text(body=sentence(note)) for note in bounds.notes]
    return Document(title=f"Generalization of {bounds.name}", blocks=tuple(blocks))


def _verdict(bounds: Generalization) -> str:
    best, trained = bounds.best, bounds.best_from_train
    sure = f"probability {bounds.confidence:.4g}"
    head = "No certified bound says anything: all are at least as large as what they bound can be."
    if best is not None:
        many = bounds.certified
        head = f"With {sure}, {best.speaks_of} is at most {best.value:.4g} ({best.name}"
        head += f", the smallest of {many} certified rows, whose deltas add up)." if many > 1 else ")."
        if trained is None:
            head += " No certified bound from the training samples alone says anything."
        elif trained is not best:
            head += f" From the training samples alone, {trained.speaks_of} is at most {trained.value:.4g}."
    measured = f" On {pluralise(bounds.samples, 'sample')} of D the {bounds.loss} is {bounds.train_loss:.4g}"
    if bounds.test_loss is not None and bounds.gap is not None:
        measured += (
            f", on {pluralise(bounds.tested or 0, 'test sample')} {bounds.test_loss:.4g}: a gap of {bounds.gap:.4g}"
        )
    whole = [one for one in bounds.rows if one.evidence != RATE]
    empty = sum(one.vacuous for one in whole)
    return f"{head}{measured}. {empty} of {pluralise(len(whole), 'row')} with constants are vacuous."


def _figures(bounds: Generalization) -> Figures:
    best = bounds.best
    items = [
        Figure(label="Loss on D", value=bounds.train_loss, kind="number", note=bounds.loss),
        Figure(label="Gap measured", value=bounds.gap, kind="number", note="test less D"),
        Figure(
            label="Smallest certified bound",
            value=None if best is None else best.value,
            kind="number",
            note="all are vacuous" if best is None else best.name,
        ),
    ]
    return Figures(items=tuple(items))


def _table(bounds: Generalization, *, brief: bool) -> Table:
    columns = [
        Column("bound", "name"),
        Column("value", "number"),
        Column("evidence"),
        Column("says", help="vacuous: at least as large as what it bounds can be"),
        Column("of what"),
    ]
    rows = [(one.name, one.value, one.evidence, _says(one), one.speaks_of) for one in bounds.rows]
    if not brief:
        columns += [
            Column("as printed", "log10", "the formula as a paper prints it, log10"),
            Column("source"),
            Column("note"),
        ]
        rows = [(*row, one.log10_as_printed, one.source, one.note) for row, one in zip(rows, bounds.rows)]  # type: ignore[misc]
    caption = (
        f"Each row for itself holds with probability {1 - bounds.delta:.4g} where it is certified. Cells: "
        f"{bounds.partition}."
    )
    return Table(title="Bounds", columns=tuple(columns), rows=tuple(rows), caption=caption)


def _says(one: BoundRow) -> str:
    if one.evidence == RATE:
        return "an order"
    return "vacuous" if one.vacuous else "not vacuous"


def _conditions(bounds: Generalization) -> Table:
    columns = (
        Column("bound", "name"),
        Column("condition"),
        Column("here"),
        Column("why"),
    )
    rows = [
        (one.name, each.what, each.status, each.why)
        for one in bounds.rows
        for each in (one.missing if one.evidence != CERTIFIED else ())
    ]
    return Table(title="Conditions that are not met, or not known to be", columns=columns, rows=tuple(rows))


def _summands(bounds: Generalization) -> Table:
    columns = (Column("bound", "name"), Column("term"), Column("value", "number"))
    rows = [(one.name, each.name, each.value) for one in bounds.rows for each in one.terms]
    return Table(title="Terms of each bound", columns=columns, rows=tuple(rows))


def _parts(bounds: Generalization) -> Table:
    columns = (
        Column("error", "name"),
        Column("from", "number"),
        Column("to", "number"),
        Column("why"),
    )
    rows = tuple((part.name, part.low, part.high, part.why) for part in bounds.parts)
    return Table(title=f"The three errors of the model ({bounds.loss})", columns=columns, rows=rows)


def _kind(name: str) -> str:
    """Say which of three parts of a bound a term belongs to."""
    if name.endswith((" on D", " on them")):
        return "loss or error seen"
    return "confidence" if name in ("confidence", "draws") else "cells or complexity"


def _terms(bounds: Generalization) -> Chart:
    """Return the measured loss, the complexity and the confidence term of every bound, and their sum, as log10."""
    shown = [one for one in bounds.rows if one.terms and math.isfinite(one.log10_value)]

    def part(one: BoundRow, kind: str) -> float | None:
        terms = [each.log10 for each in one.terms if _kind(each.name) == kind]
        return max(-SHOWN, log10_sum(terms)) if terms else None  # a term of 0 is drawn at the edge

    kinds = ("loss or error seen", "cells or complexity", "confidence")
    series = [Series(name=kind, style="marks", values=tuple(part(one, kind) for one in shown)) for kind in kinds]
    series.append(Series(name="the bound", style="marks", values=tuple(one.log10_value for one in shown)))
    return Chart(
        title="Terms of each bound",
        labels=tuple(one.name for one in shown),
        series=tuple(series),
        axis="log10",
        sideways=True,
        rules=(("the largest error", 0.0),),
        caption="A bound to the right of the line says nothing of an error. What makes it so is the rightmost of its "
        "terms.",
    )


def _curves(bounds: Generalization) -> list[Block]:
    blocks: list[Block] = []
    over = [
        Curve(
            name=course.name,
            points=tuple((math.log10(n), _log(bounds.train_loss + gap)) for n, gap in zip(course.sizes, course.gaps)),
        )
        for course in bounds.courses
    ]
    rules = (("the largest loss", math.log10(bounds.most)),)
    if over and len(over[0].points) > 1:
        blocks.append(
            Curves(
                title="Theorem 20 against the number of cells",
                curves=tuple(over),
                axis="log10 of the bound",
                along="log10 of the cells, labels counted",
                rules=rules,
                caption="More cells are smaller, so that distances shrink, and hold fewer samples each, so that the "
                "confidence term grows.",
            )
        )
    if bounds.courses:
        start = math.log10(bounds.samples)
        points = [start + 0.25 * step for step in range(-4, 25)]
        curves = []
        for course in bounds.courses:
            values = []
            for exponent in points:
                slack = generalization_slack(
                    10.0**exponent,
                    cells=course.cells,
                    partition=course.size,
                    delta=course.delta,
                    most=bounds.most,
                )
                values.append((exponent, _log(bounds.train_loss + course.local + slack)))
            curves.append(Curve(name=course.name, points=tuple(values)))
        blocks.append(
            Curves(
                title="Theorem 20 against the number of samples",
                curves=tuple(curves),
                axis="log10 of the bound",
                along="log10 of the samples",
                rules=rules,
                caption="Loss on D, cells and their distances are taken as they are: only the confidence term shrinks. "
                "A curve that stays above the line asks for infinitely many samples.",
            )
        )
    return blocks


def _log(value: float) -> float:
    return min(SHOWN, math.log10(value)) if value > 0 else -SHOWN
