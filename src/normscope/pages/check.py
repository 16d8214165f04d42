"""A check as the report a person reads: the verdict, the findings and the signal by depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..diagnosis.checked import Check
from ..diagnosis.signal import FLOAT16_LARGEST, INPUT, Signal, SignalRow
from ..report.document import Block, Cell, Chart, Column, Document, ReadColumn, Series, Table, Text, tabulate
from ..report.words import memory, pluralise, shape
from .audit_words import notices


def check_document(check: Check, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    went = f"{pluralise(check.samples, 'sample')} in {pluralise(check.batches, 'batch', 'batches')}"
    passes = (
        f"{pluralise(check.cost.forwards, 'forward pass', 'forward passes')} and "
        f"{pluralise(check.cost.backwards, 'backward pass', 'backward passes')}"
    )
    about = (
        f"Checked in {check.mode} mode on {went}, with {passes}. No bounds were taken: `normscope.audit` takes them."
    )
    skipped = Table(columns=(Column(title="not measured"), Column(title="why")), rows=check.skipped)
    notes = [Text(body=f"Note: {note}") for note in check.notes]
    rest: list[Block] = [*([skipped] if check.skipped else []), *notes]
    table = signal_table(check.signal, brief=brief, title="Layers")
    chart = None if brief else signal_chart(check.signal)
    shown: list[Block] = [block for block in (chart, table) if block is not None]
    opening = Text(heading="" if brief else "Verdict", body=check.verdict, lead=True)
    cards: list[Block] = [*notices(check.findings)]
    depth = [] if brief or not shown else [Text(heading="Signal by depth")]
    loss = [Text(heading="" if brief else "Loss", body=told)] if (told := loss_words(check.signal)) else []
    blocks: tuple[Block, ...] = (
        opening,
        Text(body=about),
        *cards,
        *loss,
        *depth,
        *shown,
        parameter_totals(check),
        *rest,
    )
    return Document(title=f"Check of {check.name}", blocks=blocks)


def loss_words(signal: Signal | None) -> str:
    """Return what is to be said of the loss and of a step along its gradient; empty without a loss."""
    if signal is None or signal.loss_value is None:
        return ""
    facts, steps = signal.loss, signal.steps
    told = [f"The loss is {signal.loss_value:.4g}"]
    if facts is not None and facts.blind is not None:
        told[0] += f"; the best constant output has {facts.blind:.4g}"
    if facts is not None and facts.accuracy is not None and facts.largest_class is not None:
        told.append(f"The accuracy is {facts.accuracy:.0%}, and the largest class has {facts.largest_class:.0%}")
    if steps is not None and steps.fall is not None:
        told.append(
            f"A short step along the gradient lowers the loss by {steps.fall:.0%} of what the gradient promises"
        )
        if steps.stable_rate is not None:
            told[-1] += f", which allows plain SGD a learning rate of at most {steps.stable_rate:.2g}"
    if steps is not None and steps.agreement is not None:
        told.append(
            f"The gradients of the two halves of the batch agree with a cosine of {steps.agreement:.2f} (1: no noise)"
        )
    if steps is not None and steps.next_loss is not None and steps.rate is not None:
        told.append(
            f"One step of {steps.optimizer} at a rate of {steps.rate:.3g} takes the loss to {steps.next_loss:.4g}"
        )
    return ". ".join(told) + "."


READING = (
    "One forward and one backward at the batch (samples: {samples}), in the order the layers run; the input comes "
    "first. All numbers are plain, none is an exponent. 'gradient' is the norm of the gradient at the layer's output, "
    "as a multiple of that at the output of the network; it is the gradient of {of}. 'room in float16' is the factor "
    "by which the largest value can grow before float16 overflows."
)
WORTH_SHOWING = 0.0005
"""Smaller shares of values below float16 are rounded to 0.0 %."""
BRIEF_ROWS = 40
"""A longer table shows only the input, the layers with parameters and the output in a terminal."""


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A row of the signal with the number of parameters that its module holds; None where that was not counted."""

    signal: SignalRow
    parameters: int | None


def _rounded(value: float | None) -> float | None:
    """Return a value with three digits, so that its column stays narrow."""
    return None if value is None else float(f"{value:.3g}")


def _of_signal(read: Callable[[SignalRow], Cell]) -> Callable[[_TableRow], Cell]:
    return lambda row: read(row.signal)


