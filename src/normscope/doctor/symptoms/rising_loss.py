"""Steps that are too large for the loss: it rises, jumps, or is lost, by a rate that is too high or has risen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from ...core.finding import Finding, Severity, figure
from ..monitor.history import GUESSING_SHARE, History, losses_beside_constant
from ..monitor.series import PLAIN_STEPS
from .not_finite import LOOK_AT_BATCH, describe_outlier
from .run_readings import (
    HIGHER_RATE_RATIO,
    INPUTS_USED_SHARE,
    LOST_AT_HIGHER_RATE_SHARE,
    STAYS_STEPS,
    describe_large_inputs,
    find_rate_rise,
    first_step_sizes,
    had_learned,
    recent_loss,
    steps_at_rate,
)
from .symptom import FindingWords, Symptom

FINDING_WORDS = {
    "lr-too-high": FindingWords("the learning rate is too high"),
    "edge-of-stability": FindingWords("the steps are too long for the curvature"),
    "loss-rising": FindingWords("the loss rises"),
    "loss-spike": FindingWords("the loss jumped"),
}
LOSS_LOST = Symptom(
    code="loss-rising",
    seen="The loss was down to {least:figure} at step {best_step:,} and is {loss:figure} now, {ratio:figure} times as "
    "much; it began at {loss_first:figure}.",
    why="The loss grew far above where it was and does not come back: training diverges. What was learned is lost.",
    advice="Go back to a checkpoint from before step {best_step:,}, lower the learning rate ({lr:figure} now) or clip "
    "gradients (torch.nn.utils.clip_grad_norm_); look whether the data or the targets have changed since.",
)
LOST_RATIO, LOST_SHARE = 4.0, 0.5
"""The mean loss over the least one so far, and over the first, for two records, that say what was learned is lost."""
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
RETURNING_SHARE = 0.9
"""The last of these losses over the first: below it the loss is on its way back."""
LOSS_RISING = Symptom(
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


def watch_loss_rising(history: History) -> Iterator[Finding]:
    """`loss-rising` (warning): the loss stays at ten times its first values, or at four times the least so far and half
    of the first: what was learned is lost; or no better than a constant output for four records, after it was
    """
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
        yield LOSS_RISING.at(words=words, loss=now[-1], loss_first=start[0], lr=rate)


def watch_rate_rose(history: History) -> Iterator[Finding]:
    """A loss that jumps when the learning rate has just risen far above all that it was."""
    spike = history.spikes.first
    if spike is None or history.parameter_state.others:
        return
    rise = find_rate_rise(history)
    if rise is not None and rise.explains(spike.step):
        harm = LOSS_JUMPED.format(loss=figure(spike.loss), at=spike.step, level=figure(spike.level))
        words = {"since": rise.since, "harm": harm, "lr_then": rise.before}
        yield RATE_ROSE.at(words=words, loss=spike.loss, loss_before=spike.level, lr=rise.rate)


def _loss_lost(history: History) -> Iterator[Finding]:
    """A loss that was low and is high again for two records."""
    records = history.repeated()
    if not any("loss_mean" in record.metrics for record in records):  # losses of single batches, which tell less
        records = history.records[-LOST_RECORDS:]
    means = [(r.step, r.metrics.get("loss_mean", r.loss)) for r in records]
    start, least = history.first_loss, history.least_loss
    if start is None or least is None or not means or history.parameter_state.others:
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
        yield rising or alarm.at(words=words, loss=latest[-1], loss_first=start, lr=rate)


def _describe_rate_rise(history: History, best_step: int, least: float, loss: float) -> Finding | None:
    """Return the alarm of a rate that rose since the loss was low; None where it did not."""
    rise = find_rate_rise(history)
    if rise is None or rise.since < best_step or not least > 0.0:
        return None
    shown = {"least": figure(least), "loss": figure(loss), "ratio": figure(loss / least)}
    words = {"since": rise.since, "lr_then": rise.before, "harm": LOSS_WAS_LOW.format(best_step=best_step, **shown)}
    return RATE_ROSE.at(words=words, loss=loss, lr=rise.rate)


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
            words=words, loss=latest[-1][1], lr=rate
        )


UNLEARNED_SHARE = 0.9
"""A share of the first loss: while the loss is above it, nothing has been learned."""
LOSS_SPIKE = Symptom(
    code="loss-spike",
    seen="The loss was {loss:figure} at step {at:,}; before it was about {loss_before:figure}.",
    why="One such step can undo much of what was learned: a batch unlike the others, or a step that was too large.",
    advice="Look at the batch of this step, clip gradients (torch.nn.utils.clip_grad_norm_), lower the learning rate "
    "or warm it up.",
)
LOSS_OUTLIER = replace(
    LOSS_SPIKE, seen="{outlier}", advice=LOOK_AT_BATCH.removesuffix(" Load the last checkpoint with finite weights.")
)


def watch_loss_spike(history: History) -> Iterator[Finding]:
    """`loss-spike` (warning): the loss of one step, measured or not, is far above all in the 64 records before (after
    the first 100 steps): by half of the first loss, by ten times their usual spread, and half as far again as the
    largest of them; or a thousand times that of the step before, which was usual; with its step
    """
    spike = history.spikes.first
    outlier = describe_outlier(history, history.records[-1])
    if outlier:
        yield LOSS_OUTLIER.at(words={"outlier": outlier})
    if spike is None or outlier or (history.parameter_state.others and spike.level <= 0.0):
        return  # losses of players, on both sides of zero, jump
    yield LOSS_SPIKE.at(loss=spike.loss, loss_before=spike.level, at=spike.step, records=history.spikes.count)


EDGE_OF_STABILITY = Symptom(
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
EDGE_PRODUCT = 2.0
"""The learning rate times the largest curvature, beyond which gradient descent leaves a bowl."""
FAR_FROM_EDGE = 4.0
"""Twice the edge: so far beyond it, training is no longer near the edge."""
EDGE_LOOKS = 3
"""The latest looks that must all be beyond the edge."""


def watch_edge_of_stability(history: History) -> Iterator[Finding]:
    """`edge-of-stability` (info, warning from twice the edge on): with `sharpness=`: at the last three looks the
    learning rate times the largest eigenvalue of the Hessian was above 2
    """
    products = [r.metrics["effective_sharpness"] for r in history.records if "effective_sharpness" in r.metrics]
    looks = products[-EDGE_LOOKS:]
    if len(looks) < EDGE_LOOKS or not min(looks) > EDGE_PRODUCT:
        return
    least, sharpness = min(looks), history.total("sharpness").now
    alarm = FAR_BEYOND_EDGE if least > FAR_FROM_EDGE else EDGE_OF_STABILITY
    numbers: dict[str, Any] = {"effective_sharpness": least} | ({} if sharpness is None else {"sharpness": sharpness})
    yield alarm.at(words={"looks": EDGE_LOOKS}, **numbers)


TOO_LARGE_STEPS = Symptom(
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
SETTLED_STEP_LOG10 = -2.0
"""log10 of a step over the weights below which a run of a small model has found where it stays."""
THROWN_STEP_LOG10, THROWN_AT_ONCE_LOG10 = -0.8, -0.3
"""log10 of a step over the weights: a sixth of them at the median of the first records, half of them in one of two."""


def watch_steps_too_large(history: History) -> Iterator[Finding]:
    """`lr-too-high` (warning): the loss stays at 90 % of the first or above, and was never below, after steps of a
    sixth of the weights; or a first step of 4 % made the loss rise and outputs hardly depend on the inputs since; or
    the loss is four times its least and a quarter of the first while the rate still grows; or it spikes, or is lost
    likewise, behind a rate that has risen in mid-run to twice what it ever was
    """
    if history.parameter_state.others:
        return
    begun, sizes = steps_at_rate(history), first_step_sizes(history)
    now, start = recent_loss(history), history.first_loss
    if now is None or start is None or not sizes:
        return
    large, began_at = max(sizes[:2]), max(start, history.records[0].loss or 0.0)
    thrown = len(sizes) >= 2 and (median(sizes) >= THROWN_STEP_LOG10 or large >= THROWN_AT_ONCE_LOG10)
    lost = now >= began_at > 0.0 and (begun >= STAYS_STEPS / 2 or large >= THROWN_AT_ONCE_LOG10)
    latest = history.total("log10_step").last()
    settled = bool(latest) and max(latest) < SETTLED_STEP_LOG10 and now <= began_at  # there was little to learn
    stays = begun > 2 * PLAIN_STEPS and now >= 0.9 * start > 0.0 and not had_learned(history) and not settled
    # two losses of single batches may differ by as much in a healthy run
    has_many_losses = len(history.records) > 2 or history.records[-1].metrics.get("loss_count", 1.0) >= PLAIN_STEPS
    is_clear = has_many_losses or large >= THROWN_AT_ONCE_LOG10
    words = {"steps": history.step, "more": describe_large_inputs(history)}
    first = min(start, history.records[0].loss or start)  # steps this large may have thrown the loss at once
    numbers: dict[str, Any] = {"loss": now, "loss_first": first, "lr": max(history.records[-1].lr, default=math.nan)}
    if _outputs_thrown(history, start):
        yield OUTPUTS_THROWN.at(history.parameter_state.fastest, words, log10_step=large, **numbers)
    elif thrown and is_clear and begun >= 2 * PLAIN_STEPS and (lost or stays):
        yield TOO_LARGE_STEPS.at(
            history.parameter_state.fastest, words, log10_step=max(large, median(sizes)), **numbers
        )


def _outputs_thrown(history: History, start: float) -> bool:
    """Whether large first steps made the loss rise, and outputs have hardly depended on the inputs since."""
    first, differ = history.records[0].total_of("log10_step"), history.total("outputs_differ")
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
