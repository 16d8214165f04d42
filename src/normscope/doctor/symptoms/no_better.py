"""A model that does no better than a constant output, or that starts far above one."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from statistics import fmean, median, stdev
from typing import Any

from ...core.finding import Finding, Severity, figure, figures, percent
from ..facts.examined import Examined
from ..facts.freshness import is_fresh, looks_fresh
from ..facts.layers import INPUT
from ..facts.loss import LEARNED_LOSS_RATIO, LossFacts
from ..facts.loss_call import BINARY, CLASSES
from ..monitor.history import History, losses_beside_constant
from .check_readings import LOSS, find_last_linear, loss_facts_of
from .graph_order import WEIGHT_KINDS
from .run_readings import (
    MIN_CONSTANTS,
    STAYS_STEPS,
    bound_loss_of_constant,
    describe_large_inputs,
    first_step_sizes,
    measure_progress,
    recent_loss,
    steps_at_rate,
)
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "no-better-than-constant": FindingWords("the model does no better than a constant output"),
    "first-loss": FindingWords("the first loss is far above that of a blind guess"),
}
BETTER_ACCURACY_RATIO = 2.0
"""A model's accuracy over the share of the largest class, from which it has learned something whatever its loss: where
a batch has hardly more samples than classes, the best constant output fits their frequencies by chance."""
FAR_WORSE_LOSS_RATIO = 3.0
"""The loss over that of the best constant output, from which a model is not merely still in training."""
NEARLY_CONSTANT_SHARE = 0.05
"""The deviation of outputs over the samples, as a share of their size."""
STEEP_LAYER_RATIO = 5.0
"""The size of what a layer hands on over that of what it reads, beyond which it stands out: fresh layers have 1."""
FIRST_LOSS_RATIO = 10.0
"""The first loss over that of a blind guess, from which it is too large: a fresh model starts near 1."""
NO_BETTER_THAN_CONSTANT = Symptom(
    code="no-better-than-constant",
    seen="After {steps:,} steps the loss is {own:figure} and does not fall; one constant output would have "
    "at most {constant:figure}. The weights have moved, and outputs depend on the inputs.",
    why="The model does no better than guessing: what it puts out is worth no more than a constant that knows how "
    "often each target comes.{more}",
    advice="Check the data and the labels first: do labels belong to their inputs (shuffled apart, a wrong index), in "
    "this order, from class 0? Then try to fit ten samples: if even their loss does not fall, the fault is in the "
    "architecture, the loss or the learning rate; if it does, lower the learning rate.",
)


def check_no_better_than_constant(examined: Examined) -> Iterator[Finding]:
    """`no-better-than-constant` (warning, info): a trained model whose loss is at least 97 % of that of the best
    constant output; said only where nothing else is wrong (info: in train mode, where training may go on)
    `first-loss` (warning): a classifier whose loss is ten times that of the best constant output (a regression: a
    hundred times), if it is fresh or one of its layers makes values far larger
    """
    facts = loss_facts_of(examined)
    if facts is None or facts.blind is None or not math.isfinite(facts.value) or facts.blind <= 1e-9:
        return
    head = dict(examined.model.named_modules()).get(find_last_linear(examined))
    fresh = is_fresh(examined.model) or (head is not None and looks_fresh(head))
    share = facts.share_of_blind or 0.0
    losses = f"The loss is {figure(facts.value)}; the best constant output has {figure(facts.blind)}"
    if facts.accuracy is not None:
        losses += f" (accuracy {percent(facts.accuracy)}, the largest class has {percent(facts.largest_class or 0.0)})"
    knows = facts.accuracy is not None and facts.accuracy >= BETTER_ACCURACY_RATIO * (facts.largest_class or 1.0)
    far_above = first_loss_share(facts) >= (
        FIRST_LOSS_RATIO if facts.name in (*CLASSES, *BINARY) else FIRST_LOSS_RATIO**2
    )
    steepest = (
        max(((STEEP_LAYER_RATIO, LOSS), *growths_of_layers(examined)), key=operator.itemgetter(0))[1]
        if far_above
        else LOSS
    )
    if not fresh and share >= (FAR_WORSE_LOSS_RATIO if knows else LEARNED_LOSS_RATIO) and steepest == LOSS:
        layer, left = _forgetting_layer(examined)
        yield finding(
            "no-better-than-constant",
            layer or LOSS,
            f"{losses}."
            + (
                f" The outputs hardly differ from sample to sample, and in `{layer}` most of that is lost."
                * bool(layer)
            ),
            "The model has learned nothing about its input, or forgets it: a constant would do as well."
            if layer
            else NO_BETTER_THAN_CONSTANT.why.format(more=""),
            f"Look at the weights of `{layer}`, which hand on {percent(left)} of what varies: lower the weight "
            "decay or the learning rate that made them so, and initialise them again or load an earlier checkpoint."
            if layer
            else NO_BETTER_THAN_CONSTANT.advice,
            figures(loss=facts.value, blind=facts.blind),
            severity=Severity.INFO if examined.mode == "train" and share < FAR_WORSE_LOSS_RATIO else Severity.WARNING,
        )
    elif far_above and (fresh or steepest != LOSS):
        yield finding(
            "first-loss",
            steepest,
            f"{losses}" + (", and the model looks fresh." if fresh else f", and `{steepest}` makes values far larger."),
            "A fresh model that is sure of wrong answers spends the first steps on unlearning them, and they are long.",
            "Make the last layer's weights smaller at the start, or standardise the input and the targets.",
            figures(loss=facts.value, blind=facts.blind),
        )


def first_loss_share(facts: LossFacts) -> float:
    """Return the loss as a share of that of a blind guess, which knows nothing of rare classes either."""
    classes = 2 if facts.name in BINARY else facts.output_shape[1] if len(facts.output_shape) > 1 else 1
    guess = math.log(classes) if facts.name in (*CLASSES, *BINARY) else 0.0
    return (
        min(facts.share_of_blind or 0.0, facts.value / guess)
        if guess and not facts.sum_of
        else facts.share_of_blind or 0.0
    )


def _forgetting_layer(examined: Examined) -> tuple[str, float]:
    """Return where outputs that are nearly constant lose most of what varies: the weight layer, and the share left."""
    signal, facts = examined.signal, loss_facts_of(examined)
    if signal is None or facts is None:
        return "", 1.0
    shares = [(row.sample_deviation or 0.0) / (row.root_mean_square or 1.0) for row in signal.rows]
    ends = [share for share, row in zip(shares, signal.rows, strict=True) if row.path == facts.made_by]
    if not ends or ends[-1] > NEARLY_CONSTANT_SHARE:
        return "", 1.0
    losses = [
        (shares[number] / most, row.path)
        for number, (row, feeds) in enumerate(zip(signal.rows, signal.flow.feeds, strict=False))
        if row.sample_deviation is not None and row.kind in WEIGHT_KINDS
        if (most := max((shares[feed] for feed in feeds), default=0.0)) > 0.0
    ]
    left, path = min(losses, default=(1.0, ""))
    return path, left


def growths_of_layers(examined: Examined) -> Iterator[tuple[float, str]]:
    """Yield how large the values of each layer are beside those that it reads, and its path."""
    signal = examined.signal
    for row, feeds in zip(signal.rows, signal.flow.feeds, strict=False) if signal is not None else ():
        sizes = [signal.rows[feed].root_mean_square or 0.0 for feed in feeds] if signal is not None else []
        read = 1.0 if row.kind == "embedding" else max(sizes, default=0.0)
        if row.kind != INPUT and row.root_mean_square is not None and read > 0.0:
            yield row.root_mean_square / read, row.path


TARGETS_FAR = Symptom(
    code="weights-still",
    seen="After {steps:,} steps the loss is {own:figure}, and one constant output would have {constant:figure}; as it "
    "falls now, it would take {needed} more to come there.",
    why="The targets are far from where the outputs began, and the learning rate is too low to reach them.",
    advice="Scale the targets: subtract their mean and divide by their deviation (or begin with their mean as the last "
    "bias); or raise the learning rate.",
)
FAR_RATIO, FAR_TIMES = 3.0, 5.0
"""The loss over that of a constant output, and the steps that it would take to get there over those so far, which say
that the targets are too far for these steps."""
MIN_PATH = 0.3
"""The lengths of all steps, over the size of the weights, that should have led somewhere."""
NO_BETTER_SHARE, SURELY_SHARE = 0.99, 0.978
"""The loss over that of the best constant, and the loss less twice its error: in healthy runs too there may be little
to learn, and a text that is almost random is learned to 0.98. Nearer to 1 than in a check, which has one batch and no
error of a mean."""
STILL_FALLING_SHARE = 0.02
"""The fall of the loss between the third and the last quarter of a run, over the loss, that may hide in the noise."""


def watch_no_better_than_constant(history: History) -> Iterator[Finding]:
    """`no-better-than-constant` (warning): after 100 steps or more the loss (cross entropy, binary cross entropy,
    squared error, and nothing else) is no better than that of a constant output beyond its noise, does not fall,
    weights have moved by a third of their size, and outputs do depend on the inputs: plateaus at the start are
    silent
    """
    if history.parameter_state.others:
        return  # losses that play against each other stay where they are
    begun, sizes = steps_at_rate(history), first_step_sizes(history)
    now, start = recent_loss(history), history.first_loss
    if begun < STAYS_STEPS or now is None or start is None or not sizes:
        return
    words: dict[str, Any] = {"steps": history.step, "more": describe_large_inputs(history)}
    bound, squares = bound_loss_of_constant(history), _compare_squares(history)
    far = _find_far_targets(history)
    if far is not None:
        yield far
    elif bound is not None:
        level, fall, error = measure_progress(history.records, history.step - begun)
        if squares is not None:
            (level, fall, error), bound = squares
        hidden = STILL_FALLING_SHARE if begun < 2 * STAYS_STEPS else 2 * STILL_FALLING_SHARE
        certain = 2 * error <= hidden * level and fall <= 2 * error
        moved = begun * 10.0 ** median(sizes) >= MIN_PATH
        # the mean of both parts has half the error of their difference
        if certain and moved and level >= NO_BETTER_SHARE * bound and level - error >= SURELY_SHARE * bound:
            yield NO_BETTER_THAN_CONSTANT.at(words=words, own=level, constant=bound)


def _compare_squares(history: History) -> tuple[tuple[float, float, float], float] | None:
    """Return the progress of squared errors as `measure_progress` has it, and the loss of a constant output.

    Both losses rise and fall with the targets of a batch, so that their difference on the same batches says more than
    either. None where there are too few, or the loss is another one.
    """
    rows = [
        (loss, constant, record.loss / loss)
        for record, loss, constant in losses_beside_constant(history.records)
        if loss and record.loss
    ]
    rows = rows[len(rows) // 2 :]
    if len(rows) < 2 * MIN_CONSTANTS or history.records[-1].total_of("outputs_kinds") is not None:
        return None
    half, factor = len(rows) // 2, median(factor for *_, factor in rows)
    parts = [[loss - constant for loss, constant, _ in part] for part in (rows[:half], rows[half:])]
    errors = [stdev(part) / math.sqrt(len(part)) for part in parts]
    early, late = map(fmean, parts)
    usual = fmean(constant for _, constant, _ in rows)
    progress = factor * (usual + (early + late) / 2), factor * (early - late), factor * math.hypot(*errors)
    return progress, factor * usual


def _find_far_targets(history: History) -> Finding | None:
    """Return the alarm that targets are too far from outputs for steps of this size; None where they are not."""
    rows = [(record.step, loss, constant) for record, loss, constant in losses_beside_constant(history.records)]
    if len(rows) <= MIN_CONSTANTS or history.records[-1].total_of("outputs_kinds") is not None:
        return None
    half = len(rows) // 2
    (then, early), (now, late) = (
        (fmean(step for step, *_ in part), fmean(loss for _, loss, _ in part)) for part in (rows[:half], rows[half:])
    )
    constant = median(constant for *_, constant in rows)
    least = min(loss for _, loss, _ in rows[half:])
    grown = median(c for *_, c in rows[half:]) > 2.0 * median(c for *_, c in rows[:half])
    rate = (early - late) / (now - then)
    needed = (late - constant) / rate if rate > 0.0 else math.inf
    if grown or least < FAR_RATIO * constant or needed < FAR_TIMES * history.step:
        return None
    words = {"steps": history.step, "needed": f"{needed:,.0f} steps" if needed < 1e7 else "forever"}
    return TARGETS_FAR.at(words=words, own=late, constant=constant)
