"""`generalization_document`: generalization bounds as the report a person reads."""

from __future__ import annotations

import math
from typing import Any

from normscope.report import (
    Block,
    Chart,
    Column,
    Curve,
    Curves,
    Document,
    Figure,
    Figures,
    Series,
    Table,
    Text,
    pluralise,
    sentence,
)
from normscope.theory import generalization_slack
from normscope.toolkit import ReadColumn, log10_sum, read_attribute, tabulate

from .bound import CERTIFIED, RATE, BoundRow
from .generalization_table import ErrorPart, Generalization

SHOWN = 6.0
"""The largest exponent in charts: a bound above a million times the largest loss is drawn at the edge."""


def generalization_document(bounds: Generalization, *, brief: bool = False) -> Document:
    """Return the report: the verdict, the tables of bounds, conditions and terms, and on a page three charts."""
    blocks: list[Block] = [Text(body=_verdict(bounds), lead=True)]
    if not brief:
        blocks += [_figures(bounds), _terms(bounds), *_curves(bounds)]
    blocks += [_table(bounds, brief=brief), _conditions(bounds), *([] if brief else [_summands(bounds)])]
    title = f"The three errors of the model ({bounds.loss})"
    blocks.append(tabulate(bounds.parts, PART_COLUMNS, title=title))
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
    best = read_attribute(bounds, "best.value")
    which = "all are vacuous" if bounds.best is None else bounds.best.name
    items = (
        Figure(label="Loss on D", value=bounds.train_loss, kind="number", note=bounds.loss),
        Figure(label="Gap measured", value=bounds.gap, kind="number", note="test less D"),
        Figure(label="Smallest certified bound", value=best, kind="number", note=which),
    )
    return Figures(items=items)


def _says(one: BoundRow) -> str:
    return "an order" if one.evidence == RATE else "vacuous" if one.vacuous else "not vacuous"


BOUND_COLUMNS: tuple[ReadColumn[BoundRow], ...] = (
    ReadColumn("bound", "name", "name"),
    ReadColumn("value", "number", "value"),
    ReadColumn("evidence", "text", "evidence"),
    ReadColumn("says", "text", _says, "vacuous: at least as large as what it bounds can be"),
    ReadColumn("of what", "text", "speaks_of"),
    ReadColumn("as printed", "log10", "log10_as_printed", "the formula as a paper prints it, log10"),
    ReadColumn("source", "text", "source"),
    ReadColumn("note", "text", "note"),
)
"""The columns of a page; a terminal has the first five."""


def _table(bounds: Generalization, *, brief: bool) -> Table:
    caption = (
        f"Each row for itself holds with probability {1 - bounds.delta:.4g} where it is certified. Cells: "
        f"{bounds.partition}."
    )
    return tabulate(bounds.rows, BOUND_COLUMNS[:5] if brief else BOUND_COLUMNS, title="Bounds", caption=caption)


def _conditions(bounds: Generalization) -> Table:
    columns = (Column("bound", "name"), Column("condition"), Column("here"), Column("why"))
    uncertified = [one for one in bounds.rows if one.evidence != CERTIFIED]
    rows = tuple((one.name, each.what, each.status, each.why) for one in uncertified for each in one.missing)
    return Table(title="Conditions that are not met, or not known to be", columns=columns, rows=rows)


def _summands(bounds: Generalization) -> Table:
    columns = (Column("bound", "name"), Column("term"), Column("value", "number"))
    rows = tuple((one.name, each.name, each.value) for one in bounds.rows for each in one.terms)
    return Table(title="Terms of each bound", columns=columns, rows=rows)


PART_COLUMNS: tuple[ReadColumn[ErrorPart], ...] = (
    ReadColumn("error", "name", "name"),
    ReadColumn("from", "number", "low"),
    ReadColumn("to", "number", "high"),
    ReadColumn("why", "text", "why"),
)


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
    """Return Theorem 20 against the number of cells, and against the number of samples."""
    exponents = [math.log10(bounds.samples) + 0.25 * step for step in range(-4, 25)]
    by_cells, by_samples = [], []
    for course in bounds.courses:
        sizes = zip(course.sizes, course.gaps)
        points = tuple((math.log10(n), _log(bounds.train_loss + gap)) for n, gap in sizes)
        by_cells.append(Curve(name=course.name, points=points))
        sure: dict[str, Any] = {
            "cells": course.cells,
            "partition": course.size,
            "delta": course.delta,
            "most": bounds.most,
        }
        slacks = [generalization_slack(10.0**exponent, **sure) for exponent in exponents]
        values = (_log(bounds.train_loss + course.local + slack) for slack in slacks)
        by_samples.append(Curve(name=course.name, points=tuple(zip(exponents, values))))
    shared: dict[str, Any] = {"axis": "log10 of the bound", "rules": (("the largest loss", math.log10(bounds.most)),)}
    blocks: list[Block] = []
    if by_cells and len(by_cells[0].points) > 1:
        blocks.append(
            Curves(
                title="Theorem 20 against the number of cells",
                curves=tuple(by_cells),
                along="log10 of the cells, labels counted",
                caption="More cells are smaller, so that distances shrink, and hold fewer samples each, so that the "
                "confidence term grows.",
                **shared,
            )
        )
    if by_samples:
        blocks.append(
            Curves(
                title="Theorem 20 against the number of samples",
                curves=tuple(by_samples),
                along="log10 of the samples",
                caption="Loss on D, cells and their distances are taken as they are: only the confidence term shrinks. "
                "A curve that stays above the line asks for infinitely many samples.",
                **shared,
            )
        )
    return blocks


def _log(value: float) -> float:
    return min(SHOWN, math.log10(value)) if value > 0 else -SHOWN
