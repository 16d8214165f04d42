"""Alarms about what a loss is made of: inputs that repeat or change, labels alike, a loss put together wrongly."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import median
from typing import Any

from torch.utils.data import DataLoader

from ....core.finding import Finding, Severity, figure
from ....report.words import listed
from ...findings.parameters import KEEP_GRAPH
from ..courses import PLAIN_STEPS
from ..history import Alarm, History
from ..probes.batches import are_same
from .loss import BY_HEART_SHARE, FAR_SHARE, WRONG_SIGNS, is_held_out_loss

# ---- how the loss is put together

ACTIVATION_BEFORE_LOSS = Alarm(
    code="activation-before-loss",
    seen="A {activation} stands in front of a loss that applies one itself: the loss sees probabilities, not scores.",
    why="The {activation} is applied twice: outputs stay within 0 and 1, the loss cannot become small, and gradients "
    "are a fraction of what they should be.",
    advice="Remove the {activation} at the end of the model and pass the raw scores (logits) to the loss.",
)
SHAPES_BROADCAST = Alarm(
    code="shapes-broadcast",
    seen="The loss compares each output with each target: by broadcasting outputs of shape {shapes}.",
    why="Shapes of outputs and targets differ, so that every output is pulled to the mean of all targets.",
    advice="Give both the same shape: output.squeeze(1), or targets.view_as(output).",
)
CODE_CUT = Alarm(
    code="gradient-cut",
    seen="The gradient of {layers} comes from the divergence of the code from a standard normal one, and from nothing "
    "else in the loss: the error of the output does not come back to {them}.",
    why="The divergence alone teaches these layers, and it is least where the code says nothing of the input, whatever "
    "its weight is.",
    advice=f"{KEEP_GRAPH}.",
)


def loss_oddities(history: History) -> Iterator[Finding]:
    """A softmax too many, shapes broadcast, a wrong sign, a code cut off; told at the second record that shows it."""
    for word, since in history.standing.oddities.items():
        if since.records < 2:
            continue
        if word == "broadcast":
            yield SHAPES_BROADCAST.at(history.step, words={"shapes": history.standing.shapes})
        elif word in ("softmax", "sigmoid"):
            yield ACTIVATION_BEFORE_LOSS.at(history.step, words={"activation": word})
        elif history.standing.others:
            continue  # two players: one of them maximises, or the other one teaches what makes the code
        elif word == "cut" and (names := history.standing.untaught):
            layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            words = {"layers": listed([f"`{path}`" for path in layers]), "them": "them" if layers[1:] else "it"}
            yield CODE_CUT.at(history.step, layers[-1], words, parameters=len(names))
        elif word in WRONG_SIGNS:
            yield WRONG_SIGNS[word].at(history.step)


# ---- labels

ONE_CLASS = Alarm(
    code="one-class",
    seen="All labels of the last {records} measured batches are the same ({label:g}).",
    why="From labels of one class nothing can be learned but that class.",
    advice="Look at the labels that the loader returns: a subset that was cut from sorted data, a wrong column, a cast "
    "that rounds to 0.",
)
SORTED_BATCHES = Alarm(
    code="sorted-batches",
    seen="The measured batches of {samples:.0f} samples hold {classes:.0f} of {outputs:.0f} classes each, and not the "
    "same ones from batch to batch.",
    why="Batches are not shuffled: each step learns the few classes of its batch and forgets the others.",
    advice="Shuffle: DataLoader(..., shuffle=True), or a sampler that mixes the classes of the data set.",
)
SAME_RECORDS = 3
"""Batches in a row that show one class, or the same samples: chance does not."""
MIN_LABELS = 8
"""Labels in a batch that are enough to expect two classes."""
FEW_LABELS, MANY_LABELS = 60, 500
"""Labels of one class in a row that are no chance: of many classes, or behind batches of several, and of two, one of
which may be rare."""
MOVED_ERRORS = 4.0
"""Standard errors by which the mean label of batches moves, at the median, where they are not drawn at random."""


def labels_alike(history: History) -> Iterator[Finding]:
    """Labels of one class in all batches, or of few classes in each."""
    few = len(history.repeated(SAME_RECORDS))
    rows = [r.total for r in history.records[-2 * SAME_RECORDS :] if r.total.get("outputs_label_low") is not None]
    if not 0 < few <= len(rows) or history.standing.others or min(_column(rows, "samples")) < MIN_LABELS:
        return
    alike = list(takewhile(_has_one_label, reversed([r.total for r in history.records])))
    labels, always = {row["outputs_label_low"] for row in alike}, len(alike) == len(history.records)
    if len(alike) >= few and len(labels) == 1:
        earlier = [r.total.get("outputs_classes") for r in history.records[: len(history.records) - len(alike)]]
        mixed = bool(earlier) and min((count for count in earlier if count is not None), default=0.0) > 2
        enough = FEW_LABELS if mixed or (always and min(_column(alike, "kinds")) > 2) else MANY_LABELS
        if sum(_column(alike, "samples")) >= enough:
            yield ONE_CLASS.at(history.step, words={"records": len(alike), "label": labels.pop()})
        return
    if len(rows) < SAME_RECORDS or rows[-1].get("outputs_samples") != rows[-1].get("input_samples"):
        return  # labels of tokens or pixels are not drawn one by one
    means, errors = _column(rows, "label_mean"), _column(rows, "label_error")
    overall = math.sqrt(sum((m - median(means)) ** 2 for m in means) / len(means))
    classes, outputs = median(_column(rows, "classes")), max(_column(rows, "label_high")) + 1
    if outputs >= 2 and classes <= outputs / 2 and overall > MOVED_ERRORS * max(median(errors), 0.02 * outputs):
        samples = median(_column(rows, "samples"))
        words = {"samples": samples, "classes": classes, "outputs": outputs}
        yield SORTED_BATCHES.at(history.step, words=words)


def _has_one_label(row: Mapping[str, Any]) -> bool:
    return row.get("outputs_label_low") is not None and row["outputs_label_low"] == row.get("outputs_label_high")


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return one figure of the outputs in some records, NaN where it is not known."""
    return [row.get(f"outputs_{name}", math.nan) for row in rows]


