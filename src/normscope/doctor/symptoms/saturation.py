"""Sigmoids, tanhs, softmaxes and gates that stand in their flat parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...core.finding import Finding, Severity, percent
from ..checking.examined import Examined
from ..checking.loss_facts import NO_BETTER, is_fresh
from ..checking.signal import SignalRow
from ..monitor.history import History
from .gradient_depth import UNFITTED_SHARE
from .graph_order import WEIGHT_KINDS
from .symptom import FindingWords, Symptom, others_likewise

FINDING_WORDS = {
    "attention-saturated": FindingWords(
        "the softmax of {where} looks at one entry in each row", "{count} softmaxes look at one entry in each row"
    ),
    "saturated-units": FindingWords("{where} is saturated", "{count} activations are saturated"),
}
MAX_SATURATED_SHARE = {"sigmoid": 0.5, "tanh": 0.5, "hardsigmoid": 0.5, "softmax": 0.75, "attention": 0.75, "lstm": 0.9,
                       "gru": 0.9, "rnn": 0.9, "hardtanh": 0.9}  # fmt: skip
"""Shares: half of all gates wide open or shut is common after training, and a few attention heads that look at one
token too; beyond that hardly any gradient is left."""
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
    useless = not fresh and share is not None and share >= NO_BETTER
    for row in (*layers[: _last_weight(layers)], *(r for r in fresh_outputs if r.kind in ("sigmoid", "tanh"))):
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
            share=row.saturated,
        )


def _last_weight(rows: Sequence[SignalRow]) -> int:
    """Return the number of the last weight layer: what comes after it are outputs, which may well be certain."""
    return max((k for k, row in enumerate(rows) if row.kind in WEIGHT_KINDS), default=0)


SATURATED_SHARE = 0.8
"""Share of entries in the flat parts; healthy networks have up to a third."""
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
    if history.standing.shut and history.step >= GATE_SHUT_STEPS and history.is_unlearned:
        path, gate = next(iter(history.standing.shut.items()))
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
"""Share of the rows that look at one entry, while the loss is not fitted; some heads of healthy models do."""


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
