"""What the next step of the optimizer would do, and a decay or a penalty that outweighs the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...core.finding import Finding, Severity, figure, figures, percent
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.loss import LEARNED_LOSS_RATIO, LossFacts
from ..facts.steps import SHORTEST, StepFacts
from ..monitor.history import History
from .check_readings import LOSS, step_facts_of
from .gradient_depth import check_shrinking_values
from .gradient_reach import NOT_FITTED
from .half_precision import ROUNDED_AWAY
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "decay-too-strong": FindingWords("the weight decay is far too strong"),
    "step-too-long": FindingWords("one step of the optimizer makes the loss far larger"),
    "step-too-short": FindingWords(
        "the steps of the optimizer are far too short", note=("the learning rate is 0",) * 2
    ),
    "gradient-does-not-descend": FindingWords("a step along the gradient does not lower the loss"),
}
DOUBLED_LOSS_RATIO = 2.0
"""The loss after a step over that before, beyond which the step is too long, whatever its length."""
TOO_MANY_STEPS = 3e4
"""Steps to bring the loss to zero at the pace of the next one, beyond which the pace is too slow: fresh models at usual
rates need a few hundred."""
STRONG_DECAY_SHARE = 0.01
"""The share of the weights that decay takes at each step, beyond which it is too strong: at 1 % they are halved in
seventy steps, and a usual one takes less than a thousandth."""
LARGEST_USUAL_RATE, LARGEST_USUAL_SGD_RATE = 0.01, 1.0
"""The largest rates in use, of optimizers that rescale gradients and of SGD: a decay is judged at no larger one."""
STRONG_PULL_RATIO = 3.0
"""A weight decay over the gradient that it is added to, beyond which it decides where an untrained network goes."""
HIGHER_LOSS_RATIO = 1.1
"""The loss after a step over that before, beyond which it rises clearly: enough where the step is long, too, by one of
the next three constants."""
REWRITTEN_MATRIX_SHARE, REWRITTEN_SHARE = 1.0, 0.25
"""The change of one matrix, and of all of them, over their size, beyond which a step is long: in fresh networks at
usual rates both are below a twentieth."""
REPLACED_SHARE, UNUSUAL_RATE_RATIO = 1.0, 10.0
"""The change of all matrices over their size, and the rate over the largest in use, beyond which a step replaces the
weights: at usual rates tables that begin near zero may grow by more than their size."""
BEYOND_STABLE_RATIO = 2.5
"""A multiple of the rate at which steps along the gradient begin to climb; some runs go well at up to twice as much."""
LONG_MOMENTUM = 0.995
"""A momentum beyond which more than two hundred gradients add up."""
LEAST_MOMENTUM, LARGEST_RATE = 0.2, 0.5
"""A momentum below the first with a rate above the second: their arguments are in the wrong order."""
ROUNDED_AWAY_SHARE = 0.9
"""The share of the weights that a step leaves as they were, beyond which steps are lost: in bfloat16 a small step moves
few weights at once, and the others later."""
SLOW_PACE_SHARE, SLOW_MOVE_SHARE = 0.03, 1e-3
"""The move of a typical weight over the rate, and of all weights over their size, below which eps outweighs."""
DECAY_STRONG = Symptom(
    code="decay-too-strong",
    seen="Weight decay takes {share:percent} of the weights at each step (weight_decay = {decay:figure} at a learning "
    "rate of {lr:figure}); usual are 0.1 % and less.",
    why="The decay pulls weights to zero faster than gradients can hold them up: what is learned is forgotten within "
    "{memory:.0f} steps.",
    advice="Lower the weight decay: usual values are 1e-4 to 5e-4 for SGD and 0.01 to 0.1 for AdamW.",
)


def check_next_step(examined: Examined) -> Iterator[Finding]:
    """`decay-too-strong` (warning): with `optimizer=`: weight decay takes more than 1 % of the weights at each step
    (also at a usual rate, 0.01 or 1 for SGD, where its own is larger), or is added to a gradient that it exceeds
    three times in a fresh model
    `step-too-long` (warning, info): with `optimizer=`: its next step more than doubles the loss, or raises it and
    changes a matrix by more than its size, or changes all by more at a rate above 0.1 (SGD: 10), or is beyond 2.5 times
    the stable rate of SGD; a momentum above 0.995, betas or rate and momentum in the wrong order; a step along the
    gradient (info: of a loss that may be a reward)
    `step-too-short` (warning, info): with `optimizer=`: at the pace of the next step the loss takes more than 30,000
    steps to fall to zero; or the step leaves nine in ten weights exactly as they were; or eps is so large that a
    typical weight moves by less than 3 % of the rate, and weights change by less than a thousandth (info: a rate of 0,
    also of one parameter group beside others)
    """
    steps = step_facts_of(examined)
    if steps is None or steps.optimizer is None or steps.rate is None:
        return
    loss = None if examined.signal is None else examined.signal.loss
    rate = f"{steps.optimizer} at a rate of {figure(steps.rate)}"
    if steps.is_new and steps.promised_fall is not None and steps.promised_fall < 0.0 and not _is_pulled(steps):
        yield _of_optimizer(
            "step-too-long",
            f"A step of {rate} goes along the gradient, not against it: it raises the loss of {figure(steps.loss)}.",
            "Training then makes the loss as large as it can.",
            "Minimise the loss: build the optimizer without maximize=True, and with a rate above zero. If what was "
            "given as the loss is a reward that is to grow, there is nothing to do.",
            figures(rate=steps.rate, loss=steps.loss, promised_fall=steps.promised_fall),
            Severity.WARNING if loss is not None and not loss.negated else Severity.INFO,  # it may be a reward
        )
    elif _is_pulled(steps) and _is_untrained(examined):
        yield _of_optimizer(
            "decay-too-strong",
            f"The weight decay of {rate} is {figure(steps.decay_pull or 0.0)} times as large as the gradient that it "
            "is added to.",
            "The steps then follow the decay: weights go to zero, whatever the loss says.",
            "Lower the weight decay: usual values are 1e-4 to 5e-4 for SGD and Adam and 0.01 to 0.1 for AdamW.",
            figures(pull=steps.decay_pull, rate=steps.rate),
        )
    elif steps.decay and compute_decay_at_usual_rate(steps.decay, steps.rate, steps.optimizer) > STRONG_DECAY_SHARE:
        yield _of_optimizer(
            "decay-too-strong",
            f"Weight decay takes {percent(steps.decay)} of the weights at each step ({rate}).",
            DECAY_STRONG.why.format(memory=max(1.0, 1.0 / steps.decay)),
            DECAY_STRONG.advice,
            figures(decay=steps.decay, rate=steps.rate),
        )
    elif steps.rate == 0.0:
        yield _of_optimizer(
            "step-too-short",
            "The learning rate is 0.",
            "No step moves anything until it is larger, as at the start of a warm-up.",
            "Nothing to do if a schedule raises it; otherwise set the rate.",
            figures(rate=0.0),
            Severity.INFO,
        )
    elif steps.moved_share is not None and not math.isfinite(steps.moved_share) and _is_half(examined):
        yield _of_optimizer(
            "half-precision",
            f"One step of {rate} makes weights in float16 infinite or NaN.",
            "The eps of an optimizer (1e-8) and the squares of small gradients are zero in float16, and what is "
            "divided by them is lost.",
            "Keep the weights in float32 and run the forward under torch.autocast with a GradScaler, or train in "
            "bfloat16.",
            figures(rate=steps.rate),
        )
    elif _is_too_long(steps, loss):
        limit = steps.stable_rate if steps.optimizer == "SGD" else None
        below = limit is not None and limit < steps.rate
        yield _of_optimizer(
            "step-too-long",
            f"One step of {rate} takes the loss from {figure(steps.loss)} to {figure(steps.next_loss or 0.0)}"
            + _describe_move(steps),
            "Training that begins so diverges, or kills units on its way back.",
            "Lower the learning rate, "
            + (f"to less than {figure(limit or 0.0)}" if below else "tenfold to begin with")
            + ", or warm it up over the first steps.",
            figures(rate=steps.rate, loss=steps.loss, next_loss=steps.next_loss, moved=steps.moved_share),
        )
    elif _are_swapped(steps):
        yield _of_optimizer(
            "step-too-long",
            f"{rate} has a momentum of {figure(steps.momentum or 0.0)}.",
            "A rate like a momentum beside a momentum like a rate: the two are in the wrong order.",
            f"Lower the learning rate: name the arguments, lr={steps.momentum:g}, momentum={steps.rate:g}.",
            figures(rate=steps.rate, momentum=steps.momentum),
        )
    elif steps.momentum is not None and (
        steps.momentum > LONG_MOMENTUM or (steps.betas is not None and steps.betas[0] > steps.betas[1])
    ):
        yield _of_optimizer(
            "step-too-long",
            f"The momentum of {steps.optimizer} is {steps.momentum:g}"
            + ("." if steps.betas is None else f" (betas {steps.betas[0]:g} and {steps.betas[1]:g})."),
            "So many gradients add up that steps go on long after the loss rises again"
            + ("; with 1 they add up for ever." if steps.momentum >= 1.0 else "."),
            "Lower the momentum to 0.9" + ("." if steps.betas is None else ", and use betas of 0.9 and 0.999."),
            figures(momentum=steps.momentum, rate=steps.rate),
        )
    else:
        yield from _too_short(examined, steps, rate)


def _too_short(examined: Examined, steps: StepFacts, rate: str) -> Iterator[Finding]:
    """A rate, or an eps, with which a network that has learned nothing learns nothing."""
    if steps.unmoved is not None and steps.unmoved > ROUNDED_AWAY_SHARE:
        seen = f"One step of {rate} leaves {percent(steps.unmoved)} of the weights exactly as they were."
        if _is_half(examined):
            yield ROUNDED_AWAY.at("the optimizer", seen=seen, unmoved=steps.unmoved, rate=steps.rate)
        elif _is_untrained(examined):
            yield _of_optimizer(
                "step-too-short",
                seen,
                "What is added to a weight is below its last digit, and is rounded away at every step.",
                "Raise the learning rate, or look for what makes the loss and its gradients so small.",
                figures(unmoved=steps.unmoved, rate=steps.rate),
            )
        return
    if not steps.promised_fall or steps.promised_fall <= 0.0 or not _is_untrained(examined):
        return  # at the least loss there is nothing to gain by longer steps
    count = steps.loss / steps.promised_fall
    scheduled = steps.scheduled_rate is not None and steps.scheduled_rate > (steps.rate or 0.0)
    outweighed = steps.is_new and (steps.pace or 1.0) < SLOW_PACE_SHARE and (steps.moved_share or 1.0) < SLOW_MOVE_SHARE
    if outweighed or count > TOO_MANY_STEPS:
        yield _of_optimizer(
            "step-too-short",
            f"One step of {rate} lowers the loss of {figure(steps.loss)} by {figure(steps.promised_fall)}"
            + (f": a typical weight moves by {percent(steps.pace or 0.0)} of the rate." * outweighed or "."),
            "The eps of the optimizer outweighs the gradients that it is added to, and every step is as much shorter."
            if outweighed
            else f"At this pace it takes about {figure(count)} steps to learn anything.",
            "Lower the eps of the optimizer to 1e-8, or raise the learning rate."
            if outweighed
            else f"Nothing to do if the schedule has yet to reach its rate of {figure(steps.scheduled_rate or 0.0)}, "
            "or is at its end."
            if scheduled
            else "Raise the learning rate: 1e-3 for Adam and 0.1 or 0.01 for SGD are usual, or look for what makes "
            "the gradients so small.",
            figures(rate=steps.rate, loss=steps.loss, promised_fall=steps.promised_fall),
            Severity.INFO if scheduled and not outweighed else Severity.WARNING,
        )


def _describe_move(steps: StepFacts) -> str:
    """Return the end of a sentence: how far a step moves the weights."""
    share = steps.moved_share
    if share is None or not REPLACED_SHARE < share < math.inf:
        return f", and changes the weights by {percent(share)}." if share else "."
    own = f": {steps.optimizer} moves each by about the rate" if "Adam" in (steps.optimizer or "") else ""
    return f", and moves the weights by {figure(share)} times their size{own}."


def _is_half(examined: Examined) -> bool:
    """Whether weights have fewer digits than float32."""
    return any(parameter.itemsize < 4 for parameter in examined.model.parameters())


def _of_optimizer(
    code: str,
    seen: str,
    why: str,
    advice: str,
    numbers: dict[str, float | int | None],
    severity: Severity = Severity.WARNING,
) -> Finding:
    where = "the optimizer"
    return finding(code, where, seen, why, advice, numbers, severity=severity)


def compute_decay_at_usual_rate(share: float, rate: float, optimizer: str) -> float:
    """Return the share of the weights that a decay takes at each step, at a usual rate where the run's is larger.

    A step shrinks weights by the decay times the rate. Where that is large because of the rate, the rate is at fault.

    Args:
        share: the share that it takes at the rate of the run.
        rate: the learning rate.
        optimizer: the name of the optimizer's class.
    """
    return share * min(1.0, find_largest_usual_rate(optimizer) / rate)


def find_largest_usual_rate(optimizer: str) -> float:
    """Return the largest rate in use of an optimizer, by the name of its class."""
    return LARGEST_USUAL_SGD_RATE if "SGD" in optimizer else LARGEST_USUAL_RATE


def _is_pulled(steps: StepFacts) -> bool:
    """Whether a weight decay that is added to the gradient is far larger than it."""
    return steps.decay_pull is not None and steps.decay_pull > STRONG_PULL_RATIO


def _are_swapped(steps: StepFacts) -> bool:
    """Whether rate and momentum look as if each stood in the place of the other."""
    return steps.betas is None and 0.0 < (steps.momentum or 0.0) < LEAST_MOMENTUM < LARGEST_RATE < (steps.rate or 0)


def _is_too_long(steps: StepFacts, loss: LossFacts | None) -> bool:
    """Whether the loss rises far, or rises after a step that is too long by its length."""
    if steps.next_loss is None or not math.isfinite(steps.next_loss) or _replaces_weights(steps):
        return steps.next_loss is not None
    blind = 0.0 if loss is None or loss.blind is None else loss.blind
    if steps.loss > 0.0 and steps.next_loss - steps.loss > (DOUBLED_LOSS_RATIO - 1.0) * max(steps.loss, blind):
        return True
    rewritten = (steps.most_moved or 0.0) > REWRITTEN_MATRIX_SHARE and (steps.moved_share or 0.0) > REWRITTEN_SHARE
    climbs = steps.optimizer == "SGD" and (steps.rate or 0.0) > BEYOND_STABLE_RATIO * (steps.stable_rate or math.inf)
    return (
        steps.next_loss > HIGHER_LOSS_RATIO * max(steps.loss, 0.0) and steps.loss > NOT_FITTED and (rewritten or climbs)
    )


def _replaces_weights(steps: StepFacts) -> bool:
    """Whether a step at an unusual rate moves weights by more than their size, so that nothing of them is left."""
    unusual = (steps.rate or 0.0) > UNUSUAL_RATE_RATIO * find_largest_usual_rate(steps.optimizer or "")
    return unusual and (steps.moved_share or 0.0) > REPLACED_SHARE


def check_loss_rises(examined: Examined) -> Iterator[Finding]:
    """`gradient-does-not-descend` (warning): a short step along the gradient raises the loss"""
    steps = step_facts_of(examined)
    if steps is None or steps.fall is None or examined.signal is None or steps.loss <= NOT_FITTED:
        return
    if steps.step_share is not None and steps.step_share > 1.0 and _is_untrained(examined):
        if any(check_shrinking_values(examined)):
            return
        yield finding(
            "no-loss-gradient",
            LOSS,
            "The gradient of the loss is next to nothing: to lower the loss by a hundredth along it, the weights "
            f"would have to change by {figure(steps.step_share)} times their size.",
            "Steps along such a gradient hardly change the loss.",
            "Look at what stands between the last layer and the loss: outputs that are all alike, a factor or "
            "a temperature that makes them tiny, a softmax or sigmoid that is applied twice; scale the outputs up.",
            figures(step_share=steps.step_share),
        )
        return
    half = any("16" in row.dtype for row in examined.signal.rows)  # where a short step is lost in rounding
    short = steps.step_share is not None and SHORTEST * steps.step_share < 0.01
    if steps.fall > -0.5 or half or not short:
        return
    yield finding(
        "gradient-does-not-descend",
        LOSS,
        "A short step along the negative gradient, which should lower the loss by a millionth, "
        + ("raises it." if math.isfinite(steps.fall) else "makes it infinite."),
        "The gradient is then not that of the loss, or the loss is so rough that gradients say nothing of it.",
        "Look for a backward that was written by hand, for values that are rounded, sorted or looked up, and "
        "for a layer whose weights are far too large.",
        figures(fall=steps.fall),
    )


def _is_untrained(examined: Examined) -> bool:
    """Whether a model looks fresh, and its loss does not say that it has learned something."""
    loss = None if examined.signal is None else examined.signal.loss
    learned = loss is not None and loss.share_of_blind is not None and loss.share_of_blind < LEARNED_LOSS_RATIO
    return is_fresh(examined.model) and not learned


def watch_decay_too_strong(history: History) -> Iterator[Finding]:
    """`decay-too-strong` (warning): weight decay takes 1 % of the weights or more at each step, also at a usual rate
    (0.01, or 1 for SGD) where its own is larger; or a layer has shrunk to a fifth, nothing is learned, and two
    thirds of the loss or more are a penalty
    """
    decays = [layer.weight_decay for layer in history.of("weight") if layer.weight_decay]
    coupled = any(layer.coupled for layer in history.of("weight"))
    if not decays or len(history.records) < 2:
        return
    decay, rates = max(decays), [max(r.lr, default=0.0) for r in history.records[-2:]]
    share = min(1.0, min(rates) * decay)
    if (
        not coupled
        and share
        and compute_decay_at_usual_rate(share, min(rates), history.parameter_state.optimizer) >= STRONG_DECAY_SHARE
    ):
        yield DECAY_STRONG.at(words={"memory": max(1.0, 1.0 / share)}, share=share, decay=decay, lr=rates[-1])


PENALTY_OUTWEIGHS = replace(
    DECAY_STRONG,
    seen="The weights of {where} have shrunk to {share:percent} of their size, and the loss ({loss:figure}) is mostly "
    "a penalty: the part that compares outputs with targets is {own:figure}, no better than a constant output.",
    why="The penalty (regularisation, L1 or L2) is too strong: it pulls these weights to zero faster than the loss can "
    "hold them up.",
    advice="Lower the penalty: take the mean of the weights in it instead of their sum, or a hundredth of its factor.",
)
PENALTY_RATIO, SHRUNK_BY_PENALTY_LOG10 = 3.0, -0.7
"""The whole loss over its part that compares with targets, and log10 of a weight over its first size."""


def watch_penalty_outweighs(history: History) -> Iterator[Finding]:
    """A penalty in the loss that shrinks a layer while nothing is learned."""
    loss, own = history.records[-1].loss, history.records[-1].total_of("outputs_own")
    if loss is None or own is None or not loss >= PENALTY_RATIO * own > 0.0:
        return
    shrunk = [
        (min(latest) - course.first[0], layer)
        for index, layer in enumerate(history.of("weight"))
        if (course := history.value_series("weight", "log10_size", index)).first and (latest := course.last())
    ]
    if shrunk and history.is_unlearned:
        fall, layer = min(shrunk, key=lambda pair: pair[0])
        if fall <= SHRUNK_BY_PENALTY_LOG10:
            yield PENALTY_OUTWEIGHS.at(layer.name, share=10.0**fall, loss=loss, own=own)
