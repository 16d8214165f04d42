"""Alarms about weights: norms that grow without limit, and how far a step turns scale-invariant ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ...core.finding import Finding, Severity
from ...diagnosis.findings.finding_words import figure, figures, power
from ...report.words import counted
from ..courses import FIRST, STEPS
from ..history import History
from ..record import LayerRecord, Record
from .medians import lasting, number, step, typical

GROWN = 1.5
"""Decades of a weight's operator norm since the start.

Unnormalized networks that leave a plateau grow by one within a hundred steps and then level off; others by 0.6.
"""
LARGE = 1.5
"""log10 of an operator norm: below thirty a layer that began at zero, or small, is still finding its size."""
GROWN_ANYHOW, HUGE = 2.0, 3.0
"""The same for growth of any shape: a layer that expands a thousandfold has grown too much, whatever it does next."""
GROWN_PER_LAYER = 1.0
"""Decades of the product of all norms, for each of its layers."""
STEADY = 0.8
"""Growth in the last third of the run over that of the middle third.

Exponential growth has 1; norms that grow with the step have log(3/2)/log(2) = 0.58, and random walks the same.
"""
LATELY = ", and as fast lately as before."
THIRDS = 4
"""Records in each third, so that its growth is more than noise."""
STILL, SPINNING = 1e-6, 0.5
"""Radians a step. At 1e-6 a million steps turn a weight by one radian; at 0.5 three steps forget where it stood.