_COLUMNS: tuple[ReadColumn[_TableRow], ...] = (
    ReadColumn("layer", "name", _of_signal(lambda row: row.path or "(model)")),
    ReadColumn("type", "name", _of_signal(lambda row: row.kind), "The family of the function, or the module's class."),
    ReadColumn("output shape", "name", _of_signal(lambda row: shape(row.shape)), "Shape of the values, samples first."),
    ReadColumn(
        "parameters",
        "count",
        lambda row: row.parameters,
        "How many the layer holds; a module that runs several times, or shares a weight, has it in its first row.",
    ),
    ReadColumn(
        "values: mean",
        "number",
        _of_signal(lambda row: _rounded(row.mean) if row.finite else "not finite"),
        "Of all values.",
    ),
    ReadColumn(
        "values: std", "number", _of_signal(lambda row: _rounded(row.deviation)), "Standard deviation of all values."
    ),
    ReadColumn("values: min", "number", _of_signal(lambda row: _rounded(row.least)), "Smallest value."),
    ReadColumn("values: max", "number", _of_signal(lambda row: _rounded(row.greatest)), "Largest value."),
    ReadColumn(
        "gradient (× output's)",
        "factor",
        _of_signal(lambda row: row.log10_gradient),
        "Norm of the gradient here over that at the output: 1e-10 is a ten-billionth of it, 0 is no gradient.",
    ),
    ReadColumn(
        "saturated or dead (%)",
        "percent",
        _of_signal(lambda row: row.dead if row.saturated is None else row.saturated),
        "Sigmoid, tanh: share of values within 1 % of the limits; softmax, attention: share of rows that are one-hot; "
        "ReLU: share of channels that were positive for no sample of the data.",
    ),
    ReadColumn(
        "room in float16 (×)",
        "factor",
        _of_signal(lambda row: row.log10_room_float16),
        "65504 over the largest absolute value: below 1 float16 overflows.",
    ),
    ReadColumn(
        "below float16 (%)",
        "percent",
        _of_signal(lambda row: row.below_float16 if (row.below_float16 or 0.0) >= WORTH_SHOWING else None),
        "Share of values, not zero, below the smallest normal float16.",
    ),
    ReadColumn(
        "dtype if not float32",
        "name",
        _of_signal(lambda row: None if row.dtype == "float32" else row.dtype),
        "In which the values are stored.",
    ),
)
_LEFT_OUT_OF_TERMINALS = (
    "values: min",
    "values: max",
    "room in float16 (×)",
    "below float16 (%)",
    "dtype if not float32",
)


def signal_table(signal: Signal | None, *, brief: bool = False, title: str = "") -> Table | None:
    """Return the signal as a table, one line per input and layer, without columns in which nothing was measured."""
    if signal is None or not signal.rows:
        return None
    rows = _with_parameters(signal)
    caption = READING.format(samples=f"{signal.samples:,}", of=signal.gradient_of)
    if brief:
        shown = _most_telling(rows)
        left = len(rows) - len(shown)
        caption = f"Layers without parameters ({left:,}) are left out here; the page has them." if left else ""
        rows = shown
    columns = [column for column in _COLUMNS if not brief or column.title not in _LEFT_OUT_OF_TERMINALS]
    return tabulate(rows, columns, title=title, caption=caption, drop_empty=True)


def _with_parameters(signal: Signal) -> list[_TableRow]:
    """Return the rows, each parameter counted in the first row of the innermost module that has one."""
    first = {row.path: number for number, row in reversed(list(enumerate(signal.rows))) if row.kind != INPUT}
    counts: dict[int, int] = {}
    for parameter in signal.parameters:
        module = parameter.module
        while module and module not in first:
            module = module.rpartition(".")[0]
        if module in first:
            counts[first[module]] = counts.get(first[module], 0) + math.prod(parameter.shape)
    return [_TableRow(row, counts.get(number)) for number, row in enumerate(signal.rows)]


def _most_telling(rows: list[_TableRow]) -> list[_TableRow]:
    """Return the rows that a terminal shows: all of a short table, otherwise input, parameters and output."""
    if len(rows) <= BRIEF_ROWS or all(row.parameters is None for row in rows):
        return rows
    return [row for row in rows if row.parameters or row.signal.kind == INPUT or row is rows[-1]]


def parameter_totals(check: Check) -> Text:
    """Return how many parameters the model holds, how many are trained, and the memory that they take."""
    counted = f"Parameters: {check.parameters:,} in all"
    if check.trainable is not None and check.parameter_bytes is not None:
        counted += f", {check.trainable:,} trainable, {memory(check.parameter_bytes)}"
    return Text(body=f"{counted}.")


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
        "one that rises explodes.",
        axis="log10 (1 is ten times)",
        rules=(("largest float16", math.log10(FLOAT16_LARGEST)),) if largest > 1e3 else (),
    )


def _log10(values: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None else math.log10(value) if value > 0.0 else -math.inf for value in values)
