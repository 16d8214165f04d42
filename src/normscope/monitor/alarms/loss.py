"""Alarms about the loss: not a number any more, or far above where it began."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.finding import Finding, Severity
from ...diagnosis.findings.broken import RESTORE
from ...diagnosis.findings.finding_words import figure, figures, power
from ...report.words import counted
from ..history import History
from ..record import Kind, Record
from .medians import number, step, told

UNLEARNED = 0.9
"""A share of the first loss: while the loss is above it, nothing has been learned."""
THROWN = 1.0
"""Decades of the norm of all weights since the start, while nothing is learned; healthy runs stay within 0.3."""
EARLY, THROWN_UP = 100, 4.0
"""How many steps count as the start, and the multiple of the first loss that is an alarm within them."""
BOTH = (0.5, 1.5)
"""Decades by which the weights have grown, and a multiple of the first loss, which are an alarm together.

They were chosen on runs of SGD at a learning rate of 3, which throws the weights of small MLPs at once and leaves their
loss above the first.
"""
RISEN = 10.0
"""The multiple of the largest of the first losses that is an alarm: training has made the model worse than it was.

Losses that play against each other (GANs) rise a few times in healthy runs.
"""


UNKNOWN = (
    "Which layer was the first is not known. To have the forward looked at that breaks, give run.observe the loss of "
    "every step, as a number (loss.item()) where it lies on a GPU."
)
EVIDENCE: tuple[tuple[Kind, str, str], ...] = (
    ("normalizer", "log10_variance_max", "the input of `{name}` is the first of a normalizer that is not."),
    ("block", "log10_activation", "`{name}` is the first block whose input or output is not."),
    ("weight", "log10_gradient", "`{name}` is the last layer whose gradient is not."),
)
"""What may be broken though the weights are not; it says where to look, not where it began."""


def loss_not_finite(history: History) -> Iterator[Finding]:
    """The loss, or where it is not observed every weight, is NaN or infinite; where that began, if it is known."""
    record = history.records[-1]
    if not is_broken(history, record) or told(history, "loss-not-finite"):
        return
    weights = _weights(history, record)
    before = history.records[-2] if len(history.records) > 1 else None
    at = record.metrics.get("loss_broken_at")
    since = "in the first record" if before is None else f"after step {before.step:,}, the last record before it"
    since = since if at is None else f"at step {at:,.0f}"
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
            at=at,
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
    """Return the layer where numbers broke first, empty where that is not known, and what is known of it."""
    found, layers = history.broken, history.of("weight")
    if found is not None and found.step <= record.step and (before is None or found.step > before.step):
        return found.where, found.words
    if len(weights) == 1 and len(layers) > 1:
        name = layers[weights[0]].name
        return name, f"The weights of `{name}` are not finite; those of all other layers are."
    if weights:
        return "", f"{len(weights):,} of {counted(len(layers), 'weight layer')} are broken already. {UNKNOWN}"
    for kind, quantity, words in EVIDENCE:
        broken = _broken(history, record, kind, quantity)
        if broken:
            name = history.of(kind)[broken[-1] if quantity == "log10_gradient" else broken[0]].name
            return "", f"All weights are finite; {words.format(name=name)} {UNKNOWN}"
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


def lr_too_high(history: History) -> Iterator[Finding]:
    """The first steps threw the weights or the loss far up, and since then nothing is learned."""
    losses = history.total("loss_mean").lasting() or history.total("loss").lasting()
    start, weights = history.records[0].loss, history.total("log10_weight")
    if start is None or not start > 0.0 or not losses or not math.isfinite(max(losses)):
        return
    if min(losses) < UNLEARNED * start or not weights.first or told(history, "lr-too-high"):
        return
    grown = [value - weights.first[0] for value in weights.lasting()] or [0.0]
    early = [r.metrics.get("loss_largest", r.loss) for r in history.records[:EARLY] if r.step <= EARLY]
    peak = max((value for value in early if value is not None and math.isfinite(value)), default=start)
    thrown = min(grown) >= THROWN or peak >= THROWN_UP * start
    if not (thrown or (min(grown) >= BOTH[0] and peak >= BOTH[1] * start)):
        return
    rate = max(history.records[0].lr, default=math.nan)
    yield Finding(
        code="lr-too-high",
        severity=Severity.WARNING,
        where="",
        seen=f"The loss began at {figure(start)}, rose to {figure(peak)} in the first steps and is now "
        f"{figure(losses[-1])}; the weights have grown {power(min(grown))} times.",
        why="The first steps were too large: they threw the weights to where units are switched off or saturated, and "
        "no gradient leads back.",
        advice=f"Begin again with a learning rate of a tenth ({figure(rate)} at first) or less, or warm it up.",
        numbers=figures(loss=losses[-1], loss_first=start, loss_peak=peak, log10_growth=min(grown), lr=rate),
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
