"""Findings as a list that shows itself, and results that are judged by theirs."""

from __future__ import annotations

from typing import Self

from ..core.errors import InputError, NormscopeError
from ..core.finding import Finding, Severity
from ..report.document import Shown
from ..report.words import pluralise


class Findings(Shown, tuple[Finding, ...]):
    """Findings, the most serious first. Prints as one card per kind; in a notebook it shows itself as HTML."""

    __slots__ = ()
    page = "check:findings_document"

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
