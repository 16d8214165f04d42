"""Findings about units in the flat parts of their activation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...core.finding import Finding, Severity
from ..examined import Examined
from ..loss_facts import is_fresh
from ..signal import SignalRow
from .depth import WEIGHTS
from .finding_words import figures, percent

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
    for row in (*layers[: _last_weight(layers)], *(r for r in fresh_outputs if r.kind in ("sigmoid", "tanh"))):
        call = runs[row.path, row.kind]
        runs[row.path, row.kind] += 1
        if row.saturated is None or not row.saturated > (HALF if fresh and row.kind == "softmax" else MOST[row.kind]):
            continue
        before = frozenset() if signal is None else signal.paths_before(row.path, row.kind, call)
        own = row.kind in ("softmax", "attention") and row.path
        path = row.path if own else examined.name_place(row.path, before)
        where = f"`{path}`" if path else "the model"
        if row.kind in ("softmax", "attention"):
            yield _one_place(row, path, where)
            continue
        yield Finding(
            code="saturated-units",
            severity=Severity.WARNING if row.saturated > NEARLY_ALL or row in fresh_outputs else Severity.INFO,
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
