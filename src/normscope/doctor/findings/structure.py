"""Findings about how layers stand together: no activation between two of them, an output that does not vary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from torch import nn

from ...core.finding import Finding, Severity, figure, figures, percent
from ...listening.calls import NORMALIZERS
from ...report.words import pluralise
from ..checking.examined import Examined
from ..checking.loss_facts import CLASSES, is_fresh
from ..checking.signal import Signal, SignalRow
from ..checking.signal_pass import ACTIVATIONS
from .causes import GraphOrder
from .depth import WEIGHTS, gradient_vanishing, rows_of_weights

STEEPEST_LEAK = 0.9
LONG_CHAIN, FEWEST_COMPARED = 8, 16
"""Weight layers in a row, and samples: fewer show no trend."""
DIFFERENT, ALIKE = 0.3, 0.03
"""Shares of the values that differ between samples, at the start and at the end of a chain whose samples fade into one
another; a healthy plain chain of twenty layers keeps a tenth."""
CLASSES_PER_UNIT = 4
"""Classes that one unit may have to tell apart; two units tell sixteen, as pictures of features in a plane show."""


def missing_activation(examined: Examined) -> Iterator[Finding]:
    """Two weight layers with nothing but a rearrangement between them, so that they are one linear map.

    Some pairs are meant as such, but not in a network that has no activation anywhere.
    """
    signal = examined.signal
    if signal is None:
        return
    if not signal.bends and sum(row.kind in WEIGHTS for row in signal.rows) > 2:
        yield from _no_activation_at_all(signal)
        return
    readers = Counter(feed for feeds in signal.feeds for feed in set(feeds))
    for number, feeds in enumerate(signal.linear_feeds):
        row = signal.rows[number]
        if row.kind not in WEIGHTS:
            continue
        for feed in feeds:
            # mobile networks hand on what a pointwise convolution made without an activation
            normalized = signal.rows[feed].kind in NORMALIZERS and not _is_pointwise(examined, row)
            through = [feed, *(signal.linear_feeds[feed] if normalized else ())]
            before = signal.rows[through[-1]]
            if before.kind not in WEIGHTS or _is_factorization(examined, before, row):
                continue
            if _trains(signal, before) and not _trains(signal, row):
                continue  # another network, which judges what the first one makes
            if _has_frozen_copy(examined, before):
                continue  # a representation that is compared with that of a teacher: what reads it is a head of its own
            if any(readers[place] > 1 or place in signal.shared for place in through) or _ends_pre_activation(
                examined, signal, through[-1], row
            ):
                continue  # a skip, a gate or heads read it too, or activations stand before the convolutions
            yield Finding(
                code="missing-activation",
                severity=Severity.WARNING,
                where=row.path,
                seen=f"`{before.path}` hands its output to `{row.path}`"
                + (f" by way of the normalizer `{signal.rows[feed].path}`" if len(through) > 1 else "")
                + ": there is no activation between them.",
                why="A normalizer is no activation: what lies between them is nearly a linear map."
                if len(through) > 1
                else "Two linear layers in a row compute what one could: the first adds weights and no power.",
                advice=f"Put an activation (ReLU, GELU) between `{before.path}` and `{row.path}`, or remove one of "
                "them.",
                numbers={},
            )


def _no_activation_at_all(signal: Signal) -> Iterator[Finding]:
    """A network of weights, normalizers and poolings alone: every weight layer that reads another one."""
    nearest: list[frozenset[int]] = []  # by row: the weight layers that it reads, by way of anything else
    for number, row in enumerate(signal.rows):
        feeds = signal.feeds[number] if number < len(signal.feeds) else ()
        before = frozenset[int]().union(*(nearest[feed] for feed in feeds))
        nearest.append(frozenset((number,)) if row.kind in WEIGHTS else before)
        if row.kind in WEIGHTS and before:
            first = signal.rows[max(before)]
            yield Finding(
                code="missing-activation",
                severity=Severity.WARNING,
                where=row.path,
                seen=f"`{first.path}` hands its output to `{row.path}`, and the network has no activation anywhere.",
                why="Layers without activations between them compute what one linear layer could: all but one add "
                "weights and no power.",
                advice=f"Put an activation (ReLU, GELU) between `{first.path}` and `{row.path}`, or remove one of "
                "them.",
                numbers={},
            )


def narrow_layer(examined: Examined) -> Iterator[Finding]:
    """A layer on every way to the outputs of a classifier that hands on far fewer numbers than there are classes."""
    signal = examined.signal
    facts = None if signal is None else signal.loss
    if signal is None or facts is None or facts.name not in CLASSES or len(facts.output_shape) != 2:
        return
    flow, classes = GraphOrder(examined), facts.output_shape[1]
    for number, weight in rows_of_weights(signal, examined.data).items():
        row, before = signal.rows[number], flow.before(signal.rows[number].path)
        made, read = (math.prod(shape[1:]) for shape in (weight.output_shape, weight.input_shape))
        whole = row.shape[:1] == weight.input_shape[:1] == facts.output_shape[:1]
        narrow = classes >= CLASSES_PER_UNIT**made and flow.cuts(row.path, inner=True)
        reads_narrow = classes >= CLASSES_PER_UNIT**read and len(before) == 1 and flow.cuts(row.path)
        if whole and (narrow or reads_narrow):
            where = row.path if narrow else next(iter(before))
            yield Finding(
                code="bottleneck",
                severity=Severity.WARNING,
                where=where,
                seen=f"`{where}` hands on {pluralise(made, 'number')} of each sample, and {classes} classes are told "
                "apart behind it."
                if narrow
                else f"`{row.path}` reads {pluralise(read, 'number')} of each sample, all that is left of `{where}`, "
                f"and {classes} classes are told apart behind it.",
                why="Everything about a sample has to pass through it: classes that lie side by side there cannot all "
                "be told apart.",
                advice=f"Widen `{where}`: at least as many units or channels as there are classes.",
                numbers=figures(width=min(made, read), classes=classes),
            )
            return


def flat_activation(examined: Examined) -> Iterator[Finding]:
    """A LeakyReLU whose slope is that of the identity."""
    for path, module in examined.model.named_modules():
        if isinstance(module, nn.LeakyReLU) and float(module.negative_slope) > STEEPEST_LEAK:
            yield Finding(
                code="missing-activation",
                severity=Severity.WARNING,
                where=path,
                seen=f"`{path}` is a LeakyReLU with a slope of {float(module.negative_slope):g} below zero.",
                why="With a slope near 1 it is the identity: the layers around it are one linear map.",
                advice="Use LeakyReLU(0.01) or another activation; its first argument is the slope, not inplace.",
                numbers={},
            )


def hidden_softmax(examined: Examined) -> Iterator[Finding]:
    """A softmax in the place of an activation: between two weight layers.

    Where its output, or its input, is read elsewhere too, it is taken to give probabilities that are meant.
    """
    signal = examined.signal
    if signal is None:
        return
    reported: set[int] = set()
    for number, reader in enumerate(signal.rows):
        if reader.kind not in WEIGHTS or not _trains(signal, reader):
            continue  # an expectation over fixed numbers
        for softmax in sorted(signal.added_sources(number, NORMALIZERS) - reported):
            row = signal.rows[softmax]
            if row.kind != "softmax":
                continue
            sources = signal.added_sources(softmax, (*NORMALIZERS, "relu", *ACTIVATIONS))
            before = [k for k in sorted(sources) if signal.rows[k].kind in WEIGHTS]
            if not before or any(place in signal.shared for place in (softmax, *before)):
                continue
            reported.add(softmax)
            yield Finding(
                code="hidden-softmax",
                severity=Severity.WARNING,
                where=row.path,
                seen=f"The activation between `{signal.rows[before[0]].path}` and `{reader.path}` is a softmax.",
                why="A softmax makes the units of a layer share a sum of 1: each is small, its gradient smaller, "
                "and one unit can only rise where another falls.",
                advice="Replace it by ReLU or GELU: a softmax belongs to the output or to attention.",
                numbers={},
            )


def softmax_axis(examined: Examined) -> Iterator[Finding]:
    """A softmax whose shares are multiplied with values and added up over another axis than its own."""
    if examined.signal is None or examined.signal.wrong_axis is None:
        return
    where, axis, summed = examined.signal.wrong_axis
    yield Finding(
        code="softmax-axis",
        severity=Severity.WARNING,
        where=where or "the model",
        seen=f"The shares of a softmax in {f'`{where}`' if where else 'the model'} add up to 1 over axis {axis}, and "
        f"the matrix product that reads them adds up over axis {summed}.",
        why="Each result should be a mean of the values, weighted by shares that add up to 1: here some are far too "
        "large, others next to nothing.",
        advice=f"Take the softmax over the axis that the product adds up: softmax(dim={summed}); for scores of queries "
        "and keys that is dim=-1.",
        numbers=figures(axis=axis, summed=summed),
    )


def _is_factorization(examined: Examined, first: SignalRow, second: SignalRow) -> bool:
    """Whether two layers in a row are a product on purpose: through fewer channels, or channel by channel."""
    weights = (
        {row.module: row for row in examined.signal.parameters if len(row.shape) > 1}
        if examined.signal is not None
        else {}
    )
    before, after = weights.get(first.path), weights.get(second.path)
    if before is None or after is None or before.name == after.name:
        return True  # weights that are no parameters of these modules: nobody knows
    modules = dict(examined.model.named_modules())
    pair = [modules.get(path) for path in (first.path, second.path)]
    if any(getattr(module, "groups", 1) > 1 or _resamples(module) or _is_one_sided(module) for module in pair):
        return True
    width, ends = before.shape[0], (before.shape[1], after.shape[0])
    return width < min(ends)


def _trains(signal: Signal, row: SignalRow) -> bool:
    """Whether a weight of a layer trains."""
    return any(p.trainable for p in signal.parameters if p.module == row.path)


def _has_frozen_copy(examined: Examined, row: SignalRow) -> bool:
    """Whether a layer has a copy that does not train, as the layers of a student have in its teacher."""
    parameters = [] if examined.signal is None else [p for p in examined.signal.parameters if len(p.shape) > 1]
    own = next((p for p in parameters if p.module == row.path and p.trainable), None)
    return own is not None and any(
        not p.trainable and p.shape == own.shape and p.name.partition(".")[2] == own.name.partition(".")[2]
        for p in parameters
    )


def _ends_pre_activation(examined: Examined, signal: Signal, before: int, row: SignalRow) -> bool:
    """Whether a layer is the last of convolutions that have their activations before them, and sees neighbours."""
    last = [other for other in signal.rows if other.kind in WEIGHTS][-1]
    kernel = getattr(dict(examined.model.named_modules()).get(row.path), "kernel_size", ())
    activated = any(signal.rows[feed].kind in ("relu", *ACTIVATIONS) for feed in signal.linear_feeds[before])
    return row is last and activated and isinstance(kernel, tuple) and max(kernel, default=1) > 1


def _is_one_sided(module: nn.Module | None) -> bool:
    """Whether a convolution works along one axis alone, as the factors of a separable one do."""
    kernel = getattr(module, "kernel_size", (1,))
    return isinstance(kernel, tuple) and len(kernel) > 1 and 1 in kernel and max(kernel) > 1


def _is_pointwise(examined: Examined, row: SignalRow) -> bool:
    """Whether a layer is a convolution with kernels of one position."""
    kernel = getattr(dict(examined.model.named_modules()).get(row.path), "kernel_size", ())
    return bool(kernel) and all(size == 1 for size in kernel)


def _resamples(module: nn.Module | None) -> bool:
    """Whether a convolution changes the resolution: then the layer after it works on other positions."""
    stride = getattr(module, "stride", (1,))
    return getattr(module, "transposed", False) or any(step > 1 for step in stride if isinstance(step, int))


def constant_output(examined: Examined) -> Iterator[Finding]:
    """A network whose output is the same for every sample."""
    signal = examined.signal
    if signal is None or examined.data.not_finite is not None or not signal.layers or signal.samples < 2:
        return
    last = signal.layers[-1]
    if not any(row.varies for row in signal.inputs) or last.varies is not False:
        return
    culprit = _first_constant(signal)
    if culprit is None:
        return
    centred = _mean_of_centred(signal, culprit)
    if centred is not None:
        yield Finding(
            code="output-constant",
            severity=Severity.WARNING,
            where=centred.path,
            seen=f"What `{culprit.path}` reads of `{centred.path}` ({centred.kind}) is the same for all "
            f"{pluralise(signal.samples, 'sample')}.",
            why="The normalizer makes the mean of every sample zero, and a mean over the same entries, which comes "
            "after it, takes just that.",
            advice=f"Put an activation between `{centred.path}` and the mean, or use BatchNorm in its place.",
            numbers=figures(samples=signal.samples),
        )
        return
    zeros = {row.module for row in signal.parameters if len(row.shape) > 1 and row.is_zero}
    place = next(number for number, row in enumerate(signal.rows) if row is culprit)
    varying = [signal.rows[feed] for feed in signal.feeds[place] if signal.rows[feed].varies] if signal.feeds else []
    if varying and culprit.kind in WEIGHTS and culprit.path not in zeros:
        before = varying[-1]
        yield Finding(
            code="output-constant",
            severity=Severity.WARNING,
            where=culprit.path,
            seen=f"What `{culprit.path}` reads is the same for all {pluralise(signal.samples, 'sample')}, though "
            f"`{before.path}` ({before.kind}), which lies before it, differs from sample to sample.",
            why="An output that does not depend on the input has learned nothing about it, and no gradient tells the "
            "layers before what to change.",
            advice=f"Look at what stands between `{before.path}` and `{culprit.path}`: a place of a sequence that sees "
            "nothing of the others (check the mask: behind a causal one the first place sees itself alone), a mean "
            "or a softmax over the wrong dim (dim 0 is the batch), a difference of one value with itself (an input "
            "that `forward` does not use), a product with zero, units that "
            "are all off or saturated (rescale what they read, or initialise the layer before them anew).",
            numbers=figures(samples=signal.samples),
        )
        return
    zero_head = culprit is last and last.path in zeros and is_fresh(examined.model)
    yield Finding(
        code="output-constant",
        severity=Severity.INFO if zero_head else Severity.WARNING,
        where=culprit.path,
        seen=f"The output is the same for all {pluralise(signal.samples, 'sample')}: from `{culprit.path}` "
        f"({culprit.kind}) on nothing varies from sample to sample (a value there is {figure(culprit.mean or 0.0)}).",
        why="An output that does not depend on the input has learned nothing about it, and no gradient tells the "
        "layers before what to change.",
        advice="A last layer that starts at zero opens with the first step: nothing to do for a fresh model."
        if zero_head
        else f"Look at what `{culprit.path}` is given and at its weights: biases far below zero before a ReLU (reset "
        "them to zero), weights that are zero or have decayed to nothing (initialise them again, lower the weight "
        "decay), a saturated activation, a multiplication by zero, data that are overwritten.",
        numbers=figures(samples=signal.samples),
    )


def fading_differences(examined: Examined) -> Iterator[Finding]:
    """A fresh deep network without a way around its layers, through which the samples become more and more alike."""
    signal = examined.signal
    if signal is None or signal.samples < FEWEST_COMPARED or not is_fresh(examined.model):
        return
    flow = GraphOrder(examined)
    chain = [row for row in signal.layers if row.kind in WEIGHTS and flow.cuts(row.path)]
    shares = [(row.sample_deviation or 0.0) / (row.root_mean_square or math.inf) for row in chain]
    if len(chain) < LONG_CHAIN or shares[0] < DIFFERENT or not 0.0 < max(shares[-2:]) < ALIKE:
        return
    if any(gradient_vanishing(examined)):
        return  # which says the same of the way back
    first, last = chain[0].path, chain[-1].path
    yield Finding(
        code="gradient-vanishing",
        severity=Severity.WARNING,
        where=last,
        seen=f"From `{first}` to `{last}`, over {len(chain)} weight layers, samples become alike: what differs between "
        f"them falls from {percent(shares[0])} to {percent(shares[-1])} of the values.",
        why="Every layer keeps what samples have in common and mixes what tells them apart: little of it is left for "
        "the output to read.",
        advice="Add skip connections around the layers, use fewer layers, or put a normalizer over the samples "
        "(BatchNorm) between them.",
        numbers=figures(layers=len(chain), share_left=shares[-1]),
    )


def _mean_of_centred(signal: Signal, culprit: SignalRow) -> SignalRow | None:
    """Return the normalizer of single samples whose values, computed with on the way, no longer vary in a layer."""
    number = next(number for number, row in enumerate(signal.rows) if row is culprit)
    feeds = signal.feeds[number] if number < len(signal.feeds) else ()
    computed = len(feeds) == 1 and feeds[0] not in signal.linear_feeds[number]
    while len(feeds) == 1 and signal.rows[feeds[0]].kind[:1].isupper():  # a module without weights, such as a pooling
        feeds, computed = signal.feeds[feeds[0]], True
    before = signal.rows[feeds[0]] if len(feeds) == 1 else None
    centres = before is not None and before.kind in ("instance_norm", "group_norm", "layer_norm")
    return before if centres and computed and culprit.kind in WEIGHTS else None


def _first_constant(signal: Signal) -> SignalRow | None:
    """Return the first row that does not vary though what it reads does."""
    varies = [row.varies for row in signal.rows]
    for number, row in enumerate(signal.rows):
        feeds = signal.feeds[number] if number < len(signal.feeds) else ()
        if varies[number] is False and (not feeds or any(varies[feed] is not False for feed in feeds)) and number:
            return row
    return None
