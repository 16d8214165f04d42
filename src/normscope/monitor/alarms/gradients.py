"""Alarms about gradients: growing or fading over the run, or on their way through the layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from ...core.finding import Finding, Severity
from ...diagnosis.findings.finding_words import figure, figures, power
from ...report.words import counted
from ..history import History
from .medians import number, steepest, step, told

EXPLODED = 4.0
"""Decades of the whole gradient above that of the untrained model.

Healthy runs of the tests stay within 1.7; unnormalized networks that leave a plateau come closest to it.
"""
CONSECUTIVE = 3
"""Records in a row: an explosion lasts until it ends the run, a spike of one batch does not."""
UNEVEN = 5.0
"""Decades of gradient times weight between one layer and the last third; healthy runs of the tests stay within 1.8."""
BACK_EXPLODES, BACK_VANISHES = 5.0, -6.0
"""Decades over all blocks from the output to the input; healthy runs lie between -2 and 2.

A BatchNorm network without skips gains 0.083 a layer at the start (Yang et al. 2019): 50 layers are 4. Averaging over
positions loses log10 of their number, 2 to 4, which is no fault.
"""
GONE = 5.0
"""Decades of the whole gradient below that of the untrained model, while the loss has hardly moved."""
UNFITTED = 0.5
"""A share of the first loss: while the loss is above it, the gradient has no reason to be gone."""
FEW = 4
"""A network needs this many layers before its gradients by depth say anything."""
REACH = (
    "Add skip connections or normalizers, use ReLU or GELU instead of saturating activations, or initialise with gain "
    "1 (torch.nn.init.kaiming_normal_)."
)
CLIP = "clip gradients (torch.nn.utils.clip_grad_norm_), lower the learning rate"


def gradient_explosion(history: History) -> Iterator[Finding]:
    """Gradients that are NaN or infinite, far above those of the untrained model, or growing on their way back."""
    yield from _not_finite(history)
    if told(history, "gradient-explosion"):
        return
    found = [record.total.get("log10_gradient") for record in history.records[-CONSECUTIVE:]]
    recent, start = [v for v in found if v is not None and not math.isnan(v)], _start(history)
    gains = _back(history)
    uneven = _uneven(history, "gradient-explosion")
    if start is not None and len(recent) == CONSECUTIVE and min(recent) - start >= EXPLODED:
        worst = steepest(history, history.records[-1])
        where = "" if worst is None else history.of("weight")[worst].name
        yield Finding(
            code="gradient-explosion",
            severity=Severity.WARNING,
            where=where,
            seen=f"For {CONSECUTIVE} records the gradient was at least {power(min(recent))}; that of the untrained "
            f"model was {power(start)}." + (f" It is largest, for its weights, in {where}." if where else ""),
            why="Steps grow with the gradient, overshoot and make it grow further; overflow is the usual end.",
            advice=f"{CLIP[0].upper()}{CLIP[1:]}, and warm it up.",
            numbers=figures(log10_gradient=recent[-1], log10_gradient_first=start),
            step=step(history),
        )
    elif uneven is not None:
        yield uneven
    elif gains and min(gains) >= BACK_EXPLODES:
        yield Finding(
            code="gradient-explosion",
            severity=Severity.WARNING,
            where="",
            seen=f"On its way from the output to the input the gradient grows {power(min(gains))} times over "
            f"{counted(len(history.of('block')), 'block')}.",
            why="Growth per layer is exponential in depth: one learning rate cannot suit the first layers and the "
            "last.",
            advice="Add skip connections, initialise with gain 1 (torch.nn.init.kaiming_normal_), put normalizers "
            f"inside branches rather than one after the other, or {CLIP}.",
            numbers=figures(log10_backward=min(gains)),
            step=step(history),
        )


def gradient_vanishing(history: History) -> Iterator[Finding]:
    """Gradients that are gone though the loss is not, or that fade on their way back."""
    if told(history, "gradient-vanishing"):
        return
    losses, opening, loss = history.total("loss").lasting(), history.total("loss").first, history.total("loss").now
    start, top = _start(history), max(history.total("log10_gradient").lasting(), default=math.inf)
    gains, uneven = _back(history), _uneven(history, "gradient-vanishing")
    stuck = loss is not None and opening and 0.0 < UNFITTED * max(opening) <= loss
    if start is not None and stuck and top <= start - GONE:
        yield Finding(
            code="gradient-vanishing",
            severity=Severity.WARNING,
            where="",
            seen=f"The gradient of the whole network fell from {power(start)} to {power(top)} while the loss is still "
            f"{figure(losses[-1])}; it began at {figure(opening[0])}.",
            why="Nothing tells the weights how to become better: outputs are saturated, or units are switched off.",
            advice="Go back to a checkpoint from before, lower the learning rate, and look for saturated activations "
            "(sigmoid, tanh, softmax) and ReLUs that are never on.",
            numbers=figures(log10_gradient=top, log10_gradient_first=start, loss=loss),
            step=step(history),
        )
    elif uneven is not None:
        yield uneven
    elif gains and max(gains) <= BACK_VANISHES:
        yield Finding(
            code="gradient-vanishing",
            severity=Severity.WARNING,
            where="",
            seen=f"On its way from the output to the input the gradient shrinks to {power(max(gains))} over "
            f"{counted(len(history.of('block')), 'block')}.",
            why="The first layers hardly learn: what reaches them is lost among rounding and noise.",
            advice=REACH,
            numbers=figures(log10_backward=max(gains)),
            step=step(history),
        )


def _start(history: History) -> float | None:
    """Return log10 of the first whole gradient that is finite."""
    return next((value for value in history.total("log10_gradient").first if math.isfinite(value)), None)


def _back(history: History) -> list[float]:
    """Return the decades between the gradient behind the first block and that behind the last, in the latest records.

    Both are gradients as they came: what lies between, a chain or branches beside a skip, need not be known.
    """
    blocks = sum(bool(history.course("block", "log10_backward", i).recent) for i in range(len(history.of("block"))))
    gains = history.total("log10_backward").lasting()
    return gains if blocks >= FEW and all(map(math.isfinite, gains)) else []


def _uneven(history: History, code: str) -> Finding | None:
    """Return the layer whose gradient lasts far above, or below, those of the layers next to the output.

    Gradients are taken times the norm of their weights, how much the loss changes when these change by their own size:
    a weight before a normalizer has the same figure at every scale.
    """
    up = code == "gradient-explosion"
    layers = history.of("weight")
    levels: dict[int, float] = {}
    for index in range(len(layers)):
        sizes = dict(history.course("weight", "log10_size", index).recent)
        pairs = history.course("weight", "log10_gradient", index).latest()
        known = [gradient + sizes.get(step, math.nan) for step, gradient in pairs]
        if known and all(map(math.isfinite, known)):
            levels[index] = median(known)
    if len(levels) < FEW:
        return None
    others = median(list(levels.values())[-max(2, len(levels) // 3) :])
    beyond = [i for i, level in levels.items() if (level - others if up else others - level) >= UNEVEN]
    if not beyond:
        return None
    index = (max if up else min)(beyond, key=lambda i: levels[i])
    also = f" {counted(len(beyond) - 1, 'other layer')} likewise." if len(beyond) > 1 else ""
    return Finding(
        code=code,
        severity=Severity.WARNING,
        where=layers[index].name,
        seen=f"The gradient of {layers[index].name}, times the norm of its weights, is {power(levels[index])}; that of "
        f"the last layers is {power(others)}.{also}",
        why="One learning rate cannot suit both: this layer is thrown about while the others stand still."
        if up
        else "This layer hardly learns while the others do: what reaches it is lost on the way back.",
        advice=f"{CLIP[0].upper()}{CLIP[1:]} of this layer, or look at what follows it: a normalizer whose input "
        "hardly varies expands gradients on their way back."
        if up
        else REACH,
        numbers=figures(log10_sensitivity=levels[index], log10_others=others, count=len(beyond)),
        step=step(history),
    )


def _not_finite(history: History) -> Iterator[Finding]:
    """Gradients that stay NaN or infinite; one step that overflows under a loss scale is no fault."""
    values = [value for _, value in history.total("log10_gradient").latest()]
    if values and not any(v < math.inf for v in values):
        layers = [
            layer.name
            for i, layer in enumerate(history.of("weight"))
            if (v := number(history.records[-1], "weight", "log10_gradient", i)) is not None and not v < math.inf
        ]
        yield Finding(
            code="gradient-explosion",
            severity=Severity.ERROR,
            where=layers[-1] if layers else "",
            seen=f"For {counted(len(values), 'record')} the gradient was NaN or infinite"
            + (f"; {layers[-1]} is the last layer where it is." if layers else "."),
            why="Such a step makes the weights NaN, or is skipped by a GradScaler: either way nothing is learned.",
            advice="Lower the loss scale, run the backward of this layer in float32 or bfloat16, and look for the "
            "root, logarithm or quotient of a zero behind it.",
            numbers=figures(count=len(layers)),
            step=step(history),
        )
