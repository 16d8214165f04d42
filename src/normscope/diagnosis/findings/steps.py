"""What the next step of training would do: too long, too short, the wrong parameters, or up instead of down."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.finding import Finding, Severity
from ...report.words import listed
from ..descent_pass import SHORTEST, StepFacts
from ..examined import Examined
from ..loss_facts import LossFacts, is_fresh
from .finding_words import figure, figures, percent
from .loss import NO_BETTER, NOT_FITTED

TOO_LONG = 2.0
"""A step that makes the loss this many times as large is too long."""
TOO_MANY_STEPS = 1e6
"""Nobody makes as many steps to halve a loss."""
STRONG_DECAY = 0.01
"""A share of the weights; a usual decay takes less than a thousandth of them at each step."""


def wrong_parameters(examined: Examined) -> Iterator[Finding]:
    """An optimizer that does not hold the parameters of the model."""
    steps = _steps(examined)
    if steps is None or steps.optimizer is None or not steps.outside:
        return
    trained = sum(parameter.requires_grad for parameter in examined.model.parameters())
    every = len(steps.outside) == trained
    named = listed([f"`{name}`" for name in steps.outside], most=3)
    yield Finding(
        code="not-in-optimizer",
        severity=Severity.ERROR if every else Severity.WARNING,
        where=steps.outside[0],
        seen=f"The optimizer ({steps.optimizer}) holds none of the model's trainable parameters"
        + (f", and {steps.foreign} of something else." if steps.foreign else ".")
        if every
        else f"{len(steps.outside)} of {trained} trainable parameters are not in the optimizer: {named}.",
        why="A parameter that no optimizer holds keeps its first values.",
        advice="Build the optimizer over model.parameters(), after the last layer was replaced or added and after the "
        "model was copied or loaded. If they are to stay as they are, freeze them with requires_grad_(False); if "
        "another optimizer trains them, there is nothing to do.",
        numbers=figures(outside=len(steps.outside), foreign=steps.foreign),
    )


def next_step(examined: Examined) -> Iterator[Finding]:
    """A rate or a weight decay at which the next step of the optimizer does harm, or nothing."""
    steps = _steps(examined)
    if steps is None or steps.optimizer is None or steps.rate is None:
        return
    rate = f"{steps.optimizer} at a rate of {figure(steps.rate)}"
    scheduled = steps.scheduled_rate is not None and steps.scheduled_rate > steps.rate
    if steps.decay is not None and steps.decay > STRONG_DECAY:
        yield Finding(
            code="decay-too-strong",
            severity=Severity.WARNING,
            where="the optimizer",
            seen=f"Weight decay takes {percent(steps.decay)} of the weights at each step ({rate}).",
            why="Weights that shrink faster than they learn go to zero, and the output becomes constant.",
            advice="Lower the weight decay: usual values are 1e-4 to 5e-4 for SGD and 0.01 to 0.1 for AdamW.",
            numbers=figures(decay=steps.decay, rate=steps.rate),
        )
    elif steps.rate == 0.0:
        yield Finding(
            code="step-too-short",
            severity=Severity.INFO,
            where="the optimizer",
            seen="The learning rate is 0.",
            why="No step moves anything until it is larger, as at the start of a warm-up.",
            advice="Nothing to do if a schedule raises it; otherwise set the rate.",
            numbers=figures(rate=0.0),
        )
    elif _rises_far(steps, examined.signal.loss if examined.signal is not None else None):
        limit = steps.stable_rate if steps.optimizer == "SGD" else None
        yield Finding(
            code="step-too-long",
            severity=Severity.WARNING,
            where="the optimizer",
            seen=f"One step of {rate} takes the loss from {figure(steps.loss)} to {figure(steps.next_loss or 0.0)}.",
            why="Training that begins so diverges, or kills units on its way back.",
            advice="Lower the learning rate, "
            + ("tenfold to begin with" if limit is None else f"to less than {figure(limit)}")
            + ", or warm it up over the first steps.",
            numbers=figures(rate=steps.rate, loss=steps.loss, next_loss=steps.next_loss),
        )
    elif (
        steps.promised_fall is not None
        and 0.0 < TOO_MANY_STEPS * steps.promised_fall < steps.loss
        and _is_untrained(examined)  # at the least loss there is nothing to gain by longer steps
    ):
        yield Finding(
            code="step-too-short",
            severity=Severity.INFO if scheduled else Severity.WARNING,
            where="the optimizer",
            seen=f"One step of {rate} lowers the loss of {figure(steps.loss)} by {figure(steps.promised_fall)}.",
            why=f"At this pace it takes about {figure(steps.loss / steps.promised_fall)} steps to learn anything.",
            advice=f"Nothing to do if the schedule has yet to reach its rate of {figure(steps.scheduled_rate or 0.0)}, "
            "or is at its end."
            if scheduled
            else "Raise the learning rate: 1e-3 for Adam and 0.1 or 0.01 for SGD are usual, or look for what makes "
            "the gradients so small.",
            numbers=figures(rate=steps.rate, loss=steps.loss, promised_fall=steps.promised_fall),
        )


def _rises_far(steps: StepFacts, loss: LossFacts | None) -> bool:
    """Whether the loss at least doubles, and rises by more than the loss of a constant output."""
    if steps.next_loss is None or not math.isfinite(steps.next_loss):
        return steps.next_loss is not None
    blind = 0.0 if loss is None or loss.blind is None else loss.blind
    return steps.loss > 0.0 and steps.next_loss - steps.loss > (TOO_LONG - 1.0) * max(steps.loss, blind)


def loss_rises(examined: Examined) -> Iterator[Finding]:
    """A short step against the gradient that does not lower the loss."""
    steps = _steps(examined)
    if steps is None or steps.fall is None or examined.signal is None or steps.loss <= NOT_FITTED:
        return
    if steps.step_share is not None and steps.step_share > 1.0 and _is_untrained(examined):
        yield Finding(
            code="no-loss-gradient",
            severity=Severity.WARNING,
            where="the loss",
            seen="The gradient of the loss is next to nothing: to lower the loss by a hundredth along it, the weights "
            f"would have to change by {figure(steps.step_share)} times their size.",
            why="Steps along such a gradient hardly change the loss.",
            advice="Look at what stands between the last layer and the loss: outputs that are all alike, a factor or "
            "a temperature that makes them tiny, a softmax or sigmoid that is applied twice; scale the outputs up.",
            numbers=figures(step_share=steps.step_share),
        )
        return
    half = any("16" in row.dtype for row in examined.signal.rows)  # where a short step is lost in rounding
    short = steps.step_share is not None and SHORTEST * steps.step_share < 0.01
    if steps.fall > -0.5 or half or not short:
        return
    yield Finding(
        code="gradient-does-not-descend",
        severity=Severity.WARNING,
        where="the loss",
        seen="A short step along the negative gradient, which should lower the loss by a millionth, "
        + ("raises it." if math.isfinite(steps.fall) else "makes it infinite."),
        why="The gradient is then not that of the loss, or the loss is so rough that gradients say nothing of it.",
        advice="Look for a backward that was written by hand, for values that are rounded, sorted or looked up, and "
        "for a layer whose weights are far too large.",
        numbers=figures(fall=steps.fall),
    )


def _is_untrained(examined: Examined) -> bool:
    """Whether a model looks fresh, and its loss does not say that it has learned something."""
    loss = None if examined.signal is None else examined.signal.loss
    learned = loss is not None and loss.share_of_blind is not None and loss.share_of_blind < NO_BETTER
    return is_fresh(examined.model) and not learned


def _steps(examined: Examined) -> StepFacts | None:
    return None if examined.signal is None else examined.signal.steps
