"""The sentences of a comparison: how the audits differ, what was found in which of them, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..core.finding import Finding, Severity
from ..diagnosis.audit_result import Audit
from ..diagnosis.verdict import groups, places, sentence
from ..report.document import Block, Text
from ..report.words import factor, listed
from .audit_words import to_see_more
from .cards import NAMED, next_steps, notices


def compared_verdict(audits: Mapping[str, Audit]) -> str:
    """Return in one sentence in which audit a change at the data grows most, and in which problems were found."""
    growth = {name: audit.observed.log10_upper for name, audit in audits.items() if audit.observed is not None}
    clauses = []
    if len(growth) > 1:
        most, least = max(growth, key=lambda name: growth[name]), min(growth, key=lambda name: growth[name])
        if factor(growth[most]) == factor(growth[least]):
            clauses.append(f"a small change of the data grows alike in all of them ({factor(growth[most])} times)")
        else:
            clauses.append(
                f"a small change of the data grows most in {most} ({factor(growth[most])} times) and least in {least} "
                f"({factor(growth[least])} times)"
            )
    wrong = [name for name, audit in audits.items() if any(f.severity > Severity.INFO for f in audit.findings)]
    clauses.append(f"problems were found in {listed(wrong, most=4)}" if wrong else "no problems found in any of them")
    return sentence("; ".join(clauses))


def compared_steps(audits: Mapping[str, Audit]) -> list[str]:
    """Return what to do about the audits' errors and warnings, and to see more; a step for several audits once."""
    owners: dict[str, list[str]] = {}
    for name, audit in audits.items():
        for step in (*next_steps(audit.findings, audit.layers), *to_see_more(audit)):
            owners.setdefault(step, []).append(name)
    wanted = [
        f"{'All' if len(names) == len(audits) else listed(names, most=4)}: {step}" for step, names in owners.items()
    ]
    return wanted or ["None of them has an error or a warning."]


def compared_findings(audits: Mapping[str, Audit]) -> list[Block]:
    """Return one card per kind of finding, which says in which audits it was found and where in each."""
    owner = {id(finding): name for name, audit in audits.items() for finding in audit.findings}
    every = [finding for audit in audits.values() for finding in audit.findings]
    if not every:
        return [Text(body="Nothing was found in any of them.")]
    blocks: list[Block] = []
    for group in groups(every):
        found: dict[str, list[Finding]] = {}
        for finding in group:
            found.setdefault(owner[id(finding)], []).append(finding)
        distinct = list({finding.where: finding for finding in reversed(group)}.values())[::-1]
        (card,) = notices(distinct)
        met = "in every audit" if len(found) == len(audits) else f"only in {listed(list(found), most=len(found))}"
        where = tuple((name, places(members, NAMED)) for name, members in found.items()) if group[0].where else ()
        rest = tuple(line for line in card.more if line[0] != "layers")
        blocks.append(replace(card, where=met, more=(*where, *rest)))
    return blocks
