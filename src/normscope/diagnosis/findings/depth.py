"""Findings about depth: gradients that fade, grow or end on their way back, and values that grow on their way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ...core.finding import Finding, Severity
from ...report.words import listed, pluralise
from ...theory.initialisation import LIMIT, batch_norm_growth
from ..examined import Examined
from ..signal import INPUT, Signal, SignalRow
from .finding_words import figure, figures, power
from .growth import exploding_run

WEIGHTS = ("linear", "convolution")
FEW = 4
"""A network with fewer weight layers than this has no depth to speak of."""
FADED_DECADES = 3.0
"""Decades that a gradient loses over all layers by its typical step; healthy models of the tests stay within 2."""
DECADES = 5.0
"""Decades that a gradient, or a signal, gains over all layers by its typical step.

Healthy models of the tests stay within 2. A BatchNorm network without skips gains 0.083 a layer at the start (Yang et
al. 2019): 50 layers are 4.
"""
BOTH = 2.0
"""Decades that suffice for an explosion where values grow forward as gradients do backward: a plain expanding chain.

Healthy models of the tests stay within 0.8.
"""
JUMP_DECADES = 6.0
"""Decades of gradient between two layers in a row; healthy models of the tests stay within 2."""
BATCH_NORM_DECADES = 2.0
"""Decades that a gradient gains through fresh BatchNorms: a hundredfold, between layers that share a learning rate.

