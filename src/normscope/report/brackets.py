"""Brackets as rows of a table and as spans of a chart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.bracket import Bracket
from .document import Chart, ReadColumn, Series, Table, tabulate

AGREE = 0.005
"""Exponents that differ by less than this are the same in two decimals."""

PLAIN = {
    "printed": "product as papers print it",
    "printed-exact": "the same, exact constants",
    "product": "layer after layer",
    "folded": "linear layers joined",
    "closed-form": "closed form",
    "tight": "optimised certificate",
    "best": "best bound",
    "observed": "seen at the data",
}
"""The methods in plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Methods whose upper sides agree, with the bracket that is shown for them."""

    names: tuple[str, ...]
    bracket: Bracket

    @property
    def label(self) -> str:
        """The methods in plain words: "best bound" where that is one of them, otherwise the first of them."""
        return PLAIN["best"] if "best" in self.names else PLAIN.get(self.names[0], self.names[0])


def rungs(brackets: Mapping[str, Bracket]) -> list[Rung]:
    """Return brackets by method; those that agree share a rung, which shows `best` or the one of strongest evidence."""
    groups: list[list[str]] = []
    for name, bracket in brackets.items():
        alike = next((names for names in groups if _agree(brackets[names[0]], bracket)), None)
        if alike is None:
            groups.append([name])
        else:
            alike.append(name)
    strongest = [max(names, key=lambda name: (name == "best", brackets[name].evidence)) for names in groups]
    return [Rung(names=tuple(names), bracket=brackets[name]) for names, name in zip(groups, strongest, strict=True)]


def _agree(one: Bracket, other: Bracket) -> bool:
    same = one.log10_upper == other.log10_upper or abs(one.log10_upper - other.log10_upper) < AGREE
    return same and (one.scope, one.holds, one.reason) == (other.scope, other.holds, other.reason)


BRACKET_COLUMNS: tuple[ReadColumn[Rung], ...] = (
    ReadColumn("lower", "log10", "bracket.log10_lower", "log10 of the side that inputs which were found attain."),
    ReadColumn("upper", "log10", "bracket.log10_upper", "log10 of the side that bounds it."),
    ReadColumn("scope", "name", "bracket.scope.value", "Over which inputs it holds."),
    ReadColumn(
        "evidence",
        "name",
        lambda rung: rung.bracket.evidence.name if rung.bracket.holds else "not a bound",
        "How the upper side is known.",
    ),
)
LADDER_CHART: dict[str, Any] = {"axis": "log10 of the Lipschitz constant", "sideways": True, "term": "ladder of bounds"}


def span_series(brackets: Iterable[Bracket | None]) -> Series:
    """Return brackets as bars from the lower to the upper side; None leaves a gap."""
    sides = [(None, None) if one is None else (one.log10_lower, one.log10_upper) for one in brackets]
    lower, upper = zip(*sides)
    return Series(name="from the lower to the upper side", style="spans", values=lower, until=upper)


def bracket_table(
    brackets: Mapping[str, Bracket], *, title: str = "", caption: str = "", noted: Collection[str] = ()
) -> Table:
    """Return one row per bracket: its methods, both sides as exponents of ten, the evidence and remarks.

    Notes that the page shows elsewhere (`noted`) are left out of the remarks.
    """
    columns: tuple[ReadColumn[Rung], ...] = (
        ReadColumn("bound", "text", "label", "What is done; methods that agree stand in one line."),
        *BRACKET_COLUMNS,
        ReadColumn(
            "methods", "text", lambda rung: ", ".join(rung.names), "Their names in the JSON file and in the papers."
        ),
        ReadColumn("remarks", "text", lambda rung: _remarks(rung, noted)),
    )
    return tabulate(rungs(brackets), columns, title=title, caption=caption)


def bracket_chart(brackets: Mapping[str, Bracket], *, title: str = "") -> Chart | None:
    """Return brackets as bars from the lower to the upper side, and formulas that are no bound as marks, in log10."""
    shown = rungs(brackets)
    if not shown:
        return None
    spans = span_series(rung.bracket if rung.bracket.holds else None for rung in shown)
    loose = tuple(None if rung.bracket.holds else rung.bracket.log10_upper for rung in shown)
    marks = Series(name="a formula that is no bound for this network", style="marks", values=loose)
    return Chart(
        title=title,
        labels=tuple(rung.label for rung in shown),
        series=(spans, marks) if any(value is not None for value in loose) else (spans,),
        **LADDER_CHART,
    )


def _remarks(rung: Rung, noted: Collection[str]) -> str:
    bracket = rung.bracket
    parts = ["" if bracket.method in rung.names else bracket.method, bracket.reason or ""]
    if not bracket.converged:
        parts.append(f"not converged: {bracket.advice}" if bracket.advice else "not converged")
    return "; ".join(part for part in (*parts, *bracket.notes) if part and part not in noted)
