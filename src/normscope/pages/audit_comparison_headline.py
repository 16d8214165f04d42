"""The first table of a comparison, with a line for each audit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..diagnosis.audit_result import Audit
from ..diagnosis.scope_shares import SHARE
from ..report.document import Cell, Column, Table
from .audit_words import tally, why_useless

INSIDE = "in the data's ranges"
"""The column of bounds over domains."""


def headline_table(audits: Mapping[str, Audit], accuracy: Mapping[str, float]) -> Table:
    """Return how much a change grows in each audited network, at the data, near it and anywhere, and what was found."""
    columns: list[tuple[Column, Callable[[str, Audit], Cell]]] = [
        (Column(title="audit"), lambda name, audit: name),
        (
            Column(title="accuracy", kind="percent", help="Share of correct answers."),
            lambda name, _: accuracy.get(name),
        ),
        (
            Column(
                title="growth at the data",
                kind="log10",
                help="log10 of how much a small change of the data grows at most: the largest Jacobian norm seen.",
            ),
            lambda _, audit: None if audit.observed is None else audit.observed.log10_upper,
        ),
        (
            Column(
                title=INSIDE,
                kind="log10",
                help="log10 of how much a small change grows at most at any input whose values lie in the ranges of "
                "the data, a little widened. Where that was not measured, what holds for any input.",
            ),
            lambda _, audit: _inside(audit),
        ),
        (
            Column(
                title="for any input",
                kind="log10",
                help="log10 of how much any change of any input grows at most: the upper side of the Lipschitz "
                "constant. 'none' is a bound of no use, more than a millionfold above the data.",
            ),
            lambda _, audit: _any_input(audit),
        ),
        (Column(title="findings"), lambda _, audit: tally(audit.findings)),
    ]
    absent = {"accuracy"} if not accuracy else set()
    absent |= set() if any(_domain(audit) is not None for audit in audits.values()) else {INSIDE}
    kept = [(column, read) for column, read in columns if column.title not in absent]
    return Table(
        title="Side by side (log10: 1 is ten times)",
        columns=tuple(column for column, _ in kept),
        rows=tuple(tuple(read(name, audit) for _, read in kept) for name, audit in audits.items()),
    )


def _domain(audit: Audit) -> float | None:
    """Return the bound over the domain of an audit, if there is a finite one."""
    point = None if audit.curve is None else audit.curve.domain(SHARE)
    return None if point is None or point.bracket.log10_upper == math.inf else point.bracket.log10_upper


def _inside(audit: Audit) -> float | None:
    """Return the bound for inputs in the ranges of the data: that over the domain, or else that over all inputs."""
    inside = _domain(audit)
    if inside is not None:
        return inside
    return audit.lipschitz.log10_upper if audit.lipschitz is not None and has_use(audit) else None


def _any_input(audit: Audit) -> Cell:
    if audit.lipschitz is None:
        return None
    return audit.lipschitz.log10_upper if has_use(audit) else "none"


def has_use(audit: Audit) -> bool:
    """Whether the bound over all inputs is useful."""
    return why_useless(audit) is None
