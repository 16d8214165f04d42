"""Alarms about steps that teach nothing: a rate of zero, weights that stand still, losses of a constant output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any

from ....core.finding import Finding, percent
from ....report.words import pluralise
from ..courses import PLAIN_STEPS
from ..history import Alarm, History, losses_beside_constant
from ..record import Record
from .loss import describe_large_inputs, is_held_out_loss

# ---- the learning rate

RATE_ZERO = Alarm(
    code="rate-zero",
    seen="The learning rate is 0 at step {first:,} and at step {last:,}.",
    why="A step of rate zero changes nothing.",
    advice="Look at the schedule: a warm-up that never rises, an integer division, a scheduler that is stepped once "
    "for each batch though it counts epochs, or one that has ended. Raise the learning rate.",
)
RATE_DECAYED = Alarm(
    code="rate-decayed",
    seen="The learning rate fell from {peak:figure} to {lr:figure} by step {since:,}, and the loss is still "
    "{loss:figure} ({loss_first:figure} at first).",
    why="The schedule has brought the learning rate to almost nothing too early: steps hardly move the weights from "
    "here on.",
    advice="Step the scheduler once an epoch if it counts epochs (step_size, milestones, T_max), or make it as long as "
    "the run; raise the learning rate again.",
)
ENDED = ((1e-3, 0.2, 0.1), (0.05, 0.4, 0.4))
"""Two ways in which a schedule ends too early: the rate is below the first number times the largest rate, for more than
the second number times the run so far, while more than the third number times the first loss is left. A cosine is
below a thousandth of its largest rate in 2 % of its steps, and below a twentieth in 14 %."""


def rate_zero(history: History) -> Iterator[Finding]:
    """A learning rate of zero in all groups, for two records."""
    rates = [(r.step, max(r.lr)) for r in history.records[-12:] if r.lr]
    zeros = rates[max((i + 1 for i, (_, rate) in enumerate(rates) if rate != 0.0), default=0) :]
    if len(zeros) >= 2 and zeros[-1][0] - zeros[0][0] >= PLAIN_STEPS and not history.has_raised("rate-decayed"):
        yield RATE_ZERO.at(history.step, words={"first": zeros[0][0], "last": zeros[-1][0]}, lr=0.0)


def rate_decayed(history: History) -> Iterator[Finding]:
    """A schedule that ended long before the run, while the loss is not fitted."""
    for share, time_share, left in ENDED:
        for finding in _rate_ended(history, share, time_share, left):
            yield finding
            return


def _rate_ended(history: History, share: float, time_share: float, left: float) -> Iterator[Finding]:
    """A rate that has been below a share of the largest for a share of the run, while so much of the loss is left."""
    limit, low = share * history.peak_lr, None
    for record in reversed(history.records):
        if not record.lr or not max(record.lr) < limit:
            break
        low = record
    start, now = history.first_loss, _recent_loss(history)
    if low is None or low.step == 0 or now is None or not start:
        return
    passed = history.step - low.step
    if passed < max(PLAIN_STEPS, time_share * history.step) or now <= left * start:
        return
    _, fall, error = _measure_progress([r for r in history.records if r.step <= low.step], 0)
    if low.step < STAYS_STEPS or not fall <= 3 * error or _improved_before_decay(history):
        # else a schedule may have waited for the loss to be flat
        words = {"since": low.step}
        rate = max(history.records[-1].lr)
        yield RATE_DECAYED.at(history.step, words=words, peak=history.peak_lr, lr=rate, loss=now, loss_first=start)


def _improved_before_decay(history: History) -> bool:
    """Return whether a validation still became better each time when the learning rate fell for the first time."""
    decayed = next((r.step for r in history.records if r.lr and max(r.lr) < history.peak_lr / 3), None)
    for name, pairs in history.validations.items():
        before = [value for at, value in pairs if decayed is not None and at <= decayed]
        if is_held_out_loss(name) and len(before) > 3:
            return all(two < one for one, two in pairwise(before[-4:]))
    return False


FITTED_SHARE = 0.1
"""A share of the first loss: below it little is left to learn."""

# ---- weights that stand still, or are put back

WEIGHTS_STILL = Alarm(
    code="weights-still",
    seen="A step changes the weights by {log10_step:power} of their size at most; in {steps:,} steps they have hardly "
    "moved. The learning rate is {lr:figure}, the norm of the gradient {log10_gradient:power}.",
    why="{cause}",
    advice="{remedy}",
)
RATE_SMALL = (
    "The learning rate is too low for a gradient of this size: nothing is learned.",
    "Raise the learning rate (tenfold and more), and look at the schedule.",
)
GRADIENT_SMALL = (
    "The gradient is too small for steps of this learning rate: the loss is scaled down, or clipping cuts each "
    "gradient to almost nothing.",
    "Look for a factor or a mean too many in the loss, and raise the limit of clip_grad_norm_ or remove the clipping; "
    "or raise the learning rate, or use Adam, which does not see the scale of the loss.",
)
STILL_LOG10, STILL_FLAT_LOG10 = -5.3, -4.0
"""log10 of a step over the weights: healthy runs have -4 to -1. The second is an alarm where the loss stays as well."""
SLOW_STEPS, SLOW_PATH = 150, 0.03
"""Steps after which the weights should have moved by more than so much of their size, in all, also in a warm-up."""
STOPPED_LOG10, STOPPED_GRADIENT_LOG10 = -4.7, -2.5
"""log10 of a step over the weights, and of gradient times weights over the loss, at which training has come to a halt:
gradients of batches that differ do not become this small by themselves while the loss is not fitted."""
STOPPED = replace(
    WEIGHTS_STILL,
    seen="A step has changed the weights by {log10_step:power} of their size at most since step {since:,}, though the "
    "loss is still {loss:figure}. The learning rate is {lr:figure}, the norm of the gradient {log10_gradient:power}; "
    "it was {log10_gradient_first:power} at first.",
)
STILL_FLAT_STEPS, FLAT_SHARE = 60, 0.98
"""Steps after which the loss must have left its start, and the share of the first loss that it must be below."""
SMALL_GRADIENT_LOG10 = -2.0
"""log10 of a gradient over that which the loss has without factors: below it the gradient is at fault, not the rate."""

WEIGHTS_PUT_BACK = Alarm(
    code="weights-put-back",
    seen="The last step changed the weights by {log10_step:power} of their size, but from record to record they moved "
    "by {log10_drift:power} in {steps} steps.",
    why="Something overwrites the weights after each step: updates do not last, and nothing is learned.",
    advice="Look for code that copies weights back between steps: averaged weights (EMA) that are swapped in and never "
    "out, load_state_dict inside of the loop, a reset of parameters.",
)
LASTING_SHARE_LOG10, OSCILLATING_SHARE_LOG10 = -1.5, -3.0
"""log10 of the way between two records over that of one step: of a run that learns nothing, and of one that has learned
and whose steps may oscillate."""


def weights_still(history: History) -> Iterator[Finding]:
    """Weights that no step has moved by more than a trace since the run began, though the rate is not zero."""
    records = [r for r in history.records if r.lr and max(r.lr) > 0.0 and r.total.get("log10_step") is not None]
    if len(records) < 2 or records[-1] is not history.records[-1] or history.step < PLAIN_STEPS:
        return
    rates = [max(r.lr) for r in records]
    if rates[-1] < history.peak_lr / 2 or history.has_raised("weights-put-back"):
        return  # the end of a schedule
    steps = [value for r in records if (value := r.total.get("log10_step")) is not None]
    gradient = records[-1].total.get("log10_gradient")
    drifts = [value for r in history.records if (value := r.total.get("log10_drift")) is not None]
    path = sum(10.0 ** min(value, 300.0) for value in drifts)
    unmoved = history.step >= SLOW_STEPS and len(drifts) > 1 and path <= SLOW_PATH
    begun, now = history.first_loss, _recent_loss(history)
    slow = False
    if unmoved and history.is_unlearned and begun is not None and now is not None:
        slow = now >= FLAT_SHARE * max(begun, history.records[0].loss or 0.0)
    if rates[-1] > rates[-2] and not slow:
        return  # a warm-up
    if gradient is None or gradient == -math.inf or not math.isfinite(max(steps)):
        return  # there is no gradient: that has an alarm of its own
    flat = history.step >= STILL_FLAT_STEPS and _is_flat(history)
    compared = losses_beside_constant(records[-1:])
    if compared and compared[0][1] < compared[0][2] / 2:
        return  # it is fitted: gradients are small for a good reason
    loss = records[-1].total.get("outputs_own") or _mean_loss(records[-1])
    relative = _relative_gradient(records[-1])
    cause, remedy = GRADIENT_SMALL if relative is not None and relative < SMALL_GRADIENT_LOG10 else RATE_SMALL
    words = {"steps": history.step, "cause": cause, "remedy": remedy}
    numbers: dict[str, Any] = {"lr": rates[-1], "log10_gradient": gradient}
    stopped = _stopped_records(history)
    if slow or max(steps) <= (STILL_FLAT_LOG10 if flat else STILL_LOG10):
        yield WEIGHTS_STILL.at(history.step, words=words, log10_step=max(steps), **numbers)
    elif stopped:
        first = next((value for r in records if (value := r.total.get("log10_gradient")) is not None), math.nan)
        largest = max(r.total.get("log10_step") or -math.inf for r in stopped)
        words |= {"since": stopped[0].step, "loss": loss}
        yield STOPPED.at(history.step, words=words, log10_step=largest, log10_gradient_first=first, **numbers)


def _relative_gradient(record: Record) -> float | None:
    """Return log10 of gradient times weights over the loss; None where one is not known."""
    gradient, weight = (record.total.get(f"log10_{name}") for name in ("gradient", "weight"))
    loss = record.total.get("outputs_own") or _mean_loss(record)
    if gradient is None or weight is None or loss is None or not 0.0 < loss < math.inf:
        return None
    return gradient + weight - math.log10(loss)


def _stopped_records(history: History) -> list[Record]:
    """Return the last records if none of them moves the weights any more though their batches differ; else none."""
    records = history.repeated()
    means = {r.total.get("input_mean") for r in records}
    for record in records:
        step, relative = record.total.get("log10_step"), _relative_gradient(record)
        if step is None or relative is None or record.total.get("outputs_own") is None:
            return []
        if step > STOPPED_LOG10 or not -math.inf < relative <= STOPPED_GRADIENT_LOG10:
            return []
    return records if len(means) == len(records) and None not in means else []


OVERWRITTEN = replace(
    WEIGHTS_PUT_BACK,
    seen="Between the steps of the optimizer something else writes into {names}, and after {steps:,} steps the loss is "
    "no better than one constant output, or than it was at first.",
    why="Something overwrites the weights: what steps do does not last, and nothing is learned.",
    advice="Look for code that writes into weights between steps: averaged weights (EMA) that are swapped in and never "
    "out, load_state_dict inside of the loop, a constraint on norms that is far too tight, a reset of parameters.",
)
OVERWRITTEN_STEPS = 100
"""Steps without any progress before what is written into weights is taken for the cause."""


def weights_put_back(history: History) -> Iterator[Finding]:
    """Weights that a step moves and that are where they were at the next record."""
    records = history.repeated()
    steps = [r.total.get("log10_step") for r in records]
    # a way lies between two steps that were measured: the rate may have changed at one of them
    smaller = [None if one is None or two is None else min(one, two) for one, two in pairwise(steps)]
    pairs = list(zip(smaller, (r.total.get("log10_drift") for r in records[1:]), strict=True))
    if not records or history.step - records[0].step < PLAIN_STEPS or history.has_raised("weights-put-back"):
        return
    written = [name for name, since in history.standing.overwritten.items() if since.records >= len(records)]
    unlearned = history.is_unlearned and (bool(history.over_constant()) or not _had_learned(history))
    if written and unlearned and history.step >= OVERWRITTEN_STEPS and not history.standing.others:
        more = f" (and {pluralise(len(written) - 1, 'other parameter')})" if len(written) > 1 else ""
        words = {"steps": history.step, "names": f"`{written[0]}`{more}"}
        yield OVERWRITTEN.at(history.step, written[0].rpartition(".")[0], words, parameters=len(written))
        return
    limit = OSCILLATING_SHARE_LOG10 if _had_learned(history) else LASTING_SHARE_LOG10
    limit += 0.5 * math.log10(max((history.step - history.records[-2].step) / PLAIN_STEPS, 1.0))
    if all(a is not None and b is not None and a > -12.0 and b < a + limit for a, b in pairs):
        step, drift = pairs[-1]
        words = {"steps": history.step - history.records[-2].step}
        yield WEIGHTS_PUT_BACK.at(history.step, words=words, log10_step=step, log10_drift=drift)


# ---- steps that are too large, and a loss that is no better than that of a constant

NO_BETTER = Alarm(
    code="no-better-than-constant",
    seen="After {steps:,} steps the loss is {own:figure} and does not fall; one constant output would have "
    "at most {constant:figure}. The weights have moved, and outputs depend on the inputs.",
    why="The model does no better than guessing: what it puts out is worth no more than a constant that knows how "
    "often each target comes.{more}",
    advice="Look at the data and the labels: do labels belong to their inputs (shuffled apart, a wrong index), and do "
    "inputs reach the outputs? Train one batch alone: if that is not fitted either, the architecture or the learning "
    "rate is at fault.",
)
TARGETS_FAR = Alarm(
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
TOO_LARGE_STEPS = Alarm(
    code="lr-too-high",
    seen="A step changed the weights by {log10_step:power} of their size (in healthy runs by a hundredth or less), and "
    "after {steps:,} steps the loss is {loss:figure}; it began at {loss_first:figure}.",
    why="The learning rate is too high: the steps are too large, each undoes the one before, and nothing is learned."
    "{more}",
    advice="Lower the learning rate to a hundredth of {lr:figure} and begin again, or add a warm-up.",
)
OUTPUTS_THROWN = replace(
    TOO_LARGE_STEPS,
    seen="The first step changed the weights by {log10_step:power} of their size (in healthy runs by a hundredth or "
    "so), the loss rose above its start of {loss_first:figure}, and since then outputs are the same for every sample; "
    "the loss is {loss:figure} after {steps:,} steps.",
    why="The learning rate is too high for the first steps: they threw the weights to where outputs hardly depend on "
    "the inputs.{more}",
    advice="Warm the learning rate up over some hundred steps, or lower it to a tenth of {lr:figure} and begin again.",
)
THROWN_FIRST_STEP_LOG10, THROWN_LOSS_RATIO, THROWN_DIFFERENCE_RATIO = -1.4, 1.2, 0.1
"""log10 of the first step over the weights, the largest of the first losses over the first one, and the difference of
outputs between samples over that of the untrained model, which tell together that the first steps were too large."""
INPUTS_USED_SHARE = 0.03
"""The deviation of outputs over samples, over their size: below it the inputs hardly matter yet, as on the plateaus on
which deep networks begin, which last for hundreds of steps and end of themselves."""
STAYS_STEPS = 100
"""Steps without any progress before that is said of outputs that were compared with a constant."""
MIN_PATH = 0.3
"""The lengths of all steps, over the size of the weights, that should have led somewhere."""
NO_BETTER_SHARE, SURELY_SHARE = 0.99, 0.978
"""The loss over that of the best constant, and the loss less twice its error: in healthy runs too there may be little
to learn, and a text that is almost random is learned to 0.98."""
STILL_FALLING_SHARE = 0.02
"""The fall of the loss between the third and the last quarter of a run, over the loss, that may hide in the noise."""
SETTLED_STEP_LOG10 = -2.0
"""log10 of a step over the weights below which a run of a small model has found where it stays."""
THROWN_STEP_LOG10, THROWN_AT_ONCE_LOG10 = -0.8, -0.3
"""log10 of a step over the weights: a sixth of them at the median of the first records, half of them in one of two."""


def steps_too_large(history: History) -> Iterator[Finding]:
    """First steps that are a large part of the weights, and nothing that is learned since."""
    if history.standing.others or any(map(history.has_raised, LOSS_EXPLAINED)):
        return
    begun, sizes = _steps_at_rate(history), _first_step_sizes(history)
    now, start = _recent_loss(history), history.first_loss
    if now is None or start is None or not sizes:
        return
    large, began_at = max(sizes[:2]), max(start, history.records[0].loss or 0.0)
    thrown = len(sizes) >= 2 and (median(sizes) >= THROWN_STEP_LOG10 or large >= THROWN_AT_ONCE_LOG10)
    lost = now >= began_at > 0.0 and (begun >= STAYS_STEPS / 2 or large >= THROWN_AT_ONCE_LOG10)
    latest = history.total("log10_step").last()
    settled = bool(latest) and max(latest) < SETTLED_STEP_LOG10 and now <= began_at  # there was little to learn
    stays = begun > 2 * PLAIN_STEPS and now >= 0.9 * start > 0.0 and not _had_learned(history) and not settled
    # two losses of single batches may differ by as much in a healthy run
    has_many_losses = len(history.records) > 2 or history.records[-1].metrics.get("loss_count", 1.0) >= PLAIN_STEPS
    is_clear = has_many_losses or large >= THROWN_AT_ONCE_LOG10
    words = {"steps": history.step, "more": describe_large_inputs(history)}
    first = min(start, history.records[0].loss or start)  # steps this large may have thrown the loss at once
    numbers: dict[str, Any] = {"loss": now, "loss_first": first, "lr": max(history.records[-1].lr, default=math.nan)}
    if _outputs_thrown(history, start):
        yield OUTPUTS_THROWN.at(history.step, history.standing.fastest, words, log10_step=large, **numbers)
    elif thrown and is_clear and begun >= 2 * PLAIN_STEPS and (lost or stays):
        yield TOO_LARGE_STEPS.at(
            history.step, history.standing.fastest, words, log10_step=max(large, median(sizes)), **numbers
        )


def no_better_than_constant(history: History) -> Iterator[Finding]:
    """A loss that is where one constant output would be, though the weights have moved."""
    if history.standing.others or any(map(history.has_raised, LOSS_EXPLAINED)):
        return  # losses that play against each other stay where they are
    begun, sizes = _steps_at_rate(history), _first_step_sizes(history)
    now, start = _recent_loss(history), history.first_loss
    if begun < STAYS_STEPS or now is None or start is None or not sizes:
        return
    words: dict[str, Any] = {"steps": history.step, "more": describe_large_inputs(history)}
    bound, squares = _bound_loss_of_constant(history), _compare_squares(history)
    far = _find_far_targets(history)
    if far is not None:
        yield far
    elif bound is not None:
        level, fall, error = _measure_progress(history.records, history.step - begun)
        if squares is not None:
            (level, fall, error), bound = squares
        hidden = STILL_FALLING_SHARE if begun < 2 * STAYS_STEPS else 2 * STILL_FALLING_SHARE
        certain = 2 * error <= hidden * level and fall <= 2 * error
        moved = begun * 10.0 ** median(sizes) >= MIN_PATH
        # the mean of both parts has half the error of their difference
        if certain and moved and level >= NO_BETTER_SHARE * bound and level - error >= SURELY_SHARE * bound:
            yield NO_BETTER.at(history.step, words=words, own=level, constant=bound)


def _compare_squares(history: History) -> tuple[tuple[float, float, float], float] | None:
    """Return the progress of squared errors as `_measure_progress` has it, and the loss of a constant output.

    Both losses rise and fall with the targets of a batch, so that their difference on the same batches says more than
    either. None where there are too few, or the loss is another one.
    """
    rows = [
        (loss, constant, record.loss / loss)
        for record, loss, constant in losses_beside_constant(history.records)
        if loss and record.loss
    ]
    rows = rows[len(rows) // 2 :]
    if len(rows) < 2 * MIN_CONSTANTS or history.records[-1].total.get("outputs_kinds") is not None:
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
    if len(rows) <= MIN_CONSTANTS or history.records[-1].total.get("outputs_kinds") is not None:
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
    return TARGETS_FAR.at(history.step, words=words, own=late, constant=constant)


def _first_step_sizes(history: History) -> list[float]:
    """Return log10 of the first steps that were measured, over the weights."""
    sizes = (r.total.get("log10_step") for r in history.records[:8])
    return [size for size in sizes if size is not None and math.isfinite(size)]


def _outputs_thrown(history: History, start: float) -> bool:
    """Whether large first steps made the loss rise, and outputs have hardly depended on the inputs since."""
    first, differ = history.records[0].total.get("log10_step"), history.total("outputs_differ")
    early = [
        r.metrics.get("loss_largest")
        for r in history.records[:8]
        if r.step <= 3 * PLAIN_STEPS or r is history.records[1]
    ]
    peak = max((value for value in early if value is not None and math.isfinite(value)), default=0.0)
    latest = differ.last(2, 2 * PLAIN_STEPS)
    if first is None or not differ.first or not latest or not first >= THROWN_FIRST_STEP_LOG10:
        return False
    lost = max(latest) <= min(THROWN_DIFFERENCE_RATIO * differ.first[0], INPUTS_USED_SHARE)
    return lost and peak >= THROWN_LOSS_RATIO * start > 0.0 and history.is_unlearned


LOSS_EXPLAINED = (
    "weights-still", "weights-put-back", "rate-zero", "rate-decayed", "no-gradient-at-step", "loss-rising",
    "lr-too-high", "decay-too-strong", "strong-dropout", "one-class", "shapes-broadcast", "negated-loss",
    "no-better-than-constant",
)  # fmt: skip
"""Alarms that say why a loss stays where it is."""


def _bound_loss_of_constant(history: History) -> float | None:
    """Return an upper estimate of the loss of the best constant output, in the units of the loss that is observed.

    None where it says nothing: the loss has other terms, outputs hardly depend on the inputs yet, or there are too few
    targets to estimate how often each comes.
    """
    rows = [
        (r.loss / loss, constant, r.total.get("outputs_differ") or 0.0)
        for r, loss, constant in losses_beside_constant(history.records[-MANY_CONSTANTS:])
        if loss and r.loss
        if (r.total.get("outputs_samples") or 0.0) >= TARGETS_PER_CLASS * (r.total.get("outputs_classes") or 4.0)
    ]
    if len(rows) < MIN_CONSTANTS or min(differ for *_, differ in rows[len(rows) // 2 :]) < INPUTS_USED_SHARE:
        return None
    factors, constants = [factor for factor, _, _ in rows], [constant for _, constant, _ in rows]
    if min(constants) <= 1e-6 or max(factors) - min(factors) > 1e-3 * abs(median(factors)):
        return None
    return median(factors) * _bound_constant(constants, history.records[-1].total.get("outputs_kinds"))


def _bound_constant(constants: Sequence[float], kinds: float | None) -> float:
    """Return an upper estimate of the loss of the best constant output, from its losses on some batches.

    With `kinds` classes it is at most the logarithm of their number, the loss where all are equally likely.
    """
    error = stdev(constants) / math.sqrt(len(constants)) if len(constants) > 1 else math.inf
    return min(fmean(constants) + 2.0 * error, math.inf if kinds is None else math.log(kinds))


TARGETS_PER_CLASS = 3
"""Targets for each class of a batch from which the loss of a constant is estimated."""
MIN_CONSTANTS, MANY_CONSTANTS = 4, 30
"""Batches of which the loss of a constant is the mean, at least and at most."""


def _measure_progress(records: Sequence[Record], begin: int) -> tuple[float, float, float]:
    """Return the mean loss of the last half of the steps since one, how far it fell there, and the error of that.

    The half is taken in two parts. The deviation of single losses follows from the range of those of a record, which
    has 2 sqrt(log n) deviations, or more, for n losses; where a record has one loss, from one record to the next.
    """
    quarter = (records[-1].step - begin) / 4
    parts: list[list[tuple[float, float, float]]] = [[], []]
    chosen = [r for r in records if r.step > begin + 2 * quarter and _mean_loss(r) is not None]
    singles = [mean for r in chosen if r.metrics.get("loss_count", 1.0) == 1.0 and (mean := _mean_loss(r)) is not None]
    jumps = [(two - one) ** 2 / 2 for one, two in pairwise(singles)]
    scatter = math.sqrt(fmean(jumps)) if len(jumps) >= MIN_CONSTANTS else math.inf
    for record in chosen:
        mean, count = _mean_loss(record), record.metrics.get("loss_count", 1.0)
        low, high = (record.metrics.get(f"loss_{name}", mean) for name in ("least", "largest"))
        if mean is not None and low is not None and high is not None:
            deviation = scatter if count == 1.0 else (high - low) / (2 * math.sqrt(math.log(count)))
            parts[record.step > begin + 3 * quarter].append((count, mean, deviation))
    if not all(parts):
        return math.nan, math.nan, math.nan
    counts = [sum(count for count, *_ in part) for part in parts]
    means = [sum(c * mean for c, mean, _ in part) / total for part, total in zip(parts, counts, strict=True)]
    errors = [
        math.sqrt(sum(c * deviation**2 for c, _, deviation in part)) / total
        for part, total in zip(parts, counts, strict=True)
    ]
    return (means[0] + means[1]) / 2, means[0] - means[1], math.hypot(*errors)


def _steps_at_rate(history: History) -> int:
    """Return for how many steps the learning rate was at least a third of the present one: not those of a warm-up."""
    rates = [(r.step, max(r.lr)) for r in history.records if r.lr]
    if not rates or not rates[-1][1] > 0.0:
        return 0
    first = next(step for step, rate in rates if rate >= rates[-1][1] / 3)
    return history.step - first


def _had_learned(history: History) -> bool:
    """Whether the loss was clearly below its start at some time."""
    start = history.first_loss
    return start is not None and history.least_loss is not None and history.least_loss[0] < 0.9 * start


def _is_flat(history: History) -> bool:
    """Whether the mean loss of late is that of the start."""
    start, now = history.first_loss, _recent_loss(history)
    return start is not None and now is not None and start > 0.0 and now >= FLAT_SHARE * start


RECENT_STEPS = 30
"""Steps over which a recent loss is averaged, so that single batches hardly show in it."""


def _recent_loss(history: History) -> float | None:
    """Return the mean loss over the latest records, as many as it takes for thirty steps, or over all but the first."""
    total = count = 0.0
    for record in reversed(history.records[1:]):
        mean = _mean_loss(record)
        if mean is None or not math.isfinite(mean):
            return None
        weight = record.metrics.get("loss_count", 1.0)
        total, count = total + weight * mean, count + weight
        if count >= RECENT_STEPS:
            break
    return total / count if count else None


def _mean_loss(record: Record) -> float | None:
    """Return the mean loss since the record before, or that of the record."""
    return record.metrics.get("loss_mean", record.loss)


OUTPUT_CONSTANT = Alarm(
    code="output-constant",
    seen="The outputs are the same for every sample of a batch: they differ by {differ:figure} of their size.",
    why="What the model puts out does not depend on its inputs any more: they are lost on the way, in units that are "
    "switched off or saturated, or in weights that have gone to zero.",
    advice="Look at the first layer behind which all samples are alike; begin again with a learning rate of a tenth, "
    "and look at the initialisation (biases at zero, torch.nn.init.kaiming_normal_) and at the weight decay.",
)
OUTPUT_COLLAPSED = replace(
    OUTPUT_CONSTANT,
    seen="The outputs have become the same for every sample of a batch: their directions differ by {differ:figure} "
    "radians, and by {differ_first:figure} at the start.",
    why="The outputs have collapsed: they hardly depend on the inputs any more, which satisfies the loss and tells "
    "nothing.",
    advice="Look at the loss: if it only pulls outputs together, it needs negatives (a contrastive loss), a "
    "stop-gradient (detach) with a predictor, or a term for the variance of outputs. Else lower the learning rate.",
)
COLLAPSED_SHARE, COLLAPSED_RATIO, COLLAPSED_STEPS = 0.1, 0.3, 50
"""The deviation of the directions of outputs; the same over that at the start; the steps before it is judged."""
COLLAPSED_AND_FITTED_SHARE, COLLAPSED_LOSS_SHARE = 0.2, 0.01
"""The deviation that is small enough where the loss has all but vanished, and the share of the first loss at which it
has."""
TARGETS_COLLAPSED = replace(
    OUTPUT_COLLAPSED,
    seen="The targets have become the same for every sample, and the outputs with them: their variance is "
    "{share:percent} of what it was at the start.",
    why="The targets are outputs of the network themselves (a second view, a teacher that follows it): both have "
    "collapsed, which satisfies the loss and tells nothing.",
)
SHRUNK_TARGETS_SHARE = 0.03
"""The variance of targets over that of the first: targets that are data keep theirs."""
TRY_GRADIENT = (
    "First see whether the reconstruction teaches the code: torch.autograd.grad(reconstruction, mean, "
    "retain_graph=True, allow_unused=True) is None behind a detach(), sample() or torch.no_grad(), which is then to be "
    "removed. If it is not: "
)
POSTERIOR_COLLAPSED = replace(
    OUTPUT_COLLAPSED,
    seen="The code is the same for every sample: its entries differ by {differ:figure} at most, and the reconstruction "
    "is no better than one constant output.",
    why="The posterior has collapsed onto the prior: the code carries nothing, and the decoder does without it.",
    advice="{first}Lower the weight of the KL term or anneal it from zero (free bits), and look how both terms are "
    "averaged: sum the reconstruction over the entries of a sample as the KL term is.",
)
CODE_UNUSED = replace(
    POSTERIOR_COLLAPSED,
    seen="The code is the same for every sample after {steps:,} steps: its entries differ by {differ:figure} at most, "
    "while the loss falls.",
    why="The posterior has collapsed onto the prior: the decoder uses what else it is given, and not the code.",
    advice="{first}Weaken the decoder or what it sees besides the code (word dropout, fewer past entries), anneal the "
    "weight of the KL term from zero, or give it free bits.",
)
UNUSED_CODE_STEPS = 150
"""The steps before a code is said to be of no use though the loss falls."""
COLLAPSED_CODE_SPREAD, COLLAPSED_CODE_STEPS = 0.1, 60
"""The deviation of a code between samples, where that of the prior is 1, and the steps before it is judged."""
CONSTANT_OUTPUT_SHARE, LOST_DIFFERENCE_RATIO = 1e-4, 0.1
"""The deviation of outputs over samples, over their size, and over that of the first records.

