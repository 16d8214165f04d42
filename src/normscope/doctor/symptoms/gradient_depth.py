"""Gradients by depth: they vanish or explode on their way back, at the start or in the course of a run."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from torch import nn

from ...core.finding import Finding, Severity, figure, figures, percent, power
from ...listening.calls import NORMALIZERS
from ...report.words import pluralise
from ...theory.initialisation import LIMIT, batch_norm_growth
from ..facts.activations import ACTIVATIONS
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.layers import GATE, INPUT, LayerRow
from ..facts.pass_facts import PassFacts
from ..monitor.history import History
from .constant_output import check_constant_output
from .exploding_run import check_exploding_run
from .graph_order import KINDS_WITH_WEIGHTS, WEIGHT_KINDS, GraphOrder, rows_of_weights
from .symptom import FindingWords, Symptom, finding, others_likewise

FINDING_WORDS = {
    "gradient-explosion": FindingWords("the gradient of {where} explodes", "the gradients of {count} layers explode"),
    "gradient-jump": FindingWords("the gradient changes by decades behind {where}"),
    "batch-norm-depth": FindingWords("the gradient explodes through the BatchNorms"),
    "gradient-vanishing": FindingWords("the gradient of {where} vanishes", "the gradients of {count} layers vanish"),
}
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
KEPT_GRADIENT_LOG10 = -1.0
"""log10 of a gradient at the first layer over that at the output, above which it has not vanished."""


def check_gradient_vanishing(examined: Examined) -> Iterator[Finding]:
    """`gradient-vanishing` (warning): the gradient loses a factor per layer on its way back, 10^-3 and more over the
    network; an operator without weights makes values fifty times smaller; samples become alike, up to 3 %, through
    eight layers or more without a way around them
    """
    signal = deep_signal(examined)
    if signal is None:
        return
    back = decades_lost(signal)
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
    yield GRADIENT_FADES.at(
        first.path,
        {"mend": mend},
        seen=f"Of a gradient at the output {power(left)} is left at `{first.path}`, the first of {count}: on its way "
        f"back a typical layer keeps {step} of it (the gradient is that of {signal.objective.gradient_of}).",
        log10_gradient=left,
        log10_typical=-back,
        layers=len(signal.layers),
    )


def check_gradient_explosion(examined: Examined) -> Iterator[Finding]:
    """`gradient-explosion` (warning): values grow on their way forward, or the gradient on its way back, by a factor
    per layer: 10^5 over the network, or 10^2 both ways
    """
    signal = deep_signal(examined)
    if signal is None or any(seen.untaken for _, seen in examined.normalizers()):
        return  # what does not normalize yet is another finding
    back, forth = -decades_lost(signal), decades_grown(signal)
    if not (max(back, forth) >= EXPLODED_DECADES or min(back, forth) >= EXPLODED_BOTH_WAYS_DECADES) or any(
        check_exploding_run(examined)
    ):
        return
    if any(check_batch_norm_depth(examined)):
        return  # which says why, and advises otherwise
    repeated, runs = Counter(row.path for row in signal.layers if row.kind in WEIGHT_KINDS).most_common(1)[0]
    first = _first(signal) if runs < MIN_DEEP_LAYERS else next(row for row in signal.layers if row.path == repeated)
    grown = [f"values grow {power(forth)} times"] if forth >= EXPLODED_BOTH_WAYS_DECADES else []
    grown += [f"the gradient grows {power(back)} times on its way back"] if back >= EXPLODED_BOTH_WAYS_DECADES else []
    yield STEEP_FROM_START.at(
        first.path,
        seen=f"From `{first.path}` to the output, over {pluralise(len(signal.layers), 'layer')}, "
        f"{' and '.join(grown)} by the typical step of a layer.",
        log10_gradient=back,
        log10_growth=forth,
        layers=len(signal.layers),
    )


def check_gradient_jump(examined: Examined) -> Iterator[Finding]:
    """`gradient-jump` (warning): gradients of layers lie six decades and more apart, and no other warning says why"""
    rows, ordered = sort_gradients(examined)
    if len(ordered) < 2 or ordered[-1][0] - ordered[0][0] < JUMP_DECADES:
        return
    ends = [level for level, _ in (min(ordered, key=operator.itemgetter(1)), max(ordered, key=operator.itemgetter(1)))]
    if abs(ends[0] - ends[1]) < JUMP_DECADES / 2.0:
        return  # a branch that starts small, as by a layer scale of a millionth: the gradient comes another way
    jump, place, neighbour = find_jump(ordered)
    where, other = rows[place].path, rows[neighbour].path
    yield finding(
        "gradient-jump",
        where,
        f"The gradient at `{where}` is {power(jump)} times that at `{other}`.",
        "Layers whose gradients lie so far apart cannot learn at one learning rate: some do not move, or others "
        "diverge.",
        f"Look between `{where}` and `{other}` for a factor, a hook on a gradient or a backward of your own "
        "that changes its scale, and for weights of another size; rescale them, or put a normalizer between.",
        figures(log10_gradient=jump),
    )


def find_jump(ordered: Sequence[tuple[float, int]]) -> tuple[float, int, int]:
    """Return by how many decades a gradient differs from the nearest one across the widest gap, and both places.

    Of the gradients on one side of the gap, the side with fewer of them, it is the last one in the network.
    """
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(ordered)]
    cut = gaps.index(max(gaps)) + 1
    low, high = ordered[:cut], ordered[cut:]
    few, many = (low, high) if len(low) <= len(high) else (high, low)
    level, place = max(few, key=operator.itemgetter(1))
    near, neighbour = min(many, key=lambda other: abs(other[1] - place))
    return level - near, place, neighbour


def sort_gradients(examined: Examined) -> tuple[list[LayerRow], list[tuple[float, int]]]:
    """Return the rows with weights, and log10 of the gradients there with the place of each, in their order."""
    rows = [] if examined.signal is None else [row for row in examined.signal.layers if row.kind in KINDS_WITH_WEIGHTS]
    levels = [(row.log10_gradient, place) for place, row in enumerate(rows)]
    return rows, sorted((level, place) for level, place in levels if level is not None and math.isfinite(level))


def check_batch_norm_depth(examined: Examined) -> Iterator[Finding]:
    """`batch-norm-depth` (warning): a fresh network in train mode whose BatchNorms, without skips around them, make the
    gradient grow a hundredfold or more, with the growth per layer beside [the law of Yang et al.](networks.md); said
    instead of `gradient-explosion`
    """
    back, rows = decades_through_batch_norms(examined)
    if not back >= BATCH_NORM_DECADES:
        return
    measured = 10.0 ** (2.0 * back / (len(rows) - 1))
    entries = min(seen.entries for _, seen in examined.normalizers() if seen.kind == "batch")
    law = batch_norm_growth(entries) if entries > 3 else math.inf
    first = rows[0].path
    yield finding(
        "batch-norm-depth",
        first,
        f"On its way back through {pluralise(len(rows), 'BatchNorm')} the gradient grows {power(back)} times "
        "by the "
        f"typical step: its squared norm {measured:.3g} times a layer. In wide fresh ReLU networks without skips the "
        f"law is {law:.3g} with {entries} independent values a channel, and {LIMIT:.3g} with many.",
        "BatchNorm keeps the values at their size and pays for it with the gradient, exponentially in depth: one "
        "learning rate cannot suit the first layers and the last.",
        "Add skip connections around every one or two BatchNorms (with the scale of the last BatchNorm of each "
        "block at 0 if there are many blocks), use LayerNorm, or make the network shallower.",
        figures(log10_gradient=back, growth=measured, law=law, layers=len(rows), entries=entries),
    )


def decades_through_batch_norms(examined: Examined) -> tuple[float, list[LayerRow]]:
    """Return the decades that a gradient gains through fresh BatchNorms by its typical step, and their rows.

    NaN where they are few, have learned, use running statistics, or not all of them have a gradient.
    """
    signal = deep_signal(examined)
    norms = [seen for _, seen in examined.normalizers() if seen.kind == "batch"]
    fresh = all(seen.weight is None or bool((seen.weight == 1.0).all()) for seen in norms)
    if signal is None or not fresh or any(seen.uses_running for seen in norms):
        return math.nan, []
    rows = [row for row in signal.layers if row.kind == "batch_norm"]
    gradients = [row.log10_gradient for row in rows if row.log10_gradient not in (None, -math.inf)]
    if len(gradients) < MIN_DEEP_LAYERS or len(gradients) < len(rows):
        return math.nan, rows
    return -_trend([value for value in gradients if value is not None]), rows


def deep_signal(examined: Examined) -> PassFacts | None:
    """Return the signal of a network that is deep enough to have a trend."""
    signal = examined.signal
    if signal is None or sum(row.kind in WEIGHT_KINDS for row in signal.layers) < MIN_DEEP_LAYERS:
        return None
    return signal


def _first(signal: PassFacts) -> LayerRow:
    return next((row for row in signal.layers if row.kind in WEIGHT_KINDS), signal.layers[0])


def decades_lost(signal: PassFacts) -> float:
    """Return the decades that the gradient loses from the output to the first layer, by its typical step."""
    return _trend(_gradients(signal))


def decades_grown(signal: PassFacts) -> float:
    """Return the decades that values gain from the first layer to the output, by their typical step."""
    return _trend([math.log10(size) for row in signal.layers if (size := row.root_mean_square)])


def _gradients(signal: PassFacts) -> list[float]:
    gradients = [row.log10_gradient for row in signal.layers]
    return [value for value in gradients if value is not None and value > -math.inf]


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


LONG_CHAIN, FEWEST_COMPARED = 8, 16
"""Weight layers in a row, and samples: fewer show no trend."""
DIFFERENT_SHARE, ALIKE_SHARE = 0.3, 0.03
"""Shares of the values that differ between samples, at the start and at the end of a chain whose samples fade into one
another; a healthy plain chain of twenty layers keeps a tenth."""


def check_fading_differences(examined: Examined) -> Iterator[Finding]:
    """A fresh deep network without a way around its layers, through which the samples become more and more alike."""
    chain, shares = shares_that_differ(examined)
    if len(chain) < LONG_CHAIN or shares[0] < DIFFERENT_SHARE or not 0.0 < max(shares[-2:]) < ALIKE_SHARE:
        return
    if any(check_gradient_vanishing(examined)):
        return  # which says the same of the way back
    first, last = chain[0].path, chain[-1].path
    yield finding(
        "gradient-vanishing",
        last,
        f"From `{first}` to `{last}`, over {len(chain)} weight layers, samples become alike: what differs between "
        f"them falls from {percent(shares[0])} to {percent(shares[-1])} of the values.",
        "Every layer keeps what samples have in common and mixes what tells them apart: little of it is left for "
        "the output to read.",
        "Add skip connections around the layers, use fewer layers, or put a normalizer over the samples "
        "(BatchNorm) between them.",
        figures(layers=len(chain), share_left=shares[-1]),
    )


def shares_that_differ(examined: Examined) -> tuple[list[LayerRow], list[float]]:
    """Return the weight layers that everything passes in a fresh model, and the share of the values that differs."""
    signal = examined.signal
    if signal is None or signal.samples < FEWEST_COMPARED or not is_fresh(examined.model):
        return [], []
    flow = GraphOrder(examined)
    chain = [row for row in signal.layers if row.kind in WEIGHT_KINDS and flow.cuts(row.path)]
    return chain, [(row.sample_deviation or 0.0) / (row.root_mean_square or math.inf) for row in chain]


VANISHED_RATIO = 0.02
"""The size of what an operator without weights hands on over that of what it reads, below which values vanish: a mean
keeps a tenth."""
LEARNED_SCALE_RATIO = 2.0
"""How far the size of a trainable vector may be from a factor that it makes: values do not all have one size."""


def check_shrinking_values(examined: Examined) -> Iterator[Finding]:
    """A fresh model in which values nearly vanish between two layers, by an operator without weights."""
    if not is_fresh(examined.model) or any(check_constant_output(examined)):
        return
    factor, before, after = min(find_falls(examined), default=(1.0, "", ""))
    if factor >= VANISHED_RATIO:
        return
    yield finding(
        "gradient-vanishing",
        before or after,
        f"Values are multiplied by {figure(factor)} on their way from "
        f"{f'`{before}`' if before else 'layers before'} to {f'`{after}`' if after else 'what reads them'}.",
        "Values that nearly vanish on their way hardly count in the outputs, and their gradients vanish alike.",
        "Look at what lies between: a softmax or a mean over the wrong axis (check its dim), a factor or a step "
        "of time far below 1 that keeps a recurrent state (carry more of the state on, or use a GRU); or rescale the "
        "layer behind it.",
        figures(factor=factor),
    )


def find_falls(examined: Examined) -> list[tuple[float, str, str]]:
    """Return what operators without weights make of the size of values: the factor, and the layers around each."""
    signal = examined.signal
    if signal is None:
        return []
    weights, falls = rows_of_weights(signal, examined.data), list[tuple[float, str, str]]()
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.flow.feeds, strict=False)):
        size = weights[number].rms_input if number in weights else row.root_mean_square
        values = [feed for feed in feeds if signal.rows[feed].kind != GATE]  # a gate weighs values and hands on none
        inner = [feed for feed in values if signal.rows[feed].kind != INPUT]
        largest_read = max((signal.rows[feed].root_mean_square or 0.0 for feed in values), default=0.0)
        if examined.data.other and not inner and number in weights and (size or 0.0) < VANISHED_RATIO * largest_read:
            return []  # the data are smaller than the batch, not what layers make of it
        read, feed = max(((signal.rows[feed].root_mean_square or 0.0, feed) for feed in inner), default=(0.0, 0))
        has_own_finding = row.kind in (*NORMALIZERS, *ACTIVATIONS, GATE, "relu")  # of units that are off or saturated
        if len(inner) == len(values) and read > 0.0 and size and not has_own_finding:
            fall = (size / read, signal.rows[feed].path, row.path)
            # blocks that begin small on purpose, as those of ConvNeXt and CaiT, by a vector that training enlarges
            is_meant = fall[0] < VANISHED_RATIO and _is_learned_scale(examined.model, *fall)
            if not (is_meant and _has_way_around(number, signal.flow.feeds)):
                falls.append(fall)
    return falls


def _is_learned_scale(model: nn.Module, factor: float, before: str, after: str) -> bool:
    """Whether a factor between two layers is that of a trainable vector of a module around them."""
    for name, parameter in model.named_parameters():
        owner, dot, _ = name.rpartition(".")
        around = any(f"{path}.".startswith(owner + dot) for path in (before, after))
        if around and parameter.requires_grad and parameter.numel() == max(parameter.shape, default=1):
            size = float(parameter.detach().double().square().mean().sqrt())
            if factor / LEARNED_SCALE_RATIO <= size <= factor * LEARNED_SCALE_RATIO:
                return True
    return False


def _has_way_around(number: int, feeds: Sequence[Sequence[int]]) -> bool:
    """Whether something joins what follows from a row with what does not: the row is part of a branch."""
    following = {number}
    for place, read in enumerate(feeds):
        if not following.isdisjoint(read):
            if not following.issuperset(read):
                return True
            following.add(place)
    return False


NO_SATURATION = (
    "Use ReLU or GELU instead of saturating activations, or initialise with gain 1 (torch.nn.init.kaiming_normal_)"
)
CLIP = "clip gradients (torch.nn.utils.clip_grad_norm_), lower the learning rate"
GRADIENT_NOT_FINITE = Symptom(
    code="gradient-explosion",
    severity=Severity.ERROR,
    seen="For {records:counted record} the gradient was NaN or infinite{last}",
    why="Such a step makes the weights NaN, or is skipped by a GradScaler: either way nothing is learned.",
    advice="Lower the loss scale, run the backward of this layer in float32 or bfloat16, and look for the root, "
    "logarithm or quotient of a zero behind it.",
)
GRADIENT_EXPLODED = Symptom(
    code="gradient-explosion",
    seen="For {records} records the gradient was at least {least:power}; that of the untrained model was "
    "{log10_gradient_first:power}.{worst}",
    why="Steps grow with the gradient, overshoot and make it grow further; overflow is the usual end.",
    advice=f"{CLIP.capitalize()}, and warm it up.",
)
LAYER_GRADIENT_LARGE = Symptom(
    code="gradient-explosion",
    seen="The gradient of {where}, times the norm of its weights, is {log10_sensitivity:power}; that of the last "
    "layers is {log10_others:power}.{also}",
    why="One learning rate cannot suit both: this layer is thrown about while the others stand still.",
    advice=f"{CLIP.capitalize()} of this layer, or look at what follows it: a normalizer whose input hardly varies "
    "expands gradients on their way back.",
)
STEEP_FROM_START = Symptom(
    code="gradient-explosion",
    seen="For {records} records the gradient was at least {least:power}: times the norm of the weights it is "
    "{log10_steepness:power} times the loss of a constant output, where 1 to 100 is usual.{worst}",
    why="A factor above 1 per layer is exponential in depth. The gradient explodes on its way back: a small step "
    "changes the loss by orders of magnitude.",
    advice="Initialise with smaller weights (gain 1: torch.nn.init.kaiming_normal_(weight, nonlinearity='relu'); "
    "orthogonal for recurrent ones), put normalizers between the layers, scale the branches of a residual network by "
    f"1/sqrt(number of blocks), or use an LSTM or GRU; {CLIP}.",
)
GRADIENT_GONE = Symptom(
    code="gradient-vanishing",
    seen="The gradient of the whole network fell from {log10_gradient_first:power} to {log10_gradient:power} while the "
    "loss is still {last_loss:figure}; it began at {first_loss:figure}.",
    why="Nothing tells the weights how to become better: outputs are saturated, or units are switched off.",
    advice="Go back to a checkpoint from before, lower the learning rate, and look for saturated activations (sigmoid, "
    "tanh, softmax) and ReLUs that are never on.",
)
STARVED = replace(
    GRADIENT_GONE,
    seen="The gradient of the whole network fell from {log10_gradient_first:power} to {log10_gradient:power}, while "
    "its loss went from {first_loss:figure} to {last_loss:figure}: it is worse than at the start.",
    why="Another network is trained as well and wins, as a discriminator does that tells everything apart: where it is "
    "saturated, no gradient comes back.",
    advice="Weaken the other player: lower its learning rate or its number of steps, regularise it (spectral norm, "
    "gradient penalty, label smoothing), and let a generator minimise the non-saturating loss -log D.",
)
GRADIENT_FADES = replace(
    LAYER_GRADIENT_LARGE,
    code="gradient-vanishing",
    why="A factor below 1 per layer is exponential in depth: what reaches this layer is lost on the way back, and it "
    "hardly learns while the others do.",
    advice="{mend}, or add skip connections or normalizers between the layers.",
)
LAYER_GRADIENT_LOST = replace(
    GRADIENT_FADES,
    why="At the first step it was not so: steps that are too large moved the weights to where nothing gets through.",
    advice="Lower the learning rate to a tenth or less, or let it grow from zero over the first steps (warm-up).",
)
EVEN_DECADES, LARGE_STEP_LOG10 = 2.0, -2.0
"""Decades between a layer and the last third that are even, and a first step that is large, over the weights."""
STEEP_DECADES = 3.5
"""log10 of gradient times weights over the loss; healthy runs have 0 to 2. A run measures gradients of weights, not of
values as a check does, so that none of these thresholds is one of a check."""
EXPLODED_SINCE_START_DECADES = 4.0
"""Decades of the whole gradient above that of the untrained model.

