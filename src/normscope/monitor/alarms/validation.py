"""Alarms about what `run.log_metrics` is given: a validation that becomes worse while training goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from ...core.finding import Finding, Severity
from ..history import Alarm, History

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
    advice="Go back to the checkpoint of step {best_step:,}; lower the learning rate, and look whether the training "
    "data have changed since.",
)
VALIDATION_APART = replace(
    OVERFITTING,
    code="validation-apart",
    seen="`{name}` is {now:figure} at step {at:,}, no better than the {loss_then:figure} of the untrained model, while "
    "the training loss fell to {loss_now:figure}.",
    why="The network that is validated is not the one that is trained, or the validation data are not like the "
    "training data.{more}",
    advice="{remedy}",
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
LOSS_NAME = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validation|eval|dev|test|heldout|held_out)[a-z]*[_/. -].*loss|loss.*val"
)
ACCURACY_NAME = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validation|eval|dev|test|heldout|held_out)[a-z]*[_/. -].*(?:acc|f1|auc|map|iou|r2)"
)
WORSE_LOGS = 3
"""How many of the latest validations must all be worse than the best: one odd validation is no trend."""
RISEN_SHARE, RISEN_CLEARLY_SHARE = 1.1, 1.25
"""The least and the last of these over the best loss; noise of a validation of a few hundred samples is 5 %."""
RISEN_FAR_SHARE = 1.5
"""The last loss over the best one that is an alarm though the accuracy holds: below it outputs are only too sure."""
ACCURACY_FALL = 0.1
"""By how much accuracies must have fallen."""


def validation(history: History, step: int) -> Iterator[Finding]:
    """A validation that becomes worse."""
    for name, pairs in history.validations.items():
        figures = [(at, value) for at, value in pairs if math.isfinite(value)]
        if len(figures) < WORSE_LOGS or any(
            finding.code in VALIDATION_CODES and finding.severity > Severity.INFO for finding in history.findings
        ):
            continue
        if LOSS_NAME.search(name.lower()):
            yield from _judge_losses(history, step, name, figures)
        elif ACCURACY_NAME.search(name.lower()):
            best_step, best = max(figures, key=lambda pair: pair[1])
            latest = [value for at, value in figures[-WORSE_LOGS:] if at > best_step]
            if best <= 1.0 and len(latest) == WORSE_LOGS and max(latest) <= best - ACCURACY_FALL:
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
    if worse and latest[-1] >= RISEN_CLEARLY_SHARE * best and max(latest) - best > 0.02 * (start or 0.0):
        falls = then is not None and now is not None and now < then
        alarm = OVERFITTING if falls else VALIDATION_WORSE
        if latest[-1] < RISEN_FAR_SHARE * best and _accuracy_holds(history, best_step):
            alarm = replace(alarm, severity=Severity.INFO)
        yield alarm.at(step, words=words, best=best, now=latest[-1])
        return
    # the observed loss may have another scale, or other terms, than that of the validation: that of outputs has not
    owns = [own for r in history.records if (own := r.total.get("outputs_own")) is not None]
    start, now = (owns[0], median(owns[-WORSE_LOGS:])) if len(owns) > WORSE_LOGS else (None, None)
    if start is not None and now is not None and 0.0 < now < start / 2 and min(latest) >= start:
        norms = any(layer.family == "batch_norm" for layer in history.of("normalizer"))
        more, remedy = BATCH_NORM_WORDS if norms else OTHER_WORDS
        words |= {"loss_then": start, "loss_now": now, "more": more, "remedy": remedy}
        yield VALIDATION_APART.at(step, words=words, best=best, now=latest[-1])


def _accuracy_holds(history: History, best_step: int) -> bool:
    """Return whether a validation accuracy is logged too and is no worse than where the loss was best."""
    for name, pairs in history.validations.items():
        if ACCURACY_NAME.search(name.lower()):
            then = [value for at, value in pairs if at <= best_step]
            return bool(then) and pairs[-1][1] >= then[-1]
    return False


def _training_loss(history: History, step: int) -> float | None:
    """Return the mean training loss around a step: of the first record at or behind it, or the last one."""
    means = [(r.step, value) for r in history.records if (value := r.metrics.get("loss_mean", r.loss)) is not None]
    return next((value for at, value in means if at >= step), means[-1][1] if means else None)