The equilibrium of SGD with weight decay turns by sqrt(2 lr wd), 0.001 to 0.03 as a rule.
"""
STILL_MOVED, SPINNING_MOVED = 1e-5, 0.2
"""The same limits where the effective learning rate has moved far as well."""
MOVED = 2.0
"""Decades of the effective learning rate since the start, beyond what the schedule did."""
SCHEDULED = 0.01
"""A share of the largest learning rate so far: below it the schedule wants small steps."""
FITTED = 0.1
"""A share of the first loss: below it the model has little left to learn, and small steps are no fault."""


def norm_growth(history: History) -> Iterator[Finding]:
    """Norms of weights, or their product over the network, that grow exponentially and do not level off."""
    records = history.records
    if len(records) < 3 * THIRDS or records[-1].step - records[0].step < 3 * STEPS:
        return
    marks, grown = _marks(records), 0
    for index, layer in enumerate(history.of("weight")):
        found = _growth(marks, partial(number, kind="weight", quantity="log10_norm", index=index))
        if found is None:
            continue
        rise, now, steady = found
        limits = (GROWN, LARGE) if steady else (GROWN_ANYHOW, HUGE)
        if rise < limits[0] or now < limits[1]:
            continue
        grown += 1
        free = layer.invariant is not None
        yield Finding(
            code="norm-growth",
            severity=Severity.WARNING,
            where=layer.name,
            seen=f"The operator norm of {layer.name} grew {power(rise)} times to {power(now)}"
            f"{LATELY if steady else '.'}",
            why=f"{layer.normalizer} undoes the scale of these weights, so the output does not change, but each step "
            "turns them less: training comes to a halt."
            if free
            else "Norms multiply over layers: activations, gradients and the Lipschitz constant grow exponentially "
            "with it until they overflow.",
            advice="Use weight decay on this weight (with AdamW or SGD), or lower the learning rate."
            if free
            else "Lower the learning rate, use weight decay, clip gradients (torch.nn.utils.clip_grad_norm_), or put a "
            "normalizer behind this layer.",
            numbers=figures(log10_growth=rise, log10_norm=now, weight_decay=layer.weight_decay),
            step=step(history),
        )
    layers = len(history.of("weight"))
    total = _growth(marks, lambda record: record.total.get("log10_printed"))
    if not grown and total is not None and total[2] and layers > 1 and total[0] >= GROWN_PER_LAYER * layers:
        yield Finding(
            code="norm-growth",
            severity=Severity.WARNING,
            where="",
            seen=f"The product of the operator norms of {counted(layers, 'weight layer')} grew {power(total[0])} times "
            f"to {power(total[1])}{LATELY}",
            why="It bounds how much the network can expand where nothing normalizes, and it grows exponentially with "
            "depth when every layer grows.",
            advice="Use weight decay, lower the learning rate, or put normalizers between the layers.",
            numbers=figures(log10_growth=total[0], log10_printed=total[1], layers=layers),
            step=step(history),
        )


def _marks(records: Sequence[Record]) -> tuple[Sequence[Record], ...]:
    """Return a few records at the start, after one and two thirds of the steps, and at the end."""
    half = FIRST // 2
    start, end = records[half].step, records[-1 - half].step  # each part is as far from the next
    low, high = (bisect_left(records, start + (end - start) * third / 3, key=lambda r: r.step) for third in (1, 2))
    return tuple(records[at - half : at + half + 1] for at in (half, low, high, len(records) - 1 - half))


def _growth(
    parts: Sequence[Sequence[Record]], value: Callable[[Record], float | None]
) -> tuple[float, float, bool] | None:
    """Return the growth since the start, the value now, and whether the last third grew as much as the middle one."""
    marks = [typical([v for r in part if (v := value(r)) is not None and math.isfinite(v)]) for part in parts]
    if any(mark is None for mark in marks):
        return None
    start, low, high, end = (float(mark) for mark in marks if mark is not None)
    middle, last = high - low, end - high
    return end - start, end, middle > 0.0 and last >= STEADY * middle


def effective_lr(history: History) -> Iterator[Finding]:
    """Scale-invariant weights that a step hardly turns, or turns right round."""
    told = {finding.where for finding in history.findings if finding.code in ("variance-collapse", "norm-growth")}
    slow, fast = [], []
    for index, layer, angles in lasting(history, "weight", "rotation"):
        if layer.invariant is None or layer.normalizer in told or layer.name in told:
            continue
        moved = _moved(history, index)
        if max(angles) < (STILL if moved > -MOVED else STILL_MOVED):
            slow.append((layer, max(angles), moved))
        elif min(angles) > (SPINNING if moved < MOVED else SPINNING_MOVED):
            fast.append((layer, min(angles), moved))
    if slow and _should_move(history):
        yield from _turning(history, slow, fast=False)
    if fast:
        yield from _turning(history, fast, fast=True)


def _turning(history: History, found: Sequence[tuple[LayerRecord, float, float]], *, fast: bool) -> Iterator[Finding]:
    """Say it of the layer that is furthest off, with the number of the others; once in a run for each direction."""
    if any(f.code == "effective-lr" and f.numbers.get("exploding") == int(fast) for f in history.findings):
        return
    layer, angle, moved = max(found, key=lambda item: item[1] if fast else -item[1])
    also = f" {counted(len(found) - 1, 'other layer')} likewise." if len(found) > 1 else ""
    rate = f" Its effective learning rate is {power(moved)} times that at the start." if abs(moved) >= MOVED else ""
    yield Finding(
        code="effective-lr",
        severity=Severity.WARNING,
        where=layer.name,
        seen=f"A step turns {layer.name} by {'more' if fast else 'less'} than {figure(angle)} radians, for several "
        f"records.{rate}{also}",
        why=f"{layer.normalizer} undoes the scale of these weights: they learn by turning alone, at the learning rate "
        "divided by their norm (its square for SGD). "
        + (
            "At this angle a few steps undo what was learned before."
            if fast
            else "At this angle they are as good as frozen, while the loss is not fitted."
        ),
        advice="Lower the learning rate, warm it up, or let the norm grow: less weight decay on this weight."
        if fast
        else "Raise the learning rate, or bring the norm down: weight decay on this weight (AdamW or SGD).",
        numbers=figures(rotation=angle, log10_moved=moved, exploding=int(fast), count=len(found)),
        step=step(history),
    )


def _moved(history: History, index: int) -> float:
    """Return how far, in decades, an effective learning rate has moved beyond the schedule; 0 where not known."""
    course = history.course("weight", "log10_unscheduled_lr", index)
    then, now = course.start, course.now
    return 0.0 if then is None or now is None or not math.isfinite(now - then) else now - then


def _should_move(history: History) -> bool:
    """Whether large steps are wanted: the schedule has not ended, the loss is not fitted."""
    rates = history.total("lr").lasting()
    if not rates or min(rates) <= SCHEDULED * history.peak_lr:
        return False
    loss = history.total("loss")
    return loss.now is None or not loss.first or loss.now > FITTED * max(loss.first)
