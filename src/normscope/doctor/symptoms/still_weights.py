"""Steps that teach nothing: a rate of zero or that has ended, weights that stand still, are put back or only turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ...core.finding import Finding, power
from ...report.words import pluralise
from ..monitor.history import History, losses_beside_constant
from ..monitor.layer_record import LayerRecord
from ..monitor.record import Record
from ..monitor.series import PLAIN_STEPS
from .run_readings import (
    CONSECUTIVE_RECORDS,
    FITTED_SHARE,
    FLAT_SHARE,
    STAYS_STEPS,
    STILL_FLAT_STEPS,
    had_learned,
    is_flat,
    mean_loss,
    measure_progress,
    recent_loss,
)
from .symptom import FindingWords, Symptom, others_likewise
from .validation import is_held_out_loss

FINDING_WORDS = {
    "rate-zero": FindingWords("the learning rate is 0"),
    "rate-decayed": FindingWords("the learning rate decayed too early"),
    "weights-still": FindingWords("the weights do not move"),
    "weights-put-back": FindingWords("the weights are put back after each step"),
    "no-zero-grad": FindingWords("gradients are never cleared"),
    "effective-lr": FindingWords(
        "the steps of {where} have the wrong size", "the steps of {count} layers have the wrong size"
    ),
}
RATE_ZERO = Symptom(
    code="rate-zero",
    seen="The learning rate is 0 at step {first:,} and at step {last:,}.",
    why="A step of rate zero changes nothing.",
    advice="Look at the schedule: a warm-up that never rises, an integer division, a scheduler that is stepped once "
    "for each batch though it counts epochs, or one that has ended. Raise the learning rate.",
)
RATE_DECAYED = Symptom(
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


def watch_rate_zero(history: History) -> Iterator[Finding]:
    """`rate-zero` (warning): the learning rate is 0 in two records"""
    rates = [(r.step, max(r.lr)) for r in history.records[-12:] if r.lr]
    zeros = rates[max((i + 1 for i, (_, rate) in enumerate(rates) if rate != 0.0), default=0) :]
    if len(zeros) >= 2 and zeros[-1][0] - zeros[0][0] >= PLAIN_STEPS:
        yield RATE_ZERO.at(words={"first": zeros[0][0], "last": zeros[-1][0]}, lr=0.0)


def watch_rate_decayed(history: History) -> Iterator[Finding]:
    """`rate-decayed` (warning): the learning rate is below a thousandth of its largest for a fifth of the run, or below
    a twentieth for two fifths while two fifths of the loss are left; the loss is not fitted, and still fell when the
    rate went or had less than 100 steps
    """
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
    start, now = history.first_loss, recent_loss(history)
    if low is None or low.step == 0 or now is None or not start:
        return
    passed = history.step - low.step
    if passed < max(PLAIN_STEPS, time_share * history.step) or now <= left * start:
        return
    _, fall, error = measure_progress([r for r in history.records if r.step <= low.step], 0)
    if low.step < STAYS_STEPS or not fall <= 3 * error or _improved_before_decay(history):
        # else a schedule may have waited for the loss to be flat
        words = {"since": low.step}
        rate = max(history.records[-1].lr)
        yield RATE_DECAYED.at(words=words, peak=history.peak_lr, lr=rate, loss=now, loss_first=start)


def _improved_before_decay(history: History) -> bool:
    """Return whether a validation still became better each time when the learning rate fell for the first time."""
    decayed = next((r.step for r in history.records if r.lr and max(r.lr) < history.peak_lr / 3), None)
    for name, pairs in history.validations.items():
        before = [value for at, value in pairs if decayed is not None and at <= decayed]
        if is_held_out_loss(name) and len(before) > 3:
            return all(two < one for one, two in pairwise(before[-4:]))
    return False


WEIGHTS_STILL = Symptom(
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
SMALL_GRADIENT_LOG10 = -2.0
"""log10 of a gradient over that which the loss has without factors: below it the gradient is at fault, not the rate."""


def watch_weights_still(history: History) -> Iterator[Finding]:
    """`weights-still` (warning): no step so far changed the weights by more than 5 x 10^-6 of their size (10^-4 where
    the loss stays as well), all of 150 steps by less than 3 % while nothing is learned, or steps became that small
    in mid-run; says whether rate or gradient is too small. Also a group of parameters at less than 10^-5 of the
    largest rate (at a rate of 0: a note), and squared errors that would need five times as many steps to come down
    to that of a constant
    """
    records = [r for r in history.records if r.lr and max(r.lr) > 0.0 and r.total_of("log10_step") is not None]
    if len(records) < 2 or records[-1] is not history.records[-1] or history.step < PLAIN_STEPS:
        return
    rates = [max(r.lr) for r in records]
    if rates[-1] < history.peak_lr / 2:
        return  # the end of a schedule
    steps = [value for r in records if (value := r.total_of("log10_step")) is not None]
    gradient = records[-1].total_of("log10_gradient")
    drifts = [value for r in history.records if (value := r.total_of("log10_drift")) is not None]
    path = sum(10.0 ** min(value, 300.0) for value in drifts)
    unmoved = history.step >= SLOW_STEPS and len(drifts) > 1 and path <= SLOW_PATH
    begun, now = history.first_loss, recent_loss(history)
    slow = False
    if unmoved and history.is_unlearned and begun is not None and now is not None:
        slow = now >= FLAT_SHARE * max(begun, history.records[0].loss or 0.0)
    if rates[-1] > rates[-2] and not slow:
        return  # a warm-up
    if gradient is None or gradient == -math.inf or not math.isfinite(max(steps)):
        return  # there is no gradient: that has an alarm of its own
    flat = history.step >= STILL_FLAT_STEPS and is_flat(history)
    compared = losses_beside_constant(records[-1:])
    if compared and compared[0][1] < compared[0][2] / 2:
        return  # it is fitted: gradients are small for a good reason
    loss = records[-1].total_of("outputs_own") or mean_loss(records[-1])
    relative = _relative_gradient(records[-1])
    cause, remedy = GRADIENT_SMALL if relative is not None and relative < SMALL_GRADIENT_LOG10 else RATE_SMALL
    words = {"steps": history.step, "cause": cause, "remedy": remedy}
    numbers: dict[str, Any] = {"lr": rates[-1], "log10_gradient": gradient}
    stopped = _stopped_records(history)
    if slow or max(steps) <= (STILL_FLAT_LOG10 if flat else STILL_LOG10):
        yield WEIGHTS_STILL.at(words=words, log10_step=max(steps), **numbers)
    elif stopped:
        first = next((value for r in records if (value := r.total_of("log10_gradient")) is not None), math.nan)
        largest = max(r.total_of("log10_step") or -math.inf for r in stopped)
        words |= {"since": stopped[0].step, "loss": loss}
        yield STOPPED.at(words=words, log10_step=largest, log10_gradient_first=first, **numbers)


def _relative_gradient(record: Record) -> float | None:
    """Return log10 of gradient times weights over the loss; None where one is not known."""
    gradient, weight = (record.total_of(f"log10_{name}") for name in ("gradient", "weight"))
    loss = record.total_of("outputs_own") or mean_loss(record)
    if gradient is None or weight is None or loss is None or not 0.0 < loss < math.inf:
        return None
    return gradient + weight - math.log10(loss)


def _stopped_records(history: History) -> list[Record]:
    """Return the last records if none of them moves the weights any more though their batches differ; else none."""
    records = history.repeated()
    means = {r.total_of("input_mean") for r in records}
    for record in records:
        step, relative = record.total_of("log10_step"), _relative_gradient(record)
        if step is None or relative is None or record.total_of("outputs_own") is None:
            return []
        if step > STOPPED_LOG10 or not -math.inf < relative <= STOPPED_GRADIENT_LOG10:
            return []
    return records if len(means) == len(records) and None not in means else []


WEIGHTS_PUT_BACK = Symptom(
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


def watch_weights_put_back(history: History) -> Iterator[Finding]:
    """`weights-put-back` (warning): steps change the weights, but from record to record they are where they were; or
    something else than the optimizer writes into them, and after 100 steps nothing is learned
    """
    records = history.repeated()
    steps = [r.total_of("log10_step") for r in records]
    # a way lies between two steps that were measured: the rate may have changed at one of them
    smaller = [None if one is None or two is None else min(one, two) for one, two in pairwise(steps)]
    pairs = list(zip(smaller, (r.total_of("log10_drift") for r in records[1:]), strict=True))
    if not records or history.step - records[0].step < PLAIN_STEPS:
        return
    written = [name for name, since in history.parameter_state.overwritten.items() if since.records >= len(records)]
    unlearned = history.is_unlearned and (bool(history.over_constant()) or not had_learned(history))
    if written and unlearned and history.step >= OVERWRITTEN_STEPS and not history.parameter_state.others:
        more = f" (and {pluralise(len(written) - 1, 'other parameter')})" if len(written) > 1 else ""
        words = {"steps": history.step, "names": f"`{written[0]}`{more}"}
        yield OVERWRITTEN.at(written[0].rpartition(".")[0], words, parameters=len(written))
        return
    limit = OSCILLATING_SHARE_LOG10 if had_learned(history) else LASTING_SHARE_LOG10
    limit += 0.5 * math.log10(max((history.step - history.records[-2].step) / PLAIN_STEPS, 1.0))
    if all(a is not None and b is not None and a > -12.0 and b < a + limit for a, b in pairs):
        step, drift = pairs[-1]
        words = {"steps": history.step - history.records[-2].step}
        yield WEIGHTS_PUT_BACK.at(words=words, log10_step=step, log10_drift=drift)


EFFECTIVE_LR_HIGH = Symptom(
    code="effective-lr",
    seen="A step turns {where} by more than {rotation:figure} radians, for several records.{rate}{also}",
    why="{normalizer} undoes the scale of these weights: they learn by turning alone, at the learning rate divided by "
    "their norm (its square for SGD). At this angle a few steps undo what was learned before.",
    advice="Lower the learning rate, warm it up, or let the norm grow: less weight decay on this weight.",
)
EFFECTIVE_LR_LOW = Symptom(
    code="effective-lr",
    seen="A step turns {where} by less than {rotation:figure} radians, for several records.{rate}{also}",
    why="{normalizer} undoes the scale of these weights: they learn by turning alone, at the learning rate divided by "
    "their norm (its square for SGD). At this angle they are as good as frozen, while the loss is not fitted.",
    advice="Raise the learning rate, or bring the norm down: weight decay on this weight (AdamW or SGD).",
)
STILL_RADIANS, SPINNING_RADIANS = 1e-6, 0.5
"""Radians a step. At 1e-6 a million steps turn a weight by one radian; at 0.5 three steps forget where it stood.

