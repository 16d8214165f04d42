"""A check as a report, and findings as cards."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...core.finding import Finding, Severity
from ...report.document import (
    Block,
    Chart,
    Column,
    Document,
    Notice,
    ReadColumn,
    Series,
    Steps,
    Table,
    Text,
    tabulate,
)
from ...report.words import LEVELS, listed, memory, pluralise, sentence, shape
from ..checking.check_result import Check, LayerTable
from ..checking.verdict import Findings, HasRole, clause, groups, places
from ..facts.layers import FLOAT16_LARGEST, INPUT, LayerRow
from ..facts.pass_facts import PassFacts
from ..symptoms.symptom import is_name, place


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
    totals = f"Parameters: {check.parameters:,} in all"
    if check.trainable is not None and check.parameter_bytes is not None:
        totals += f", {check.trainable:,} trainable, {memory(check.parameter_bytes)}"
    title, notes = f"Check of {check.name}", [Text(body=f"Note: {note}") for note in check.notes]
    loss, found = loss_words(check.signal, brief=brief), notices(check.findings)
    if brief:
        unseen = f"Not looked at: {listed([what for what, _ in check.skipped])}." if check.skipped else ""
        told = Text(body=" ".join(part for part in (about, unseen, loss) if part))
        table = short_table(check.signal, f"{totals}.")
        opening = Text(body=check.verdict, lead=True)
        return Document(title=title, blocks=(opening, told, *found, table or Text(body=f"{totals}."), *notes))
    skipped = [Table(columns=(Column("not measured"), Column("why")), rows=check.skipped)] if check.skipped else []
    shown = [block for block in (signal_chart(check.signal), signal_table(check.signal, title="Layers")) if block]
    blocks: tuple[Block, ...] = (
        Text(heading="Verdict", body=check.verdict, lead=True),
        Text(body=about),
        *found,
        *([Text(heading="Loss", body=loss)] if loss else []),
        *([Text(heading="Signal by depth")] if shown else []),
        *shown,
        Text(body=f"{totals}."),
        *skipped,
        *notes,
    )
    return Document(title=title, blocks=blocks)


DIRECTIONS = ((0.7, "nearly the same"), (0.2, "similar"), (-0.2, "unrelated"), (-math.inf, "opposite"))
"""How two gradients agree, from some cosine on."""


def loss_words(signal: PassFacts | None, *, brief: bool = False) -> str:
    """Return what is to be said of the loss and of a step along its gradient, if `brief` the two alone.

    It is empty without a loss.
    """
    if signal is None or signal.objective.loss_value is None:
        return ""
    facts, steps = signal.loss, signal.steps
    told = [f"The loss is {signal.objective.loss_value:.4g}"]
    if facts is not None and facts.blind is not None:
        told[0] += f"; a model that always gives the same output can reach {facts.blind:.4g}"
    if not brief and facts is not None and facts.accuracy is not None and facts.largest_class is not None:
        told.append(
            f"{100 * facts.accuracy:.0f} % of the samples are classified correctly; always naming the largest class "
            f"would be right for {100 * facts.largest_class:.0f} %"
        )
    if steps is not None and steps.fall is not None and steps.fall <= 0.0:
        told.append("A short step against the gradient does not lower the loss")
    elif steps is not None and steps.fall is not None:
        told.append(
            f"A short step against the gradient lowers the loss by {100 * steps.fall:.0f} % of what the gradient "
            "predicts"
        )
        if not brief and steps.stable_rate is not None:
            told[-1] += f"; a plain SGD step with a learning rate above {steps.stable_rate:.2g} would raise it"
    if not brief and steps is not None and steps.agreement is not None:
        cosine = steps.agreement
        alike = next(words for least, words in DIRECTIONS if cosine >= least)
        told.append(f"The gradients of the two halves of the batch point in {alike} directions (cosine {cosine:.2f})")
    if steps is not None and steps.next_loss is not None and steps.rate is not None:
        told.append(
            f"The next step of {steps.optimizer} at a learning rate of {steps.rate:.3g} takes the loss to "
            f"{steps.next_loss:.4g}"
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
BRIEF_ROWS = 14
"""A terminal shows more layers block by block, or those with parameters alone."""
MAX_PARAMETER_ROWS = 20
"""Of more layers with parameters a terminal shows those of one name, such as `features.0` to `features.40`, as one."""


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A row of the signal with the number of parameters that its module holds; None where that was not counted."""

    signal: LayerRow
    parameters: int | None


