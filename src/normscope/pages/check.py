"""A check as the report a person reads: the verdict, the findings and the signal by depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..diagnosis.checked import Check
from ..diagnosis.signal import FLOAT16_LARGEST, INPUT, Signal, SignalRow
from ..report.document import Block, Chart, Column, Document, ReadColumn, Series, Table, Text, tabulate
from ..report.words import pluralise, shape
from .audit_words import next_steps, notices, steps


def check_document(check: Check, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    went = f"{pluralise(check.samples, 'sample')} in {pluralise(check.batches, 'batch', 'batches')}"
    about = (
        f"{check.name} holds {pluralise(check.parameters, 'parameter')}. It was checked in {check.mode} mode on "
        f"{went}, "
        f"with {pluralise(check.cost.forwards, 'forward pass', 'forward passes')} and "
        f"{pluralise(check.cost.backwards, 'backward pass', 'backward passes')}. No bounds were taken: "
        "normscope.audit takes them."
    )
    skipped = Table(columns=(Column(title="not measured"), Column(title="why")), rows=check.skipped)
    notes = [Text(body=f"Note: {note}") for note in check.notes]
    rest: list[Block] = [*([skipped] if check.skipped else []), *notes]
    table = signal_table(check.signal, brief=brief, title="values and gradients by depth")
    chart = None if brief else signal_chart(check.signal)
    shown: list[Block] = [block for block in (chart, table) if block is not None]
    opening = Text(heading="" if brief else "Verdict", body=check.verdict, lead=True)
    cards: list[Block] = [*notices(check.findings), *([] if brief else steps(next_steps(check.findings)))]
    depth = [] if brief or not shown else [Text(heading="Signal by depth")]
    blocks: tuple[Block, ...] = (opening, Text(body=about), *cards, *depth, *shown, *rest)
    return Document(title=f"Check of {check.name}", blocks=blocks)


READING = (
    "One forward and one backward at the batch (samples: {samples}), in the order the layers run; the input comes "
    "first. 'gradient' is log10 of the gradient's norm at the layer's output, as a multiple of that at the output of "
    "the network; it is the gradient of {of}. 'float16 room' is log10 of the factor by which the largest value can "
    "grow before float16 overflows."
)
BRIEF_ROWS = 40
"""A longer table shows only the input, the weight layers and the output in a terminal."""
WEIGHTS = (INPUT, "linear", "convolution", "embedding")

_COLUMNS: tuple[ReadColumn[SignalRow], ...] = (
    ReadColumn("layer", "name", lambda row: row.path or "(model)"),
    ReadColumn("kind", "name", lambda row: row.kind, "The family of the function, or the module's class."),
    ReadColumn("mean", "number", lambda row: row.mean, "Mean of all values."),
    ReadColumn("deviation", "number", lambda row: row.deviation, "Standard deviation of all values."),
    ReadColumn("least", "number", lambda row: row.least, "Smallest value."),
    ReadColumn("greatest", "number", lambda row: row.greatest, "Largest value."),
    ReadColumn(
        "gradient", "log10", lambda row: row.log10_gradient, "log10 of the gradient here against that at the output."
    ),
    ReadColumn(
        "saturated",
        "percent",
        lambda row: row.saturated,
        "Sigmoid, tanh: share of values within 1 % of the limits; softmax: share of rows that are one-hot.",
    ),
    ReadColumn(
        "dead", "percent", lambda row: row.dead, "ReLU: share of channels that were positive for no sample of the data."
    ),
    ReadColumn(
        "float16 room",
        "log10",
        lambda row: row.log10_room_float16,
        "log10 of 65504 over the largest absolute value: below 0 float16 overflows.",
    ),
    ReadColumn(
        "below float16",
        "percent",
        lambda row: row.below_float16,
        "Share of values, not zero, below the smallest normal float16.",
    ),
    ReadColumn("shape", "name", lambda row: shape(row.shape), "Shape of the values."),
    ReadColumn("dtype", "name", lambda row: row.dtype, "In which they are stored."),
)
_BRIEF = ("layer", "kind", "mean", "deviation", "least", "greatest", "gradient", "saturated", "dead", "float16 room")


def signal_table(signal: Signal | None, *, brief: bool = False, title: str = "") -> Table | None:
    """Return the signal as a table, one line per input and layer, without columns in which nothing was measured."""
    if signal is None or not signal.rows:
        return None
    rows = _few(signal.rows) if brief else signal.rows
    columns = [column for column in _COLUMNS if not brief or column.title in _BRIEF]
    caption = "" if brief else READING.format(samples=f"{signal.samples:,}", of=signal.gradient_of)
    return tabulate(rows, columns, title=title, caption=caption, drop_empty=True)


def signal_chart(signal: Signal | None) -> Chart | None:
    """Return deviation, largest value and gradient by depth as a chart in log10, or None without rows."""
    if signal is None or not signal.rows:
        return None
    rows = signal.rows
    lines = (
        ("deviation of the values", _log10([row.deviation for row in rows])),
        ("largest absolute value", _log10([row.largest for row in rows])),
        ("gradient, against that at the output", tuple(row.log10_gradient for row in rows)),
    )
    largest = max((row.largest or 0.0 for row in rows), default=0.0)
    return Chart(
        title="Values and gradients by depth",
        labels=tuple(row.path or "(model)" for row in rows),
        series=tuple(
            Series(name=name, style="line", values=values)
            for name, values in lines
            if any(value is not None for value in values)
        ),
        caption="Flat lines are healthy. A gradient that falls towards the input (to the left) vanishes with depth, "
        f"one that rises explodes. It is the gradient of {signal.gradient_of}.",
        axis="log10",
        rules=(("largest float16", math.log10(FLOAT16_LARGEST)),) if largest > 1e3 else (),
    )


def _log10(values: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None else math.log10(value) if value > 0.0 else -math.inf for value in values)


def _few(rows: tuple[SignalRow, ...]) -> tuple[SignalRow, ...]:
    if len(rows) <= BRIEF_ROWS:
        return rows
    return tuple(row for row in rows if row.kind in WEIGHTS or row is rows[-1])
