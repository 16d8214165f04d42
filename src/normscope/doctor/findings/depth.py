"""Findings about depth: signals that grow, and gradients that fade, grow, end or go wrong on their way back."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...core.finding import Finding, Severity, figure, figures, power
from ...report.words import listed, pluralise
from ...theory.initialisation import LIMIT, batch_norm_growth
from ..checking.examined import DataSeen, Examined, WeightOverData
from ..checking.signal import RANDOM, Signal, SignalRow

MIN_RUN_LAYERS = 4
"""A chain of fewer layers than this shows no trend."""
RUN_LAYER_RATIO = 1.5
"""Growth of the signal per layer: He's initialisation gives 1; this much over twenty layers is 1.5^20 = 3,000."""
MIN_RESIDUAL_BLOCKS = 2
"""With fewer residual blocks in a run their additions are not the cause."""
RUN_TOTAL_RATIO = 30.0
"""Growth over a whole run, below which a short run with one steep layer is left alone."""


def backward_raises(examined: Examined) -> Iterator[Finding]:
    """A model whose training raises: the backward, or the forward while gradients are taken."""
    signal = examined.signal
    if signal is None or signal.raises is None:
        return
    where, error, line = signal.raises
    trains = examined.mode == "train" or signal.gradient_of != RANDOM
    in_backward = "The backward" if line else "The forward, while gradients are taken,"
    yield Finding(
        code="backward-raises",
        severity=Severity.ERROR if trains else Severity.INFO,  # in eval mode nobody may want a gradient
        where=where,
        seen=f"{in_backward} raises {error}" + (f", at the derivative of {line}." if line else "."),
        why="Without a gradient the model cannot be trained, and nothing here could be said of its gradients.",
        advice="Mend that line: no in-place change (`+=`, `relu_()`) of what the derivative still needs, no `.numpy()` "
        "of a tensor that requires a gradient, and in an `autograd.Function` a `backward` that returns one gradient "
        "for each argument of `forward`.",
        numbers={},
    )


def exploding_run(examined: Examined) -> Iterator[Finding]:
    """Chains of weight layers without a normalizer through which the signal grows exponentially."""
    signal = examined.signal
    if signal is None or len(signal.feeds) != len(signal.rows):
        return
    paths = [row.path for row in signal.rows]
    sizes = rows_of_weights(signal, examined.data)
    ends = _branch_ends(signal, sizes)
    for chain, log_growth in _runs(signal, sizes):
        first, last, total = paths[chain[0]], paths[chain[-1]], log_growth / math.log(10.0)
        step = math.exp(log_growth / len(chain))
        branches = [paths[number] for number in chain if number in ends]
        residual = len(branches) >= MIN_RESIDUAL_BLOCKS
        yield Finding(
            code="exploding-run",
            severity=Severity.WARNING,
            where=first,
            seen=f"From {first} to {last} the signal grows {power(total)} times over {len(chain)} weight layers with "
            f"no normalizer between them: {figure(step)} times per layer"
            + (f", {figure(math.exp(log_growth / len(branches)))} times per residual block." if residual else "."),
            why=(
                "Every block adds its branch to what it was given, so the signal grows from block to block even where "
                "each layer keeps its size"
                if residual
                else "A factor above 1 per layer is exponential in depth"
            )
            + ": activations and gradients overflow or saturate, and the Lipschitz constant grows alike.",
            advice=_scaled_branches(branches)
            if residual
            else "Initialise with gain 1 (torch.nn.init.kaiming_normal_(weight, nonlinearity='relu')), or put a "
            "normalizer between these layers.",
            numbers=figures(
                log10_growth=total, growth_per_layer=step, layers=len(chain), blocks=len(branches) if residual else None
            ),
        )


def _scaled_branches(branches: Sequence[str]) -> str:
    """Say how to tame residual branches that end in the given layers."""
    shown = ", ".join(f"`{path}`" for path in branches[:3]) + (", ..." if len(branches) > 3 else "")
    return (
        f"Scale each branch by 1/sqrt({len(branches)}) = {figure(1.0 / math.sqrt(len(branches)))} or less before it is "
        f"added, start the last layer of each branch at zero (torch.nn.init.zeros_ on the weights of {shown}), or "
        "begin each branch with a normalizer. Another initialisation of the layers alone leaves one addition per block."
    )


def rows_of_weights(signal: Signal, data: DataSeen) -> dict[int, WeightOverData]:
    """Return the weight layers over the data by the number of their row in the signal."""
    runs = Counter[tuple[str, str]]()
    sizes: dict[int, WeightOverData] = {}
    for number, row in enumerate(signal.rows):
        weight = data.weights.get((row.path, row.kind, runs[row.path, row.kind]))
        runs[row.path, row.kind] += 1
        if weight is not None:
            sizes[number] = weight
    return sizes


