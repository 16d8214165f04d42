"""Alarms about layers, channels and units through which nothing passes any more, for several records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from ....core.finding import Finding
from ....report.words import pluralise
from ...findings.units import DECOUPLE, MANY_CHANNELS, NEGLIGIBLE_NORM, RELATIVE_NORM
from ..history import Alarm, History, others_likewise
from ..record import Kind
from .weights import UNFITTED_SHARE

# ---- layers

VARIANCE_BELOW_EPS = Alarm(
    code="dead-layer",
    seen="For {records:counted record} the {which} variance into {where} was at most {log10_variance:power}, far below "
    "eps = {eps:figure}.",
    why="Nothing of the input passes this layer any more.",
    advice="Look at what comes before it for weights that have shrunk or units that are never on, and go on from a "
    "checkpoint in which they were alive.",
)
VARIANCE_DECAYED = replace(
    VARIANCE_BELOW_EPS,
    why=f"{VARIANCE_BELOW_EPS.why} Coupled L2 has shrunk {{weight}}, whose scale the loss does not see.",
    advice=DECOUPLE,
)
EXACTLY_ZERO = Alarm(
    code="dead-layer",
    seen="All {what} of {where} are exactly zero, and have stayed so.{also}",
    why="A zero layer opens with the first steps if a gradient reaches it; this one gets none, or is not trained.",
    advice="Check that the optimizer has these parameters and that no other zero layer follows; otherwise initialise "
    "it: torch.nn.init.kaiming_normal_ for weights, torch.nn.init.ones_ for scales.",
)
NORM_NEGLIGIBLE = Alarm(
    code="dead-layer",
    seen="The operator norm of {where} fell to {log10_norm:power}; that of a typical weight layer here is "
    "{log10_typical:power}.",
    why="Nothing of the input passes this layer any more.",
    advice="Lower its weight decay, and look whether a gradient reaches it.",
)
NORM_DECAYED = replace(
    NORM_NEGLIGIBLE,
    why=f"{NORM_NEGLIGIBLE.why} Its decay is coupled: where gradients are small it is rescaled with them.",
    advice=DECOUPLE,
)
ZERO_GRADIENT = Alarm(
    code="dead-layer",
    seen="For {records:counted record} all gradients of {where} were exactly zero.{also}",
    why="These weights no longer learn: behind them everything is switched off, or detached from the loss.",
    advice="Look at what follows: a ReLU that is never on (start biases at zero, lower the learning rate, use "
    "LeakyReLU or GELU), a zero scale, a detach(), a branch that is not used. Freeze weights that are not to "
    "be trained with requires_grad_(False).",
)
FAR_BELOW_EPS_DECADES = 3.0
"""Decades: a normalizer passes var/(var + eps) of the variance, here a thousandth."""


def dead_layer(history: History) -> Iterator[Finding]:
    """Layers through which nothing passes: variances far below eps, zero scales, zero weights, zero gradients."""
    means = history.courses("normalizer", "log10_variance").nows()
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
            yield (VARIANCE_DECAYED if coupled else VARIANCE_BELOW_EPS).at(
                history.step,
                layer.name,
                {
                    "records": len(largest),
                    "which": "largest" if values is largest else "typical",
                    "weight": "" if fed is None else fed.name,
                },
                log10_variance=max(values),
                eps=layer.eps,
                coupled=int(coupled),
            )
    for _, layer, shares in history.lasting("normalizer", "dead"):
        if min(shares) >= 1.0:
            yield EXACTLY_ZERO.at(history.step, layer.name, {"what": "scales", "also": ""}, zero=1)
    small = list(_small_weights(history))
    yield from small or _zero_gradients(history)


def _small_weights(history: History) -> Iterator[Finding]:
    """Weights that are zero, or have shrunk to nothing against the others of the network."""
    zeros = [layer for layer, values in history.last("weight", "log10_size") if max(values) == -math.inf]
    if zeros and not any(f.code == "dead-layer" and "zero" in f.numbers for f in history.findings):
        words = {"what": "weights", "also": others_likewise(len(zeros), "other layer")}
        yield EXACTLY_ZERO.at(history.step, zeros[0].name, words, zero=1, count=len(zeros))
    lasting = history.lasting("weight", "log10_norm")
    norms = {i: (layer, values) for i, layer, values in lasting if all(map(math.isfinite, values))}
    typical = median([median(values) for _, values in norms.values()]) if norms else math.nan
    for index, (layer, values) in norms.items():
        start = history.course("weight", "log10_norm", index).start
        if (
            layer.normalizer is None  # the normalizer's own alarm says it with the cause
            and max(values) <= math.log10(NEGLIGIBLE_NORM)
            and max(values) < typical + math.log10(RELATIVE_NORM)
            and (start is None or start > max(values))
        ):
            yield (NORM_DECAYED if layer.coupled else NORM_NEGLIGIBLE).at(
                history.step,
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
        history.step,
        gone[-1].name,
        {"records": len(lasting[0][1]), "also": also},
        gradient=0.0,
        count=len(gone),
    )


# ---- channels and units

DEAD_CHANNELS = Alarm(
    code="dead-channels",
    seen="{share:percent} of the channels of {where} {what}; at the start it was {share_first:percent}.",
    why="They put out a constant whatever the input: what they cost in memory and time is lost, and they rarely come "
    "back.",
    advice="Exclude this layer from weight decay (or use AdamW instead of Adam with L2) and lower the learning rate; "
    "if you prune on purpose, remove them for good.",
)
WAYS_TO_DIE: tuple[tuple[Kind, str, str], ...] = (
    ("normalizer", "constant", "have a constant input"),
    ("normalizer", "dead", "have a scale below 1e-4 of the largest"),
    ("weight", "zero", "have a filter that is exactly zero"),
)
"""Shares of channels that nothing passes, by kind of layer and quantity, and what the channels have."""


def dead_channels(history: History) -> Iterator[Finding]:
    """Channels that have died since the start: constant inputs, negligible scales, zero filters."""
    for kind, quantity, what in WAYS_TO_DIE:
        starts = history.courses(kind, quantity).starts()
        for index, layer, shares in history.lasting(kind, quantity):
            share, then = min(shares), starts[index]
            rows = quantity == "constant" and layer.family != "batch_norm"  # of samples, not of channels
            if rows or not MANY_CHANNELS <= share < 1.0 or share - then < MANY_CHANNELS:
                continue
            yield DEAD_CHANNELS.at(history.step, layer.name, {"what": what}, share=share, share_first=then)


DEAD_RELU = Alarm(
    code="dead-relu",
    seen="For {records:counted record} at least {share:percent} of the units of the ReLU {place} were on for no "
    "sample of their batch; at the start it was {share_first:percent}.",
    why="A ReLU that is never positive outputs zero and passes no gradient, so the weights before it stop learning.",
    advice="Lower the learning rate, start biases at zero, normalize before the ReLU, or use LeakyReLU or GELU.",
)
MOSTLY_OFF_SHARE = 0.7
"""Share of the units that no sample of a batch switches on; healthy runs have up to half where samples are alike."""
SWITCHED_OFF_SHARE = 0.4
"""Share of the units that training itself switched off: narrow layers on a plateau lose a quarter and come back."""


def dead_relu(history: History) -> Iterator[Finding]:
    """ReLUs most of whose units are never on, and that were on before."""
    if any(f.code == "dead-layer" and "zero" in f.numbers for f in history.findings):
        return  # behind weights of zero no unit is on
    measured = bool(history.courses("units", "dead").starts())
    for kind, quantity in OFF[: 1 if measured else 2]:
        courses = history.courses(kind, quantity)
        for index, layer in enumerate(history.of(kind)):
            plain = courses.last().get(index, ())
            shares = plain if plain and min(plain) >= 1.0 else courses.lasting().get(index)
            if not shares:
                continue
            share, start = min(shares), min(courses.of(index).first, default=0.0)
            if share < MOSTLY_OFF_SHARE or (share - start < SWITCHED_OFF_SHARE and share < 1.0):
                continue
            behind = "behind " if kind == "weight" else "in "
            words = {"records": len(shares), "place": f"{behind}`{layer.name}`" if layer.name else "in the model"}
            yield DEAD_RELU.at(history.step, layer.name, words, share=share, share_first=start)


OFF: tuple[tuple[Kind, str], ...] = (("units", "dead"), ("weight", "off"))
"""Where shares of units that no sample switches on are measured: in richer tiers at each ReLU, else behind weights."""

SATURATED = Alarm(
    code="saturated-units",
    seen="For {records:counted record} at least {share:percent} of the units behind {where} were saturated: in the "
    "flat parts of their {activation}.{also}",
    why="There the slope is next to nothing: no gradient passes, and the layers before stop learning.",
    advice="Scale the inputs to about 1 and initialise with smaller weights (torch.nn.init.xavier_normal_), lower the "
    "learning rate, put a normalizer before the activation, or use ReLU or GELU.",
)
SATURATED_SHARE = 0.8
"""Share of entries in the flat parts; healthy networks have up to a third."""


ATTENTION_SATURATED = Alarm(
    code="attention-saturated",
    seen="For {records:counted record} at least {share:percent} of the rows of the attention behind {where} put more "
    "than 99 % on one entry.{also}",
    why="There the softmax is flat: hardly any gradient reaches queries and keys, and which entry a row looks at is "
    "left to the start.",
    advice="Divide the scores by sqrt(width of a head), normalize queries and keys, initialise the weights that make "
    "them smaller, lower the learning rate or warm it up.",
)
ONE_PLACE_ROWS_SHARE = 0.9
"""Share of the rows that look at one entry, while the loss is not fitted; some heads of healthy models do."""


def attention_saturated(history: History) -> Iterator[Finding]:
    """Attention all of whose rows look at one entry though the model has not learned its task."""
    places = history.last("weight", "one_place")
    sharp = [(layer, values) for layer, values in places if min(values) >= ONE_PLACE_ROWS_SHARE]
    loss, start = history.records[-1].loss, history.first_loss
    fitted = loss is not None and start is not None and loss < UNFITTED_SHARE * start
    if sharp and not fitted and not history.has_raised("attention-saturated"):
        layer, values = sharp[0]
        words = {"records": len(values), "also": others_likewise(len(sharp), "other layer")}
        yield ATTENTION_SATURATED.at(history.step, layer.name, words, share=min(values), count=len(sharp))


GATE_SHUT = replace(
    SATURATED,
    seen="The biases of {where} keep its {gate} shut or stuck: they let 2 % through at most, and after {steps:,} steps "
    "the outputs are no better than a constant.",
    why="The gates are saturated: hardly anything of the inputs reaches the state, and no gradient comes back.",
    advice="Initialise the biases of the gates at zero, that of the forget gate at 1 (of an LSTM the second quarter of "
    "bias_ih_l0 and bias_hh_l0).",
)
GATE_SHUT_STEPS = 50
"""Steps without any progress before the biases of gates are taken for the cause."""


def saturated_units(history: History) -> Iterator[Finding]:
    """Sigmoids and tanhs behind a weight that are flat for most samples, and gates of recurrent layers."""
    if history.standing.shut and history.step >= GATE_SHUT_STEPS and history.is_unlearned:
        path, gate = next(iter(history.standing.shut.items()))
        yield GATE_SHUT.at(history.step, path, {"gate": gate, "steps": history.step})
        return
    flat = {
        layer: (activation, values)
        for activation in ("tanh", "sigmoid")
        for layer, values in history.last("weight", f"saturated_{activation}")
        if min(values) >= SATURATED_SHARE
    }
    if flat and not history.has_raised("saturated-units"):
        layer = next(layer for layer in history.of("weight") if layer in flat)
        activation, values = flat[layer]
        words = {"records": len(values), "activation": activation, "also": others_likewise(len(flat), "other layer")}
        yield SATURATED.at(history.step, layer.name, words, share=min(values), count=len(flat))
