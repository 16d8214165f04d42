"""`choice_document`: a choice of normalizers as the report a person reads."""

from __future__ import annotations

import math

from ..choosing.choice import NAMES, WENT, Cell, Choice, by_batch_size, format_loss
from ..report.document import Block, Chart, Column, Document, Series, Steps, Table, Text
from ..report.words import counted

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
        f"{counted(went, 'run')} of {counted(choice.settings.get('steps', 0), 'step')} each of the twins of "
        f"{choice.name}, with SGD (momentum {choice.settings.get('momentum', 0):g})."
    )
    blocks: list[Block] = [
        Text(heading="" if brief else "Recommendation", body=choice.recommendation, lead=True),
        Steps(title="By batch size", items=tuple(by_batch_size(choice.cells))),
        Text(body=about),
        *([] if brief else _chart(choice)),
        _brief_table(choice) if brief else _table(choice),
        *_unrun(choice),
        *(Text(body=f"Note: {note}.") for note in choice.notes),
    ]
    if not brief:
        blocks += [Text(heading="All runs", folded=True), _runs(choice)]
    return Document(title=f"Choosing a normalizer for {choice.name}", blocks=tuple(blocks))


def _brief_table(choice: Choice) -> Table:
    """Return fewer, narrower columns, for a terminal."""
    columns = (
        Column(title="batch", kind="count"),
        Column(title="normalizer", kind="name"),
        Column(title="trains"),
        Column(title="lr", kind="number"),
        Column(title="loss", kind="name"),
        Column(title="right", kind="percent"),
        Column(title="stable lr", kind="number"),
        Column(title="log10 capacity", kind="name"),
        Column(title="noise", kind="percent"),
        Column(title="ms a step", kind="number"),
        Column(title="findings"),
    )
    rows = []
    for cell in choice.cells:
        capacity = [cell.mean_of(f"log10_{name}") for name in ("observed", "data", "domain")]
        rows.append(
            (
                cell.batch_size,
                NAMES[cell.normalizer],
                cell.status,
                cell.lr,
                format_loss(cell) if cell.lr is not None else None,
                cell.mean_of("accuracy"),
                cell.first("stable_lr"),
                " ".join("-" if value is None else f"{value:.1f}" for value in capacity),
                cell.mean_of("noise"),
                _milliseconds(cell),
                _findings(cell),
            )
        )
    caption = "Capacity: observed, DATA, DOMAIN. What the columns mean stands on the page (--html)."
    return Table(columns=columns, rows=tuple(rows), caption=caption)


def _milliseconds(cell: Cell) -> float | None:
    seconds = cell.mean_of("seconds_per_step")
    return None if seconds is None else round(1e3 * seconds, 2)


def _findings(cell: Cell) -> str:
    return ", ".join(sorted({code for one in cell.outcomes for code in one.findings}))


def _table(choice: Choice) -> Table:
    columns = [
        Column(title="batch", kind="count"),
        Column(title="normalizer", kind="name"),
        Column(title="trains"),
        Column(title="lr", kind="number", help="the best of those tried"),
        Column(title="loss", kind="number", help="held out, eval mode, mean over the seeds"),
        Column(title="±", kind="number", help="half of the 95 % interval of the mean"),
        Column(title="right", kind="percent"),
        Column(title="stable lr", kind="number", help="largest at which descent on one batch was stable at first"),
        Column(title="observed", kind="log10"),
        Column(title="DATA", kind="log10"),
        Column(title="DOMAIN", kind="log10"),
        Column(title="noise", kind="percent", help="of BatchNorm's variances from batch to batch, relative"),
        Column(title="ms a step", kind="number", help="of the training loop, watching left out"),
        Column(title="findings"),
    ]
    rows = [
        (
            cell.batch_size,
            NAMES[cell.normalizer],
            cell.status,
            cell.lr,
            cell.mean if cell.lr is not None else None,
            cell.half_width,
            cell.mean_of("accuracy"),
            cell.first("stable_lr"),
            cell.mean_of("log10_observed"),
            cell.mean_of("log10_data"),
            cell.mean_of("log10_domain"),
            cell.mean_of("noise"),
            _milliseconds(cell),
            _findings(cell),
        )
        for cell in choice.cells
    ]
    return Table(columns=tuple(columns), rows=tuple(rows), caption=CAPTION)


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
    reasons: dict[tuple[str, str, str], int] = {}
    for outcome in choice.outcomes:
        if outcome.status not in WENT:
            key = (NAMES[outcome.run.normalizer], outcome.status, outcome.reason)
            reasons[key] = reasons.get(key, 0) + 1
    columns = (
        Column(title="normalizer", kind="name"),
        Column(title="runs", kind="count"),
        Column(title="what happened"),
        Column(title="why"),
    )
    rows = tuple((name, count, status, why) for (name, status, why), count in reasons.items())
    return [Table(title="What did not run", columns=columns, rows=rows)] if rows else []


def _runs(choice: Choice) -> Table:
    columns = (
        Column(title="normalizer", kind="name"),
        Column(title="batch", kind="count"),
        Column(title="lr", kind="number"),
        Column(title="seed", kind="count"),
        Column(title="status"),
        Column(title="first loss", kind="number"),
        Column(title="train loss", kind="number"),
        Column(title="loss", kind="number"),
        Column(title="right", kind="percent"),
        Column(title="findings"),
    )
    rows = tuple(
        (
            NAMES[one.run.normalizer],
            one.run.batch_size,
            one.run.lr,
            one.run.seed,
            one.status,
            one.first_loss,
            one.train_loss,
            one.loss,
            one.accuracy,
            ", ".join(one.findings),
        )
        for one in choice.outcomes
    )
    return Table(columns=columns, rows=rows)
