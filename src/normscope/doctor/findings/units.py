"""Findings about units, channels and layers that let nothing pass or stand in the flat part of an activation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from ...core.finding import Finding, Severity, figure, figures, percent, power
from ...core.log10 import log10
from ...report.words import pluralise
from ..checking.examined import Examined, ExaminedRow, NormalizerOverData
from ..checking.loss_facts import NO_BETTER, is_fresh
from ..checking.signal import SignalRow
from .causes import GraphOrder
from .depth import WEIGHTS
from .structure import fading_differences

NOTHING_PASSES = 1e-3
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
HALF_OFF = 0.5
"""Inputs that are nearly alike switch half of a random layer off; beyond that and one standard error (in a fresh
model, where chance alone decides, two) it is a fault."""
FAR_BELOW = 3.0
"""A bias that lies this many deviations below zero keeps its channel off for nearly every input."""
EVEN_SIDES = 0.2
"""The least share of biases on either side of zero, if chance put them there."""
BIASED_OFF = 0.3
"""A share that is off by a bias is no chance."""
LITTLE_PASSES = 0.03
"""The size of what a ReLU hands on beside what it reads: half of a centred signal is 0.7."""
ENOUGH_PASSES, LIVELY_OFF = 0.4, 0.8
"""Where samples are much alike, as raw pixels are, training moves units to one side together: more than half of them
may be off as long as a ReLU hands on this share of the size of what it reads."""
CENTRED_OFF = 0.3
"""After BatchNorm every channel is centred over the data, and a random layer has no dead units at all."""

L2 = (
    "A common cause is Adam with coupled L2 on weights before a normalizer: their scale has no effect, so nothing "
    "holds it up."
)
LIVELIER = (
    "Initialise the layers before it larger (torch.nn.init.kaiming_normal_), look for a small factor before it and for "
    "a skip connection that is missing, or lower its eps."
)
DECOUPLE = (
    "Use torch.optim.AdamW, or put these weights into a group with weight_decay=0, and start from a live checkpoint."
)


def dead_layer(examined: Examined) -> Iterator[Finding]:
    """Layers through which nothing passes: collapsed variance, negligible scale or negligible weights."""
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
        yield _dead(
            place.path,
            f"The operator norm of `{place.path}` is {power(norm)}; that of a typical weight layer here is "
            f"{power(typical)}.",
            figures(log10_norm=norm, log10_typical=typical),
        )


def _dead_normalizer(
    examined: Examined, place: ExaminedRow, seen: NormalizerOverData, typical: float, flow: GraphOrder
) -> Iterator[Finding]:
    """Collapsed variance at the input, or a negligible scale at the output."""
    if seen.kind == "batch" and examined.data.samples < 2:
        return  # one sample has no variance
    if examined.reads_input(place) and seen.log10_median > -math.inf:
        yield from _negligible_scale(place, seen, flow)
        return  # a small input is no dead layer: eps is too large for it, or it is too small
    passing = _passing(seen)
    negligible = place.log10_folded is None or place.log10_folded <= NEGLIGIBLE_GAIN
    if seen.eps > 0.0 and passing < NOTHING_PASSES and negligible:
        before = None if place.fed_by is None else examined.places[place.fed_by]
        norm = None if before is None or before.norm is None else before.norm.log10_upper
        if norm == -math.inf:
            return  # the zero layer before it is the finding
        small = norm is not None and norm < typical + log10(RELATIVE_NORM)
        yield _collapsed_variance(
            place, seen, passing, norm, before.path if before and small else None, fresh=is_fresh(examined.model)
        )
    yield from _negligible_scale(place, seen, flow)


def _passing(seen: NormalizerOverData) -> float:
    """Return var/(var + eps), the share of the normalized variance that a normalizer lets through."""
    variance = _log10_loudest(seen)
    return 0.0 if variance == -math.inf else 1.0 / (1.0 + seen.eps * 10.0 ** min(-variance, 300.0))


def _collapsed_variance(
    place: ExaminedRow, seen: NormalizerOverData, passing: float, norm: float | None, small: str | None, *, fresh: bool
) -> Finding:
    """A normalizer whose input varies far less than eps; `small`: weights before it that are the reason."""
    variance = _log10_loudest(seen)
    weights = f" The weights of `{small}` have the norm {power(norm)}." if small and norm else ""
    return _dead(
        small or place.path,
        f"The {'largest' if seen.kind == 'batch' else 'typical'} variance into `{place.path}` is {power(variance)}, "
        f"far below eps = {figure(seen.eps)}: {percent(passing)} of the normalized variance is left.{weights}",
        figures(log10_variance=variance, eps=seen.eps, passing=passing, log10_norm=norm),
        fresh=fresh,
    )


def _negligible_scale(place: ExaminedRow, seen: NormalizerOverData, flow: GraphOrder) -> Iterator[Finding]:
    """A normalizer whose largest scale lets next to nothing through."""
    scale = math.inf if seen.weight is None or not seen.weight.numel() else float(seen.weight.abs().max())
    if scale == 0.0:
        yield _zero_scales(place, flow.cuts(place.path))
    elif scale <= NEGLIGIBLE_NORM:
        words = f"The largest scale of `{place.path}` is {figure(scale)}."
        yield _dead(place.path, words, figures(log10_scale=log10(scale)))
    elif scale < SMALL_SCALE and flow.cuts(place.path) and not flow.is_normalized(place.path):
        yield Finding(
            code="dead-layer",
            severity=Severity.WARNING,
            where=place.path,
            seen=f"The largest scale of `{place.path}` is {figure(scale)}, and everything passes through it.",
            why="Next to nothing of what is normalized is left for the layers behind, and as little of the gradient "
            "comes back.",
            advice="Set its scales back to 1 (torch.nn.init.ones_(module.weight)) or restore an earlier checkpoint, "
            "and exclude the scales of normalizers from weight decay.",
            numbers=figures(log10_scale=log10(scale)),
        )


def _log10_loudest(seen: NormalizerOverData) -> float:
    """Return log10 of the variance that decides whether anything passes: of the loudest channel, or a typical set."""
    if seen.channel_variance is None or not seen.channel_variance.numel():
        return seen.log10_median
    return log10(float(seen.channel_variance.max()))


def _dead(where: str, seen: str, numbers: dict[str, float | int | None], *, fresh: bool = False) -> Finding:
    return Finding(
        code="dead-layer",
        severity=Severity.WARNING,
        where=where,
        seen=seen,
        why="Nothing of the input passes this layer."
        if fresh
        else f"Nothing of the input passes this layer any more. {L2}",
        advice=LIVELIER if fresh else DECOUPLE,
        numbers=numbers,
    )


def _zero_scales(place: ExaminedRow, cuts: bool) -> Finding:
    """Scales that are all zero: an initialisation, unless the network depends on its input through this layer alone."""
    where = place.path
    if not cuts:
        return Finding(
            code="dead-layer",
            severity=Severity.INFO,
            where=where,
            seen=f"All scales of `{where}` are exactly zero.",
            why="This is how residual branches and last layers are often initialised: the branch adds nothing at first "
            "and opens with the first steps.",
            advice="Nothing to do for a fresh model. After training it means that the layer got no gradient.",
            numbers=figures(zero=1),
        )
    return Finding(
        code="dead-layer",
        severity=Severity.WARNING,
        where=where,
        seen=f"All scales of `{where}` are exactly zero, and every path from the input to the output leads through it.",
        why="The output does not depend on the input, and no gradient reaches the layers before.",
        advice="Initialise them: torch.nn.init.ones_(module.weight).",
        numbers=figures(zero=1),
    )


def dead_channels(examined: Examined) -> Iterator[Finding]:
    """Part of a layer's channels carry nothing: zero scale, zero filter, constant input."""
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
            yield Finding(
                code="dead-channels",
                severity=Severity.WARNING if many else Severity.INFO,
                where=place.path,
                seen=f"{count:,} of the {size:,} channels of `{place.path}` carry nothing: {what} "
                f"({shown}{', ...' if count > 8 else ''}).",
                why=why,
                advice="If you pruned them, remove them for good. If not, exclude this layer from weight decay and "
                "lower the learning rate, or initialise these channels again."
                if many
                else "A few are common after training; watch that they do not become more."
                if own
                else "Look at what comes before: features that are constant in the data, or ReLUs that are never on.",
                numbers=figures(dead=count, channels=size, share=count / size),
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


def dead_relu(examined: Examined) -> Iterator[Finding]:
    """ReLU channels that were positive for no sample."""
    data = examined.data
    if data.not_finite is not None or data.samples < A_FEW_SAMPLES:
        return
    centred = {place.path for place, seen in examined.normalizers() if seen.kind == "batch" and not seen.untaken}
    fresh = is_fresh(examined.model)
    fading = any(fading_differences(examined))  # what is nearly the same for every sample is on or off for all of them
    for (path, _, call), units in data.units.items():
        count, size = int(units.dead.sum()), units.dead.numel()
        if count < size and data.samples < ENOUGH_SAMPLES:
            continue
        passing = 1.0 if examined.signal is None else examined.signal.passing(path, "relu", call)
        if count or passing < LITTLE_PASSES:
            before = frozenset() if examined.signal is None else examined.signal.paths_before(path, "relu", call)
            if count < size and _reads_constant(examined, path, call):
                continue  # what is the same for every sample is on or off for all of them
            chance = (2.0 if fresh else 1.0) * math.sqrt(0.25 / size)
            limit = CENTRED_OFF if before and before <= centred else HALF_OFF + chance
            lively = fresh or passing >= ENOUGH_PASSES  # a fresh layer of small inputs is on or off by its biases
            limit = max(limit, LIVELY_OFF) if lively and limit > HALF_OFF else limit
            many = count == size or count / size > limit
            off = units.dead if passing >= LITTLE_PASSES else torch.ones_like(units.dead)
            cause = _bias_below(examined, before, off) if many or off.double().mean() > BIASED_OFF else None
            many = (many and not fading) or cause is not None or passing < LITTLE_PASSES
            where = examined.name_place(path, before) if cause is None else cause.path
            where = next(iter(before)) if many and len(before) == 1 else where  # its weights are what stops learning
            yield _dead_relu(where, units.dead, data.samples, many, cause, passing)


def _reads_constant(examined: Examined, path: str, call: int) -> bool:
    """Whether what one call of a ReLU reads is the same for every sample."""
    signal = examined.signal
    numbers = (
        [] if signal is None else [k for k, row in enumerate(signal.rows) if (row.path, row.kind) == (path, "relu")]
    )
    feeds = signal.feeds[numbers[call]] if signal is not None and call < len(numbers) and signal.feeds else ()
    return signal is not None and bool(feeds) and all(signal.rows[feed].varies is False for feed in feeds)


def _dead_relu(where: str, dead: Tensor, samples: int, many: bool, cause: _Bias | None, passing: float) -> Finding:
    """The finding about the dead channels of one ReLU: a warning if they are many, with the bias that causes it."""
    count, size = int(dead.sum()), dead.numel()
    advice = "Some are normal, above all where samples are much alike; watch that they do not become more."
    if cause is not None:
        advice = (
            f"Set the bias of `{cause.path}` back to zero in these channels and train on, with a lower learning rate "
            "for it: what pushed it down was most likely a step that was too large."
        )
    elif many:
        advice = "Lower the learning rate, start biases at zero, normalize before the ReLU, or use LeakyReLU or GELU."
    return Finding(
        code="dead-relu",
        severity=Severity.WARNING if many else Severity.INFO,
        where=where,
        seen=f"{pluralise(count, 'channel')} of {size:,} ({percent(count / size)}) of the ReLU "
        f"{'after' if many else 'in'} {f'`{where}`' if where else 'the model'} "
        f"{'was' if count == 1 else 'were'} positive for none of {samples:,} samples."
        + (f" It hands on {percent(passing)} of the size of what reaches it." if passing < LITTLE_PASSES else "")
        + ("" if cause is None else f" {cause.said}"),
        why="A ReLU that is never positive outputs zero and passes no gradient, so the weights before it stop "
        "learning.",
        advice=advice,
        numbers=figures(
            dead=count,
            channels=size,
            share=count / size,
            samples=samples,
            bias=None if cause is None else cause.bias,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Bias:
    """A bias that holds a ReLU off: of which layer, its median over the channels that are off, and what to say."""

    path: str
    bias: float
    said: str


def _bias_below(examined: Examined, before: frozenset[str], dead: Tensor) -> _Bias | None:
    """Return the bias of the one layer before a ReLU if it lies far below zero in most channels that are off."""
    places = [place for place in examined.places if place.path in before]
    if len(places) != 1:
        return None
    place = places[0]
    module = examined.model.get_submodule(place.module)
    bias, spread = getattr(module, "bias", None), _spread(place, getattr(module, "weight", None))
    if not isinstance(bias, Tensor) or spread is None or not bias.shape == spread.shape == dead.shape:
        return None
    bias = bias.detach().double().cpu()
    if _is_drawn(bias, module):
        return None
    bias, spread = bias[dead], spread[dead]
    if float((bias < -FAR_BELOW * spread).double().mean()) <= HALF_OFF:
        return None
    middle, usual = float(bias.median()), float(spread.median())
    what = "its scale there is" if place.normalizer is not None else "a typical input moves them by"
    where = f"The bias of `{place.path}` is {figure(middle)} in these channels (median)"
    return _Bias(place.path, middle, f"{where}; {what} {figure(usual)}.")


def _is_drawn(bias: Tensor, module: nn.Module) -> bool:
    """Whether biases lie within the limits between which torch draws them, on both sides of zero."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        return False
    limit = 1.0 / math.sqrt(math.prod(weight.shape[1:]))
    below = float((bias < 0).double().mean())
    return float(bias.abs().max()) <= limit * (1 + 1e-6) and EVEN_SIDES < below < 1.0 - EVEN_SIDES


def _spread(place: ExaminedRow, weight: object) -> Tensor | None:
    """Return by how much the channels of a layer typically vary around their bias, on the CPU."""
    if not isinstance(weight, Tensor):
        return None
    size = weight.detach().double().cpu()
    if place.normalizer is not None:
        return size.abs()
    if place.weight is None or "Transpose" in place.kind:
        return None
    return torch.linalg.vector_norm(size.flatten(1), dim=1) * place.weight.rms_input


MOST = {"sigmoid": 0.5, "tanh": 0.5, "hardsigmoid": 0.5, "softmax": 0.75, "attention": 0.75, "lstm": 0.9, "gru": 0.9,
        "rnn": 0.9, "hardtanh": 0.9}  # fmt: skip
"""Shares: half of all gates wide open or shut is common after training, and a few attention heads that look at one
token too; beyond that hardly any gradient is left."""


GATES = (
    "Reset the biases of the gates (zero, and 1 for the forget gate of an LSTM) and initialise the recurrent weights "
    "orthogonally; scale the inputs to size 1."
)
HALF = 0.5
"""Of the rows of a softmax: in a fresh network most of them spread over several entries."""
NEARLY_ALL = 0.9
"""A share beyond which it is a fault: networks that train well have up to nine in ten in a first layer."""


def saturated_units(examined: Examined) -> Iterator[Finding]:
    """Sigmoid, tanh and softmax inside the network of which most lie in their flat parts."""
    signal, runs = examined.signal, Counter[tuple[str, str]]()
    layers = () if signal is None else signal.layers
    fresh = signal is not None and bool(signal.parameters) and is_fresh(examined.model)
    fresh_outputs = layers[_last_weight(layers) :] if fresh else ()
    share = None if signal is None or signal.loss is None else signal.loss.share_of_blind
    useless = not fresh and share is not None and share >= NO_BETTER
    for row in (*layers[: _last_weight(layers)], *(r for r in fresh_outputs if r.kind in ("sigmoid", "tanh"))):
        call = runs[row.path, row.kind]
        runs[row.path, row.kind] += 1
        low = useless or (fresh and row.kind == "softmax")
        if row.saturated is None or not row.saturated > (HALF if low else MOST[row.kind]):
            continue
        before = frozenset() if signal is None else signal.paths_before(row.path, row.kind, call)
        own = row.kind in ("softmax", "attention") and row.path
        path = row.path if own else examined.name_place(row.path, before)
        path = path or min(before, default="")  # of several summands or factors one
        where = f"`{path}`" if path else "the model"
        if row.kind in ("softmax", "attention"):
            yield _one_place(row, path, where)
            continue
        yield Finding(
            code="saturated-units",
            severity=Severity.WARNING
            if row.saturated > NEARLY_ALL or row in fresh_outputs or useless
            else Severity.INFO,
            where=path,
            seen=f"{percent(row.saturated)} of the {_counted(row)} of the {row.kind} in {where} "
            "lie within 1 % of its limits.",
            why=f"There the {row.kind} is flat: hardly any gradient passes, and what comes before it stops learning.",
            advice=GATES
            if row.kind in ("lstm", "gru")
            else "Initialise the weights before it smaller (xavier_uniform_) and reset its bias to zero, put a "
            "normalizer before it, standardise the inputs, or use ReLU or GELU.",
            numbers=figures(share=row.saturated),
        )


def _one_place(row: SignalRow, path: str, where: str) -> Finding:
    """Attention, or another softmax, whose rows look at one entry each."""
    assert row.saturated is not None
    return Finding(
        code="attention-saturated",
        severity=Severity.WARNING,
        where=path,
        seen=f"{percent(row.saturated)} of the rows of the {row.kind} in {where} put more than 99 % on one entry.",
        why="There the softmax is flat: hardly any gradient reaches queries and keys, and which entry a row looks at "
        "is left to the start.",
        advice="Divide the scores by sqrt(width of a head), normalize queries and keys, or initialise the weights that "
        "make them smaller.",
        numbers=figures(share=row.saturated),
    )


def _counted(row: SignalRow) -> str:
    """Say what a share is counted in."""
    return "gates of one kind" if row.kind in ("lstm", "gru") else "values"


def _last_weight(rows: Sequence[SignalRow]) -> int:
    """Return the number of the last weight layer: what comes after it are outputs, which may well be certain."""
    return max((k for k, row in enumerate(rows) if row.kind in WEIGHTS), default=0)
