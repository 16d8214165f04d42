"""What a validation says: it becomes worse, is apart from the training, or a reward falls."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, stdev

from ...core.finding import Finding, Severity
from ..monitor.history import History
from .precedence import VALIDATION_CODES
from .symptom import FindingWords, Symptom

FINDING_WORDS = {
    "overfitting": FindingWords("the validation loss rises while the training loss falls"),
    "validation-worse": FindingWords("the validation became worse"),
    "validation-apart": FindingWords("the validation does not follow the training"),
    "reward-falls": FindingWords("the reward falls"),
}
OVERFITTING = Symptom(
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


VALIDATED_IN_TRAIN_MODE = Symptom(
    code="eval-mode",
    seen="The last {count} validations came behind forwards without gradients in train mode, and {where} drops "
    "{share:percent} of its values there.",
    why="In train mode dropout is on: what is validated is not the network that will be used, and looks worse than it "
    "is; BatchNorm takes the validation data into its running statistics.",
    advice="Call model.eval() in front of every validation, and model.train() behind it.",
)
REWARD_FALLS = Symptom(
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
            yield REWARD_FALLS.at(step=step, words={"name": name, "count": len(values)}, before=before, now=now)


def watch_validation(history: History, step: int) -> Iterator[Finding]:
    """`overfitting` (warning): of `run.log_metrics(val_loss=...)`: three validations in a row are worse than the best
    by a tenth, the last by a quarter, while the training loss falls (info where a logged accuracy holds and the loss
    is below 1.5 times the best); or three are no better than the best and a fifth of the first loss or more, while
    the training loss is 3 % of either
    `validation-worse` (warning): the same while the training loss does not fall; or a validation accuracy that fell by
    0.1; or, at once, a loss that only became better and is three times the best and worse than the first
    `validation-apart` (warning): three validation losses are no better than the loss of the untrained model, while the
    training loss was halved
    `reward-falls` (warning): a reward or return that is given to `run.log_metrics(reward=...)`, judged when it was
    logged 60, 120 and 240 times: the mean of the last fifth of the values is a fifth and five standard errors below
    that of the first fifth, and that of the middle fifth lies between
    """
    yield from _reward_falls(history, step)
    share, where = history.parameter_state.dropout
    if (count := history.parameter_state.validated_in_train_mode) >= 2 and not history.has_raised("eval-mode"):
        yield VALIDATED_IN_TRAIN_MODE.at(where, {"count": count}, step=step, share=share)
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
                yield VALIDATION_WORSE.at(step=step, words=words, best=best, now=latest[-1])


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
        yield VALIDATION_LOST.at(step=step, words=words, best=best, now=latest[-1])
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
        yield alarm.at(step=step, words=words, best=best, now=latest[-1])
        return
    # the observed loss may have another scale, or other terms, than that of the validation: that of outputs has not
    losses = [loss for r in history.records if (loss := r.total_of("outputs_own"))]
    start, now = (losses[0], median(losses[-WORSE_LOGS:])) if len(losses) > WORSE_LOGS else (None, None)
    if not is_held_out_loss(name):
        return
    stays = figures[-WORSE_LOGS][0] > best_step and min(latest) >= NOT_BETTER_SHARE * best > 0.0
    by_heart = start is not None and now is not None and 0.0 < now <= BY_HEART_SHARE * min(start, latest[-1])
    if by_heart and stays and min(latest) >= FAR_SHARE * (start or 0.0):
        yield LEARNED_BY_HEART.at(step=step, words=words | {"loss_now": now}, best=best, now=latest[-1])
        return
    if start is not None and now is not None and 0.0 < now < start / 2 and min(latest) >= start:
        norms = any(layer.family == "batch_norm" for layer in history.of("normalizer"))
        more, remedy = BATCH_NORM_WORDS if norms else OTHER_WORDS
        words |= {"loss_then": start, "loss_now": now, "more": more, "remedy": remedy}
        yield VALIDATION_APART.at(step=step, words=words, best=best, now=latest[-1])


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
