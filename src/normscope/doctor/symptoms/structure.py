"""How layers stand together: activations, bottlenecks, softmaxes out of place, skips, scales and shared weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from torch import nn

from ...core.finding import Finding, figure, figures
from ...listening.calls import NORMALIZERS
from ...report.words import pluralise
from ..facts.activations import ACTIVATIONS
from ..facts.examined import Examined
from ..facts.layers import LayerRow
from ..facts.layers_over_data import WeightOverData
from ..facts.loss_call import CLASSES
from ..facts.pass_facts import PassFacts
from .graph_order import WEIGHT_KINDS, GraphOrder, rows_of_weights
from .symptom import FindingWords, finding

FINDING_WORDS = {
    "hidden-softmax": FindingWords("a softmax stands between two layers in {where}"),
    "softmax-axis": FindingWords("the softmax of {where} works over another axis than the sum behind it"),
    "attention-scale": FindingWords("{where} does not use its scale", "{count} attentions do not use their scale"),
    "untied-weights": FindingWords("{where} is to share a weight, and does not"),
    "skip-scale": FindingWords("the skip around {where} multiplies what it carries"),
    "missing-activation": FindingWords(
        "no activation stands before {where}", "no activation stands before {count} layers"
    ),
    "bottleneck": FindingWords("everything has to pass through {where}, which is too narrow"),
}
STEEPEST_LEAK = 0.9
CLASSES_PER_UNIT = 4
"""Classes that one unit may have to tell apart; two units tell sixteen, as pictures of features in a plane show."""


def check_missing_activation(examined: Examined) -> Iterator[Finding]:
    """`missing-activation` (warning): two weight layers with nothing but a rearrangement or a normalizer between them
    (not through fewer channels, nor by groups), a network of weights, normalizers and poolings alone (where its
    graph is whole), or a LeakyReLU with a slope near 1

    Some pairs are meant as such, but not in a network that has no activation anywhere.
    """
    signal = examined.signal
    if signal is None:
        return
    if not signal.flow.bends and sum(row.kind in WEIGHT_KINDS for row in signal.rows) > 2:
        yield from _no_activation_at_all(signal)
        return
    readers = Counter(feed for feeds in signal.flow.feeds for feed in set(feeds))
    for number, feeds in enumerate(signal.flow.linear_feeds):
        row = signal.rows[number]
        if row.kind not in WEIGHT_KINDS:
            continue
        for feed in feeds:
            # mobile networks hand on what a pointwise convolution made without an activation
            normalized = signal.rows[feed].kind in NORMALIZERS and not _is_pointwise(examined, row)
            through = [feed, *(signal.flow.linear_feeds[feed] if normalized else ())]
            before = signal.rows[through[-1]]
            if before.kind not in WEIGHT_KINDS or _is_factorization(examined, before, row):
                continue
            if _trains(signal, before) and not _trains(signal, row):
                continue  # another network, which judges what the first one makes
            if _has_frozen_copy(examined, before):
                continue  # a representation that is compared with that of a teacher: what reads it is a head of its own
            if any(readers[place] > 1 or place in signal.flow.shared for place in through) or _ends_pre_activation(
                examined, signal, through[-1], row
            ):
                continue  # a skip, a gate or heads read it too, or activations stand before the convolutions
            yield finding(
                "missing-activation",
                row.path,
                f"`{before.path}` hands its output to `{row.path}`"
                + (f" by way of the normalizer `{signal.rows[feed].path}`" if len(through) > 1 else "")
                + ": there is no activation between them.",
                "A normalizer is no activation: what lies between them is nearly a linear map."
                if len(through) > 1
                else "Two linear layers in a row compute what one could: the first adds weights and no power.",
                f"Put an activation (ReLU, GELU) between `{before.path}` and `{row.path}`, or remove one of them.",
            )


def _no_activation_at_all(signal: PassFacts) -> Iterator[Finding]:
    """A network of weights, normalizers and poolings alone: every weight layer that reads another one."""
    nearest: list[frozenset[int]] = []  # by row: the weight layers that it reads, by way of anything else
    for number, row in enumerate(signal.rows):
        feeds = signal.flow.feeds[number] if number < len(signal.flow.feeds) else ()
        before = frozenset[int]().union(*(nearest[feed] for feed in feeds))
        nearest.append(frozenset((number,)) if row.kind in WEIGHT_KINDS else before)
        if row.kind in WEIGHT_KINDS and before:
            first = signal.rows[max(before)]
            yield finding(
                "missing-activation",
                row.path,
                f"`{first.path}` hands its output to `{row.path}`, and the network has no activation anywhere.",
                "Layers without activations between them compute what one linear layer could: all but one add "
                "weights and no power.",
                f"Put an activation (ReLU, GELU) between `{first.path}` and `{row.path}`, or remove one of them.",
            )


def check_narrow_layer(examined: Examined) -> Iterator[Finding]:
    """`bottleneck` (warning): a layer that everything passes through hands on so few numbers that each has to tell four
    classes apart, or more; or reads them
    """
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
            yield finding(
                "bottleneck",
                where,
                f"`{where}` hands on {pluralise(made, 'number')} of each sample, and {classes} classes are told "
                "apart behind it."
                if narrow
                else f"`{row.path}` reads {pluralise(read, 'number')} of each sample, all that is left of `{where}`, "
                f"and {classes} classes are told apart behind it.",
                "Everything about a sample has to pass through it: classes that lie side by side there cannot all "
                "be told apart.",
                f"Widen `{where}`: at least as many units or channels as there are classes.",
                figures(width=min(made, read), classes=classes),
            )
            return


def check_flat_activation(examined: Examined) -> Iterator[Finding]:
    """A LeakyReLU whose slope is that of the identity."""
    for path, module in examined.model.named_modules():
        if isinstance(module, nn.LeakyReLU) and float(module.negative_slope) > STEEPEST_LEAK:
            yield finding(
                "missing-activation",
                path,
                f"`{path}` is a LeakyReLU with a slope of {float(module.negative_slope):g} below zero.",
                "With a slope near 1 it is the identity: the layers around it are one linear map.",
                "Use LeakyReLU(0.01) or another activation; its first argument is the slope, not inplace.",
            )


def check_hidden_softmax(examined: Examined) -> Iterator[Finding]:
    """`hidden-softmax` (warning): a softmax as the activation between two layers, also with normalizers, activations,
    additions or constant factors beside it; not where its shares weigh other values, where they or their scores are
    read elsewhere too, or where the second layer mixes other entries than those that share a sum (heads that talk)

    Where its output, or its input, is read elsewhere too, it is taken to give probabilities that are meant.
    """
    signal = examined.signal
    if signal is None:
        return
    reported: set[int] = set()
    weights = rows_of_weights(signal, examined.data)
    for number, reader in enumerate(signal.rows):
        if reader.kind not in WEIGHT_KINDS or not _trains(signal, reader):
            continue  # an expectation over fixed numbers
        for softmax in sorted(signal.added_sources(number, NORMALIZERS) - reported):
            row = signal.rows[softmax]
            if row.kind != "softmax" or not _mixes_shares(row, reader, weights.get(number)):
                continue
            sources = signal.added_sources(softmax, (*NORMALIZERS, "relu", *ACTIVATIONS))
            before = [k for k in sorted(sources) if signal.rows[k].kind in WEIGHT_KINDS]
            if not before or any(place in signal.flow.shared for place in (softmax, *before)):
                continue
            reported.add(softmax)
            yield finding(
                "hidden-softmax",
                row.path,
                f"The activation between `{signal.rows[before[0]].path}` and `{reader.path}` is a softmax.",
                "A softmax makes the units of a layer share a sum of 1: each is small, its gradient smaller, "
                "and one unit can only rise where another falls.",
                "Replace it by ReLU or GELU: a softmax belongs to the output or to attention.",
            )


def _mixes_shares(softmax: LayerRow, reader: LayerRow, weight: WeightOverData | None) -> bool:
    """Whether a layer may mix the entries of which a softmax makes shares: it mixes as many, or flattens them."""
    if weight is None or softmax.width is None or len(weight.input_shape) != len(softmax.shape):
        return True
    return weight.input_shape[-1 if reader.kind == "linear" else 1] == softmax.width


def check_softmax_axis(examined: Examined) -> Iterator[Finding]:
    """`softmax-axis` (warning): a softmax whose shares a matrix product adds up over another axis than the one over
    which they are 1
    """
    if examined.signal is None or examined.signal.calls.wrong_axis is None:
        return
    where, axis, summed = examined.signal.calls.wrong_axis
    yield finding(
        "softmax-axis",
        where or "the model",
        f"The shares of a softmax in {f'`{where}`' if where else 'the model'} add up to 1 over axis {axis}, and "
        f"the matrix product that reads them adds up over axis {summed}.",
        "Each result should be a mean of the values, weighted by shares that add up to 1: here some are far too "
        "large, others next to nothing.",
        f"Take the softmax over the axis that the product adds up: softmax(dim={summed}); for scores of queries "
        "and keys that is dim=-1.",
        figures(axis=axis, summed=summed),
    )


MIN_SKIP_FACTOR = 2.0
"""How many times a block has to hold its input. Skips around groups of blocks that have skips give less."""


def check_skip_scale(examined: Examined) -> Iterator[Finding]:
    """`skip-scale` (warning): blocks of one kind whose output holds their input twice or more, with no normalizer right
    behind that undoes it
    """
    signal, kinds = examined.signal, {path: type(module) for path, module in examined.model.named_modules()}
    if signal is None:
        return
    scaled = [skip for skip in signal.flow.skips if abs(skip[-1]) >= MIN_SKIP_FACTOR]
    alike = Counter(kinds[path] for path, *_ in scaled)
    for path, number, factor in scaled:
        readers = [row for row, feeds in zip(signal.rows, signal.flow.feeds, strict=False) if number in feeds]
        if alike[kinds[path]] < 2 or (readers and all("norm" in row.kind.lower() for row in readers)):
            continue
        yield finding(
            "skip-scale",
            path,
            f"`{path}` returns {figure(factor)} times its input, plus what it computes from it, as "
            f"{alike[kinds[path]]} blocks of its kind do.",
            "Through several blocks that is a power: what the first ones read drowns what the later ones add.",
            "Add the input once: look for a skip around a block that has one already, or a factor behind the sum.",
            figures(factor=factor),
        )


SCALE_NAMES = ("scale", "scaling", "softmax_scale", "norm_factor", "inv_norm_factor")
"""How modules of attention name the number that their scores are to be multiplied or divided by."""


def check_attention_scale(examined: Examined) -> Iterator[Finding]:
    """`attention-scale` (warning): a module of attention holds a scale for its scores, takes a softmax of products, and
    multiplies nothing by any number
    """
    for path in () if examined.signal is None else examined.signal.calls.unscaled:
        held = vars(examined.model.get_submodule(path))
        scale = next((held[name] for name in SCALE_NAMES if isinstance(held.get(name), float)), 1.0)
        if scale != 1.0:
            yield finding(
                "attention-scale",
                path or "the model",
                f"`{path}` holds a scale of {figure(scale)}, and multiplies no queries, keys or scores by any number.",
                "Scores grow with the root of the width of a head: without the scale the softmax of a wide one puts "
                "all weight on one position, and its gradient vanishes.",
                "Multiply the scores by the scale before the softmax: softmax(scale * q @ k.mT).",
                figures(scale=scale),
            )


def check_untied_weights(examined: Examined) -> Iterator[Finding]:
    """`untied-weights` (warning): a model of transformers says that two parameters are one, and they are not"""
    for path, module in examined.model.named_modules():
        ties = vars(module).get("all_tied_weights_keys")  # of post_init in transformers
        held = dict(module.named_parameters(prefix=path, remove_duplicate=False)) if ties else {}
        for names in ties.items() if isinstance(ties, dict) else ():
            name, source = (f"{path}.{name}".lstrip(".") for name in names)
            if name in held and source in held and held[name] is not held[source]:
                yield finding(
                    "untied-weights",
                    name.rpartition(".")[0],
                    f"The model says that `{name}` is the same weight as `{source}`, and it is another.",
                    "The two learn apart, and a checkpoint that holds one of them for both loads as another model.",
                    "Call model.tie_weights() after a weight is replaced or moved, or set tie_word_embeddings=False.",
                )


def _is_factorization(examined: Examined, first: LayerRow, second: LayerRow) -> bool:
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


def _trains(signal: PassFacts, row: LayerRow) -> bool:
    """Whether a weight of a layer trains."""
    return any(p.trainable for p in signal.parameters if p.module == row.path)


def _has_frozen_copy(examined: Examined, row: LayerRow) -> bool:
    """Whether a layer has a copy that does not train, as the layers of a student have in its teacher."""
    parameters = [] if examined.signal is None else [p for p in examined.signal.parameters if len(p.shape) > 1]
    own = next((p for p in parameters if p.module == row.path and p.trainable), None)
    return own is not None and any(
        not p.trainable and p.shape == own.shape and p.name.partition(".")[2] == own.name.partition(".")[2]
        for p in parameters
    )


def _ends_pre_activation(examined: Examined, signal: PassFacts, before: int, row: LayerRow) -> bool:
    """Whether a layer is the last of convolutions that have their activations before them, and sees neighbours."""
    last = [other for other in signal.rows if other.kind in WEIGHT_KINDS][-1]
    kernel = getattr(dict(examined.model.named_modules()).get(row.path), "kernel_size", ())
    activated = any(signal.rows[feed].kind in ("relu", *ACTIVATIONS) for feed in signal.flow.linear_feeds[before])
    return row is last and activated and isinstance(kernel, tuple) and max(kernel, default=1) > 1


def _is_one_sided(module: nn.Module | None) -> bool:
    """Whether a convolution works along one axis alone, as the factors of a separable one do."""
    kernel = getattr(module, "kernel_size", (1,))
    return isinstance(kernel, tuple) and len(kernel) > 1 and 1 in kernel and max(kernel) > 1


def _is_pointwise(examined: Examined, row: LayerRow) -> bool:
    """Whether a layer is a convolution with kernels of one position."""
    kernel = getattr(dict(examined.model.named_modules()).get(row.path), "kernel_size", ())
    return bool(kernel) and all(size == 1 for size in kernel)


def _resamples(module: nn.Module | None) -> bool:
    """Whether a convolution changes the resolution: then the layer after it works on other positions."""
    stride = getattr(module, "stride", (1,))
    return getattr(module, "transposed", False) or any(step > 1 for step in stride if isinstance(step, int))
