"""The first table of a comparison, with a line for each audit."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..diagnosis.audit_result import Audit
from ..diagnosis.scope_shares import SHARE
from ..report.document import Cell, ReadColumn, Table, tabulate
from .audit_words import tally, why_useless

INSIDE = "in the data's ranges"
"""The column of bounds over domains."""


def headline_table(audits: Mapping[str, Audit], accuracy: Mapping[str, float]) -> Table:
    """Return how much a change grows in each audited network, at the data, near it and anywhere, and what was found."""
    columns: list[ReadColumn[tuple[str, Audit]]] = [
        ReadColumn("audit", "text", lambda named: named[0]),
        ReadColumn("accuracy", "percent", lambda named: accuracy.get(named[0]), "Share of correct answers."),
        ReadColumn(
            "growth at the data",
            "log10",
            lambda named: None if named[1].observed is None else named[1].observed.log10_upper,
            "log10 of how much a small change of the data grows at most: the largest Jacobian norm seen.",
        ),
        ReadColumn(
            INSIDE,
            "log10",
            lambda named: _inside(named[1]),
            "log10 of how much a small change grows at most at any input whose values lie in the ranges of "
            "the data, a little widened. Where that was not measured, what holds for any input.",
        ),
        ReadColumn(
            "for any input",
            "log10",
            lambda named: _any_input(named[1]),
            "log10 of how much any change of any input grows at most: the upper side of the Lipschitz "
            "constant. 'none' is a bound of no use, more than a millionfold above the data.",
        ),
        ReadColumn("findings", "text", lambda named: tally(named[1].findings)),
    ]
    absent = {"accuracy"} if not accuracy else set()
    absent |= set() if any(_domain(audit) is not None for audit in audits.values()) else {INSIDE}
    kept = [column for column in columns if column.title not in absent]
    return tabulate(audits.items(), kept, title="Side by side (log10: 1 is ten times)")


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