def _rounded(value: float | None) -> float | None:
    """Return a value with three digits, so that its column stays narrow."""
    return None if value is None else float(f"{value:.3g}")


_COLUMNS: tuple[ReadColumn[_TableRow], ...] = (
    ReadColumn("layer", "name", lambda row: row.signal.path or "(model)"),
    ReadColumn("type", "name", "signal.kind", "The family of the function, or the module's class."),
    ReadColumn("output shape", "name", lambda row: shape(row.signal.shape), "Shape of the values, samples first."),
    ReadColumn(
        "parameters",
        "count",
        "parameters",
        "How many the layer holds; a module that runs several times, or shares a weight, has it in its first row.",
    ),
    ReadColumn(
        "values: mean",
        "number",
        lambda row: _rounded(row.signal.mean) if row.signal.finite else "not finite",
        "Of all values.",
    ),
    ReadColumn(
        "values: std", "number", lambda row: _rounded(row.signal.deviation), "Standard deviation of all values."
    ),
    ReadColumn("values: min", "number", lambda row: _rounded(row.signal.least), "Smallest value."),
    ReadColumn("values: max", "number", lambda row: _rounded(row.signal.greatest), "Largest value."),
    ReadColumn(
        "relative gradient",
        "factor",
        "signal.log10_gradient",
        "Norm of the gradient here over that at the output: 1e-10 is a ten-billionth of it, 0 is no gradient.",
    ),
    ReadColumn(
        "saturated, dead (%)",
        "percent",
        lambda row: row.signal.dead if row.signal.saturated is None else row.signal.saturated,
        "Sigmoid, tanh: share of values within 1 % of the limits; softmax, attention: share of rows that are one-hot; "
        "ReLU: share of channels that were positive for no sample of the data.",
    ),
    ReadColumn(
        "room in float16 (×)",
        "factor",
        "signal.log10_room_float16",
        "65504 over the largest absolute value: below 1 float16 overflows.",
    ),
    ReadColumn(
        "below float16 (%)",
        "percent",
        lambda row: row.signal.below_float16 if (row.signal.below_float16 or 0.0) >= WORTH_SHOWING else None,
        "Share of values, not zero, below the smallest normal float16.",
    ),
    ReadColumn(
        "dtype if not float32",
        "name",
        lambda row: None if row.signal.dtype == "float32" else row.signal.dtype,
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


def signal_table(signal: PassFacts | None, *, title: str = "") -> Table | None:
    """Return the signal as a table, one line per input and layer, without columns in which nothing was measured."""
    if signal is None or not signal.rows:
        return None
    caption = READING.format(samples=f"{signal.samples:,}", of=signal.objective.gradient_of)
    return tabulate(_with_parameters(signal), _COLUMNS, title=title, caption=caption, drop_empty=True)


def layers_document(layers: LayerTable, *, brief: bool = False) -> Document:
    """Return the table of all layers alone."""
    return Document(blocks=(signal_table(layers.signal) or Text(body="The model could not be run."),))


def short_table(signal: PassFacts | None, totals: str) -> Table | None:
    """Return the table for a terminal: few columns, blocks of layers in one line; below it stand the totals."""
    if signal is None or not signal.rows:
        return None
    rows = _with_parameters(signal)
    shown = _fold(rows)
    more = "" if shown is rows else f" All {len(rows):,} lines: `print(check.table())`."
    columns = [column for column in _COLUMNS if column.title not in _LEFT_OUT_OF_TERMINALS]
    return tabulate(shown, columns, caption=totals + more, drop_empty=True)


def _fold(rows: list[_TableRow]) -> list[_TableRow]:
    """Return few rows, as finely as that can be: equal neighbours in one, or the layers with parameters alone."""
    if len(rows) <= BRIEF_ROWS:
        return rows
    depths = range(max(row.signal.path.count(".") for row in rows) + 1, 0, -1)
    for single in (False, True):
        for depth in depths:
            folded = [_joined(group) for group in _blocks(rows, depth, single)]
            if len(folded) <= BRIEF_ROWS:
                return folded
        kept = [row for row in rows if row.parameters or row.signal.kind == INPUT or row is rows[-1]]
        if len(kept) <= MAX_PARAMETER_ROWS:
            break
    return kept


def _blocks(rows: Sequence[_TableRow], depth: int, single: bool) -> list[list[_TableRow]]:
    """Return the rows of each module that lies so deep; neighbours whose names differ in a number alone are one.

    Layers that lie no deeper stay as they are, unless `single`.
    """
    blocks: list[list[_TableRow]] = []
    last: tuple[str, ...] | None = None
    for row in rows:
        path = row.signal.path.split(".")
        name = (*path[: depth - 1], path[depth - 1].rstrip("0123456789")) if len(path) >= depth else None
        name = None if row.signal.kind == INPUT or not (single or len(path) > depth) else name
        if name is not None and name == last:
            blocks[-1].append(row)
        else:
            blocks.append([row])
        last = name
    return blocks


def _joined(rows: Sequence[_TableRow]) -> _TableRow:
    """Return one row for several: the values of the last, the parameters of all, the largest share of dead units."""
    if len(rows) == 1:
        return rows[0]
    first, last = rows[0].signal, rows[-1].signal
    counts = [row.parameters for row in rows if row.parameters is not None]
    dead, saturated = (
        max((share for row in rows if (share := getattr(row.signal, name)) is not None), default=None)
        for name in ("dead", "saturated")
    )
    kind = pluralise(len(rows), "layer")
    signal = replace(last, path=_span(first.path, last.path), kind=kind, dead=dead, saturated=saturated)
    return _TableRow(signal, sum(counts) if counts else None)


def _span(first: str, last: str) -> str:
    """Return the names from one to another: `layer1.0` to `layer1.2`."""
    own, other = first.split("."), last.split(".")
    shared = next((i for i, (a, b) in enumerate(zip(own, other)) if a != b), min(len(own), len(other)) - 1)
    start, end = (".".join(path[: shared + 1]) for path in (own, other))
    return start if start == end else f"{start} to {other[shared]}"


def _with_parameters(signal: PassFacts) -> list[_TableRow]:
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


def signal_chart(signal: PassFacts | None) -> Chart | None:
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


SHOWN = 3
"""A card quotes up to this many findings of a group that differ; of more, one sentence with ranges of numbers."""
NAMED = 40
"""A card names up to this many layers; the JSON names all."""

_NAME = re.compile(r"(`[^`]+`)")
_NAME_OR_NUMBER = re.compile(r"(`[^`]+`|(?<![\w.^])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w^]))")


def notices(findings: Sequence[Finding], rows: Sequence[HasRole] = ()) -> list[Notice]:
    """Return findings as one notice per code and severity, the most serious first; alarms say their step."""
    dated = [f if f.step is None else replace(f, seen=f"At step {f.step:,}: {f.seen}") for f in findings]
    return [_card(group, rows) for group in groups(dated)]


def findings_document(findings: Findings, *, brief: bool = False) -> Document:
    """Return findings alone as a document: a card for each kind."""
    return Document(blocks=(*notices(findings),) or (Text(body="No findings."),))


def _card(group: Sequence[Finding], rows: Sequence[HasRole]) -> Notice:
    """Return a card: what was seen and, of warnings and errors, what to do; of notes that is folded away."""
    first = group[0]
    heading = sentence(clause(group, rows)).removesuffix(".")
    quiet = first.severity is Severity.INFO
    seen = [("" if index else "seen", text) for index, text in enumerate(_observations(group, 1 if quiet else SHOWN))]
    measures = [("advice", advice(group)), ("why it matters", merge_sentences([f.why for f in group]))]
    layers = [("layers", places(group, NAMED))] if len(group) > SHOWN or any(f.others for f in group) else []
    told = " ".join((heading, *(text for _, text in seen)))
    lines, more = (seen, [*measures, *layers]) if quiet else ([*seen, *measures], layers)
    return Notice(
        level=first.severity.value,
        heading=heading,
        where=f"in {places(group)}" if is_name(first.where) and place(first.where) not in told else "",
        code=first.code,
        lines=tuple(line for line in lines if line[1]),
        more=tuple(line for line in more if line[1]),
    )


def steps(items: Sequence[str]) -> list[Steps]:
    """Return steps under their heading, or nothing."""
    return [Steps(title="To see more", items=tuple(items))] if items else []


def advice(group: Sequence[Finding]) -> str:
    """Return the advice of all findings of a group, given once where it differs in names alone."""
    return merge_sentences([finding.advice for finding in group], [finding.where for finding in group])


def merge_sentences(texts: Sequence[str], where: Sequence[str] = (), pattern: re.Pattern[str] = _NAME) -> str:
    """Return several sentences, merged into one where they differ in names between backticks (`pattern`) alone."""
    by_form: dict[tuple[str, ...], list[list[str]]] = {}
    layers: dict[tuple[str, ...], list[str]] = {}
    for index, text in enumerate(texts):
        parts = pattern.split(text)
        form = tuple(parts[::2])
        by_form.setdefault(form, []).append(parts[1::2])
        layers.setdefault(form, []).extend(place(name) for name in where[index : index + 1])
    written = {form: _fill_gaps(form, names) for form, names in by_form.items() if any(form)}
    if len(written) < 2 or not where:
        return " ".join(written.values())
    return " ".join(f"{listed(list(dict.fromkeys(layers[form])))}: {text}" for form, text in written.items())


def _fill_gaps(form: tuple[str, ...], gaps: Sequence[Sequence[str]]) -> str:
    """Return a sentence with the names, or the range of the numbers, of all findings filled into each of its gaps."""
    filled = [listed(list(dict.fromkeys(gap))) if gap[0].startswith("`") else _range(gap) for gap in zip(*gaps)]
    return "".join(text + gap for text, gap in zip(form, (*filled, "")))


def _range(numbers: Sequence[str]) -> str:
    """Return the smallest and the largest of numbers that are written out, or the one number that they all are."""
    ordered = sorted(numbers, key=lambda text: float(text.replace(",", "")))
    return "\N{EN DASH}".join(dict.fromkeys((ordered[0], ordered[-1])))


def _observations(group: Sequence[Finding], most: int) -> list[str]:
    """Return what was seen: one sentence if the findings differ in names alone; otherwise `most`, or ranges."""
    texts = [finding.seen for finding in group]
    if len({tuple(_NAME.split(text)[::2]) for text in texts}) == 1:
        return [merge_sentences(texts)]
    if len(group) > most and len({tuple(_NAME_OR_NUMBER.split(text)[::2]) for text in texts}) == 1:
        return [merge_sentences(texts, pattern=_NAME_OR_NUMBER)]
    quoted = [text if f.where in text else f"{place(f.where)}: {text}" for f, text in zip(group, texts)]
    return quoted[: max(most, SHOWN)]


def tally(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity, the most serious first: `1 error, 3 warnings`.

    Notes may be many, so that it also says of how many kinds they are.
    """
    counts = []
    for severity in reversed(Severity):
        codes = [finding.code for finding in findings if finding.severity is severity]
        kinds = len(set(codes))
        of = f" of {pluralise(kinds, 'kind')}" if severity is Severity.INFO and kinds < len(codes) else ""
        counts += [f"{pluralise(len(codes), LEVELS[severity.value])}{of}"] if codes else []
    return ", ".join(counts) or "none"
