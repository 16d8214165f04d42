"""What a report says in sentences: the headline, and findings as notices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from ..core.bracket import Bracket, Evidence
from ..core.finding import Finding, Severity
from ..report.document import Figure, Notice
from ..report.words import counted, factor, listed, shape
from .result import Audit

GROUP_FROM = 2
"""This many findings of one code are shown as one notice."""

GROUP_SHOWN = 3
"""Findings of a group whose sentence is shown; of the others, only where they are."""

GROUP_NAMED = 40
"""Places of a group that are named; the JSON has all."""

EVIDENCE = {
    Evidence.PROVEN: "PROVEN: rounding included",
    Evidence.NUMERICAL: "NUMERICAL: true up to rounding",
    Evidence.SAMPLED: "SAMPLED: the largest of the points tried",
}


def headline(audit: Audit) -> list[str]:
    """Return what an audit says about the model as a whole, in a few plain sentences.

    Args:
        audit: any audit. Where no bound over all inputs exists, the figures at the data come first, then the reason.

    Returns:
        Sentences in reading order; the first says what was audited.
    """
    overall, observed = audit.lipschitz, audit.observed
    at_data = [_at_data(observed)] if observed is not None else []
    if overall is not None and overall.log10_upper < math.inf:
        return [_subject(audit), _over_all_inputs(overall), *at_data]
    if overall is not None:
        why = f"There is no finite bound over all inputs (GLOBAL): {_ended(overall.reason or 'no reason is known')}"
        return [_subject(audit), *at_data, why]
    if audit.mode is None:
        return [_subject(audit), *at_data]
    hint = " 'Not measured' below says why." if audit.skipped else ""
    return [_subject(audit), *at_data, f"The Lipschitz constant over all inputs (GLOBAL) was not bounded.{hint}"]


def figures(audit: Audit) -> Iterator[Figure]:
    """Yield the headline values of an audit: the bracket, what was observed, how many findings, layers, parameters."""
    overall, observed = audit.lipschitz, audit.observed
    if overall is not None:
        note = f"log10, {overall.evidence.name}" if overall.log10_upper < math.inf else "no finite bound"
        yield Figure(label="Lipschitz, upper side", value=overall.log10_upper, kind="log10", note=note)
        yield Figure(label="Lipschitz, lower side", value=overall.log10_lower, kind="log10", note="log10, attained")
    if observed is not None:
        yield Figure(label="Observed at the data", value=observed.log10_upper, kind="log10", note="log10, POINT")
    yield Figure(label="Findings", value=len(audit.findings), kind="count", note=tally(audit.findings))
    weights, normalizers = (sum(row.role == role for row in audit.layers) for role in ("weight", "normalizer"))
    layers = f"{counted(weights, 'weight layer')}, {counted(normalizers, 'normalizer')}"
    yield Figure(label="Parameters", value=audit.parameters, kind="count", note=layers)


def tally(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity, the most serious first: `1 error, 3 warnings`."""
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in reversed(Severity)}
    plural = {Severity.INFO: "info"}
    told = [counted(count, severity.value, plural.get(severity, "")) for severity, count in counts.items() if count]
    return ", ".join(told) or "none"


def nothing_found(audit: Audit) -> str:
    """Return the line that stands where findings would: what was looked at."""
    weights, normalizers = (sum(row.role == role for row in audit.layers) for role in ("weight", "normalizer"))
    rows = f"{counted(weights, 'weight layer')} and {counted(normalizers, 'normalizer')}"
    data = f"over {counted(audit.samples, 'sample')}" if audit.samples else "without data"
    how = "from the weights alone" if audit.mode is None else f"in {audit.mode} mode, {data}"
    return f"Nothing was found. Checked: {rows}, {how}."


def notices(findings: Sequence[Finding]) -> list[Notice]:
    """Return findings as notices; many of one code become one, so that a deep network's report stays readable.

    Args:
        findings: in any order.

    Returns:
        Notices, the most serious first, grouped where `GROUP_FROM` or more share severity and code.
    """
    shown = []
    codes = list(dict.fromkeys(finding.code for finding in findings))
    ordered = sorted(findings, key=lambda finding: (-finding.severity.rank, codes.index(finding.code)))
    for _, members in groupby(ordered, key=lambda finding: (finding.severity, finding.code)):
        group = list(members)
        shown += [_grouped(group)] if len(group) >= GROUP_FROM else [_notice([finding]) for finding in group]
    return shown


def _notice(group: list[Finding], where: str = "", seen: Sequence[tuple[str, str]] = ()) -> Notice:
    first = group[0]
    lines = (*(seen or (("seen", first.seen),)), ("why it matters", first.why), ("advice", first.advice))
    return Notice(
        level=first.severity.value,
        heading=first.code,
        where=where or first.where,
        lines=tuple((label, sentence) for label, sentence in lines if sentence),
    )


def _grouped(group: list[Finding]) -> Notice:
    labels = ("seen", *[""] * GROUP_SHOWN)
    shown = [f.seen if f.where in f.seen else f"{f.where}: {f.seen}" for f in group[:GROUP_SHOWN]]
    seen = list(zip(labels, shown))
    rest = listed([finding.where for finding in group[GROUP_SHOWN:]], most=GROUP_NAMED)
    return _notice(group, counted(len(group), "place"), [*seen, ("also in", rest)])


def _subject(audit: Audit) -> str:
    holds = f"{audit.name} holds {counted(audit.parameters, 'parameter')}."
    if audit.mode is None:
        return (
            f"{holds} Only its weights were read: nothing was run, so each figure is that of one layer alone, and "
            "there is none for the network as a whole or for data."
        )
    sizes = f" for inputs of shape {shape(audit.input_shape)}" if audit.input_shape else ""
    seen = f"{counted(audit.samples, 'sample')} in {counted(audit.batches, 'batch', 'batches')}"
    went = f"{seen} went through it." if audit.samples else "No data went through it."
    return f"{holds} It was audited in {audit.mode} mode{sizes}. {went}"


def _over_all_inputs(bracket: Bracket) -> str:
    text = (
        f"Over all inputs (GLOBAL) it amplifies a change of its input at most {factor(bracket.log10_upper)} times "
        f"({EVIDENCE[bracket.evidence]}; by {bracket.method})"
    )
    if bracket.log10_lower > -math.inf:
        text += f"; two inputs were found for which it does so {factor(bracket.log10_lower)} times"
    if bracket.converged:
        return f"{text}."
    why = _ended(bracket.advice or "give it more time")
    return f"{text}. {why[0].upper()}{why[1:]}" if "cut short" in why else f"{text}. The search was cut short: {why}"


def _at_data(bracket: Bracket) -> str:
    points = len(bracket.per_sample or ())
    where = f"At {counted(points, 'sample')} of the batch (POINT)" if points > 1 else "At the batch (POINT)"
    if bracket.log10_upper == math.inf:
        return f"{where} no bound on its Jacobian is known: {_ended(bracket.reason or 'no reason is known')}"
    ends = list(dict.fromkeys((factor(bracket.log10_lower), factor(bracket.log10_upper))))
    size = f"up to {ends[0]}" if len(ends) == 1 else f"up to between {ends[0]} and {ends[1]}"
    return f"{where} it amplifies a small change {size} times ({EVIDENCE[bracket.evidence]})."


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
