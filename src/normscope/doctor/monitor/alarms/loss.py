"""Alarms about the loss and the learning rate: not a number any more, far above where it began, too sharp."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from ....core.finding import Finding, Severity, figure
from ....listening.not_finite import GUARDABLE
from ....report.words import pluralise
from ...findings.scale import RESTORE
from ..composing import JUMP_RATIO
from ..courses import LASTING_STEPS, PLAIN_STEPS, SPIKE_WINDOW_RECORDS
from ..history import GUESSING_SHARE, Alarm, History, losses_beside_constant
from ..locating import Broken
from ..record import Kind, Record

# ---- the wrong sign

NEGATED_LOSS = Alarm(
    code="negated-loss",
    seen="The loss is minus a loss function: the optimizer maximises the error.",
    why="The sign is wrong: minimised without a bound, it makes the model worse at each step, and outputs grow.",
    advice="Remove the minus sign in front of the loss.",
)
LIKELIHOOD_MINIMISED = replace(
    NEGATED_LOSS,
    seen="The loss is the mean log-probability of the labels, without a minus sign: the optimizer minimises it.",
    why="The sign is wrong: the labels become less likely with each step, and the loss falls without a bound.",
    advice="Put a minus sign in front of it, or use torch.nn.functional.cross_entropy.",
)
DIVERGENCE_SUBTRACTED = replace(
    NEGATED_LOSS,
    seen="The divergence of the code from a standard normal one is subtracted from the loss: the optimizer makes it "
    "larger.",
    why="The sign is wrong: the loss falls without a bound where mean and spread of the code grow.",
    advice="Change the sign of that part, so that the loss is the error plus the divergence, -0.5 * (1 + logvar - "
    "mean**2 - logvar.exp()).",
)
WRONG_SIGNS = {"negated": NEGATED_LOSS, "likelihood": LIKELIHOOD_MINIMISED, "divergence": DIVERGENCE_SUBTRACTED}
"""By what is odd in a loss, as `LossReading` has it, what is told of its sign."""

# ---- not a number

LOSS_NOT_FINITE = Alarm(
    code="loss-not-finite",
    severity=Severity.ERROR,
    seen="{what}; it began {since}. {cause}",
    why="A step with a gradient that is no number makes every weight NaN; nothing is learned from here on.",
    advice="{remedy}",
)
CLEAN_DATA = (
    "Look at the data of this step: replace or drop samples with NaN or infinite values (torch.isfinite(x).all()), and "
    "look for a division by a deviation of zero, a logarithm of zero, or missing values in a table. Load the last "
    "checkpoint with finite weights."
)
LOOK_AT_LOSS = (
    "Look at the targets of this step for NaN or infinite values (torch.isfinite), and in the loss function for the "
    "logarithm or root of zero and a quotient by zero: add a small eps inside, or clamp. Load the last checkpoint with "
    "finite weights."
)
GUARD_FUNCTION = (
    "Look at the batch of this step, and guard `{function}` there: add a small eps inside of a root, logarithm or "
    "quotient, or clamp what enters it. Load the last checkpoint with finite weights."
)
LOOK_AT_MASK = (
    "Look at the mask of this batch: a row that is masked altogether has no softmax. Let the mask leave one entry of "
    "each row, or drop samples that are empty. Load the last checkpoint with finite weights."
)
LOOK_AT_GRADIENTS = (
    " If the loss had not grown before, its gradient broke first: look for the root, norm or logarithm of an exact "
    "zero and for a quotient by zero, and add a small eps inside of it."
)
FIRST_UNKNOWN = (
    "Which layer was the first is not known. To have the forward looked at that breaks, give run.observe the loss of "
    "every step, as a number (loss.item()) where it lies on a GPU."
)
LOWER_RATE = (
    "Begin again with a learning rate of a tenth{rate} or less, warm it up, or clip gradients "
    "(torch.nn.utils.clip_grad_norm_)."
)
LOOK_AT_BATCH = (
    "Look at the batch of this step: clean the data of outliers, of targets such as 999999 that stand for unknown "
    "values and of inputs on another scale; scale the targets. Clip gradients (torch.nn.utils.clip_grad_norm_) or use "
    "a robust loss (torch.nn.HuberLoss). Load the last checkpoint with finite weights."
)
CHANGE_SIGN = (
    "Look for a part of the loss that has the wrong sign, such as a divergence, an entropy or a likelihood, or for the "
    "density of a distribution whose spread may go to zero: give the spread a lower limit. Load the last checkpoint "
    "with finite weights."
)
HALF_PRECISION = (
    " Weights are in float16, which ends at 65,504: keep them in float32 and use torch.autocast, with a "
    "torch.amp.GradScaler that lowers the loss scale."
)
SCALE_INPUTS = "Scale the inputs: subtract the mean of each column and divide by its deviation. "
SMALLER_WEIGHTS = "Initialise with smaller weights (torch.nn.init.kaiming_normal_), and look at factors in the forward."
LARGE_INPUT = 30.0
"""The root mean square of inputs that were not scaled: 0 to 255, amounts of money."""


def describe_large_inputs(history: History) -> str:
    """Say that inputs are large, where that may be the cause; empty where they are not."""
    size = history.total("input_size").start
    large = size is not None and size > LARGE_INPUT
    return f" The inputs are not scaled: their size is {size:.3g}, and about 1 is usual." if large else ""


RATE_HAS_RISEN = " The learning rate rose from {before} to {rate} by step {since:,}."
KEEP_RATE = (
    "Keep the learning rate at {before} or below: look at the schedule, and at code that sets the rate, at step "
    "{since:,}. Load the last checkpoint from before."
)
RISEN_LOSS = 1e4
"""By what factor a finite loss has risen before it broke where its steps were too large, and not its data."""
EVIDENCE: tuple[tuple[Kind, str, str], ...] = (
    ("normalizer", "log10_variance_max", "the input of `{name}` is the first of a normalizer that is not."),
    ("block", "log10_activation", "`{name}` is the first block whose input or output is not."),
    ("weight", "log10_gradient", "`{name}` is the last layer whose gradient is not."),
)
"""What may be broken though the weights are not; it says where to look, not where it began."""


def loss_not_finite(history: History) -> Iterator[Finding]:
    """The loss, or where it is not observed every weight, is NaN or infinite; where that began, if it is known."""
    record = history.records[-1]
    if not is_broken(record) or history.has_raised("loss-not-finite"):
        return
    weights = _broken_weights(record)
    before = history.records[-2] if len(history.records) > 1 else None
    at = record.metrics.get("loss_broken_at")
    since = "in the first record" if before is None else f"after step {before.step:,}, the last record before it"
    since = since if at is None else f"at step {at:,.0f}"
    first = _name_broken(math.inf if record.metrics.get("loss_broken_infinite") else math.nan)
    broken = _find_cause(history, record, weights, before)
    where, cause, remedy = broken.where, broken.words, _choose_remedy(broken)
    risen, outlier = _find_rise(history), describe_outlier(history, record)
    wrong, fall = _find_wrong_sign(history), _describe_fall(history, record)
    if (wrong or fall) and broken.part != "batch":
        parts = (cause if where else "", fall, wrong.seen if wrong else "")
        cause, remedy = " ".join(filter(None, parts)), wrong.advice if wrong else CHANGE_SIGN
    elif outlier and broken.part != "batch":
        cause, remedy = outlier, LOOK_AT_BATCH
    elif (risen is not None and broken.part != "batch") or broken.part == "outputs":
        large = describe_large_inputs(history)
        if risen is not None:
            rise = f"Before that the loss rose from {figure(risen[0])} to {figure(risen[1])}: steps are too large."
            cause = f"{cause} {rise}" if where else rise
        cause += large
        remedy = LOWER_RATE.format(rate=f" ({figure(record.lr[0])} now)" if record.lr else "")
        remedy = f"{SCALE_INPUTS * bool(large)}{SMALLER_WEIGHTS if broken.step == 0 else remedy}"
    rate_rise = find_rate_rise(history) if broken.part in ("network", "outputs") else None
    if rate_rise is not None and rate_rise.explains(record.step if at is None else at):
        rates = {"before": figure(rate_rise.before), "rate": figure(rate_rise.rate), "since": rate_rise.since}
        cause, remedy = cause + RATE_HAS_RISEN.format(**rates), KEEP_RATE.format(**rates)
    remedy += HALF_PRECISION if history.standing.half_precision else ""
    what = "Weights are not finite"
    if record.loss is not None and not math.isfinite(record.loss):
        what = f"The loss is {_name_broken(record.loss)}"
    if at is not None and not what.endswith(first):
        since += f", where the loss was {first}"
    yield LOSS_NOT_FINITE.at(
        record.step,
        where,
        {"what": what, "since": since, "cause": cause, "remedy": remedy},
        broken_weights=len(weights),
        weights=len(history.of("weight")),
        last_finite_step=None if before is None else before.step,
        last_loss=None if before is None else before.loss,
        at=at,
    )


def _name_broken(loss: float) -> str:
    return "NaN" if math.isnan(loss) else "infinite"


OUTLIER_RATIO = 1000.0
"""A loss over that of the step before, which was usual: steps that are too large take several for that."""
USUAL_RATIO = 3.0
"""A loss over the median of the records before, up to which it is usual."""


def describe_outlier(history: History, record: Record) -> str:
    """Say that one batch was unlike the others: the loss jumped within one step, at the usual learning rate."""
    jump, before, at = (record.metrics.get(f"loss_jump{name}") for name in ("", "_from", "_at"))
    earlier = [r for r in history.records if r.step < record.step][-SPIKE_WINDOW_RECORDS:]
    usual = [value for r in earlier if (value := r.metrics.get("loss_mean")) is not None and math.isfinite(value)]
    rates = [max(r.lr) for r in (*earlier[-1:], record) if r.lr]
    if jump is None or before is None or at is None or not usual or jump < OUTLIER_RATIO * before:
        return ""
    if (
        jump < max(history.first_loss or 0.0, JUMP_RATIO * median(usual))
        or before > USUAL_RATIO * median(usual)
        or (len(rates) > 1 and rates[-1] > 2.0 * rates[0])
    ):
        return ""
    return (
        f"At step {at:,.0f} the loss jumped from {figure(before)} to {figure(jump)} within one step: its batch has "
        "outliers, targets or inputs far from all others, and the step that it made was far too large."
    )


def _find_rise(history: History) -> tuple[float, float] | None:
    """Return the first loss and the largest finite one, if that is larger by decades."""
    largest = [value for r in history.records if (value := r.metrics.get("loss_largest", r.loss)) is not None]
    losses = (history.first_loss, history.records[0].loss)
    starts = [value for value in losses if value is not None and value > 0.0]
    first, peak = min(starts, default=math.nan), max((value for value in largest if math.isfinite(value)), default=0.0)
    return (first, peak) if peak > RISEN_LOSS * first else None


def _find_wrong_sign(history: History) -> Alarm | None:
    """Return the alarm about the sign of the loss, or of a part of it; None where none is known to be wrong."""
    words = () if history.standing.others else history.standing.oddities  # of two players one maximises
    return next((WRONG_SIGNS[word] for word in words if word in WRONG_SIGNS), None)


def _describe_fall(history: History, record: Record) -> str:
    """Say that the loss fell by decades below zero before it broke; empty where it did not."""
    lowest = [value for r in history.records if (value := r.metrics.get("loss_least", r.loss)) is not None]
    least = min((value for value in (*lowest, record.loss) if value is not None), default=math.nan)
    first = history.first_loss
    if first is None or not least < -RISEN_LOSS * max(abs(first), 1.0):  # a first loss may be zero by chance
        return ""
    fall = "infinity" if least == -math.inf else figure(least)
    return f"Before that the loss fell from {figure(first)} to {fall}: it has no lower limit."


def _choose_remedy(broken: Broken) -> str:
    """Return what to do about what is broken: the data, the loss, or steps that were too large."""
    if broken.part == "batch":
        return CLEAN_DATA
    if broken.part == "loss":
        return LOOK_AT_LOSS
    if GUARDABLE.search(broken.function):
        return GUARD_FUNCTION.format(function=broken.function)
    if "softmax" in broken.function or "attention" in broken.function:
        return LOOK_AT_MASK
    return RESTORE + LOOK_AT_GRADIENTS


def is_broken(record: Record) -> bool:
    """Whether the loss of a record is not finite, or a weight."""
    return (record.loss is not None and not math.isfinite(record.loss)) or bool(_broken_weights(record))


def _broken_weights(record: Record) -> list[int]:
    """Return the weights that are not finite."""
    return _broken(record, "weight", "log10_size") or _broken(record, "weight", "log10_norm")


def _find_cause(history: History, record: Record, weights: list[int], before: Record | None) -> Broken:
    """Return what is known of where numbers broke first."""
    broken, layers = history.broken, history.of("weight")
    if broken is not None and broken.step <= record.step and (before is None or broken.step > before.step):
        return broken
    unknown = Broken(step=record.step, where="", words="")
    if len(weights) == 1 and len(layers) > 1:
        name = layers[weights[0]].name
        words = f"The weights of `{name}` are not finite; those of all other layers are."
        return replace(unknown, where=name, words=words)
    if weights:
        words = f"{len(weights):,} of {pluralise(len(layers), 'weight layer')} are broken already. {FIRST_UNKNOWN}"
        return replace(unknown, words=words)
    for kind, quantity, words in EVIDENCE:
        places = _broken(record, kind, quantity)
        if places:
            name = history.of(kind)[places[-1] if quantity == "log10_gradient" else places[0]].name
            return replace(unknown, words=f"All weights are finite; {words.format(name=name)} {FIRST_UNKNOWN}")
    words = "All weights and all that was measured of the forward are finite: the loss itself, or the data, is not."
    return replace(unknown, words=words, part="loss")


def _broken(record: Record, kind: Kind, quantity: str) -> list[int]:
    """Return the layers, in order, with a figure that is NaN or plus infinity; zero is minus infinity and is fine."""
    return [i for i, value in enumerate(record.of(kind, quantity)) if value is not None and not value < math.inf]


# ---- too high

LOSS_LOST = Alarm(
    code="loss-rising",
    seen="The loss was down to {least:figure} at step {best_step:,} and is {loss:figure} now, {ratio:figure} times as "
    "much; it began at {loss_first:figure}.",
    why="The loss grew far above where it was and does not come back: training diverges. What was learned is lost.",
    advice="Go back to a checkpoint from before step {best_step:,}, lower the learning rate ({lr:figure} now) or clip "
    "gradients (torch.nn.utils.clip_grad_norm_); look whether the data or the targets have changed since.",
)
LOST_RATIO, LOST_SHARE = 4.0, 0.5
"""The mean loss over the least one so far, and over the first, for two records, that say what was learned is lost."""
LOST_AT_HIGHER_RATE_SHARE, HIGHER_RATE_RATIO = 0.25, 1.15
"""The mean loss over the first that is enough where the learning rate has grown since, and by what factor."""
RATE_GREW = replace(
    LOSS_LOST,
    code="lr-too-high",
    why="The learning rate has grown from {lr_then:figure} to {lr:figure} since, and the steps are too large now: the "
    "training diverges.",
    advice="Let the warm-up end at {lr_then:figure} or below, min(1, step / warm-up steps), and look at the schedule; "
    "go back to a checkpoint from before step {best_step:,}.",
)
RATE_ROSE = replace(
    RATE_GREW,
    seen="The learning rate rose from {lr_then:figure} to {lr:figure} by step {since:,}, and {harm}.",
    why="The steps have been too large since then: they undo what was learned, and the training diverges.",
    advice="Keep the learning rate at {lr_then:figure} or below: look at the schedule, and at code that sets the rate, "
    "at step {since:,}. Go back to a checkpoint from before.",
)
LOSS_JUMPED = "the loss jumped to {loss} at step {at:,}, where it had been about {level}"
LOSS_WAS_LOW = "the loss, down to {least} at step {best_step:,}, is {loss} now, {ratio} times as much"
ROSE_RATIO = 2.0
"""The learning rate over the largest one before, at which it has risen at once: schedules come back to that at most."""
ROSE_RECORDS = 3
"""Records with a rate that did not grow, before a rise that is not the end of a warm-up."""
RETURNING_SHARE = 0.9
"""The last of these losses over the first: below it the loss is on its way back."""
LOSS_RISING = Alarm(
    code="loss-rising",
    seen="The loss began at {loss_first:figure} and is {loss:figure}; for {count} records it was above {least:figure}.",
    why="Training has made the model much worse than it was untrained: steps are too large for the curvature, and each "
    "overshoots the one before.",
    advice="Lower the learning rate ({lr:figure} now) by ten, warm it up, or clip gradients "
    "(torch.nn.utils.clip_grad_norm_); go back to a checkpoint from before.",
)
RISEN_RATIO = 10.0
"""The multiple of the largest of the first losses that is an alarm: training has made the model worse than it was.