# ---- inputs

SAME_BATCH = Alarm(
    code="same-batch",
    seen="The last {records} measured steps, and the step after each, saw the same {samples:.0f} samples to the last "
    "digit, {others}.",
    why="Every step sees the same batch: these samples are learned by heart, and no others.",
    advice="Look at the loader: next(iter(loader)) inside of the loop begins anew each time, and without shuffling it "
    "returns the same batch.",
)
ALL_THE_DATA = replace(
    SAME_BATCH,
    severity=Severity.INFO,
    seen="The last {records} measured steps, and the step after each, saw the same {samples:.0f} samples to the last "
    "digit.",
    why="Either these are all the data there are, or every step sees the same batch by mistake.",
    advice="If they are all the data, nothing has to be done. Else look at the loader: next(iter(loader)) inside of "
    "the loop begins anew each time, and without shuffling it returns the same batch.",
)
MAX_SAME_SAMPLES = 64
"""Larger batches that repeat are taken for all the data there are (gradient descent on the full batch)."""

DATA_CHANGED = Alarm(
    code="data-changed",
    seen="The inputs have changed: their size was {before:figure} (root mean square, median of {records} batches) and "
    "is {now:figure} since step {since:,}.",
    why="Later batches are not like earlier ones: what was learned holds for inputs of another scale.",
    advice="Look at the data: a new source, a scaling or augmentation that is missing or applied twice. Scale the "
    "inputs as before.",
)
CHANGED_RATIO = 2.5
"""The factor by which the size of the inputs changes, for two records."""
CHANGED_SPREADS = 6.0
"""The change over the usual spread of the sizes of batches."""
MEAN_CHANGED = replace(
    DATA_CHANGED,
    seen="The inputs have changed: their mean was {before:figure} (median of {records} batches) and is {now:figure} "
    "since step {since:,}, while entries deviate from it by {deviation:figure}.",
    why="Later batches are not like earlier ones: what was learned holds for inputs around another mean.",
    advice="Look at the data: a new source, an offset or an inversion, a mean that is no longer subtracted. Scale the "
    "inputs as before.",
)
MOVED_DEVIATIONS, MOVED_SPREADS = 0.8, 10.0
"""The change of the mean of the inputs over their deviation, and over the usual spread of the means of batches."""
COLUMN_LARGE = Alarm(
    code="input-scale",
    seen="One column of the inputs is {ratio:figure} times as large as the others, and after {steps:,} steps the "
    "outputs are no better than a constant.",
    why="The inputs are not scaled: that column drowns the others, and the first layer sees nothing else.",
    advice="Scale the inputs: subtract the mean of each column and divide by its deviation. Look at the data for a "
    "column of times, numbers or amounts.",
)
LARGE_COLUMN_RATIO = 1000.0
"""The largest column over the median one: standardised columns have 1 to 10, counts beside shares 100."""


def may_repeat_batches(history: History) -> bool:
    """Return whether the last records leave it open that every step sees the same few samples."""
    rows = [record.total for record in history.records[-2:]]
    marks = [(r.get("input_mean") or 0.0, r.get("input_size") or 0.0) for r in rows]
    few_differ = all(r.get("input_spread") != 0.0 and (r.get("input_samples") or 0.0) <= MAX_SAME_SAMPLES for r in rows)
    return few_differ and all(are_same(marks[-1], others) for others in marks)


