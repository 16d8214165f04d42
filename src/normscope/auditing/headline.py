"""The first sentences and values of an audit: how much a change grows, why a bound is of no use, what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..bounds.graph.ir import HELD
from ..core.bracket import Bracket, Evidence
from ..core.finding import Severity
from ..doctor.checking.verdict import clause, groups
from ..doctor.pages.check import tally
from ..products.lanczos import MISSED
from ..report.document import Figure
from ..report.words import factor, pluralise, shape
from .audit_result import Audit
from .data_share import quantile_figures, quantile_sentences
from .findings import BECAUSE, loose
from .findings import CODE as LOOSE

EVIDENCE = {
    Evidence.PROVEN: "proven, rounding included",
    Evidence.NUMERICAL: "true up to rounding",
    Evidence.SAMPLED: "the largest of the points tried",
}

ANY = "Any change of any input grows at most"

NO_BOUND = "no useful bound"

UNBOUNDED = ("not-lipschitz", "no-rule")
"""Findings that name the parts without a finite constant."""

TILE = 64
"""A reason of up to this many letters stands beside a headline value; longer ones stand in the details alone."""


def headline(audit: Audit) -> list[str]:
    """Return what an audit says about the model as a whole, in a few plain sentences."""
    overall, observed = audit.lipschitz, audit.observed
    at_data = [_at_data(audit, observed)] if observed is not None else []
    at_data += quantile_sentences(audit.quantile)
    if overall is not None:
        why = why_useless(audit)
        if why is None:
            return [subject(audit), _over_all_inputs(overall), *at_data]
        return [subject(audit), *at_data, f"There is {NO_BOUND} over all inputs (GLOBAL). {why}"]
    if audit.mode is None:
        return [subject(audit), *_sampled_norms(audit)]
    hint = " 'Not measured' says why." if audit.skipped else ""
    return [subject(audit), *at_data, f"The Lipschitz constant over all inputs (GLOBAL) was not bounded.{hint}"]


def _sampled_norms(audit: Audit) -> list[str]:
    """Say how sure the norms of stored weights are, where they are not proven."""
    sampled = sum(row.norm is not None and row.norm.evidence is Evidence.SAMPLED for row in audit.layers)
    if not sampled:
        return []
    return [
        f"The upper sides of {pluralise(sampled, 'norm')} are SAMPLED: with a probability of {MISSED:.1%} over random "
        "starts one or more of them are too small. `certify=True` (`--certify`) proves them."
    ]


def why_useless(audit: Audit) -> str | None:
    """Return why the bound over all inputs is infinite or a million times what was seen; None where it is useful."""
    overall, observed = audit.lipschitz, audit.observed
    if overall is None:
        return None
    if overall.log10_upper == math.inf:
        return f"It is infinite: {_end_sentence(overall.reason or 'no reason is known')}"
    if observed is None or not loose(overall.log10_upper, observed.log10_upper):
        return None
    excess = overall.log10_upper - observed.log10_upper
    size = f"It is {factor(overall.log10_upper)}, which is {factor(excess)} times the largest growth at the data."
    return " ".join((size, *(finding.why for finding in audit.findings if finding.code == LOOSE)))


def briefly_useless(audit: Audit) -> str:
    """Return in a few words why an audit has no useful bound over all inputs; `why_useless` says it in full."""
    named = [clause(group) for group in groups(audit.findings) if group[0].code in UNBOUNDED]
    causes = [f.why.removeprefix(BECAUSE).removesuffix(".") for f in audit.findings if f.code == LOOSE]
    infinite = audit.lipschitz is not None and audit.lipschitz.log10_upper == math.inf
    short = [text for text in (named if infinite else causes) if len(text) <= TILE]
    return short[0] if short else "infinite; the details say why" if infinite else "far above anything seen at the data"


def figures(audit: Audit) -> Iterator[Figure]:
    """Yield the headline values of an audit: how much a change grows, at the data and at most; findings; size."""
    overall, observed = audit.lipschitz, audit.observed
    if observed is not None:
        yield Figure(
            label="A small change of your data grows at most",
            value=_times(observed.log10_upper),
            note=_samples(audit, observed),
            term="Jacobian norm",
        )
    yield from quantile_figures(audit.quantile)
    if overall is not None:
        why = why_useless(audit)
        lower = f"; at least {factor(overall.log10_lower)}" if overall.log10_lower > -math.inf else ""
        yield Figure(
            label=ANY,
            value=_times(overall.log10_upper) if why is None else NO_BOUND,
            note=f"{EVIDENCE[overall.evidence]}{lower}" if why is None else briefly_useless(audit),
            term="Lipschitz constant",
        )
    elif audit.mode is not None:
        why = "'Not measured' says why" if audit.skipped else ""
        yield Figure(label=ANY, value="not measured", note=why, term="Lipschitz constant")
    yield Figure(label="Findings", value=tally(audit.findings) if audit.findings else "none", note=_looked_at(audit))
    weights, normalizers = (sum(row.role == role for row in audit.layers) for role in ("weight", "normalizer"))
    layers = f"{pluralise(weights, 'weight layer')}, {pluralise(normalizers, 'normalizer')}"
    yield Figure(label="Parameters", value=audit.parameters, kind="count", note=layers)


def to_see_more(audit: Audit) -> list[str]:
    """Return what to do so that an audit shows what it does not show now."""
    items: list[str] = []
    if any(finding.severity is Severity.ERROR for finding in audit.findings):
        return items  # errors must be mended first
    batch = [note for note in audit.notes if note.startswith("statistics come from the batch alone")]
    if batch:
        few = pluralise(audit.samples, "sample")
        items.append(f"Pass a loader (`loader=`, or `--data`): the statistics come from {few} alone.")
    if cuts(audit):
        items.append("Raise `max_seconds`: the audit was cut short, so its bounds hold but could be tighter.")
    return items


def cuts(audit: Audit) -> list[str]:
    """Return what `max_seconds` cut short, each as one sentence; empty where it cut nothing."""
    return [note for note in audit.notes if "cut short" in note]


def subject(audit: Audit) -> str:
    """Return a sentence about the audited model and its data."""
    holds = f"{audit.name} holds {pluralise(audit.parameters, 'parameter')}."
    if audit.mode is None:
        return (
            f"{holds} Only its weights were read: nothing was run, so each figure is that of one layer alone, and "
            "there is none for the network as a whole or for data."
        )
    sizes = f" for inputs of shape {shape(audit.input_shape)}" if audit.input_shape else ""
    data = f"{pluralise(audit.samples, 'sample')} in {pluralise(audit.batches, 'batch', 'batches')}"
    went = f"{data} went through it." if audit.samples else "No data went through it."
    return f"{holds} It was audited in {audit.mode} mode{sizes}. {went}"


def _looked_at(audit: Audit) -> str:
    data = f"over {pluralise(audit.samples, 'sample')}" if audit.samples else "without data"
    return "from the weights alone" if audit.mode is None else f"in {audit.mode} mode, {data}"


def _times(exponent: float) -> str:
    """Return a factor for a headline, in plain digits where they are few."""
    if exponent == math.inf:
        return "infinitely"
    plain = 3 <= exponent < 6
    return f"{float(f'{10.0**exponent:.3g}'):,.0f} times" if plain else f"{factor(exponent)} times"


def _samples(audit: Audit, observed: Bracket) -> str:
    """Say at how many samples Jacobians were taken, or that one was taken at the batch as a whole."""
    points = len(observed.per_sample or ())
    if points == 1 and (audit.input_shape or ())[:1] == (1,):
        return "at the 1 sample tried"
    return f"at the {pluralise(points, 'sample')} tried" if points > 1 else "at the batch"


def _over_all_inputs(bracket: Bracket) -> str:
    inputs = "inputs with the masks and ids of the first sample" if HELD in bracket.notes else "inputs"
    text = (
        f"For any two {inputs} (GLOBAL) the distance between them grows at most {factor(bracket.log10_upper)} times "
        f"({EVIDENCE[bracket.evidence]}; by {bracket.method})"
    )
    if bracket.log10_lower > -math.inf:
        text += f"; two inputs were found for which it grows {factor(bracket.log10_lower)} times"
    if bracket.converged:
        return f"{text}."
    why = _end_sentence(bracket.advice or "give it more time")
    return f"{text}. {why[0].upper()}{why[1:]}" if "cut short" in why else f"{text}. The search was cut short: {why}"


def _at_data(audit: Audit, bracket: Bracket) -> str:
    where = f"A{_samples(audit, bracket)[1:]} (POINT)"
    if bracket.log10_upper == math.inf:
        return f"{where} no bound on its Jacobian is known: {_end_sentence(bracket.reason or 'no reason is known')}"
    evidence = "" if bracket.evidence is not Evidence.SAMPLED else f" ({EVIDENCE[bracket.evidence]})"
    return f"{where} a small change of the input grows at most {factor(bracket.log10_upper)} times{evidence}."


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
