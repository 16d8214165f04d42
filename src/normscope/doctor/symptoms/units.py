"""Units that let nothing pass: ReLUs that are never on; sigmoids, tanhs, softmaxes and gates in their flat parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...core.finding import Finding, Severity, figure, percent
from ...report.words import pluralise
from ..facts.examined import Examined, ExaminedRow
from ..facts.freshness import is_fresh
from ..facts.layers import LayerRow
from ..facts.loss import LEARNED_LOSS_RATIO
from ..monitor.history import History
from ..monitor.layer_record import LayerKind
from .dead_layers import A_FEW_SAMPLES, ENOUGH_SAMPLES
from .gradient_depth import UNFITTED_SHARE, check_fading_differences
from .graph_order import WEIGHT_KINDS, GraphOrder
from .symptom import FindingWords, Symptom, others_likewise

FINDING_WORDS = {
    "dead-relu": FindingWords(
        "many units of the ReLU in {where} never fire",
        "many units of {count} ReLUs never fire",
        note=("some units of the ReLU in {where} never fired", "some units of {count} ReLUs never fired"),
    ),
    "attention-saturated": FindingWords(
        "the softmax of {where} looks at one entry in each row", "{count} softmaxes look at one entry in each row"
    ),
    "saturated-units": FindingWords("{where} is saturated", "{count} activations are saturated"),
}
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
MAX_UNITS_OFF_BY_CHANCE = 4
"""So few fresh units are all off by chance: behind a squeeze, where every sample has one value for each of them."""
DEAD_RELU = Symptom(
    code="dead-relu",
    seen="For {records:counted record} at least {share:percent} of the units of the ReLU {place} were on for no "
    "sample of their batch; at the start it was {share_first:percent}.",
    why="A ReLU that is never positive outputs zero and passes no gradient, so the weights before it stop learning.",
    advice="Lower the learning rate, start biases at zero, normalize before the ReLU, or use LeakyReLU or GELU.",
)


def check_dead_relu(examined: Examined) -> Iterator[Finding]:
    """`dead-relu` (warning, info): units that were positive for no sample, or a ReLU that hands on less than 3 % of the
    size of what it reads, with the bias just before them if it holds them off; a ReLU with all units off explains
    what follows it
    """
    data = examined.data
    if data.not_finite is not None or data.samples < A_FEW_SAMPLES:
        return
    centred = {place.path for place, seen in examined.normalizers() if seen.kind == "batch" and not seen.untaken}
    fresh = is_fresh(examined.model)
    order = GraphOrder(examined)
    fading = any(
        check_fading_differences(examined)
    )  # what is nearly the same for every sample is on or off for all of them
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
            few = fresh and size <= MAX_UNITS_OFF_BY_CHANCE and not order.cuts(path)
            many = (count == size and not few) or count / size > limit
            off = units.dead if passing >= LITTLE_PASSES else torch.ones_like(units.dead)
            cause = _bias_below(examined, before, off) if many or off.double().mean() > BIASED_OFF else None
            many = (many and not fading) or cause is not None or (passing < LITTLE_PASSES and not few)
            where = examined.name_place(path, before) if cause is None else cause.path
            where = next(iter(before)) if many and len(before) == 1 else where  # its weights are what stops learning
            yield _dead_relu(where, units.dead, data.samples, many, cause, passing)


def _reads_constant(examined: Examined, path: str, call: int) -> bool:
    """Whether what one call of a ReLU reads is the same for every sample."""
    signal = examined.signal
    numbers = (
        [] if signal is None else [k for k, row in enumerate(signal.rows) if (row.path, row.kind) == (path, "relu")]
    )
    feeds = signal.flow.feeds[numbers[call]] if signal is not None and call < len(numbers) and signal.flow.feeds else ()
    return signal is not None and bool(feeds) and all(signal.rows[feed].varies is False for feed in feeds)


def _dead_relu(where: str, dead: Tensor, samples: int, many: bool, cause: _Bias | None, passing: float) -> Finding:
    """The finding about the dead channels of one ReLU: a warning if they are many, with the bias that causes it."""
    count, size = int(dead.sum()), dead.numel()
    advice = DEAD_RELU.advice
    if cause is not None:
        advice = (
            f"Set the bias of `{cause.path}` back to zero in these channels and train on, with a lower learning rate "
            "for it: what pushed it down was most likely a step that was too large."
        )
    elif not many:
        advice = "Some are normal, above all where samples are much alike; watch that they do not become more."
    return replace(DEAD_RELU, advice=advice).at(
        where,
        seen=f"{pluralise(count, 'channel')} of {size:,} ({percent(count / size)}) of the ReLU "
        f"{'after' if many else 'in'} {f'`{where}`' if where else 'the model'} "
        f"{'was' if count == 1 else 'were'} positive for none of {samples:,} samples."
        + (f" It hands on {percent(passing)} of the size of what reaches it." if passing < LITTLE_PASSES else "")
        + ("" if cause is None else f" {cause.said}"),
        dead=count,
        channels=size,
        share=count / size,
        samples=samples,
        bias=None if cause is None else cause.bias,
        severity=Severity.WARNING if many else Severity.INFO,
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


MOSTLY_OFF_SHARE = 0.7
"""Share of the units that no sample of a batch switches on; healthy runs have up to half where samples are alike.

