"""Score a doctor: any function from a case, as a user hands it over, to findings.

For each fault: was there a finding at all (found), does one of them give a right cause at a right layer (cause), is the
first such advice a right remedy (remedy)? For each healthy model: were there findings (a false alarm)?
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .case import Case, Fault, Healthy
from .causes import CAUSES_BY_CODE
from .remedies import REMEDIES


class Finding(Protocol):
    """What a doctor says: a code of `causes.py`, the name of a module or parameter, what to do."""

    code: str
    where: str
    advice: str


Doctor = Callable[[Case], Sequence[Finding]]


@dataclass(frozen=True)
class Answer:
    """What a doctor said of a case and what of it was right; `refused` is the error that it raised, if it did."""

    entry: Fault | Healthy
    findings: Sequence[Finding]
    refused: str = ""
    cause: bool = False
    remedy: bool = False

    @property
    def found(self) -> bool:
        """Whether anything was found."""
        return bool(self.findings)

    @property
    def story(self) -> str:
        """What was said, in short."""
        return ", ".join(f"{finding.code} at {finding.where}" for finding in self.findings) or self.refused or "nothing"

    @property
    def counts(self) -> dict[str, int]:
        """What this answer adds to the totals."""
        if isinstance(self.entry, Healthy):
            return {"healthy": 1, "alarms": self.found, "healthy refused": bool(self.refused)}
        return {"faults": 1, **{name: getattr(self, name) for name in ("found", "cause", "remedy")}} | {
            "refused": bool(self.refused)
        }


@dataclass
class Score:
    """The totals of a doctor, and those of each family or cause where asked for."""

    total: Counter[str] = field(default_factory=Counter)
    rows: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, answer: Answer, by: str | None = None) -> None:
        """Count an answer, also in the rows of its `family` or its `cause`s."""
        causes = answer.entry.causes if isinstance(answer.entry, Fault) else ()
        keys = (answer.entry.family,) if by == "family" else causes if by == "cause" else ()
        for row in (self.total, *(self.rows.setdefault(key, Counter()) for key in keys)):
            row.update(answer.counts)

    def __str__(self) -> str:
        total, count = self.total, max(self.total["faults"], 1)
        return (
            f"{total['faults']} faults: {total['found']} found ({total['found'] / count:.0%}), {total['cause']} with "
            f"the right cause and layer ({total['cause'] / count:.0%}), {total['remedy']} with a right remedy first "
            f"({total['remedy'] / count:.0%}), {total['refused']} refused. {total['healthy']} healthy models: "
            f"{total['alarms']} with a false warning, {total['healthy refused']} refused."
        )


def score(
    doctor: Doctor,
    entries: Iterable[Fault | Healthy],
    *,
    by: str | None = None,
    tell: Callable[[Answer], None] = lambda answer: None,
) -> Score:
    """Ask a doctor about each case, tell each answer, and return the totals."""
    result = Score()
    for entry in entries:
        answer = ask(doctor, entry)
        result.add(answer, by)
        tell(answer)
    return result


def ask(doctor: Doctor, entry: Fault | Healthy) -> Answer:
    """Ask a doctor about a case and judge the answer."""
    try:
        findings = doctor(entry.build())
    except Exception as error:
        return Answer(entry, (), f"{type(error).__name__}: {error}")
    return Answer(entry, findings, "", *(judge(entry, findings) if isinstance(entry, Fault) else ()))


def judge(fault: Fault, findings: Sequence[Finding]) -> tuple[bool, bool]:
    """Return whether a right cause was given at a right layer, and with a right remedy first."""
    right = [
        finding
        for finding in findings
        if fault.causes & CAUSES_BY_CODE.get(finding.code, frozenset())
        and (not fault.layers or any(name_agrees(where, one) for where in _places(finding) for one in fault.layers))
    ]
    return bool(right), bool(right) and any(REMEDIES[key].search(right[0].advice) for key in fault.remedies)


def _places(finding: Finding) -> tuple[str, ...]:
    """Return the place of a finding, and the others that it stands for where it has some."""
    return (finding.where, *getattr(finding, "others", ()))


def name_agrees(where: str, layer: str) -> bool:
    """Whether a finding's place names a layer: as itself, or as a parameter of it."""
    return where in (layer, layer.rpartition(".")[0]) or layer == where.rpartition(".")[0]