def _branch_ends(signal: Signal, sizes: Mapping[int, WeightOverData]) -> frozenset[int]:
    """Return the last weight layers of residual branches: a branch is added to the value that it starts from.

    What reads a sum is given as many values as each of the summands has; what reads a concatenation is given more.
    """
    above: list[int] = []  # as bits: the rows that a row depends on, itself included
    nearest: list[frozenset[int]] = []
    ends: set[int] = set()
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.feeds, strict=True)):
        above.append(functools.reduce(operator.or_, (above[feed] for feed in feeds), 1 << number))
        reached = frozenset[int]().union(*(nearest[feed] for feed in feeds))
        nearest.append(frozenset((number,)) if number in sizes else reached)
        size = math.prod(sizes[number].input_shape if number in sizes else row.shape)
        summands = [feed for feed in feeds if math.prod(signal.rows[feed].shape) == size]
        for start, branch in itertools.permutations(summands, 2):
            ends.update(end for end in nearest[branch] if above[end] & 1 << start)
    return frozenset(ends)


Chains = dict[int, dict[int, tuple[int, int]]]
"""The longest chain of weight layers by its last and its first: how many layers, and the one before the last."""


def _runs(signal: Signal, sizes: Mapping[int, WeightOverData]) -> Iterator[tuple[list[int], float]]:
    """Yield chains that share no layer, by row, with the log of the signal's growth; the steepest first."""
    befores, inner = _weights_before(signal, sizes)
    longest = _longest_chains(befores)
    taken: set[int] = set()
    for log_growth, first, last in sorted(_grown(longest, inner, sizes), reverse=True):
        if first in taken or last in taken:
            continue
        chain = [last]
        while chain[0] != first:
            chain.insert(0, longest[chain[0]][first][1])
        if taken.isdisjoint(chain) and _steady([sizes[number] for number in chain]):
            taken.update(chain)
            yield chain, log_growth


def _longest_chains(befores: Mapping[int, frozenset[int]]) -> Chains:
    """Return the longest chain between any two layers; `befores` has the nearest layers before each, in their order."""
    longest: Chains = {}
    for last, nearest in befores.items():
        longest[last] = {last: (1, -1)}
        for before in nearest:
            for first, (length, _) in longest[before].items():
                if length + 1 > longest[last].get(first, (0, -1))[0]:
                    longest[last][first] = (length + 1, before)
    return longest


def _grown(
    longest: Chains, inner: frozenset[int], sizes: Mapping[int, WeightOverData]
) -> Iterator[tuple[float, int, int]]:
    """Yield the chains that end inside the network and through which the signal grows too much: its log, the ends."""
    for last in inner & longest.keys():
        for first, (length, _) in longest[last].items():
            log_growth = _log_ratio(sizes[last].rms_output, sizes[first].rms_input)
            if length >= MIN_RUN_LAYERS and log_growth >= max(
                math.log(RUN_TOTAL_RATIO), length * math.log(RUN_LAYER_RATIO)
            ):
                yield log_growth, first, last


def _weights_before(
    signal: Signal, sizes: Mapping[int, WeightOverData]
) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """Return the nearest weight layers before each with no normalizer between, and those that are not the last."""
    sources: list[frozenset[int]] = []
    befores: dict[int, frozenset[int]] = {}
    inner: frozenset[int] = frozenset()
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.feeds, strict=True)):
        reached = frozenset[int]().union(*(sources[feed] for feed in feeds))
        if number in sizes:
            befores[number] = reached
            sources.append(frozenset((number,)))
            inner |= reached
        elif "norm" in row.kind.lower():  # a function, or a module that writes one out in operators
            sources.append(frozenset())
            inner |= reached
        else:
            sources.append(reached)
    return befores, inner


def _steady(layers: Sequence[WeightOverData]) -> bool:
    """Whether a chain still grows without its steepest layer: depth is the cause, not one layer."""
    marks = [layer.rms_input for layer in layers] + [layers[-1].rms_output]
    steps = sorted(_log_ratio(after, before) for before, after in itertools.pairwise(marks))
    return sum(steps[:-1]) >= (len(steps) - 1) * math.log(RUN_LAYER_RATIO)


def _log_ratio(after: float, before: float) -> float:
    """Return log(after/before); minus infinity where one of them says nothing."""
    return (
        math.log(after) - math.log(before) if 0.0 < min(after, before) <= max(after, before) < math.inf else -math.inf
    )


WEIGHTS = ("linear", "convolution")
MIN_DEEP_LAYERS = 4
"""A network with fewer weight layers than this has no depth to speak of."""
FADED_DECADES = 3.0
"""Decades that a gradient loses over all layers by its typical step; healthy models of the tests stay within 2."""
EXPLODED_DECADES = 5.0
"""Decades that a gradient, or a signal, gains over all layers by its typical step.

Healthy models of the tests stay within 2. A BatchNorm network without skips gains 0.083 a layer at the start (Yang et
al. 2019): 50 layers are 4.
"""
EXPLODED_BOTH_WAYS_DECADES = 2.0
"""Decades that suffice for an explosion where values grow forward as gradients do backward: a plain expanding chain.

Healthy models of the tests stay within 0.8.
"""
BATCH_NORM_DECADES = 2.0
"""Decades that a gradient gains through fresh BatchNorms: a hundredfold, between layers that share a learning rate.

At a batch of 64 it takes 24 layers without skips.
"""