Losses that play against each other (GANs) rise a few times in healthy runs.
"""


GROWN_TARGETS_RATIO = 3.0
"""The loss of a constant output over that at the start: beyond it the loss rises because the targets have grown."""


def loss_rising(history: History) -> Iterator[Finding]:
    """The loss stays far above where it began, or where it was."""
    targets = history.total("outputs_constant")
    if history.beats_constant and min(targets.last(), default=0.0) > GROWN_TARGETS_RATIO * max(targets.first):
        return  # the targets have grown, as the returns of a policy do
    yield from _loss_lost(history)
    now, start = history.total("loss").lasting(), history.total("loss").first
    if not now or not start or not all(math.isfinite(v) and v > 0.0 for v in (*now, *start)):
        return
    if min(now) >= RISEN_RATIO * max(start):
        rate = max(history.records[-1].lr, default=math.nan)
        words = {"count": len(now), "least": min(now)}
        yield LOSS_RISING.at(history.step, words=words, loss=now[-1], loss_first=start[0], lr=rate)


class RateRise(NamedTuple):
    """A learning rate that rose at once beyond all that it had been.

    Attributes:
        after: the step of the last record before it rose.
        since: the step of the first record with the higher rate.
        before: the rate at `after`.
        rate: the rate at `since`.
    """

    after: int
    since: int
    before: float
    rate: float

    def explains(self, step: float) -> bool:
        """Return whether what happened at a step followed on it."""
        return self.after <= step <= self.since + LASTING_STEPS


def find_rate_rise(history: History) -> RateRise | None:
    """Return the last rise of the learning rate in mid-run; None where there was none, or only a warm-up."""
    rates = [(r.step, max(r.lr)) for r in history.records if r.lr]
    last, largest = None, 0.0
    for index, (step, rate) in enumerate(rates):
        if index >= ROSE_RECORDS and step >= LASTING_STEPS and rate >= ROSE_RATIO * largest > 0.0:
            (_, earlier), (after, before) = rates[index - 2 : index]
            last = RateRise(after, step, before, rate) if before <= HIGHER_RATE_RATIO * earlier else last
        largest = max(largest, rate)
    return last


def rate_rose(history: History) -> Iterator[Finding]:
    """A loss that jumps when the learning rate has just risen far above all that it was."""
    spike = history.spikes.first
    if spike is None or history.has_raised("loss-spike") or history.standing.others:
        return
    rise = find_rate_rise(history)
    if rise is not None and rise.explains(spike.step):
        harm = LOSS_JUMPED.format(loss=figure(spike.loss), at=spike.step, level=figure(spike.level))
        words = {"since": rise.since, "harm": harm, "lr_then": rise.before}
        yield RATE_ROSE.at(history.step, words=words, loss=spike.loss, loss_before=spike.level, lr=rise.rate)


def _loss_lost(history: History) -> Iterator[Finding]:
    """A loss that was low and is high again for two records."""
    records = history.repeated()
    if not any("loss_mean" in record.metrics for record in records):  # losses of single batches, which tell less
        records = history.records[-LOST_RECORDS:]
    means = [(r.step, r.metrics.get("loss_mean", r.loss)) for r in records]
    start, least = history.first_loss, history.least_loss
    if start is None or least is None or not means or history.standing.others:
        return
    yield from _lost_to_constant(history)
    latest = [value for step, value in means if value is not None and math.isfinite(value) and step > least[1]]
    if len(latest) < len(means) or not 0.0 < least[0] < UNLEARNED_SHARE * start:
        return
    returns = latest[-1] < RETURNING_SHARE * latest[0]  # as behind the change from one task to the next
    rate = max(history.records[-1].lr, default=math.nan)
    then = next((max(r.lr, default=math.nan) for r in history.records if r.step >= least[1]), math.nan)
    grew = rate >= HIGHER_RATE_RATIO * then and rate >= history.peak_lr
    share = LOST_AT_HIGHER_RATE_SHARE if grew else LOST_SHARE
    if min(latest) >= max(LOST_RATIO * least[0], share * start) and (grew or not returns):
        words = {"best_step": least[1], "least": least[0], "ratio": latest[-1] / least[0], "lr_then": then}
        rising = _describe_rate_rise(history, least[1], least[0], latest[-1]) if grew else None
        alarm = RATE_GREW if grew else LOSS_LOST
        yield rising or alarm.at(history.step, words=words, loss=latest[-1], loss_first=start, lr=rate)


def _describe_rate_rise(history: History, best_step: int, least: float, loss: float) -> Finding | None:
    """Return the alarm of a rate that rose since the loss was low; None where it did not."""
    rise = find_rate_rise(history)
    if rise is None or rise.since < best_step or not least > 0.0:
        return None
    shown = {"least": figure(least), "loss": figure(loss), "ratio": figure(loss / least)}
    words = {"since": rise.since, "lr_then": rise.before, "harm": LOSS_WAS_LOW.format(best_step=best_step, **shown)}
    return RATE_ROSE.at(history.step, words=words, loss=loss, lr=rise.rate)


LOST_TO_CONSTANT = replace(
    LOSS_LOST,
    seen="The loss was {least:figure} around step {best_step:,}, {share:percent} of what one constant output has, and "
    "is {loss:figure} now: it is no better than a constant output any more.",
    why="What was learned is lost, and is not learned again: steps are too large and the training diverges, or labels "
    "no longer belong to their inputs.",
    advice="Look at the data and the labels since step {best_step:,}: a new source, labels shuffled apart from their "
    "inputs. If they are as before, go back to a checkpoint, lower the learning rate ({lr:figure} now) and warm it up.",
)
LEARNED_SHARE, LOST_RECORDS = 0.85, 4
"""The loss over that of a constant output, at two records in a row, that shows that something was learned; and records
at which it is gone."""


def _lost_to_constant(history: History) -> Iterator[Finding]:
    """A model that was better than a constant output and is not any more."""
    rows = [(r.step, loss, loss / constant) for r, loss, constant in losses_beside_constant(history.records)]
    latest = rows[-LOST_RECORDS:]
    if len(rows) < 2 * LOST_RECORDS or fmean(ratio for *_, ratio in latest) < 1.0 or history.has_raised("loss-rising"):
        return
    if min(ratio for *_, ratio in latest) < GUESSING_SHARE or latest[-1][0] - latest[0][0] < PLAIN_STEPS:
        return
    learned = [row for before, row in pairwise(rows) if max(before[2], row[2]) <= LEARNED_SHARE]
    if learned:
        step, least, ratio = min(learned, key=lambda row: row[2])
        words = {"best_step": step, "least": least, "share": ratio}
        rate = max(history.records[-1].lr, default=math.nan)
        yield _describe_rate_rise(history, step, least, latest[-1][1]) or LOST_TO_CONSTANT.at(
            history.step, words=words, loss=latest[-1][1], lr=rate
        )


UNLEARNED_SHARE = 0.9
"""A share of the first loss: while the loss is above it, nothing has been learned."""


LOSS_SPIKE = Alarm(
    code="loss-spike",
    seen="The loss was {loss:figure} at step {at:,}; before it was about {loss_before:figure}.",
    why="One such step can undo much of what was learned: a batch unlike the others, or a step that was too large.",
    advice="Look at the batch of this step, clip gradients (torch.nn.utils.clip_grad_norm_), lower the learning rate "
    "or warm it up.",
)


LOSS_OUTLIER = replace(
    LOSS_SPIKE, seen="{outlier}", advice=LOOK_AT_BATCH.removesuffix(" Load the last checkpoint with finite weights.")
)


def loss_spike(history: History) -> Iterator[Finding]:
    """A loss far above those around it, at whatever step."""
    spike = history.spikes.first
    if history.has_raised("loss-spike"):
        return
    outlier = describe_outlier(history, history.records[-1])
    if outlier:
        yield LOSS_OUTLIER.at(history.step, words={"outlier": outlier})
    if spike is None or outlier or (history.standing.others and spike.level <= 0.0):
        return  # losses of players, on both sides of zero, jump
    yield LOSS_SPIKE.at(
        history.step, loss=spike.loss, loss_before=spike.level, at=spike.step, records=history.spikes.count
    )


# ---- a curvature that the learning rate is too large for

EDGE_OF_STABILITY = Alarm(
    code="edge-of-stability",
    severity=Severity.INFO,
    seen="At the last {looks} looks the learning rate times the largest curvature of the loss was at least "
    "{effective_sharpness:.3g}; at 2 plain gradient descent no longer settles in a bowl of that curvature.",
    why="Steps overshoot along the sharpest direction. Near 2 this is usual: full-batch training often drives the "
    "curvature up to this edge and stays there, with a loss that falls over many steps but not at every one. Momentum "
    "m moves the edge to 2 (1 + m); Adam and its like have an edge of their own, for the curvature in their scaled "
    "coordinates.",
    advice="If the loss still falls, nothing has to be done. If it rises or oscillates, lower the learning rate, "
    "lengthen the warm-up, or normalize the layer before the sharpest direction.",
)
FAR_BEYOND_EDGE = replace(EDGE_OF_STABILITY, severity=Severity.WARNING)
EDGE = 2.0
"""The learning rate times the largest curvature, beyond which gradient descent leaves a bowl."""
FAR_FROM_EDGE = 4.0
"""Twice the edge: so far beyond it, training is no longer near the edge."""
EDGE_LOOKS = 3
"""The latest looks that must all be beyond the edge."""


def edge_of_stability(history: History) -> Iterator[Finding]:
    """A largest curvature that stays above 2 over the learning rate."""
    products = [r.metrics["effective_sharpness"] for r in history.records if "effective_sharpness" in r.metrics]
    looks = products[-EDGE_LOOKS:]
    if len(looks) < EDGE_LOOKS or not min(looks) > EDGE:
        return
    least, sharpness = min(looks), history.total("sharpness").now
    alarm = FAR_BEYOND_EDGE if least > FAR_FROM_EDGE else EDGE_OF_STABILITY
    numbers: dict[str, Any] = {"effective_sharpness": least} | ({} if sharpness is None else {"sharpness": sharpness})
    yield alarm.at(history.step, words={"looks": EDGE_LOOKS}, **numbers)


OVERFITTING = Alarm(
    code="overfitting",
    seen="`{name}` rises since step {best_step:,}: it was {best:figure} there and is {now:figure} at step {at:,}, "
    "while the training loss fell from {loss_then:figure} to {loss_now:figure}.",
    why="The model learns the training data by heart (overfitting): what it gains there does not hold for other data.",
    advice="Keep the checkpoint of step {best_step:,} (early stopping), or regularise: weight decay, dropout, "
    "augmentation, a smaller model, more data.",
)
VALIDATION_WORSE = replace(
    OVERFITTING,
    code="validation-worse",
    seen="`{name}` was best at step {best_step:,} with {best:figure} and is {now:figure} at step {at:,}: the "
    "validation is clearly worse than it was.",
    why="What the model had learned of the validation data is being lost.",
    advice="Go back to the checkpoint of step {best_step:,}; look at the data and the labels since then (a new source, "
    "another numbering of classes), stop there or regularise, and lower the learning rate.",
)
VALIDATION_LOST = replace(
    VALIDATION_WORSE,
    seen="`{name}` became better from log to log, down to {best:figure} at step {best_step:,}, and is {now:figure} at "
    "step {at:,}, worse than at the first log.",
    why="The network that is validated has changed at once: its running statistics, its weights or the data.",
    advice="Look for forwards in train mode on other data, which move the running statistics of BatchNorm "
    "(torch.optim.swa_utils.update_bn renews them), for code that writes into weights, and look at the data.",
)
LOST_AT_ONCE_RATIO, STEADY_RATIO, STEADY_LOGS = 3.0, 1.05, 5
"""A validation loss over the best one just before it, the largest rise from log to log until then, and how many logs
there must be, that tell at once that something has changed."""
VALIDATION_APART = replace(
    OVERFITTING,
    code="validation-apart",
    seen="`{name}` is {now:figure} at step {at:,}, no better than the {loss_then:figure} of the untrained model, while "
    "the training loss fell to {loss_now:figure}.",
    why="The network that is validated is not the one that is trained, or the validation data are not like the "
    "training data.{more}",
    advice="{remedy}",
)
LEARNED_BY_HEART = replace(
    OVERFITTING,
    seen="`{name}` has not become better since step {best_step:,}, where it was {best:figure}; it is {now:figure} at "
    "step {at:,}, while the loss of training is {loss_now:figure}.",
)
BATCH_NORM_WORDS = (
    " Its BatchNorms use their running statistics in eval mode, and those may not describe the data.",
    "Compare the outputs for one training batch in train mode and in eval mode: if they differ, look at the momentum "
    "and the running statistics of BatchNorm (torch.optim.swa_utils.update_bn), else at how the validation data are "
    "prepared.",
)
OTHER_WORDS = (
    " The model may have learned its few samples by heart (overfitting).",
    "Look at how the validation data are prepared, and at the training data: shuffling, labels, too few samples; "
    "regularise (weight decay, dropout, augmentation).",
)
VALIDATION_CODES = ("overfitting", "validation-worse", "validation-apart")
HELD_OUT_NAME = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|dev|test|heldout|held_out)[a-z]*(?:[^a-z]|$)")
"""How the name of a figure says that it is of other data than those of training."""
LOSS_NAME = re.compile(r"loss|nll|mse|mae|perplexity|ppl|cross_?entropy|(?:^|[^a-z])(?:b?ce|err|error)(?:[^a-z]|$)")
SAME_UNITS_NAME = re.compile(r"loss|nll|cross_?entropy|(?:^|[^a-z])b?ce(?:[^a-z]|$)")
"""Figures that can be compared with the loss of training."""
ACCURACY_NAME = re.compile(r"acc|f1|auc|(?:^|[^a-z])map|iou|r2|dice|bleu|precision|recall")
WORSE_LOGS = 3
"""How many of the latest validations must all be worse than the best: one odd validation is no trend."""
RISEN_SHARE, RISEN_CLEARLY_SHARE = 1.1, 1.25
"""The least and the last of these over the best loss; noise of a validation of a few hundred samples is 5 %."""
NOT_BETTER_SHARE, BY_HEART_SHARE, FAR_SHARE = 1.02, 0.03, 0.2
"""A validation loss over its best that is not better; the loss of training over the first one, and over the validation,
that says that the samples are known by heart; the validation loss over the first loss of training that is far."""
RISEN_FAR_SHARE = 1.5
"""The last loss over the best one that is an alarm though the accuracy holds: below it outputs are only too sure."""
ACCURACY_FALL = 0.1
"""By how much accuracies must have fallen."""


def is_held_out(name: str) -> bool:
    """Return whether a figure is by its name of other data than those of training."""
    return HELD_OUT_NAME.search(name.lower()) is not None


def is_held_out_loss(name: str) -> bool:
    """Return whether a figure is by its name a loss on other data than those of training, in the units of its loss."""
    return is_held_out(name) and SAME_UNITS_NAME.search(name.lower()) is not None


VALIDATED_IN_TRAIN_MODE = Alarm(
    code="eval-mode",
    seen="The last {count} validations came behind forwards without gradients in train mode, and `{where}` drops "
    "{share:percent} of its values there.",
    why="In train mode dropout is on: what is validated is not the network that will be used, and looks worse than it "
    "is; BatchNorm takes the validation data into its running statistics.",
    advice="Call model.eval() in front of every validation, and model.train() behind it.",
)
REWARD_FALLS = Alarm(
    code="reward-falls",
    seen="`{name}` falls: it was {before:figure} in the first fifth of the {count} times it was logged and is "
    "{now:figure} in the last.",
    why="Training makes the model worse at what it is trained for: the sign of the loss may be wrong (minimised where "
    "it should be maximised), or steps are too large.",
    advice="Look at the sign of the loss: that of a policy has a minus sign in front, -(log_prob * advantage).mean(). "
    "If it is right, lower the learning rate.",
)
REWARD_NAME = re.compile(r"(?:^|[^a-z])(?:reward|return)s?(?:[^a-z]|$)")
"""Figures that training is to raise; a score may be one that is to fall."""
JUDGED_REWARDS, FALLEN_SHARE, FALLEN_ERRORS = (60, 120, 240), 0.2, 5.0
"""How often a reward is logged when it is judged, and its fall over itself and over the error of that."""


def _reward_falls(history: History, step: int) -> Iterator[Finding]:
    """A reward that falls below where it began."""
    for name, pairs in history.validations.items():
        if len(pairs) not in JUDGED_REWARDS or not REWARD_NAME.search(name.lower()):
            continue
        values = [value for _, value in pairs]
        if not all(map(math.isfinite, values)):
            continue
        fifth = len(values) // 5
        first, middle, last = values[:fifth], values[2 * fifth : 3 * fifth], values[-fifth:]
        before, now = fmean(first), fmean(last)
        error = math.hypot(stdev(first), stdev(last)) / math.sqrt(fifth)
        sinks = before > fmean(middle) >= now - error
        if sinks and before - now > max(FALLEN_SHARE * abs(before), FALLEN_ERRORS * error):
            yield REWARD_FALLS.at(step, words={"name": name, "count": len(values)}, before=before, now=now)


def validation(history: History, step: int) -> Iterator[Finding]:
    """A validation that becomes worse, or is none; a reward that falls."""
    yield from _reward_falls(history, step)
    share, where = history.standing.dropout
    if (count := history.standing.validated_in_train_mode) >= 2 and not history.has_raised("eval-mode"):
        yield VALIDATED_IN_TRAIN_MODE.at(step, where, {"count": count, "where": where}, share=share)
    for name, pairs in history.validations.items():
        figures = [(at, value) for at, value in pairs if math.isfinite(value)]
        if len(figures) < WORSE_LOGS or any(
            finding.code in VALIDATION_CODES and finding.severity > Severity.INFO for finding in history.findings
        ):
            continue
        if not is_held_out(name):
            continue
        if LOSS_NAME.search(name.lower()):
            yield from _judge_losses(history, step, name, figures)
        elif ACCURACY_NAME.search(name.lower()):
            best_step, best = max(figures, key=lambda pair: pair[1])
            latest = [value for at, value in figures[-WORSE_LOGS:] if at > best_step]
            whole = 1.0 if best <= 1.0 else 100.0
            before = [value for at, value in figures if at <= best_step]
            recovered = max(
                (one - two for one, two in pairwise(before)), default=0.0
            )  # the largest fall before the best
            fall = max(ACCURACY_FALL * whole, recovered)
            if best <= whole and len(latest) == WORSE_LOGS and max(latest) <= best - fall:
                words = {"name": name, "best_step": best_step, "at": figures[-1][0]}
                yield VALIDATION_WORSE.at(step, words=words, best=best, now=latest[-1])


def _judge_losses(history: History, step: int, name: str, figures: Sequence[tuple[int, float]]) -> Iterator[Finding]:
    """Compare the latest validation losses with the best one, and with the losses of training."""
    best_step, best = min(figures, key=lambda pair: pair[1])
    latest = [value for at, value in figures[-WORSE_LOGS:]]
    then, now = _training_loss(history, best_step), _training_loss(history, history.step if history.records else 0)
    start = history.first_loss
    words = {"name": name, "best_step": best_step, "at": figures[-1][0], "loss_then": then, "loss_now": now}
    worse = figures[-WORSE_LOGS][0] > best_step and min(latest) >= RISEN_SHARE * best > 0.0
    steady = len(figures) > STEADY_LOGS and figures[-2][0] == best_step and best > 0.0
    steady = steady and all(two <= STEADY_RATIO * one for (_, one), (_, two) in pairwise(figures[:-1]))
    if steady and latest[-1] >= max(LOST_AT_ONCE_RATIO * best, figures[0][1]):
        yield VALIDATION_LOST.at(step, words=words, best=best, now=latest[-1])
        return
    before = [value for at, value in figures if at <= best_step and value > 0.0]
    recovered = max((two / one for one, two in pairwise(before)), default=1.0)  # the largest rise before the best
    if (
        worse
        and latest[-1] >= max(RISEN_CLEARLY_SHARE, recovered) * best
        and max(latest) - best > 0.02 * (start or 0.0)
    ):
        falls = then is not None and now is not None and now < then
        alarm = OVERFITTING if falls else VALIDATION_WORSE
        if latest[-1] < RISEN_FAR_SHARE * best and _accuracy_holds(history, best_step):
            alarm = replace(alarm, severity=Severity.INFO)
        yield alarm.at(step, words=words, best=best, now=latest[-1])
        return
    # the observed loss may have another scale, or other terms, than that of the validation: that of outputs has not
    losses = [loss for r in history.records if (loss := r.total.get("outputs_own"))]
    start, now = (losses[0], median(losses[-WORSE_LOGS:])) if len(losses) > WORSE_LOGS else (None, None)
    if not is_held_out_loss(name):
        return
    stays = figures[-WORSE_LOGS][0] > best_step and min(latest) >= NOT_BETTER_SHARE * best > 0.0
    by_heart = start is not None and now is not None and 0.0 < now <= BY_HEART_SHARE * min(start, latest[-1])
    if by_heart and stays and min(latest) >= FAR_SHARE * (start or 0.0):
        yield LEARNED_BY_HEART.at(step, words=words | {"loss_now": now}, best=best, now=latest[-1])
        return
    if start is not None and now is not None and 0.0 < now < start / 2 and min(latest) >= start:
        norms = any(layer.family == "batch_norm" for layer in history.of("normalizer"))
        more, remedy = BATCH_NORM_WORDS if norms else OTHER_WORDS
        words |= {"loss_then": start, "loss_now": now, "more": more, "remedy": remedy}
        yield VALIDATION_APART.at(step, words=words, best=best, now=latest[-1])


def _accuracy_holds(history: History, best_step: int) -> bool:
    """Return whether a validation accuracy is logged too and is no worse than where the loss was best."""
    for name, pairs in history.validations.items():
        if is_held_out(name) and ACCURACY_NAME.search(name.lower()):
            then = [value for at, value in pairs if at <= best_step]
            return bool(then) and pairs[-1][1] >= then[-1]
    return False


def _training_loss(history: History, step: int) -> float | None:
    """Return the mean training loss around a step: of the first record at or behind it, or the last one."""
    means = [(r.step, value) for r in history.records if (value := r.metrics.get("loss_mean", r.loss)) is not None]
    return next((value for at, value in means if at >= step), means[-1][1] if means else None)
