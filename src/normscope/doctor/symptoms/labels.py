"""Labels and targets: of one class, sorted, outside of what the outputs can be, or the inputs themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from statistics import median

from ...core.finding import Finding, Severity, figure, figures, percent
from ..facts.autograd_graph import RANGES
from ..facts.examined import Examined
from ..facts.loss import LossFacts
from ..facts.loss_call import BINARY, CLASSES
from ..facts.pass_facts import find_discriminator_layers
from ..monitor.history import History
from ..monitor.record import Record
from .check_readings import (
    LOSS,
    describe_mismatch,
    every_loss,
    find_last_linear,
    loss_facts_of,
    sample_facts_of,
    write_shape,
)
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "targets-out-of-range": FindingWords("the targets lie outside what the model can put out"),
    "targets-scale": FindingWords("the targets have another scale than the outputs"),
    "one-class": FindingWords("all targets are the same", note=("nearly all targets are of one class",) * 2),
    "labels-are-inputs": FindingWords("the targets are what the model is given"),
    "sorted-batches": FindingWords("the batches are not shuffled"),
}
MAX_PADDING_SHARE = 0.5
"""The share of padding among the targets that count, beyond which it outweighs them."""
MIN_LABELS = 48
"""Samples from which a share of 95 % of one class is not chance."""
ONE_CLASS_SHARE = 0.95
"""The share of samples of one class at which always guessing it is hard to beat."""
ONE_CLASS = Symptom(
    code="one-class",
    seen="All labels of the last {records} measured batches are the same ({label:g}).",
    why="A constant output fits them: from targets that are all the same nothing else can be learned.",
    advice="Look at how labels are read (a subset that was cut from sorted data, a wrong column, a cast that rounds to "
    "0), and shuffle the data: batches that are sorted by class look like this.",
)


def check_one_class(examined: Examined) -> Iterator[Finding]:
    """`one-class` (warning, info): all targets of the batch are the same or 95 % of them (info: of fewer than 48), or
    half of them fill up the ends of rows and count in the loss; weights in the loss that make the rare class count
    less (warning)
    """
    facts = loss_facts_of(examined)
    if facts is None or examined.signal is None:
        return
    constant = facts.is_constant and math.prod(facts.target_shape) > 1
    several = facts.name in BINARY and len(facts.output_shape) > 1 and facts.output_shape[1] > 2
    if constant and (facts.own_targets or examined.signal.flow.derives or find_discriminator_layers(examined.signal)):
        return  # what a generator is to reach, or the right side of an equation
    if constant:
        yield ONE_CLASS.at(LOSS, seen=f"All targets of the batch are {figure(facts.target_least)}.")
    elif facts.padding > MAX_PADDING_SHARE:
        yield describe_mismatch(
            facts,
            f"{percent(facts.padding)} of the targets fill up the ends of the rows with one value, and the loss "
            "counts them.",
            "Nearly all of the gradient teaches the model to repeat the padding.",
            "Use the loss with ignore_index set to the value of the padding, or change these targets to -100.",
            code="one-class",
            where=LOSS,
        )
    elif facts.largest_class is not None and facts.largest_class > ONE_CLASS_SHARE:
        yield finding(
            "one-class",
            "the targets",
            f"{percent(facts.largest_class)} of the targets are of one class.",
            "Always guessing this class is hard to beat, and accuracy says little.",
            "Weigh the classes in the loss, or draw batches with equal shares; judge by balanced accuracy.",
            figures(share=facts.largest_class),
            severity=Severity.WARNING
            if examined.signal.samples >= MIN_LABELS and not several and not facts.weighted
            else Severity.INFO,  # of many labels each is rare
        )


SORTED_BATCHES = Symptom(
    code="sorted-batches",
    seen="The measured batches of {samples:.0f} samples hold {classes:.0f} of {outputs:.0f} classes each, and not the "
    "same ones from batch to batch.",
    why="Batches are not shuffled: each step learns the few classes of its batch and forgets the others.",
    advice="Shuffle: DataLoader(..., shuffle=True), or a sampler that mixes the classes of the data set.",
)
SAME_RECORDS = 3
"""Batches in a row that show one class, or the same samples: chance does not."""
MIN_BATCH_LABELS = 8
"""Labels in a batch that are enough to expect two classes: fewer than in a check, for several batches must agree."""
FEW_LABELS, MANY_LABELS = 60, 500
"""Labels of one class in a row that are no chance: of many classes, or behind batches of several, and of two, one of
which may be rare. More than in a check, for a run looks again and again."""
MOVED_ERRORS = 4.0
"""Standard errors by which the mean label of batches moves, at the median, where they are not drawn at random."""


def watch_labels_alike(history: History) -> Iterator[Finding]:
    """`one-class` (warning): all labels of the measured batches are the same: of more than two classes, or behind
    batches of several, 60 labels, of two (one may be rare) 500
    `sorted-batches` (warning): each batch has few of the classes, and others than the batch before
    """
    few = len(history.repeated(SAME_RECORDS))
    rows = [r for r in history.records[-2 * SAME_RECORDS :] if r.total_of("outputs_label_low") is not None]
    if not 0 < few <= len(rows) or history.parameter_state.others or min(_column(rows, "samples")) < MIN_BATCH_LABELS:
        return
    alike = list(takewhile(_has_one_label, reversed(history.records)))
    labels, always = {row.total_of("outputs_label_low") for row in alike}, len(alike) == len(history.records)
    if len(alike) >= few and len(labels) == 1:
        earlier = [r.total_of("outputs_classes") for r in history.records[: len(history.records) - len(alike)]]
        mixed = bool(earlier) and min((count for count in earlier if count is not None), default=0.0) > 2
        enough = FEW_LABELS if mixed or (always and min(_column(alike, "kinds")) > 2) else MANY_LABELS
        if sum(_column(alike, "samples")) >= enough:
            yield ONE_CLASS.at(words={"records": len(alike), "label": labels.pop()})
        return
    if len(rows) < SAME_RECORDS or rows[-1].total_of("outputs_samples") != rows[-1].total_of("input_samples"):
        return  # labels of tokens or pixels are not drawn one by one
    means, errors = _column(rows, "label_mean"), _column(rows, "label_error")
    overall = math.sqrt(sum((m - median(means)) ** 2 for m in means) / len(means))
    classes, outputs = median(_column(rows, "classes")), max(_column(rows, "label_high")) + 1
    if outputs >= 2 and classes <= outputs / 2 and overall > MOVED_ERRORS * max(median(errors), 0.02 * outputs):
        samples = median(_column(rows, "samples"))
        words = {"samples": samples, "classes": classes, "outputs": outputs}
        yield SORTED_BATCHES.at(words=words)


def _has_one_label(row: Record) -> bool:
    low = row.total_of("outputs_label_low")
    return low is not None and low == row.total_of("outputs_label_high")


def _column(rows: Sequence[Record], name: str) -> list[float]:
    """Return one figure of the outputs in some records, NaN where it is not known."""
    numbers = (row.total_of(f"outputs_{name}") for row in rows)
    return [math.nan if number is None else number for number in numbers]


def check_labels_outside(examined: Examined) -> Iterator[Finding]:
    """Labels that are none of the classes of the outputs."""
    labels = None if examined.signal is None else examined.signal.objective.labels_outside
    if labels is None:
        return
    from_one = labels.least == 1 and labels.greatest == labels.classes
    yield finding(
        "targets-out-of-range",
        find_last_linear(examined) or LOSS,
        f"{labels.mismatch[0].upper()}{labels.mismatch[1:]}.",
        "The loss cannot be taken: it raises an error, or stops the device.",
        "Subtract 1 from the labels: classes count from 0."
        if from_one
        else "Check the labels: number the classes from 0 without gaps, and give labels that shall not count the value "
        f"of ignore_index; or give the last layer one output per class, {labels.greatest + 1} in all.",
        figures(least=labels.least, greatest=labels.greatest, classes=labels.classes),
        severity=Severity.ERROR,
    )


TARGET_SCALE_RATIO = 30.0
"""The size of targets over that of outputs, beyond which scales do not fit: training soon makes up for less."""
SMALL_TARGET_SIZE = 1e-3
"""The root mean square of targets, below which they are too small: a fresh network's outputs are a hundred times as
large."""
LARGEST_SMALL_TARGET_SIZE = 0.03
"""The root mean square of targets from which they are never too small, however large outputs are: they are learned
soon."""
SHAPES_BROADCAST = Symptom(
    code="shapes-broadcast",
    seen="The loss compares each output with each target: by broadcasting outputs of shape {shapes}.",
    why="Every output is pulled to the mean of all targets: the best the model can do is to predict that.",
    advice="Give both the same shape: output.squeeze(1), or target.unsqueeze(1) (target.view_as(output)).",
)


def check_targets_do_not_fit(examined: Examined) -> Iterator[Finding]:
    """`shapes-broadcast` (warning): output and target have different shapes, and the loss broadcasts them
    `targets-out-of-range` (error, warning): labels that are none of the classes; targets outside the range of the last
    activation, or of the loss (warning); 0 and 1 where a loss takes -1 and 1 (warning)
    `targets-scale` (warning): targets thirty times as large as the outputs, or more, or below a thousandth
    """
    for facts in every_loss(examined):
        if facts.name not in CLASSES:
            yield from _targets_beyond(facts)


def _targets_beyond(facts: LossFacts) -> Iterator[Finding]:
    """Targets of one loss that its outputs cannot reach."""
    low, high = RANGES.get(facts.last, (-math.inf, math.inf))
    if facts.limits is not None:
        low, high = facts.limits
    if facts.last == "NativeBatchNorm" and abs(facts.output_mean - facts.target_mean) > facts.output_size:
        yield describe_mismatch(
            facts,
            f"The model ends in a BatchNorm, whose outputs have mean {figure(facts.output_mean)}; the targets have "
            f"{figure(facts.target_mean)} and size {figure(facts.target_size)}.",
            "A normalizer takes the mean and the scale of the predictions away, and depends on the batch.",
            "Remove the normalizer after the last layer, or standardise the targets.",
        )
    span = facts.target_greatest - facts.target_least
    limited = f"the {facts.last.lower()}" if facts.last in RANGES else "the last activation"
    if facts.output_shape != facts.target_shape:
        yield describe_mismatch(
            facts,
            f"The output has shape {write_shape(facts.output_shape)} and the target {write_shape(facts.target_shape)}: "
            f"{facts.name} broadcasts them and compares every output with every target.",
            SHAPES_BROADCAST.why,
            SHAPES_BROADCAST.advice,
            code="shapes-broadcast",
        )
    elif facts.target_least < low - 0.01 * span or facts.target_greatest > high + 0.01 * span:
        yield describe_mismatch(
            facts,
            f"The targets run from {figure(facts.target_least)} to {figure(facts.target_greatest)}, and "
            f"{limited} holds the outputs between {low:g} and {high:g}.",
            "Outputs cannot reach targets outside the range of the last activation.",
            f"Remove {limited} at the end, multiply the outputs by the range of the targets, or scale the targets "
            "into theirs.",
            code="targets-out-of-range",
        )
    elif facts.name in BINARY:
        if facts.target_least < 0.0 or facts.target_greatest > 1.0:
            yield describe_mismatch(
                facts,
                f"The targets run from {figure(facts.target_least)} to {figure(facts.target_greatest)}, and "
                f"{facts.name} takes probabilities.",
                "Outside 0 to 1 the loss has no lower limit.",
                "Use targets 0 and 1, or another loss.",
                code="targets-out-of-range",
            )
    elif (
        facts.whole_targets > 2
        and (facts.output_shape[-1:] == (1,) or facts.integer_labels)
        and facts.target_greatest < facts.whole_targets
    ):
        yield describe_mismatch(
            facts,
            f"The targets are the whole numbers from 0 to {facts.target_greatest:.0f}, as numbers of classes are, "
            f"and the loss is {facts.name}.",
            "A number of a class is a name: a loss of distances takes class 3 for the mean of 2 and 4.",
            "For classes use one output per class and cross_entropy; if the targets are counts, there is nothing to "
            "do.",
            code="loss-does-not-fit",
        )
    elif (
        0.0
        < facts.target_size
        < max(SMALL_TARGET_SIZE, min(facts.output_size / TARGET_SCALE_RATIO**1.5, LARGEST_SMALL_TARGET_SIZE))
    ):
        yield describe_mismatch(
            facts,
            f"The targets have size {figure(facts.target_size)}.",
            "Errors of this size have a loss near zero whatever the model says: gradients are tiny, and a constant "
            "looks perfect.",
            "Standardise the targets (subtract their mean, divide by their deviation), and undo it at the end.",
            code="targets-scale",
        )
    elif facts.target_size > TARGET_SCALE_RATIO * max(facts.output_size, 1.0):
        yield describe_mismatch(
            facts,
            f"The targets have size {figure(facts.target_size)} and the outputs {figure(facts.output_size)}.",
            "The gradient is as large as the error: the first steps are far too long for the layers, and the "
            "output's bias takes most of the training.",
            "Standardise the targets (subtract their mean, divide by their deviation), and undo it at the end.",
            code="targets-scale",
        )


def check_labels_are_inputs(examined: Examined) -> Iterator[Finding]:
    """`labels-are-inputs` (warning): the target of a sequence model at each step is the input of that step, or that of
    two steps or more later (labels shifted twice)
    """
    facts, loss = sample_facts_of(examined), None if examined.signal is None else examined.signal.loss
    if loss is not None and loss.ahead > 1:
        yield finding(
            "labels-are-inputs",
            "the targets",
            f"The target of each step is the input {loss.ahead} steps later.",
            "What comes next is skipped: models of transformers shift the labels themselves, and labels that are "
            "shifted before are shifted twice.",
            "Shift the targets by one step in all: give a model that computes its own loss labels=input_ids.",
            figures(ahead=loss.ahead),
        )
        return
    if facts is None or not facts.copies or loss is None or math.prod(loss.target_shape) != math.prod(facts.copies):
        return  # a loss that shifts the labels itself reads fewer
    yield finding(
        "labels-are-inputs",
        "the targets",
        "The target of each step is the input of that step itself, and the model reads it.",
        "The model learns to copy: its loss goes to zero, and it cannot say what comes next.",
        "Shift the targets by one step: tokens[:, :-1] as input, tokens[:, 1:] as targets.",
    )