JUMP_DECADES = 6.0
"""Decades between gradients of layers that learn; healthy models of the tests stay within 3."""
KINDS_WITH_WEIGHTS = (*WEIGHTS, "embedding", "lstm", "gru", "rnn")
"""Kinds of rows that have weights."""

KEPT_GRADIENT_LOG10 = -1.0
"""log10 of a gradient at the first layer over that at the output, above which it has not vanished."""


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
    if (
        max(left, *(row.log10_gradient or left for row in signal.layers if row.path == first.path))
        > KEPT_GRADIENT_LOG10
    ):
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
    if not (max(back, forth) >= EXPLODED_DECADES or min(back, forth) >= EXPLODED_BOTH_WAYS_DECADES) or any(
        exploding_run(examined)
    ):
        return
    if any(batch_norm_depth(examined)):
        return  # which says why, and advises otherwise
    repeated, runs = Counter(row.path for row in signal.layers if row.kind in WEIGHTS).most_common(1)[0]
    first = _first(signal) if runs < MIN_DEEP_LAYERS else next(row for row in signal.layers if row.path == repeated)
    grown = [f"values grow {power(forth)} times"] if forth >= EXPLODED_BOTH_WAYS_DECADES else []
    grown += [f"the gradient grows {power(back)} times on its way back"] if back >= EXPLODED_BOTH_WAYS_DECADES else []
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


def gradient_jump(examined: Examined) -> Iterator[Finding]:
    """Layers whose gradient is decades away from that of the others, whatever the reason."""
    signal = examined.signal
    rows = [] if signal is None else [row for row in signal.layers if row.kind in KINDS_WITH_WEIGHTS]
    levels = [
        (row.log10_gradient, place) for place, row in enumerate(rows) if row.log10_gradient not in (None, -math.inf)
    ]
    ordered = sorted((level, place) for level, place in levels if level is not None and math.isfinite(level))
    if len(ordered) < 2 or ordered[-1][0] - ordered[0][0] < JUMP_DECADES:
        return
    ends = [level for level, _ in (min(ordered, key=operator.itemgetter(1)), max(ordered, key=operator.itemgetter(1)))]
    if abs(ends[0] - ends[1]) < JUMP_DECADES / 2.0:
        return  # a branch that starts small, as by a layer scale of a millionth: the gradient comes another way
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(ordered)]
    cut = gaps.index(max(gaps)) + 1
    low, high = ordered[:cut], ordered[cut:]
    few, many = (low, high) if len(low) <= len(high) else (high, low)
    level, place = max(few, key=operator.itemgetter(1))
    near, neighbour = min(many, key=lambda other: abs(other[1] - place))
    where, other = rows[place].path, rows[neighbour].path
    yield Finding(
        code="gradient-jump",
        severity=Severity.WARNING,
        where=where,
        seen=f"The gradient at `{where}` is {power(level - near)} times that at `{other}`.",
        why="Layers whose gradients lie so far apart cannot learn at one learning rate: some do not move, or others "
        "diverge.",
        advice=f"Look between `{where}` and `{other}` for a factor, a hook on a gradient or a backward of your own "
        "that changes its scale, and for weights of another size; rescale them, or put a normalizer between.",
        numbers=figures(log10_gradient=level - near),
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
    if len(gradients) < MIN_DEEP_LAYERS or len(gradients) < len(rows):
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


def no_gradient(examined: Examined) -> Iterator[Finding]:
    """A layer that no gradient gets past."""
    signal = examined.signal
    if signal is None or (_deep(examined) is not None and _back(signal) >= FADED_DECADES):
        return  # a gradient that fades may well end at zero
    rows = [row for row in signal.layers if row.log10_gradient is not None]
    learning = {row.path for row in rows if row.log10_gradient != -math.inf}  # in another of its runs, at least
    rows = [row for row in rows if row.log10_gradient != -math.inf or row.path not in learning]
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
        where=(rows[place - 1].path if cut else row.path) or next((r.path for r in rows[place::-1] if r.path), ""),
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
    if signal is None or sum(row.kind in WEIGHTS for row in signal.layers) < MIN_DEEP_LAYERS:
        return None
    return signal


def _first(signal: Signal) -> SignalRow:
    return next((row for row in signal.layers if row.kind in WEIGHTS), signal.layers[0])


def _back(signal: Signal) -> float:
    """Return the decades that the gradient loses from the output to the first layer, by its typical step."""
    return _trend(_gradients(signal))


def _gradients(signal: Signal) -> list[float]:
    gradients = [row.log10_gradient for row in signal.layers]
    return [value for value in gradients if value is not None and value > -math.inf]


def _sizes(signal: Signal) -> list[float]:
    sizes = [row.root_mean_square for row in signal.layers]
    return [math.log10(size) for size in sizes if size]


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