Healthy runs of the tests stay within 1.7; unnormalized networks that leave a plateau come closest to it.
"""
EXPLODED_RECORDS = 3
"""Records in a row: an explosion lasts until it ends the run, a spike of one batch does not."""
UNEVEN_DECADES, UNEVEN_PLAIN_DECADES, STARVING_DECADES = 4.0, 5.0, 3.0
"""Decades of gradient times weight between one layer and the last third; healthy runs of the tests stay within 1.8.

The first is for a lasting state, the second for two records, the third for first layers that starve while nothing is
learned.
"""
STARVED_DECADES = 2.0
"""The same where another network is trained beside this one, whose loss is above where it began."""
GONE_DECADES = 5.0
"""Decades of the whole gradient below that of the untrained model, while the loss has hardly moved."""
UNFITTED_SHARE = 0.5
"""A share of the first loss: while the loss is above it, the gradient has no reason to be gone."""
MIN_DEPTH = 4
"""A network needs this many layers before its gradients by depth say anything."""


def watch_gradient_explosion(history: History) -> Iterator[Finding]:
    """`gradient-explosion` (warning, error): the gradient is 10,000 times that of the untrained model for three
    records, from the start 3,000 times what the loss of a constant output makes usual, or a layer's 10^4 (in two
    records 10^5) times that at the output (error: NaN or infinite for long)
    """
    latest = [record.total_of("log10_gradient") for record in history.records[-EXPLODED_RECORDS:]]
    recent, start = [v for v in latest if v is not None and not math.isnan(v)], _first_gradient(history)
    uneven = _find_uneven_layer(history, LAYER_GRADIENT_LARGE)
    if start is not None and len(recent) == EXPLODED_RECORDS and min(recent) - start >= EXPLODED_SINCE_START_DECADES:
        where = _steepest_layer(history)
        worst = f" It is largest, for its weights, in {where}." if where else ""
        words = {"records": EXPLODED_RECORDS, "least": min(recent), "worst": worst}
        yield GRADIENT_EXPLODED.at(where, words, log10_gradient=recent[-1], log10_gradient_first=start)
    elif (steepness := _steepness(history)) is not None and steepness >= STEEP_DECADES:
        where = _steepest_layer(history)
        worst = f" It is largest, for its weights, in `{where}`." if where else ""
        words = {"records": len(recent), "least": min(recent), "worst": worst}
        yield STEEP_FROM_START.at(where, words, log10_gradient=recent[-1], log10_steepness=steepness)
    elif uneven is not None:
        yield uneven


def watch_gradient_not_finite(history: History) -> Iterator[Finding]:
    """Gradients that stay NaN or infinite; one step that overflows under a loss scale is no fault."""
    values = [value for _, value in history.total("log10_gradient").latest()]
    if values and not any(v < math.inf for v in values):
        layers = [
            layer.name
            for i, layer in enumerate(history.of("weight"))
            if (v := history.records[-1].number("weight", "log10_gradient", i)) is not None and not v < math.inf
        ]
        words = {"records": len(values), "last": f"; {layers[-1]} is the last layer where it is." if layers else "."}
        yield GRADIENT_NOT_FINITE.at(layers[-1] if layers else "", words, count=len(layers))


def _steepness(history: History) -> float | None:
    """Return the least log10 of gradient times weights over the loss, in the last records; None where not known."""
    values = []
    for record in history.repeated(EXPLODED_RECORDS):
        gradient, weight, loss = record.total_of("log10_gradient"), record.total_of("log10_weight"), record.loss
        if gradient is None or weight is None or loss is None or not 0.0 < loss < math.inf:
            return None
        own, constant = record.total_of("outputs_own"), record.total_of("outputs_constant")
        usual = loss if not own or not constant else min(loss, constant * loss / own)  # that of a constant output
        values.append(gradient + weight - math.log10(usual))
    finite = bool(values) and all(map(math.isfinite, values))
    last, start = history.records[-1], history.first_loss
    own, constant = last.total_of("outputs_own"), last.total_of("outputs_constant")
    now, then = (last.loss, start) if own is None or constant is None else (own, constant)
    fitted = now is not None and then is not None and now < UNFITTED_SHARE * then
    return min(values) if finite and not fitted else None


def watch_gradient_vanishing(history: History) -> Iterator[Finding]:
    """`gradient-vanishing` (warning): the gradient is gone (10^-5 of the first) though the loss is not, or that of a
    layer is 10^-4 (in two records 10^-5) of that at the output (10^-3 in all of the first layers while nothing is
    learned); or it is a hundredth of the first while another optimizer trains and the loss is above its start: the
    other player wins
    """
    losses, opening, loss = history.total("loss").lasting(), history.total("loss").first, history.total("loss").now
    start, top = _first_gradient(history), max(history.total("log10_gradient").lasting(), default=math.inf)
    uneven = _find_uneven_layer(history, GRADIENT_FADES)
    stuck = loss is not None and opening and 0.0 < UNFITTED_SHARE * max(opening) <= loss
    latest, starved = history.total("loss").last(3), history.total("log10_gradient").last(3)
    worse = bool(latest) and bool(opening) and min(latest) > opening[0]
    if (
        start is not None
        and worse
        and starved
        and history.parameter_state.others
        and max(starved) <= start - STARVED_DECADES
    ):
        words = {"last_loss": latest[-1], "first_loss": opening[0]}
        yield STARVED.at(words=words, log10_gradient=max(starved), log10_gradient_first=start)
    elif start is not None and stuck and top <= start - GONE_DECADES and not _has_settled(history):
        words = {"last_loss": losses[-1], "first_loss": opening[0]}
        yield GRADIENT_GONE.at(words=words, log10_gradient=top, log10_gradient_first=start, loss=loss)
    elif uneven is not None:
        yield uneven


def _has_settled(history: History) -> bool:
    """Return whether all records saw the same batch and the loss fell: gradient descent on all data ends like that."""
    means = {r.total_of("input_mean") for r in history.records}
    last = history.records[-1].loss
    return len(means) == 1 and None not in means and last is not None and last < (history.records[0].loss or 0.0)


def _first_gradient(history: History) -> float | None:
    """Return log10 of the first whole gradient that is finite."""
    return next((value for value in history.total("log10_gradient").first if math.isfinite(value)), None)


def _steepest_layer(history: History) -> str:
    """Return the weight layer with the largest gradient relative to its weights; empty if none has one."""
    slopes = []
    for index, layer in enumerate(history.of("weight")):
        gradient, size = (history.records[-1].number("weight", q, index) for q in ("log10_gradient", "log10_size"))
        if gradient is not None and size is not None and math.isfinite(gradient) and math.isfinite(size):
            slopes.append((gradient - size, index, layer.name))
    return max(slopes)[2] if slopes else ""


def _measure_sensitivities(history: History) -> tuple[dict[int, float], float]:
    """Return by layer log10 of its gradient times the norm of its weights, and what counts as far from the others."""
    key, levels, limit = "sensitivities", {}, UNEVEN_DECADES
    if key in history.looked_up:
        measured: tuple[dict[int, float], float] = history.looked_up[key]
        return measured
    for index in range(len(history.of("weight"))):
        course = history.value_series("weight", "log10_gradient", index)
        pairs, limit = course.latest(), UNEVEN_DECADES
        if not pairs and course.last():
            pairs, limit = course.recent[-2:], UNEVEN_PLAIN_DECADES
        sizes = dict(history.value_series("weight", "log10_size", index).recent)
        products = [gradient + sizes.get(step, math.nan) for step, gradient in pairs]
        if products and all(map(math.isfinite, products)):
            levels[index] = median(products)
    history.looked_up[key] = levels, limit
    return levels, limit


def _find_uneven_layer(history: History, alarm: Symptom) -> Finding | None:
    """Return the layer whose gradient lasts far above, or below, those of the layers next to the output."""
    up = alarm is LAYER_GRADIENT_LARGE
    layers = history.of("weight")
    # gradients times the norm of their weights, how much the loss changes when these change by their own size: a weight
    # before a normalizer has the same figure at every scale
    levels, limit = _measure_sensitivities(history)
    if len(levels) < MIN_DEPTH:
        return None
    others = median(list(levels.values())[-max(2, len(levels) // 3) :])
    firsts = list(levels.values())[: max(2, len(levels) // 3)]
    if not up and max(firsts) <= others - STARVING_DECADES and history.is_unlearned:
        limit = STARVING_DECADES  # all of the first layers, not one that begins at zero
    beyond = [i for i, level in levels.items() if (level - others if up else others - level) >= limit]
    if not beyond:
        return None
    index = (max if up else min)(beyond, key=lambda i: levels[i])
    if not up and _was_even(history, index, list(levels)):
        alarm = LAYER_GRADIENT_LOST
    return alarm.at(
        layers[index].name,
        {"also": others_likewise(len(beyond), "other layer"), "mend": NO_SATURATION},
        log10_sensitivity=levels[index],
        log10_others=others,
        count=len(beyond),
    )


def _was_even(history: History, index: int, layers: Sequence[int]) -> bool:
    """Return whether the gradient of a layer was near those of the last third before a first step that was large."""
    first = history.records[0]
    numbers = [(i, *(first.number("weight", q, i) for q in ("log10_gradient", "log10_size"))) for i in layers]
    begun = {i: gradient + size for i, gradient, size in numbers if gradient is not None and size is not None}
    last = [begun[i] for i in layers[-max(2, len(layers) // 3) :] if i in begun]
    large = (first.total_of("log10_step") or -math.inf) >= LARGE_STEP_LOG10
    return large and index in begun and bool(last) and begun[index] > median(last) - EVEN_DECADES