At a batch of 64 it takes 24 layers without skips.
"""

ENOUGH_LEFT = -1.0
"""log10 of a gradient at the first layer beside that at the output."""


def gradient_vanishing(examined: Examined) -> Iterator[Finding]:
    """A network whose gradient fades layer by layer on its way to the input."""
    signal = _deep(examined)
    if signal is None:
        return
    back = _back(signal)
    if not back >= FADED_DECADES:
        return
    first, count = _first(signal), pluralise(len(signal.layers), "layer")
    left = -back if first.log10_gradient in (None, -math.inf) else first.log10_gradient
    if max(left, *(row.log10_gradient or left for row in signal.layers if row.path == first.path)) > ENOUGH_LEFT:
        return  # a path around the layers brings it back, or the layer runs once more near the output
    step = figure(10.0 ** (-back / (len(_gradients(signal)) - 1)))
    squashing = next((row.kind for row in signal.layers if row.kind in ("sigmoid", "tanh")), None)
    mend = (
        f"Use ReLU or GELU in place of {squashing}"
        if squashing
        else "Initialise with gain 1 (torch.nn.init.kaiming_normal_(weight, nonlinearity='relu'))"
    )
    yield Finding(
        code="gradient-vanishing",
        severity=Severity.WARNING,
        where=first.path,
        seen=f"Of a gradient at the output {power(left)} is left at `{first.path}`, the first of {count}: on its way "
        f"back a typical layer keeps {step} of it (the gradient is that of {signal.gradient_of}).",
        why="A factor below 1 per layer is exponential in depth: the first layers get no gradient and do not learn, "
        "and the output hardly depends on the input.",
        advice=f"{mend}, or add skip connections or normalizers between the layers.",
        numbers=figures(log10_gradient=left, log10_typical=-back, layers=len(signal.layers)),
    )


def gradient_explosion(examined: Examined) -> Iterator[Finding]:
    """A network whose gradient grows layer by layer on its way to the input, or whose values grow on their way."""
    signal = _deep(examined)
    if signal is None or any(seen.untaken for _, seen in examined.normalizers()):
        return  # what does not normalize yet is another finding
    back, forth = -_back(signal), _trend(_sizes(signal))
    if not (max(back, forth) >= DECADES or min(back, forth) >= BOTH) or any(exploding_run(examined)):
        return
    if any(batch_norm_depth(examined)):
        return  # which says why, and advises otherwise
    repeated, runs = Counter(row.path for row in signal.layers if row.kind in WEIGHTS).most_common(1)[0]
    first = _first(signal) if runs < FEW else next(row for row in signal.layers if row.path == repeated)
    grown = [f"values grow {power(forth)} times"] if forth >= BOTH else []
    grown += [f"the gradient grows {power(back)} times on its way back"] if back >= BOTH else []
    yield Finding(
        code="gradient-explosion",
        severity=Severity.WARNING,
        where=first.path,
        seen=f"From `{first.path}` to the output, over {pluralise(len(signal.layers), 'layer')}, "
        f"{' and '.join(grown)} by the typical step of a layer.",
        why="A factor above 1 per layer is exponential in depth: values overflow or saturate, and one learning rate "
        "cannot suit the first layers and the last.",
        advice="Initialise with gain 1 (torch.nn.init.kaiming_normal_(weight, nonlinearity='relu')), put normalizers "
        "between the layers, or scale the branches of a residual network by 1/sqrt(number of blocks).",
        numbers=figures(log10_gradient=back, log10_growth=forth, layers=len(signal.layers)),
    )


def batch_norm_depth(examined: Examined) -> Iterator[Finding]:
    """A fresh network whose BatchNorms, in train mode and without skips around them, make gradients explode."""
    signal = _deep(examined)
    norms = [seen for _, seen in examined.normalizers() if seen.kind == "batch"]
    fresh = all(seen.weight is None or bool((seen.weight == 1.0).all()) for seen in norms)
    if signal is None or not fresh or any(seen.uses_running for seen in norms):
        return
    rows = [row for row in signal.layers if row.kind == "batch_norm"]
    gradients = [row.log10_gradient for row in rows if row.log10_gradient not in (None, -math.inf)]
    if len(gradients) < FEW or len(gradients) < len(rows):
        return
    back = -_trend([value for value in gradients if value is not None])
    if not back >= BATCH_NORM_DECADES:
        return
    measured = 10.0 ** (2.0 * back / (len(gradients) - 1))
    entries = min(seen.entries for seen in norms)
    law = batch_norm_growth(entries) if entries > 3 else math.inf
    first = rows[0].path
    yield Finding(
        code="batch-norm-depth",
        severity=Severity.WARNING,
        where=first,
        seen=f"On its way back through {pluralise(len(rows), 'BatchNorm')} the gradient grows {power(back)} times "
        "by the "
        f"typical step: its squared norm {measured:.3g} times a layer. In wide fresh ReLU networks without skips the "
        f"law is {law:.3g} with {entries} independent values a channel, and {LIMIT:.3g} with many.",
        why="BatchNorm keeps the values at their size and pays for it with the gradient, exponentially in depth: one "
        "learning rate cannot suit the first layers and the last.",
        advice="Add skip connections around every one or two BatchNorms (with the scale of the last BatchNorm of each "
        "block at 0 if there are many blocks), use LayerNorm, or make the network shallower.",
        numbers=figures(log10_gradient=back, growth=measured, law=law, layers=len(rows), entries=entries),
    )


def gradient_jump(examined: Examined) -> Iterator[Finding]:
    """One place where the gradient changes by decades, in a network whose depth is not the cause."""
    signal = examined.signal
    if signal is None or any(gradient_vanishing(examined)) or any(gradient_explosion(examined)):
        return
    readers = Counter(feed for feeds in signal.feeds for feed in feeds)
    steps = [
        (before.log10_gradient - row.log10_gradient, before, row)
        for row, feeds in zip(signal.rows, signal.feeds, strict=False)
        for before in (signal.rows[feed] for feed in feeds if len(feeds) == readers[feed] == 1)  # on no branch
        if row.log10_gradient is not None and before.log10_gradient is not None and before.kind != INPUT
        if math.isfinite(row.log10_gradient) and math.isfinite(before.log10_gradient)
    ]
    step, before, row = max(steps, key=lambda item: abs(item[0]), default=(0.0, None, None))
    if before is None or row is None or row.log10_gradient is None or abs(step) < JUMP_DECADES:
        return
    if abs(_gradients(signal)[0] - row.log10_gradient) < JUMP_DECADES / 2.0:
        return  # a branch of its own: the first layer's gradient comes another way
    yield Finding(
        code="gradient-jump",
        severity=Severity.WARNING,
        where=row.path,
        seen=f"Through `{row.path}` ({row.kind}) the gradient changes by a factor of {power(step)} on its way back to "
        f"`{before.path}`.",
        why="Layers on the two sides of such a jump cannot learn at one learning rate: one side does not move, or the "
        "other diverges.",
        advice=f"Look at the weights and the scale of `{row.path}`: initialise them as those of the other layers, or "
        "put a normalizer before it.",
        numbers=figures(log10_gradient=step),
    )


def no_gradient(examined: Examined) -> Iterator[Finding]:
    """A layer that no gradient gets past."""
    signal = examined.signal
    if signal is None or (_deep(examined) is not None and _back(signal) >= FADED_DECADES):
        return  # a gradient that fades may well end at zero
    rows = [row for row in signal.layers if row.log10_gradient is not None]
    blocked = next((k for k, row in enumerate(rows) if row.log10_gradient != -math.inf), len(rows))
    if not 0 < blocked < len(rows):
        return
    constant = (k for k, row in enumerate(rows[:blocked]) if row.deviation == 0.0)
    place = next(constant, blocked)  # what hands on a constant stops the gradients of ReLUs behind it as well
    if not place:
        return
    row = rows[place]
    zeros = {p.module for p in signal.parameters if len(p.shape) > 1 and p.is_zero}
    cut = place == blocked and row.kind in WEIGHTS and row.path not in zeros  # then the fault lies before it
    last = not cut and not any(later.kind in WEIGHTS for later in rows[place + 1 :])
    yield Finding(
        code="no-gradient",
        severity=Severity.INFO if last else Severity.WARNING,
        where=rows[place - 1].path if cut else row.path,
        seen=f"The gradient ends at `{row.path}` ({row.kind}): it is exactly zero in "
        f"{pluralise(place, 'layer')} before it, from `{rows[place - 1].path}` on.",
        why="Nothing before this layer learns, and at this batch the output does not depend on the input.",
        advice="A last layer that starts at zero opens with the first step: nothing to do for a fresh model."
        if last
        else f"Look between `{rows[place - 1].path}` and `{row.path}` for weights that are all zero, a ReLU that is "
        "never on, or a rounding, sign or argmax (use a straight-through estimator or a softmax instead).",
        numbers=figures(layers=place),
    )


def starved_layers(examined: Examined) -> Iterator[Finding]:
    """Layers beside the main path to which no gradient comes back, though no layer of zeros holds it up."""
    signal = examined.signal
    if signal is None or any(row.is_zero and not row.name.endswith("bias") for row in signal.parameters):
        return
    trained = {row.module for row in signal.parameters if row.trainable and row.gradient == 0.0 and len(row.shape) > 1}
    rows = [row for row in signal.layers if row.log10_gradient is not None]
    first = next((k for k, row in enumerate(rows) if row.log10_gradient != -math.inf), len(rows))
    starved = [row for row in rows[first:] if row.log10_gradient == -math.inf and row.path in trained and row.varies]
    if starved and any(row.log10_gradient != -math.inf for row in rows):
        paths = list(dict.fromkeys(row.path for row in starved))
        learning = {without_numbers(row.module) for row in signal.parameters if row.gradient}
        chosen = all(without_numbers(path) in learning for path in paths)  # others of a list of experts learn
        yield Finding(
            code="no-gradient",
            severity=Severity.INFO if chosen else Severity.WARNING,
            where=paths[-1],
            seen=f"The gradient of {listed([f'`{path}`' for path in paths], most=3)} is exactly zero, that of other "
            "layers is not.",
            why="What they compute has no influence on the output at this batch, and they do not learn.",
            advice=_zero_buffers(examined)
            + f"Look at what reads `{paths[-1]}`: a softmax over an axis of one entry (check its dim), a factor "
            "of zero, a mask that hides everything, a rounding, sign or argmax."
            if not chosen
            else "Nothing to do for experts that no sample of this batch has chosen; see that all of them get some.",
            numbers=figures(layers=len(paths)),
        )


def without_numbers(path: str) -> str:
    """Return a path in which the members of a list have the same name."""
    return ".".join("#" if part.isdigit() else part for part in path.split("."))


def _zero_buffers(examined: Examined) -> str:
    """Return what to do about buffers of zeros, which no training moves."""
    zeros = [
        f"`{name}`" for name, b in examined.model.named_buffers() if b.is_floating_point() and b.numel() and not b.any()
    ]
    zeros = [name for name in zeros if "running_mean" not in name]
    return f"{listed(zeros, most=3)} is a buffer of zeros: make it an nn.Parameter, or initialise it. " if zeros else ""


def _deep(examined: Examined) -> Signal | None:
    """Return the signal of a network that is deep enough to have a trend."""
    signal = examined.signal
    if signal is None or sum(row.kind in WEIGHTS for row in signal.layers) < FEW:
        return None
    return signal


def _first(signal: Signal) -> SignalRow:
    return next((row for row in signal.layers if row.kind in WEIGHTS), signal.layers[0])


def _back(signal: Signal) -> float:
    """Return the decades that the gradient loses from the output to the first layer, by its typical step."""
    return _trend(_gradients(signal))


def _gradients(signal: Signal) -> list[float]:
    found = [row.log10_gradient for row in signal.layers]
    return [value for value in found if value is not None and value > -math.inf]


def _sizes(signal: Signal) -> list[float]:
    found = [row.root_mean_square for row in signal.layers]
    return [math.log10(value) for value in found if value]


def _trend(values: Sequence[float]) -> float:
    """Return the rise over all values by their typical slope: the median over pairs (Theil and Sen).

    Pairs lie at most half of the depth apart, so that one steep step touches a third of them. Neither that nor the
    branches of blocks that are all alike move the median: depth must be the cause.
    """
    if len(values) < 2:
        return 0.0
    array = np.asarray(values)
    first, second = np.triu_indices(len(array), k=1)
    near = second - first <= len(array) // 2
    first, second = first[near], second[near]
    return float(np.median((array[second] - array[first]) / (second - first))) * (len(array) - 1)
