"""What is said first of a model; findings as a list that shows itself, and results that are judged by theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol, Self

from ...core.errors import InputError, NormscopeError
from ...core.finding import Finding, Severity
from ...core.shown import Shown
from ...report.words import listed, pluralise, sentence
from ..symptoms.registry import FINDING_WORDS
from ..symptoms.symptom import place

MAX_NAMED_KINDS = 3
"""Kinds of findings that one sentence names; of the others it says how many there are."""


class HasRole(Protocol):
    """What a verdict reads of a row of an audit."""

    @property
    def role(self) -> str:
        """`weight`, `normalizer` or another."""


def verdict(findings: Sequence[Finding], rows: Sequence[HasRole] = ()) -> str:
    """Return what findings say of a model as a whole, in one sentence.

    Args:
        findings: in any order; infos are no problem and are not named.
        rows: the rows of the audit: how many layers were looked at.

    Returns:
        A sentence that begins with a capital letter and ends in a full stop; names of layers stand in backticks.

    Example:
        >>> verdict([])
        'No problems found.'
        >>> where = {"seen": "", "why": "", "advice": ""}
        >>> verdict([Finding(code="dead-layer", severity=Severity.WARNING, where="4.1", **where)])
        'Layer `4.1` is dead; nothing else stands out.'
    """
    serious = [group for group in groups(findings) if group[0].severity > Severity.INFO]
    if not serious:
        return sentence(f"no problems found{_looked_at(rows)}")
    named = [clause(group, rows) for group in serious[:MAX_NAMED_KINDS]]
    left = sum(map(len, serious[MAX_NAMED_KINDS:]))
    return sentence("; ".join((*named, f"{pluralise(left, 'more finding')}" if left else "nothing else stands out")))


def groups(findings: Iterable[Finding]) -> Iterator[list[Finding]]:
    """Yield findings of one code and severity together: the most serious first, then in the order the codes come."""
    codes: dict[str, int] = {}
    found = list(findings)
    for finding in found:
        codes.setdefault(finding.code, len(codes))
    ordered = sorted(found, key=lambda finding: (-finding.severity.rank, codes[finding.code]))
    for _, members in groupby(ordered, key=lambda finding: (finding.severity, finding.code)):
        yield list(members)


def clause(group: Sequence[Finding], rows: Sequence[HasRole] = ()) -> str:
    """Return what findings of one code say, in a few words without a capital letter or a full stop.

    Args:
        group: findings of one code and severity.
        rows: the rows of the audit.
    """
    first = group[0]
    told = first.numbers.get("count")
    count = int(told) if len(group) == 1 and isinstance(told, int | float) else len(group)
    one, many = _words(first)
    of = sum(row.role == "normalizer" for row in rows)
    norms = f"{count:,} of {of:,} normalizers" if of >= count else f"{count:,} normalizers"
    written = one if count == 1 else many
    return written.replace("{count}", f"{count:,}").replace("{norms}", norms).replace("{where}", place(first.where))


def _words(finding: Finding) -> tuple[str, str]:
    """Return the words for one place and for several: those of its kind, or the code of one that nobody listed."""
    kind = FINDING_WORDS.get(finding.code)
    if kind is None:
        words = finding.code.replace("-", " ")
        return f"{words} in {{where}}", f"{words} in {{count}} places"
    if kind.note is not None and finding.severity is Severity.INFO:
        return kind.note
    return kind.one, kind.many or kind.one


def places(group: Sequence[Finding], most: int = MAX_NAMED_KINDS) -> str:
    """Return the places of findings, the first few by name."""
    return listed(list(dict.fromkeys(place(where) for f in group for where in (f.where, *f.others))), most=most)


def _looked_at(rows: Sequence[HasRole]) -> str:
    roles = (("weight", "weight layer"), ("normalizer", "normalizer"))
    counts = [(sum(row.role == role for row in rows), noun) for role, noun in roles]
    told = [pluralise(count, noun) for count, noun in counts if count]
    return f" in {' and '.join(told)}" if told else ""


class Findings(Shown, tuple[Finding, ...]):
    """Findings, the most serious first. Prints as one card per kind; in a notebook it shows itself as HTML."""

    __slots__ = ()
    page = "normscope.doctor.pages.check:findings_document"

    def raise_if(self, severity: str = "warning") -> None:
        """Raise an error that lists the findings of a severity, and of more serious ones, if there are any.

        Args:
            severity: `"info"`, `"warning"` or `"error"`.

        Raises:
            FindingsError: there are such findings; they are its message and its `.findings`.
            InputError: the severity is none of these.
        """
        if severity not in list(Severity):
            raise InputError(f"severity is {severity!r}: pass {', '.join(map(repr, map(str, Severity)))}")
        reached = Findings(finding for finding in self if finding.severity >= Severity(severity))
        if reached:
            raise FindingsError(reached)


class FindingsError(NormscopeError):
    """A model has findings of a severity that its user does not accept.

    Attributes:
        findings: these findings, the most serious first.
    """

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        told = "\n".join(line.rstrip() for line in str(findings).splitlines())
        super().__init__(f"the model has {pluralise(len(findings), 'finding')}:\n{told}")


class Judged:
    """A result with `findings`."""

    __slots__ = ()
    findings: tuple[Finding, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", Findings(self.findings))

    def raise_if(self, severity: str = "warning") -> Self:
        """Raise an error that lists the findings of a severity, and of more serious ones, if there are any.

        One line makes a test of a model of it: `ns.check(model, batch).raise_if("warning")`.

        Args:
            severity: `"info"`, `"warning"` or `"error"`.

        Returns:
            The result itself.

        Raises:
            FindingsError: there are such findings; they are its message and its `.findings`.
            InputError: the severity is none of these.
        """
        Findings(self.findings).raise_if(severity)
        return self