def same_batch(history: History) -> Iterator[Finding]:
    """The same few samples at every measured step and at the step behind it."""
    records = history.repeated(SAME_RECORDS)
    rows = [r.total for r in records]
    marks = [(r.get("input_mean"), r.get("input_size"), r.get("input_samples")) for r in rows]
    if not records or history.step - records[0].step < PLAIN_STEPS:
        return
    mean, size, samples = marks[-1]
    if samples is None or mean is None or size is None or not 1 < samples <= MAX_SAME_SAMPLES:
        return
    told = [finding.severity for finding in history.findings if finding.code == "same-batch"]
    validated = _worse_validation(history)
    if told and (max(told) > Severity.INFO or not validated):
        return
    if any(r.get("input_spread") == 0.0 for r in rows):  # all samples are alike: that has an alarm of its own
        return
    if {r["input_repeats"] for r in rows if "input_repeats" in r} != {1.0}:  # records may be in step with the epochs
        return
    if all(a is not None and b is not None and are_same((mean, size), (a, b)) for a, b, _ in marks):
        others = validated or _other_samples(history, mean, size, int(samples))
        words = {"records": len(rows), "samples": samples, "others": others}
        yield (SAME_BATCH if words["others"] else ALL_THE_DATA).at(history.step, words=words)


def _worse_validation(history: History) -> str:
    """Say that a validation is far worse than the loss of training; empty where none is, or it is not known."""
    own, start = history.records[-1].total.get("outputs_own"), history.first_loss
    for name, pairs in history.validations.items():
        value = pairs[-1][1]
        if own is None or start is None or not is_held_out_loss(name) or not value >= FAR_SHARE * start:
            continue
        if own <= BY_HEART_SHARE * min(start, value):
            return f"while `{name}` is {figure(value)} and the loss of training {figure(own)}"
    return ""


def _other_samples(history: History, mean: float, size: float, samples: int) -> str:
    """Say where other samples are that could be trained on; empty where none are seen."""
    for record in history.records:
        then, size_then = record.total.get("input_mean"), record.total.get("input_size")
        if then is None or size_then is None:
            continue
        if not are_same((mean, size), (then, size_then)):
            return f"but others at step {record.step:,}"
    for held in gc.get_objects():
        if issubclass(type(held), DataLoader) and held.batch_size == samples:
            with contextlib.suppress(Exception):  # data sets without a length
                if len(held.dataset) > samples:
                    return f"while a DataLoader of batches of {samples} has a data set of {len(held.dataset):,}"
    return ""


def data_changed(history: History) -> Iterator[Finding]:
    """Inputs whose size changed and stays so."""
    sizes = [(r.step, s) for r in history.records[-40:] if (s := r.total.get("input_size")) is not None and s > 0.0]
    if len(sizes) < 4 or history.standing.others or not all(math.isfinite(s) for _, s in sizes):
        return
    before, latest = [math.log(s) for _, s in sizes[:-2]], [math.log(s) for _, s in sizes[-2:]]
    usual = median(before)
    spread = max(median(abs(value - usual) for value in before), 0.02)
    apart = [value - usual for value in latest]
    limit = max(math.log(CHANGED_RATIO), CHANGED_SPREADS * spread)
    words = {"records": len(before), "since": sizes[-2][0]}
    if min(apart) > limit or max(apart) < -limit:
        yield DATA_CHANGED.at(history.step, words=words, before=math.exp(usual), now=sizes[-1][1])
        return
    means = [m for r in history.records[-40:] if (m := r.total.get("input_mean")) is not None]
    if len(means) < 5 or not all(map(math.isfinite, means)):
        return
    mean = median(means[:-2])
    deviation = math.sqrt(max(math.exp(2.0 * usual) - mean**2, 0.0))
    spread = max(median(abs(value - mean) for value in means[:-2]), 0.02 * deviation)
    limit = max(MOVED_DEVIATIONS * deviation, MOVED_SPREADS * spread)
    apart = [value - mean for value in means[-2:]]
    if limit > 0.0 and (min(apart) > limit or max(apart) < -limit):
        yield MEAN_CHANGED.at(history.step, words=words | {"deviation": deviation}, before=mean, now=means[-1])


def large_column(history: History) -> Iterator[Finding]:
    """A column of a table that is far larger than the others, while nothing is learned."""
    ratios = history.total("input_column").last(2, 2 * PLAIN_STEPS)
    if ratios and min(ratios) >= LARGE_COLUMN_RATIO and history.is_unlearned:
        yield COLUMN_LARGE.at(history.step, words={"steps": history.step}, ratio=min(ratios))
