"""`choice_document`: a choice of normalizers as the report a person reads."""

from __future__ import annotations

import math
from collections import Counter

from ..report.document import Block, Chart, Column, Document, ReadColumn, Series, Steps, Table, Text, tabulate
from ..report.words import pluralise
from .choice import NAMES, WENT, Cell, Choice, RunOutcome, by_batch_size, format_loss

CAPTION = (
    "Each line is the best learning rate of a normalizer at a batch size; plain is without any. A run trains if the "
    "held-out loss, in eval mode, falls to half of what it was or less. Capacity: how much a small change of the input "
    "grows (log10): the largest at held-out samples, the limit that 95 % of the data's distribution stays below (95 % "
    "confidence), and the bound over all inputs whose inner values stay in the ranges of the training samples; of the "
    "first seed."
)


def choice_document(choice: Choice, *, brief: bool = False) -> Document:
    """Return the report of a choice: the recommendation, a table, a chart, and what did not run."""
    went = sum(outcome.status in WENT for outcome in choice.outcomes)
    about = (
        f"{pluralise(went, 'run')} of {pluralise(choice.settings.get('steps', 0), 'step')} each of the twins of "
        f"{choice.name}, with SGD (momentum {choice.settings.get('momentum', 0):g})."
    )
    blocks: list[Block] = [
        Text(heading="" if brief else "Recommendation", body=choice.recommendation, lead=True),
        Steps(title="By batch size", items=tuple(by_batch_size(choice.cells))),
        Text(body=about),
        *([] if brief else _chart(choice)),
        _brief_table(choice) if brief else tabulate(choice.cells, CELL_COLUMNS, caption=CAPTION),
        *_unrun(choice),
        *(Text(body=f"Note: {note}.") for note in choice.notes),
    ]
    if not brief:
        blocks += [Text(heading="All runs", folded=True), tabulate(choice.outcomes, RUN_COLUMNS)]
    return Document(title=f"Choosing a normalizer for {choice.name}", blocks=tuple(blocks))


def _brief_table(choice: Choice) -> Table:
    """Return fewer, narrower columns, for a terminal."""
    narrow: dict[str, ReadColumn[Cell]] = {
        "loss": ReadColumn("loss", "name", lambda cell: format_loss(cell) if cell.lr is not None else None),
        "observed": ReadColumn("log10 capacity", "name", _capacity),
    }
    kept = [column for column in CELL_COLUMNS if column.title not in ("±", "DATA")]
    columns = [narrow.get(column.title, column) for column in kept]
    caption = "Capacity: observed, DATA. What the columns mean stands on the page (--html)."
    return tabulate(choice.cells, columns, caption=caption)


def _capacity(cell: Cell) -> str:
    values = [cell.mean_of(f"log10_{name}") for name in ("observed", "data")]
    return " ".join("-" if value is None else f"{value:.1f}" for value in values)


def _milliseconds(cell: Cell) -> float | None:
    seconds = cell.mean_of("seconds_per_step")
    return None if seconds is None else round(1e3 * seconds, 2)


def _findings(cell: Cell) -> str:
    return ", ".join(sorted({code for one in cell.outcomes for code in one.findings}))


CELL_COLUMNS: tuple[ReadColumn[Cell], ...] = (
    ReadColumn("batch", "count", "batch_size"),
    ReadColumn("normalizer", "name", lambda cell: NAMES[cell.normalizer]),
    ReadColumn("trains", "text", "status"),
    ReadColumn("lr", "number", "lr", "the best of those tried"),
    ReadColumn(
        "loss",
        "number",
        lambda cell: cell.mean if cell.lr is not None else None,
        "held out, eval mode, mean over the seeds",
    ),
    ReadColumn("±", "number", "half_width", "half of the 95 % interval of the mean"),
    ReadColumn("right", "percent", lambda cell: cell.mean_of("accuracy")),
    ReadColumn(
        "stable lr",
        "number",
        lambda cell: cell.first("stable_lr"),
        "largest at which descent on one batch was stable at first",
    ),
    ReadColumn("observed", "log10", lambda cell: cell.mean_of("log10_observed")),
    ReadColumn("DATA", "log10", lambda cell: cell.mean_of("log10_data")),
    ReadColumn(
        "noise", "percent", lambda cell: cell.mean_of("noise"), "of BatchNorm's variances from batch to batch, relative"
    ),
    ReadColumn("ms a step", "number", _milliseconds, "of the training loop, watching left out"),
    ReadColumn("findings", "text", _findings),
)
"""The columns of the table of a page, one line per normalizer and batch size."""


def _chart(choice: Choice) -> list[Block]:
    sizes = sorted({cell.batch_size for cell in choice.cells})
    means = {(cell.normalizer, cell.batch_size): cell.mean for cell in choice.cells if cell.lr is not None}
    kinds = [kind for kind in NAMES if any((kind, size) in means for size in sizes)]
    series = tuple(
        Series(
            name=NAMES[kind],
            style="line",
            values=tuple(
                value if math.isfinite(value := means.get((kind, size), math.inf)) else None for size in sizes
            ),
        )
        for kind in kinds
    )
    labels = tuple(str(size) for size in sizes)
    title = "Held-out loss by batch size, at the best learning rate"
    return [Chart(labels=labels, series=series, title=title, axis="loss")] if series else []


def _unrun(choice: Choice) -> list[Block]:
    """Return the runs that did not take place, by normalizer and reason."""
    unrun = [outcome for outcome in choice.outcomes if outcome.status not in WENT]
    reasons = Counter((NAMES[outcome.run.normalizer], outcome.status, outcome.reason) for outcome in unrun)
    columns = (Column("normalizer", "name"), Column("runs", "count"), Column("what happened"), Column("why"))
    rows = tuple((name, count, status, why) for (name, status, why), count in reasons.items())
    return [Table(title="What did not run", columns=columns, rows=rows)] if rows else []


RUN_COLUMNS: tuple[ReadColumn[RunOutcome], ...] = (
    ReadColumn("normalizer", "name", lambda one: NAMES[one.run.normalizer]),
    ReadColumn("batch", "count", "run.batch_size"),
    ReadColumn("lr", "number", "run.lr"),
    ReadColumn("seed", "count", "run.seed"),
    ReadColumn("status", "text", "status"),
    ReadColumn("first loss", "number", "first_loss"),
    ReadColumn("train loss", "number", "train_loss"),
    ReadColumn("loss", "number", "loss"),
    ReadColumn("right", "percent", "accuracy"),
    ReadColumn("findings", "text", lambda one: ", ".join(one.findings)),
)