Above that of a check, which knows what lies before the ReLU."""
SWITCHED_OFF_SHARE = 0.4
"""Share of the units that training itself switched off: narrow layers on a plateau lose a quarter and come back."""


def watch_dead_relu(history: History) -> Iterator[Finding]:
    """`dead-relu` (warning): 70 % of the units are on for no sample of a batch, and 40 % more than at the start; or all
    are off
    """
    if any(f.code == "dead-layer" and "zero" in f.numbers for f in history.findings):
        return  # behind weights of zero no unit is on
    measured = bool(history.series_by_layer("units", "dead").starts())
    for kind, quantity in MEASURED_OFF[: 1 if measured else 2]:
        courses = history.series_by_layer(kind, quantity)
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
            yield DEAD_RELU.at(layer.name, words, share=share, share_first=start)


MEASURED_OFF: tuple[tuple[LayerKind, str], ...] = (("units", "dead"), ("weight", "off"))
"""Where shares of units that no sample switches on are measured: in richer tiers at each ReLU, else behind weights."""


MAX_SATURATED_SHARE = {"sigmoid": 0.5, "tanh": 0.5, "hardsigmoid": 0.5, "softmax": 0.75, "attention": 0.75, "lstm": 0.9,
                       "gru": 0.9, "rnn": 0.9, "hardtanh": 0.9}  # fmt: skip
"""Shares: half of all gates wide open or shut is common after training, and a few attention heads that look at one
token too; beyond that hardly any gradient is left."""
GATED = ("lstm", "gru", "rnn")
MOST_ROWS_SHARE = 0.5
"""Of the rows of a softmax: in a fresh network most of them spread over several entries."""
NEARLY_ALL_SHARE = 0.9
"""A share beyond which it is a fault: networks that train well have up to nine in ten in a first layer."""
SATURATED = Symptom(
    code="saturated-units",
    seen="For {records:counted record} at least {share:percent} of the units behind {where} were saturated: in the "
    "flat parts of their {activation}.{also}",
    why="There the {activation} is flat: hardly any gradient passes, and what comes before it stops learning.",
    advice="Initialise the weights before it smaller (torch.nn.init.xavier_uniform_) and reset its bias to zero, put a "
    "normalizer before it, standardise the inputs, lower the learning rate, or use ReLU or GELU.",
)
GATES_SATURATED = replace(
    SATURATED,
    advice="Reset the biases of the gates (zero, and 1 for the forget gate of an LSTM, the second quarter of "
    "bias_ih_l0 and bias_hh_l0) and initialise the recurrent weights orthogonally; scale the inputs to size 1.",
)
ATTENTION_SATURATED = Symptom(
    code="attention-saturated",
    seen="For {records:counted record} at least {share:percent} of the rows of the attention behind {where} put more "
    "than 99 % on one entry.{also}",
    why="There the softmax is flat: hardly any gradient reaches queries and keys, and which entry a row looks at is "
    "left to the start.",
    advice="Divide the scores by sqrt(width of a head), normalize queries and keys, initialise the weights that make "
    "them smaller, lower the learning rate or warm it up.",
)


def check_saturated_units(examined: Examined) -> Iterator[Finding]:
    """`saturated-units` (warning, info): nine in ten values of a sigmoid, tanh, hardtanh or ReLU6 inside the network,
    or gates of a recurrent layer, lie within 1 % of its limits (info: half of a sigmoid or tanh); not those of which
    a GELU, SiLU or Mish is written out
    `attention-saturated` (warning): three in four rows of a softmax (half in a fresh model), or of an attention, put
    more than 99 % on one entry
    """
    signal, runs = examined.signal, Counter[tuple[str, str]]()
    layers = () if signal is None else signal.layers
    fresh = signal is not None and bool(signal.parameters) and is_fresh(examined.model)
    fresh_outputs = layers[_last_weight(layers) :] if fresh else ()
    share = None if signal is None or signal.loss is None else signal.loss.share_of_blind
    useless = not fresh and share is not None and share >= LEARNED_LOSS_RATIO
    for row in (*inner_rows(layers), *(r for r in fresh_outputs if r.kind in ("sigmoid", "tanh"))):
        call = runs[row.path, row.kind]
        runs[row.path, row.kind] += 1
        low = useless or (fresh and row.kind == "softmax")
        if row.saturated is None or not row.saturated > (MOST_ROWS_SHARE if low else MAX_SATURATED_SHARE[row.kind]):
            continue
        before = frozenset() if signal is None else signal.paths_before(row.path, row.kind, call)
        own = row.kind in ("softmax", "attention") and row.path
        path = row.path if own else examined.name_place(row.path, before)
        path = path or min(before, default="")  # of several summands or factors one
        where = f"`{path}`" if path else "the model"
        if row.kind in ("softmax", "attention"):
            seen = f"{percent(row.saturated)} of the rows of the {row.kind} in {where} put more than 99 % on one entry."
            yield ATTENTION_SATURATED.at(path, seen=seen, share=row.saturated)
            continue
        gated = row.kind in ("lstm", "gru")
        counted = f"{percent(row.saturated)} of the {'gates of one kind' if gated else 'values'}"
        yield (GATES_SATURATED if gated else SATURATED).at(
            path,
            {"activation": row.kind},
            seen=f"{counted} of the {row.kind} in {where} lie within 1 % of its limits.",
            severity=Severity.WARNING
            if row.saturated > NEARLY_ALL_SHARE or row in fresh_outputs or useless
            else Severity.INFO,
            share=None if row.kind in GATED else row.saturated,
            gates=row.saturated if row.kind in GATED else None,
        )


def inner_rows(rows: Sequence[LayerRow]) -> Sequence[LayerRow]:
    """Return the rows before the last weight layer."""
    return rows[: _last_weight(rows)]


def _last_weight(rows: Sequence[LayerRow]) -> int:
    """Return the number of the last weight layer: what comes after it are outputs, which may well be certain."""
    return max((k for k, row in enumerate(rows) if row.kind in WEIGHT_KINDS), default=0)


SATURATED_SHARE = 0.8
"""Share of entries in the flat parts; healthy runs have up to a third. Below that of a check, for it lasts."""
GATE_SHUT = replace(
    GATES_SATURATED,
    seen="The biases of {where} keep its {gate} shut or stuck: they let 2 % through at most, and after {steps:,} steps "
    "the outputs are no better than a constant.",
    why="The gates are saturated: hardly anything of the inputs reaches the state, and no gradient comes back.",
)
GATE_SHUT_STEPS = 50
"""Steps without any progress before the biases of gates are taken for the cause."""


def watch_saturated_units(history: History) -> Iterator[Finding]:
    """`saturated-units` (warning): 80 % of the units of a sigmoid or tanh are in its flat parts, where it is not part
    of another activation (GELU, SiLU, Mish written out); or the biases of an LSTM or GRU keep its gates shut and
    nothing is learned
    """
    if history.parameter_state.shut and history.step >= GATE_SHUT_STEPS and history.is_unlearned:
        path, gate = next(iter(history.parameter_state.shut.items()))
        yield GATE_SHUT.at(path, {"gate": gate, "steps": history.step})
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
        yield SATURATED.at(layer.name, words, share=min(values), count=len(flat))


ONE_PLACE_ROWS_SHARE = 0.9
"""Share of the rows that look at one entry, while the loss is not fitted; some heads of healthy models do.

Above that of a check, which looks at all rows: a run looks at a few."""


def watch_attention_saturated(history: History) -> Iterator[Finding]:
    """`attention-saturated` (warning): 90 % of the rows of an attention (some are looked at) put more than 99 % on one
    entry while the loss is not fitted
    """
    places = history.last("weight", "one_place")
    sharp = [(layer, values) for layer, values in places if min(values) >= ONE_PLACE_ROWS_SHARE]
    loss, start = history.records[-1].loss, history.first_loss
    fitted = loss is not None and start is not None and loss < UNFITTED_SHARE * start
    if sharp and not fitted:
        layer, values = sharp[0]
        words = {"records": len(values), "also": others_likewise(len(sharp), "other layer")}
        yield ATTENTION_SATURATED.at(layer.name, words, share=min(values), count=len(sharp))