The equilibrium of SGD with weight decay turns by sqrt(2 lr wd), 0.001 to 0.03 as a rule.
"""
STILL_MOVED_RADIANS, SPINNING_MOVED_RADIANS = 1e-5, 0.2
"""The same limits where the effective learning rate has moved far as well."""
MOVED_DECADES = 2.0
"""Decades of the effective learning rate since the start, beyond what the schedule did."""
SCHEDULED_SHARE = 0.01
"""A share of the largest learning rate so far: below it the schedule wants small steps."""


def watch_effective_lr(history: History) -> Iterator[Finding]:
    """`effective-lr` (warning): a step turns scale-invariant weights by less than 10^-6 radians though the loss is not
    fitted and the schedule not over, or by more than 0.5; 10^-5 and 0.2 suffice where the effective learning rate
    has moved a hundredfold beyond the schedule
    """
    explained = {finding.where for finding in history.findings if finding.code in ("variance-collapse", "norm-growth")}
    slow, fast = [], []
    for index, layer, angles in history.lasting("weight", "rotation"):
        if layer.invariant is None or layer.normalizer in explained or layer.name in explained:
            continue
        if max(angles) >= STILL_MOVED_RADIANS and min(angles) <= SPINNING_MOVED_RADIANS:
            continue  # wherever its effective learning rate has gone
        moved = _unscheduled_change(history, index)
        if max(angles) < (STILL_RADIANS if moved > -MOVED_DECADES else STILL_MOVED_RADIANS):
            slow.append((layer, max(angles), moved))
        elif min(angles) > (SPINNING_RADIANS if moved < MOVED_DECADES else SPINNING_MOVED_RADIANS):
            fast.append((layer, min(angles), moved))
    if slow and _should_move(history) and not history.has_raised("weights-still"):
        yield from _describe_turning(history, slow, fast=False)
    if fast:
        yield from _describe_turning(history, fast, fast=True)


def _describe_turning(
    history: History, layers: Sequence[tuple[LayerRecord, float, float]], *, fast: bool
) -> Iterator[Finding]:
    """Say it of the layer that is furthest off, with the number of the others; once in a run for each direction."""
    if any(f.code == "effective-lr" and f.numbers.get("exploding") == int(fast) for f in history.findings):
        return
    layer, angle, moved = max(layers, key=lambda item: item[1] if fast else -item[1])
    far = abs(moved) >= MOVED_DECADES
    yield (EFFECTIVE_LR_HIGH if fast else EFFECTIVE_LR_LOW).at(
        layer.name,
        {
            "rate": f" Its effective learning rate is {power(moved)} times that at the start." if far else "",
            "also": others_likewise(len(layers), "other layer"),
            "normalizer": layer.normalizer,
        },
        rotation=angle,
        log10_moved=moved,
        exploding=int(fast),
        count=len(layers),
    )


def _unscheduled_change(history: History, index: int) -> float:
    """Return how far, in decades, an effective learning rate has moved beyond the schedule; 0 where not known."""
    course = history.value_series("weight", "log10_unscheduled_lr", index)
    then, now = course.start, course.now
    return 0.0 if then is None or now is None or not math.isfinite(now - then) else now - then


def _should_move(history: History) -> bool:
    """Whether large steps are wanted: the schedule has not ended, the loss is not fitted."""
    rates = history.total("lr").lasting()
    if not rates or min(rates) <= SCHEDULED_SHARE * history.peak_lr:
        return False
    loss = history.total("loss")
    return loss.now is None or not loss.first or loss.now > FITTED_SHARE * max(loss.first)


NO_ZERO_GRAD = Symptom(
    code="no-zero-grad",
    seen="In {records} records in a row gradients of the step before were still there when those of the next were "
    "added (up to {left:figure} in one entry).",
    why="Gradients are summed over all steps so far: steps grow and point where old batches pointed.",
    advice="Call optimizer.zero_grad() once for every optimizer.step(), before the backward.",
)


def watch_no_zero_grad(history: History) -> Iterator[Finding]:
    """`no-zero-grad` (warning): in three records in a row the gradient of the step before was still there when that of
    the next was added
    """
    latest = [record.total_of("left_over") for record in history.repeated(CONSECUTIVE_RECORDS)]
    left = [value for value in latest if value is not None and value > 0.0]
    if left and len(left) == len(latest):
        gradient = history.total("log10_gradient").now
        words = {"records": len(left)}
        yield NO_ZERO_GRAD.at(words=words, left=max(left), log10_gradient=gradient)
