"""Layers and channels through which nothing passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from ...core.finding import Finding, Severity, figure, figures, percent, power
from ...core.log10 import log10
from ...report.words import pluralise
from ..facts.examined import Examined, ExaminedRow
from ..facts.freshness import is_fresh
from ..facts.layers_over_data import NormalizerOverData
from ..monitor.history import History
from ..monitor.layer_record import LayerKind
from .graph_order import GraphOrder
from .symptom import FindingWords, Symptom, finding, others_likewise

FINDING_WORDS = {
    "dead-layer": FindingWords(
        "layer {where} is dead",
        "{count} layers are dead",
        note=("layer {where} is zero as a whole", "{count} layers are zero as a whole"),
    ),
    "dead-channels": FindingWords(
        "part of layer {where} is dead",
        "parts of {count} layers are dead",
        note=("a few channels of {where} carry nothing", "a few channels of {count} layers carry nothing"),
    ),
}
MIN_PASSED_VARIANCE = 1e-3
"""var/(var + eps): below this the output of a normalizer is under 3 % of what it should be."""
NEGLIGIBLE_GAIN = -2.0
"""log10 of a folded gain; above it a small variance is that of small inputs, not of a dead layer."""
NEGLIGIBLE_NORM = 1e-6
"""The norm of a weight layer, or the largest scale of a normalizer, that float32 hardly keeps beside 1."""
RELATIVE_NORM = 1e-3
"""A share of the median norm of the weight layers: a network that is small all over is not dead."""
MANY_CHANNELS = 0.1
"""A tenth of a layer is worth acting on; a channel or two are common after training."""
ENOUGH_SAMPLES, A_FEW_SAMPLES = 64, 8
"""With fewer samples a channel or unit may just not have met its input; a whole layer needs but a few."""
SMALL_SCALE = 0.01
"""Scales of a normalizer that everything passes through, and that no other normalizer undoes, start at 1."""
LIVELIER = (
    "Initialise the layers before it larger (torch.nn.init.kaiming_normal_), look for a small factor before it and for "
    "a skip connection that is missing, or lower its eps."
)
NOTHING_PASSES = "Nothing of the input passes this layer any more."
VARIANCE_BELOW_EPS = Symptom(
    code="dead-layer",
    seen="For {records:counted record} the {which} variance into {where} was at most {log10_variance:power}, far below "
    "eps = {eps:figure}.",
    why=NOTHING_PASSES,
    advice="Look at what comes before it for weights that have shrunk or units that are never on, and go on from a "
    "checkpoint in which they were alive.",
)
DECAYED = replace(
    VARIANCE_BELOW_EPS,
    seen=f"{VARIANCE_BELOW_EPS.seen} Before it {{weight}} decays by coupled L2.",
    why=f"{NOTHING_PASSES} A common cause is Adam with coupled L2 on weights before a normalizer: the loss does not "
    "see their scale, so nothing holds it up.",
    advice="Use torch.optim.AdamW, or put these weights into a group with weight_decay=0, and start from a live "
    "checkpoint.",
)
NEVER_PASSED = replace(DECAYED, why="Nothing of the input passes this layer.", advice=LIVELIER)
EXACTLY_ZERO = Symptom(
    code="dead-layer",
    seen="All {what} of {where} are exactly zero, and have stayed so.{also}",
    why="Nothing passes a layer of zeros: it opens with the first steps only if it is trained and a gradient reaches "
    "it.",
    advice="Initialise it: torch.nn.init.kaiming_normal_ for weights, torch.nn.init.ones_ for scales; check that the "
    "optimizer has these parameters and that no other zero layer follows.",
)
NORM_NEGLIGIBLE = Symptom(
    code="dead-layer",
    seen="The operator norm of {where} is {log10_norm:power}; that of a typical weight layer here is "
    "{log10_typical:power}.",
    why=NOTHING_PASSES,
    advice="Lower its weight decay, look whether a gradient reaches it, and start from a live checkpoint.",
)
NORM_DECAYED = replace(
    NORM_NEGLIGIBLE,
    why=f"{NOTHING_PASSES} Its decay is coupled: where gradients are small it is rescaled with them.",
    advice=DECAYED.advice,
)


def check_dead_layer(examined: Examined) -> Iterator[Finding]:
    """`dead-layer` (warning, info): nothing passes: variances far below eps in every channel, negligible scales (below
    0.01 where everything passes through them), or negligible weights (info: exactly zero as a whole, an
    initialisation)
    """
    flow = GraphOrder(examined)
    norms = [place.norm.log10_upper for place in examined.places if place.norm is not None]
    typical = median(norms) if norms else math.nan
    for place in examined.places:
        if place.normalizer is not None:
            yield from _dead_normalizer(examined, place, place.normalizer, typical, flow)
        elif place.norm is not None:
            yield from _negligible_weights(place, place.norm.log10_upper, typical)


def _negligible_weights(place: ExaminedRow, norm: float, typical: float) -> Iterator[Finding]:
    """A weight layer with next to no norm; not where a normalizer undoes its scale."""
    if (
        -math.inf < norm <= log10(NEGLIGIBLE_NORM)  # weights of zero are another finding
        and norm < typical + log10(RELATIVE_NORM)
        and not place.feeds_normalizer
    ):
        yield NORM_NEGLIGIBLE.at(place.path, log10_norm=norm, log10_typical=typical)


def _dead_normalizer(
    examined: Examined, place: ExaminedRow, seen: NormalizerOverData, typical: float, flow: GraphOrder
) -> Iterator[Finding]:
    """Collapsed variance at the input, or a negligible scale at the output."""
    if seen.kind == "batch" and examined.data.samples < 2:
        return  # one sample has no variance
    if examined.reads_input(place) and seen.log10_median > -math.inf:
        yield from _negligible_scale(place, seen, flow)
        return  # a small input is no dead layer: eps is too large for it, or it is too small
    passing = passing_share(seen)
    negligible = place.log10_folded is None or place.log10_folded <= NEGLIGIBLE_GAIN
    if seen.eps > 0.0 and passing < MIN_PASSED_VARIANCE and negligible:
        before = None if place.fed_by is None else examined.places[place.fed_by]
        norm = None if before is None or before.norm is None else before.norm.log10_upper
        if norm == -math.inf:
            return  # the zero layer before it is the finding
        small = norm is not None and norm < typical + log10(RELATIVE_NORM)
        yield _collapsed_variance(
            place, seen, passing, norm, before.path if before and small else None, fresh=is_fresh(examined.model)
        )
    yield from _negligible_scale(place, seen, flow)


def passing_share(seen: NormalizerOverData) -> float:
    """Return var/(var + eps), the share of the normalized variance that a normalizer lets through."""
    variance = _log10_loudest(seen)
    return 0.0 if variance == -math.inf else 1.0 / (1.0 + seen.eps * 10.0 ** min(-variance, 300.0))


def _collapsed_variance(
    place: ExaminedRow, seen: NormalizerOverData, passing: float, norm: float | None, small: str | None, *, fresh: bool
) -> Finding:
    """A normalizer whose input varies far less than eps; `small`: weights before it that are the reason."""
    variance = _log10_loudest(seen)
    weights = f" The weights of `{small}` have the norm {power(norm)}." if small and norm else ""
    return (NEVER_PASSED if fresh else DECAYED).at(
        small or place.path,
        seen=f"The {'largest' if seen.kind == 'batch' else 'typical'} variance into `{place.path}` is "
        f"{power(variance)}, far below eps = {figure(seen.eps)}: {percent(passing)} of the normalized variance is left."
        f"{weights}",
        log10_variance=variance,
        eps=seen.eps,
        passing=passing,
        log10_norm=norm,
    )


def _negligible_scale(place: ExaminedRow, seen: NormalizerOverData, flow: GraphOrder) -> Iterator[Finding]:
    """A normalizer whose largest scale lets next to nothing through."""
    scale = largest_scale(seen)
    if scale == 0.0:
        yield _zero_scales(place, flow.cuts(place.path))
    elif scale <= NEGLIGIBLE_NORM:
        yield DECAYED.at(
            place.path, seen=f"The largest scale of `{place.path}` is {figure(scale)}.", log10_scale=log10(scale)
        )
    elif scale < SMALL_SCALE and flow.cuts(place.path) and not flow.is_normalized(place.path):
        yield finding(
            "dead-layer",
            place.path,
            f"The largest scale of `{place.path}` is {figure(scale)}, and everything passes through it.",
            "Next to nothing of what is normalized is left for the layers behind, and as little of the gradient "
            "comes back.",
            "Set its scales back to 1 (torch.nn.init.ones_(module.weight)) or restore an earlier checkpoint, "
            "and exclude the scales of normalizers from weight decay.",
            figures(log10_scale=log10(scale)),
        )


def largest_scale(seen: NormalizerOverData) -> float:
    """Return the largest of the scales of a normalizer; infinity where it has none."""
    return math.inf if seen.weight is None or not seen.weight.numel() else float(seen.weight.abs().max())


def _log10_loudest(seen: NormalizerOverData) -> float:
    """Return log10 of the variance that decides whether anything passes: of the loudest channel, or a typical set."""
    if seen.channel_variance is None or not seen.channel_variance.numel():
        return seen.log10_median
    return log10(float(seen.channel_variance.max()))


def _zero_scales(place: ExaminedRow, cuts: bool) -> Finding:
    """Scales that are all zero: an initialisation, unless the network depends on its input through this layer alone."""
    where = place.path
    if not cuts:
        return finding(
            "dead-layer",
            where,
            f"All scales of `{where}` are exactly zero.",
            "This is how residual branches and last layers are often initialised: the branch adds nothing at first "
            "and opens with the first steps.",
            "Nothing to do for a fresh model. After training it means that the layer got no gradient.",
            figures(zero=1),
            severity=Severity.INFO,
        )
    return EXACTLY_ZERO.at(
        where,
        seen=f"All scales of `{where}` are exactly zero, and every path from the input to the output leads through it.",
        zero=1,
    )


ZERO_GRADIENT = Symptom(
    code="dead-layer",
    seen="For {records:counted record} all gradients of {where} were exactly zero.{also}",
    why="These weights no longer learn: behind them everything is switched off, or detached from the loss.",
    advice="Look at what follows: a ReLU that is never on (start biases at zero, lower the learning rate, use "
    "LeakyReLU or GELU), a zero scale, a detach(), a branch that is not used. Freeze weights that are not to "
    "be trained with requires_grad_(False).",
)
FAR_BELOW_EPS_DECADES = 3.0
"""Decades: a normalizer passes var/(var + eps) of the variance, here a thousandth, as in a check."""


def watch_dead_layer(history: History) -> Iterator[Finding]:
    """`dead-layer` (warning): variances a thousandfold below eps, scales or weights that stay exactly zero, weights
    that shrink to nothing, or layers that get no gradient while others do (the one nearest to the output is named)
    """
    means = history.series_by_layer("normalizer", "log10_variance").nows()
    for index, layer, largest in history.lasting("normalizer", "log10_variance_max"):
        if layer.eps is None or layer.eps <= 0.0:
            continue
        values = largest
        if layer.family != "batch_norm":  # rows of one loud sample say nothing of the others
            usual = means.get(index)
            values = largest if usual is None else [usual]
        if max(values) <= math.log10(layer.eps) - FAR_BELOW_EPS_DECADES:
            fed = next((w for w in history.of("weight") if w.normalizer == layer.name), None)
            coupled = fed is not None and fed.coupled and fed.invariant is not None
            yield (DECAYED if coupled else VARIANCE_BELOW_EPS).at(
                layer.name,
                {
                    "records": len(largest),
                    "which": "largest" if values is largest else "typical",
                    "weight": "" if fed is None else f"`{fed.name}`",
                },
                log10_variance=max(values),
                eps=layer.eps,
                coupled=int(coupled),
            )
    for _, layer, shares in history.lasting("normalizer", "dead"):
        if min(shares) >= 1.0:
            yield EXACTLY_ZERO.at(layer.name, {"what": "scales", "also": ""}, zero=1)
    small = list(_small_weights(history))
    yield from small or _zero_gradients(history)


def _small_weights(history: History) -> Iterator[Finding]:
    """Weights that are zero, or have shrunk to nothing against the others of the network."""
    zeros = [layer for layer, values in history.last("weight", "log10_size") if max(values) == -math.inf]
    if zeros and not any(f.code == "dead-layer" and "zero" in f.numbers for f in history.findings):
        words = {"what": "weights", "also": others_likewise(len(zeros), "other layer")}
        yield EXACTLY_ZERO.at(zeros[0].name, words, zero=1, count=len(zeros))
    lasting = history.lasting("weight", "log10_norm")
    norms = {i: (layer, values) for i, layer, values in lasting if all(map(math.isfinite, values))}
    typical = median([median(values) for _, values in norms.values()]) if norms else math.nan
    for index, (layer, values) in norms.items():
        start = history.value_series("weight", "log10_norm", index).start
        if (
            layer.normalizer is None  # the normalizer's own alarm says it with the cause
            and max(values) <= math.log10(NEGLIGIBLE_NORM)
            and max(values) < typical + math.log10(RELATIVE_NORM)
            and (start is None or start > max(values))
        ):
            yield (NORM_DECAYED if layer.coupled else NORM_NEGLIGIBLE).at(
                layer.name,
                log10_norm=max(values),
                log10_typical=typical,
                coupled=int(layer.coupled),
            )


def _zero_gradients(history: History) -> Iterator[Finding]:
    """The last of the weight layers that get no gradient at all, while others do."""
    lasting = list(history.last("weight", "log10_gradient"))
    gone = [layer for layer, values in lasting if max(values) == -math.inf]
    if not gone or len(gone) == len(lasting):
        return
    if any(f.code == "dead-layer" and ("gradient" in f.numbers or "zero" in f.numbers) for f in history.findings):
        return
    also = f" So are those of {pluralise(len(gone) - 1, 'other layer')}." if len(gone) > 1 else ""
    yield ZERO_GRADIENT.at(
        gone[-1].name,
        {"records": len(lasting[0][1]), "also": also},
        gradient=0.0,
        count=len(gone),
    )


def check_dead_channels(examined: Examined) -> Iterator[Finding]:
    """`dead-channels` (warning, info): part of a layer carries nothing: scale zero, filter zero, constant input"""
    weights = {place.path for place in examined.places if place.role == "weight"}
    for place in examined.places:
        direct = place.feeds_normalizer
        if place.normalizer is not None and examined.signal is not None:
            before = examined.signal.paths_before(place.path, place.operator)
            direct = bool(before) and before <= weights
        for dead, what, why, own in _dead_parts(examined, place, direct):
            if dead is None:
                continue
            count, size = int(dead.sum()), dead.numel()
            if not 0 < count < size:
                continue
            shown = ", ".join(map(str, torch.nonzero(dead).flatten()[:8].tolist()))
            many = own and count / size >= MANY_CHANNELS
            yield finding(
                "dead-channels",
                place.path,
                f"{count:,} of the {size:,} channels of `{place.path}` carry nothing: {what} "
                f"({shown}{', ...' if count > 8 else ''}).",
                why,
                DEAD_CHANNELS.advice
                if many
                else "A few are common after training; watch that they do not become more."
                if own
                else "Look at what comes before: features that are constant in the data, or ReLUs that are never on.",
                figures(dead=count, channels=size, **{"share" if place.normalizer else "filters": count / size}),
                severity=Severity.WARNING if many else Severity.INFO,
            )


def _dead_parts(examined: Examined, place: ExaminedRow, direct: bool) -> Iterator[tuple[Tensor | None, str, str, bool]]:
    """Yield which channels are dead, of what, why, and whether the layer itself or its weights are to blame."""
    seen = place.normalizer
    if seen is not None:
        yield (
            seen.dead_scales,
            "a negligible scale",
            "What enters these channels is multiplied by next to nothing: they output their bias whatever the input.",
            True,
        )
        if examined.data.samples >= ENOUGH_SAMPLES:
            yield (
                seen.constant_inputs,
                f"a constant input over {pluralise(examined.data.samples, 'sample')}",
                "A constant has nothing to normalize: these channels output their bias whatever the input.",
                direct,
            )
    else:
        yield (
            place.dead_filters,
            "a negligible filter",
            "These filters ignore their input: they use memory and time and output a constant.",
            True,
        )


DEAD_CHANNELS = Symptom(
    code="dead-channels",
    seen="{share:percent} of the channels of {where} {what}; at the start it was {share_first:percent}.",
    why="They put out a constant whatever the input: what they cost in memory and time is lost, and they rarely come "
    "back.",
    advice="If you pruned them, remove them for good. If not, exclude this layer from weight decay (or use AdamW "
    "instead of Adam with L2) and lower the learning rate, or initialise these channels again.",
)
WAYS_TO_DIE: tuple[tuple[LayerKind, str, str], ...] = (
    ("normalizer", "constant", "have a constant input"),
    ("normalizer", "dead", "have a scale below 1e-4 of the largest"),
    ("weight", "zero", "have a filter that is exactly zero"),
)
"""Shares of channels that nothing passes, by kind of layer and quantity, and what the channels have."""


def watch_dead_channels(history: History) -> Iterator[Finding]:
    """`dead-channels` (warning): a tenth of the channels has died since the start: constant inputs, negligible scales,
    zero filters
    """
    for kind, quantity, what in WAYS_TO_DIE:
        starts = history.series_by_layer(kind, quantity).starts()
        for index, layer, shares in history.lasting(kind, quantity):
            share, then = min(shares), starts[index]
            rows = quantity == "constant" and layer.family != "batch_norm"  # of samples, not of channels
            if rows or not MANY_CHANNELS <= share < 1.0 or share - then < MANY_CHANNELS:
                continue
            yield DEAD_CHANNELS.at(layer.name, {"what": what}, share=share, share_first=then)