Untrained deep networks have 1e-3 and less and grow out of it.
"""
ROUNDING_SHARE = 1e-6
"""Outputs that differ by less than this differ by rounding alone."""
INPUTS_LOST = ("gradient-vanishing", "constant-input", "decay-too-strong")
"""Alarms that say where the inputs are lost."""


def output_constant(history: History) -> Iterator[Finding]:
    """Outputs that do not differ over samples, though targets do."""
    zero = any(finding.code == "dead-layer" and "zero" in finding.numbers for finding in history.findings)
    if history.standing.others or zero or any(map(history.has_raised, INPUTS_LOST)):
        return
    spreads = history.total("output_spread")
    collapsed, apart = spreads.last(3), max(spreads.first, default=0.0)
    now, start = _mean_loss(history.records[-1]), history.first_loss
    gone = now is not None and start is not None and now <= COLLAPSED_LOSS_SHARE * start
    limit = COLLAPSED_AND_FITTED_SHARE if gone else COLLAPSED_SHARE
    small = bool(collapsed) and max(collapsed) <= min(limit, COLLAPSED_RATIO * apart)
    if small and history.standing.without_targets and history.step >= COLLAPSED_STEPS:
        yield OUTPUT_COLLAPSED.at(history.step, differ=max(collapsed), differ_first=apart)
    squares = history.records[-1].total.get("outputs_kinds") is None
    targets = history.total("outputs_constant")
    variances, usual = targets.last(3), targets.first[0] if targets.first else 0.0
    owns = history.total("outputs_own")
    fitted = max(owns.last(3), default=math.inf) <= SHRUNK_TARGETS_SHARE * max(owns.first, default=0.0)
    if fitted and squares and variances and max(variances) <= SHRUNK_TARGETS_SHARE * usual:
        yield TARGETS_COLLAPSED.at(history.step, share=max(variances) / usual)
    codes = history.total("code_spread").last(3)
    if codes and max(codes) <= COLLAPSED_CODE_SPREAD and history.step >= COLLAPSED_CODE_STEPS:
        words = {"steps": history.step, "first": TRY_GRADIENT if history.standing.untaught is None else ""}
        if history.is_unlearned:
            yield POSTERIOR_COLLAPSED.at(history.step, words=words, differ=max(codes))
        elif history.step >= UNUSED_CODE_STEPS:
            yield CODE_UNUSED.at(history.step, words=words, differ=max(codes))
    course = history.total("outputs_differ")
    differ, constant = course.last(3), history.total("outputs_constant").last(3)
    limit = max(ROUNDING_SHARE, min(CONSTANT_OUTPUT_SHARE, LOST_DIFFERENCE_RATIO * max(course.first, default=0.0)))
    if differ and constant and max(differ) <= limit and min(constant) > 1e-6:
        yield OUTPUT_CONSTANT.at(history.step, differ=max(differ))


# ---- precision, dropout

HALF_PRECISION = Alarm(
    code="half-precision",
    seen="{seen}, and after {steps:,} steps the outputs are no better than a constant.",
    why="Weights or values are in half precision (float16 or bfloat16): {cause}",
    advice="Keep the weights in float32, compute sums of squares in float32 (x.float()), and use torch.autocast (with "
    "a torch.amp.GradScaler for float16); or raise the learning rate.",
)
ROUNDED = "steps that are smaller than the distance to the next number are rounded away, and nothing is learned."
OUT_OF_RANGE = "values above 65,504 overflow and gradients below 6e-8 vanish."
LOST_SHARE, LOST_STEPS = 0.7, 50
"""The share of the weights that a step leaves as they were, and the steps before that is said."""
NOTHING_PASSES = ("dead-layer", "dead-relu", "output-constant", "gradient-vanishing", "no-gradient-at-step")


def half_precision(history: History) -> Iterator[Finding]:
    """Weights in half precision whose steps are lost, or through which nothing passes."""
    if history.step < LOST_STEPS or not history.is_unlearned:
        return
    shares = history.total("share_lost").last(3)
    if shares and min(shares) >= LOST_SHARE:
        seen = f"A step leaves {percent(min(shares))} of the weights as they were to the last bit"
        words = {"seen": seen, "cause": ROUNDED, "steps": history.step}
        yield HALF_PRECISION.at(history.step, words=words, share=min(shares))
    elif (history.standing.half_precision or history.standing.casts_to_half) and any(
        map(history.has_raised, NOTHING_PASSES)
    ):
        words = {"seen": "Nothing passes some layers", "cause": OUT_OF_RANGE, "steps": history.step}
        yield HALF_PRECISION.at(history.step, words=words)


STRONG_DROPOUT = Alarm(
    code="strong-dropout",
    seen="Dropout {where} removes {share:percent} of all values at each step.",
    why="So little is left that the output is mostly noise: nothing can be learned through it.",
    advice="Lower dropout to 0.1 to 0.5: p is the share that is removed, not the one that is kept.",
)
STRONG_DROPOUT_SHARE = 0.85
"""The share that is removed; the strongest in use is 0.8, of inputs."""


def strong_dropout(history: History) -> Iterator[Finding]:
    """Dropout that removes nearly everything."""
    share, path = history.standing.dropout
    if share >= STRONG_DROPOUT_SHARE and len(history.records) > 1:
        yield STRONG_DROPOUT.at(history.step, path, share=share)
