"""Brackets as a table."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.bracket import Bracket
from .document import Column, Table


def bracket_table(brackets: Mapping[str, Bracket], *, title: str = "", caption: str = "") -> Table:
    """Return one row per bracket: its name, both sides as exponents of ten, the evidence and what to know.

    Args:
        brackets: by name.
        title: stands above the table.
        caption: stands below it.

    Returns:
        A table of exponents, unformatted.
    """
    return Table(
        title=title,
        caption=caption,
        columns=(
            Column(title="bound", kind="name"),
            Column(title="lower", kind="log10"),
            Column(title="upper", kind="log10"),
            Column(title="scope", kind="name"),
            Column(title="evidence", kind="name"),
            Column(title="remarks"),
        ),
        rows=tuple(
            (
                name,
                bracket.log10_lower,
                bracket.log10_upper,
                bracket.scope.value,
                bracket.evidence.name if bracket.holds else "not a bound",
                _remarks(name, bracket),
            )
            for name, bracket in brackets.items()
        ),
    )


def _remarks(name: str, bracket: Bracket) -> str:
    parts = ["" if bracket.method == name else bracket.method, bracket.reason or ""]
    if not bracket.converged:
        parts.append(f"not converged: {bracket.advice}" if bracket.advice else "not converged")
    return "; ".join(part for part in (*parts, *bracket.notes) if part)
