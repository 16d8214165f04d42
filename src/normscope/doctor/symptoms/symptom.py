"""One thing that can be wrong with a model or a run, in words: `Symptom`; and what verdicts say of its code."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.finding import Finding, Severity, figure, figures, percent, power
from ...report.words import pluralise


@dataclass(frozen=True, slots=True)
class FindingWords:
    """The words that verdicts use for all findings of one code."""

    one: str  # what a verdict says of one place, in a clause; `{where}` stands for the place
    # what it says of several places, if that differs; `{count}` stands for how many, `{norms}` for how many of all
    # normalizers
    many: str = ""
    note: tuple[str, str] | None = None  # both for an info finding, where it says something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One thing that can be wrong with a model or a run, in words.

    What stands in braces is filled in where it is seen: `{where}`, its numbers, and other words. Behind a colon stands
    how a number is written: `power` (of its log10), `percent`, `figure`, or `counted` with a noun.

    Attributes:
        code: its code; several symptoms may share one.
        seen: what was measured, in a sentence.
        why: why it matters.
        advice: what to do.
        severity: how much it matters.

    Example:
        >>> growth = Symptom(code="norm-growth", seen="{where} grew to {log10_norm:power}.", why="...", advice="...")
        >>> growth.at("fc", log10_norm=9.0).seen
        '`fc` grew to 1e+09.'
    """

    code: str
    seen: str
    why: str
    advice: str
    severity: Severity = Severity.WARNING

    def at(
        self,
        where: str = "",
        words: Mapping[str, Any] | None = None,
        *,
        seen: str | None = None,
        step: int | None = None,
        severity: Severity | None = None,
        **numbers: Any,
    ) -> Finding:
        """Return the finding of the symptom at a place.

        Args:
            where: the layer, if it is one.
            words: what the braces stand for besides its numbers.
            seen: what was measured, where the words of the symptom do not say it.
            step: the step at which it is raised, if that is not the one of the last record.
            severity: how much it matters here, if not as usual.
            **numbers: the figures by name; NaN was not measured.
        """
        fillings = {"where": place(where), **numbers, **(words or {})}
        why, advice = (WORDS.vformat(text, (), fillings) for text in (self.why, self.advice))
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            where=where,
            seen=WORDS.vformat(self.seen, (), fillings) if seen is None else seen,
            why=why,
            advice=advice,
            numbers=figures(**numbers),
            step=step,
        )


class _Words(string.Formatter):
    """Fills in the words of symptoms."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("counted "):
            return pluralise(value, format_spec.removeprefix("counted "))
        write = {"power": power, "percent": percent, "figure": figure}.get(format_spec)
        return format(value, format_spec) if write is None else write(value)


WORDS = _Words()
NO_NUMBERS: Mapping[str, float | int | None] = {}


def finding(
    code: str,
    where: str,
    seen: str,
    why: str,
    advice: str,
    numbers: Mapping[str, float | int | None] = NO_NUMBERS,
    severity: Severity = Severity.WARNING,
) -> Finding:
    """Return the finding of a symptom whose words depend on what is seen: a code at a place, and its words."""
    return Finding(code=code, severity=severity, where=where, seen=seen, why=why, advice=advice, numbers=numbers)


def others_likewise(count: int, noun: str) -> str:
    """Say that all but one of some layers are like the one that is named; nothing where there is no other."""
    return f" {pluralise(count - 1, noun)} likewise." if count > 1 else ""


def place(where: str) -> str:
    """Return a path as it stands in a sentence."""
    return f"`{where}`" if is_name(where) else where or "the model"


def is_name(where: str) -> bool:
    """Return whether a place is the name of a module or parameter, not words such as `the loss`."""
    return bool(where) and " " not in where
