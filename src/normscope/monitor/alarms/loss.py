"""Alarms about the loss: not a number any more, or far above where it began."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.finding import Finding, Severity
from ...diagnosis.findings.broken import RESTORE
from ...diagnosis.findings.words import figure, figures
from ..record import Kind, Record
from .windows import number, steepest, step, told

if TYPE_CHECKING:
    from ..history import History

RISEN = 10.0
"""Times the largest of the first losses: an untrained model is rarely that bad, so training has made it worse.

Losses that play against each other (GANs) rise a few times in healthy runs.
"""


def loss_not_finite(history: History) -> Iterator[Finding]:
    """The loss, or where it is not observed every weight, is NaN or infinite; where that began."""
    record = history.records[-1]
    if not is_broken(history, record) or any(finding.code == "loss-not-finite" for finding in history.findings):
        return
    weights = _weights(history, record)
    before = history.records[-2] if len(history.records) > 1 else None
    since = "in the first record" if before is None else f"after step {before.step:,}, the last record before it"
    where, words = _began(history, record, weights, before)
    what = "Weights are not finite"
    if record.loss is not None:
        what = f"The loss is {'NaN' if math.isnan(record.loss) else 'infinite'}"
    yield Finding(
        code="loss-not-finite",
        severity=Severity.ERROR,
        where=where,
        seen=f"{what}; it began {since}. {words}",
        why="A step with a gradient that is no number makes every weight NaN; nothing is learned from here on.",
        advice=RESTORE,
        numbers=figures(
            broken_weights=len(weights),
            weights=len(history.of("weight")),
            last_finite_step=None if before is None else before.step,
            last_loss=None if before is None else before.loss,
        ),
        step=record.step,
    )


def is_broken(history: History, record: Record) -> bool:
    """Whether the loss of a record is not finite, or, where it is not observed, a weight."""
    return bool(_weights(history, record)) if record.loss is None else not math.isfinite(record.loss)


def _weights(history: History, record: Record) -> list[int]:
    """Return the weights that are not finite."""
    return _broken(history, record, "weight", "log10_size") or _broken(history, record, "weight", "log10_norm")


def _began(history: History, record: Record, weights: list[int], before: Record | None) -> tuple[str, str]:
    """Return the layer where numbers broke first, and what is known of it."""
    layers = history.of("weight")
    if weights and len(weights) < len(layers):
        name = layers[weights[0]].name
        return name, f"The weights of {name} are the first, in the order of the forward, that are not finite."
    if weights:
        worst = None if before is None else steepest(history, before)
        name = layers[weights[0] if worst is None else worst].name
        told = "" if worst is None else f" The layer with the largest gradient for its weights was {name} then."
        return name, f"All weights are broken already, so a step between the two records did it.{told}"
    normalizers = _broken(history, record, "normalizer", "log10_variance_max")
    if normalizers:
        layer = history.of("normalizer")[normalizers[0]]
        feeding = next((w.name for w in layers if w.normalizer == layer.name), None)
        source = "" if feeding is None else f", what {feeding} puts out,"
        return layer.name, f"All weights are finite; the input of {layer.name}{source} is the first that is not."
    blocks = _broken(history, record, "block", "log10_activation")
    if blocks:
        name = history.of("block")[blocks[0]].name
        return name, f"All weights are finite; the output of {name} is the first that is not."
    gradients = _broken(history, record, "weight", "log10_gradient")
    if gradients and len(gradients) < len(layers):
        name = layers[gradients[-1]].name
        return name, f"All weights are finite; {name} is the last layer whose gradient is not."
    return "", "All weights and all that was measured of the forward are finite: the loss itself, or the data, is not."


def _broken(history: History, record: Record, kind: Kind, quantity: str) -> list[int]:
    """Return the layers, in order, with a figure that is NaN or plus infinity; zero is minus infinity and is fine."""
    found = ((i, number(record, kind, quantity, i)) for i in range(len(history.of(kind))))
    return [i for i, value in found if value is not None and (math.isnan(value) or value == math.inf)]


def loss_rising(history: History) -> Iterator[Finding]:
    """The loss stays far above where it began."""
    now, start = history.total("loss").lasting(), history.total("loss").first
    if not now or not start or not all(math.isfinite(v) and v > 0.0 for v in (*now, *start)):
        return
    if min(now) >= RISEN * max(start):
        rate = max(history.records[-1].lr, default=math.nan)
        yield Finding(
            code="loss-rising",
            severity=Severity.WARNING,
            where="",
            seen=f"The loss began at {figure(start[0])} and is {figure(now[-1])}; for {len(now)} records it was above "
            f"{figure(min(now))}.",
            why="Training has made the model much worse than it was untrained: steps are too large for the "
            "curvature, and each overshoots the one before.",
            advice=f"Lower the learning rate ({figure(rate)} now) by ten, warm it up, or clip gradients "
            "(torch.nn.utils.clip_grad_norm_); go back to a checkpoint from before.",
            numbers=figures(loss=now[-1], loss_first=start[0], lr=rate),
            step=step(history),
        )


def loss_spike(history: History) -> Iterator[Finding]:
    """A loss far above those around it, at whatever step."""
    found = history.spikes.found
    if found is None or told(history, "loss-spike"):
        return
    yield Finding(
        code="loss-spike",
        severity=Severity.WARNING,
        where="",
        seen=f"The loss was {figure(found.loss)} at step {found.step:,}; before it was about {figure(found.level)}.",
        why="One such step can undo much of what was learned: a batch unlike the others, or a step that was too large.",
        advice="Look at the batch of this step, clip gradients (torch.nn.utils.clip_grad_norm_), lower the learning "
        "rate or warm it up.",
        numbers=figures(loss=found.loss, loss_before=found.level, at=found.step, records=history.spikes.count),
        step=step(history),
    )
