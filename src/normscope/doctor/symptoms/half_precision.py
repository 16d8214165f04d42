"""Values and steps that half precision loses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...core.finding import Finding, Severity, figure, figures, percent
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.layers import BFLOAT16_LARGEST, FLOAT16_LARGEST, FLOAT16_NORMAL, LayerRow
from ..monitor.history import History
from .graph_order import WEIGHT_KINDS
from .precedence import LOST_BY_HALF_PRECISION
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "half-precision": FindingWords(
        "{where} is close to overflow in half precision", "{count} layers are close to overflow in half precision"
    ),
}
NEAR_OVERFLOW_RATIO = 4.0
"""Another batch, or a few steps of training, may well bring values this many times as large as those seen."""
FAINT_GRADIENT = 2.0**-21
"""Eight times the smallest float16: a gradient of this size has three digits, in base two."""
SMALL_VALUES_SHARE = 0.5
"""The share of a layer's values below the smallest normal number, beyond which it loses digits: any bell curve has
fewer."""


def check_half_precision(examined: Examined) -> Iterator[Finding]:
    """`half-precision` (warning, info): values within a factor of 4 of the largest float16 or bfloat16, or mostly below
    the smallest normal float16, or gradients below 5e-7, in a model that runs in it; with `optimizer=` steps that
    are rounded away (info: a model in float32 that would overflow in float16); a cast to a narrower float that loses
    a third of what varies; an optimizer whose step makes half-precision weights infinite
    """
    rows = () if examined.signal is None else [row for row in examined.signal.rows if row.finite]
    if not rows:
        return
    for name, limit in (("float16", FLOAT16_LARGEST), ("bfloat16", BFLOAT16_LARGEST)):
        largest_half = max((row for row in rows if row.dtype == name), key=_size, default=None)
        if largest_half is not None and _size(largest_half) * NEAR_OVERFLOW_RATIO > limit:
            yield _overflow(largest_half, name, limit, Severity.WARNING)
            return
    assert examined.signal is not None
    if examined.signal.calls.rounded is not None:
        where, dtype, share = examined.signal.calls.rounded
        yield finding(
            "half-precision",
            where or "the model",
            f"Values that are rounded to {dtype} in {f'`{where}`' if where else 'the model'} lose "
            f"{percent(share)} of what varies in them: they lie far from zero, where such numbers are coarse.",
            "What was to be learned from lies in the digits that are cut off.",
            "Keep float32 until these values are small: subtract their mean, or take differences, before the cast.",
            figures(share=share),
        )
        return
    largest = max(rows, key=_size)
    if _size(largest) * NEAR_OVERFLOW_RATIO > FLOAT16_LARGEST and largest.dtype != "bfloat16":
        yield _overflow(largest, "float16", FLOAT16_LARGEST, Severity.INFO)
        return
    lost = [
        row for row in rows if row.dtype == "float16" and row.kind in WEIGHT_KINDS and row.log10_gradient == -math.inf
    ]
    zeros = any(row.is_zero for row in examined.signal.parameters if len(row.shape) > 1)
    if lost and not zeros and any(row.log10_gradient not in (None, -math.inf) for row in rows):
        yield OUT_OF_RANGE.at(
            lost[-1].path,
            seen=f"In float16 the gradient is exactly zero at `{lost[-1].path}`, though it is not behind it.",
        )
        return
    halves = [row for row in rows if row.dtype == "float16" and row.kind != "softmax"]
    faint = _faint_gradients(examined) if halves and not zeros else None
    if faint is not None:
        last = next((row.path for row in reversed(halves) if row.kind in WEIGHT_KINDS), halves[-1].path)
        yield OUT_OF_RANGE.at(
            last,
            seen=f"In float16 the gradients of a typical weight are {figure(faint)}, and the loss is "
            f"{figure(examined.signal.objective.loss_value or 0.0)}.",
            gradient=faint,
        )
        return
    small = max(halves, key=lambda row: row.below_float16 or 0.0, default=None)
    if small is not None and small.below_float16 is not None and small.below_float16 > SMALL_VALUES_SHARE:
        yield finding(
            "half-precision",
            small.path,
            f"{percent(small.below_float16)} of the values that `{small.path}` ({small.kind}) hands on in float16 "
            f"are below {figure(FLOAT16_NORMAL)}, its smallest normal number.",
            "Below it digits are lost one by one, and below 6e-8 the value becomes zero.",
            "Run this part in float32 or bfloat16, or raise the scale of what comes before it.",
            figures(share_below=small.below_float16, largest=small.largest),
        )


def _faint_gradients(examined: Examined) -> float | None:
    """Return the size of the gradient of the weights if that of the loss is next to nothing in half precision."""
    signal = examined.signal
    if (
        signal is None
        or signal.objective.loss_value is None
        or (signal.objective.loss_value == 0.0 and not is_fresh(examined.model))
    ):
        return None
    trained = [row for row in signal.parameters if row.trainable and row.gradient is not None and len(row.shape) > 1]
    sizes = [(row.gradient or 0.0) / math.sqrt(math.prod(row.shape)) for row in trained]
    return max(sizes) if sizes and max(sizes) < FAINT_GRADIENT else None


def _size(row: LayerRow) -> float:
    return row.largest or 0.0


def _overflow(row: LayerRow, name: str, limit: float, severity: Severity) -> Finding:
    size = _size(row)
    beyond = size > limit
    place = f"The largest value that `{row.path}` ({row.kind}) hands on is {figure(size)}"
    runs = severity is Severity.WARNING
    return finding(
        "half-precision",
        row.path,
        f"{place}, {'beyond' if beyond else 'close to'} the largest {name}, {figure(limit)}.",
        f"In {name} larger values are infinite, and everything computed from them is lost."
        + ("" if runs else f" The model runs in {row.dtype}, where this is no problem."),
        f"Run this part in float32{' or bfloat16' if name == 'float16' else ''}, or put a normalizer before it."
        if runs
        else "Do not run this model in float16, also not by autocast: take bfloat16, or keep this part in float32.",
        figures(largest=size, log10_room=math.log10(limit / size)),
        severity=severity,
    )


ROUNDED_AWAY = Symptom(
    code="half-precision",
    seen="A step leaves {share:percent} of the weights as they were to the last bit, and after {steps:,} steps the "
    "outputs are no better than a constant.",
    why="Weights are in half precision (float16 or bfloat16): steps that are smaller than the distance to the next "
    "number are rounded away, and nothing is learned.",
    advice="Keep the weights in float32 and run the forward under torch.autocast (with a torch.amp.GradScaler for "
    "float16), or raise the learning rate.",
)
OUT_OF_RANGE = replace(
    ROUNDED_AWAY,
    seen="Nothing passes some layers, and after {steps:,} steps the outputs are no better than a constant.",
    why="Weights or values are in half precision: in float16 values above 65,504 overflow, and gradients below 6e-8 "
    "vanish, with few digits close to that.",
    advice="Scale the loss (torch.amp.GradScaler), compute sums of squares in float32 (x.float()), keep the weights in "
    "float32 and use torch.autocast, or train in bfloat16.",
)
LOST_SHARE, LOST_STEPS = 0.7, 50
"""The share of the weights that a step leaves as they were, below the nine in ten of a check as nothing is learned
meanwhile, and the steps before that is said."""


def watch_half_precision(history: History) -> Iterator[Finding]:
    """`half-precision` (warning): a step leaves 70 % of the weights in half precision as they were to the last bit, or
    nothing passes some layers of a model with float16, while nothing is learned
    """
    if history.step < LOST_STEPS or not history.is_unlearned:
        return
    shares = history.total("share_lost").last(3)
    if shares and min(shares) >= LOST_SHARE:
        yield ROUNDED_AWAY.at(words={"steps": history.step}, share=min(shares))
    elif (history.parameter_state.half_precision or history.parameter_state.casts_to_half) and any(
        map(history.has_raised, LOST_BY_HALF_PRECISION)
    ):
        yield OUT_OF_RANGE.at(words={"steps": history.step})
