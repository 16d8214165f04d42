"""Findings about units in the flat parts of their activation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.finding import Finding, Severity
from ..examined import Examined
from ..signal import SignalRow
from .depth import WEIGHTS
from .finding_words import figures, percent

MOST = {"sigmoid": 0.5, "tanh": 0.5, "hardsigmoid": 0.5, "softmax": 0.9, "attention": 0.9, "lstm": 0.9, "gru": 0.9,
        "rnn": 0.9}  # fmt: skip
"""Shares: half of all gates wide open or shut is common after training, and a few attention heads that look at one
token too; beyond that hardly any gradient is left."""


NEARLY_ALL = 0.9
"""A share beyond which it is a fault: networks that train well have up to nine in ten in a first layer."""


def saturated_units(examined: Examined) -> Iterator[Finding]:
    """Sigmoid, tanh and softmax inside the network of which most lie in their flat parts."""
    for row in _hidden(() if examined.signal is None else examined.signal.layers):
        if row.saturated is None or not row.saturated > MOST[row.kind]:
            continue
        where = f"`{row.path}`" if row.path else "the model"
        rows = row.kind in ("softmax", "attention")
        yield Finding(
            code="saturated-units",
            severity=Severity.WARNING if row.saturated > NEARLY_ALL else Severity.INFO,
            where=row.path,
            seen=f"{percent(row.saturated)} of the {_counted(row)} of the {row.kind} in {where} "
            + ("put more than 99 % on one entry." if rows else "lie within 1 % of its limits."),
            why=f"There the {row.kind} is flat: hardly any gradient passes, and what comes before it stops learning.",
            advice="Lower the scale of what enters it (weights, scores, a missing 1/sqrt(width)), normalize before it"
            + (" (normalize queries and keys)." if rows else ", or use ReLU or GELU."),
            numbers=figures(share=row.saturated),
        )


def _counted(row: SignalRow) -> str:
    """Say what a share is counted in."""
    return {"softmax": "rows", "attention": "rows", "lstm": "gates", "gru": "gates"}.get(row.kind, "values")


def _hidden(rows: Sequence[SignalRow]) -> list[SignalRow]:
    """Return the rows that a weight layer comes after: the others are outputs, which may well be certain."""
    last = max((k for k, row in enumerate(rows) if row.kind in WEIGHTS), default=0)
    return list(rows[:last])
