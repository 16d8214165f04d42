"""Show findings: one card per kind with its layers, and a list of what to do next."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.finding import Finding, Severity
from ..diagnosis.audit_result import Row
from ..diagnosis.verdict import clause, groups, place, places, sentence
from ..report.document import Notice, Steps
from ..report.words import listed, pluralise

SHOWN = 3
"""A card quotes up to this many findings of a group that differ; for the others it only names the layers."""
FEW = 3
"""The one line of an info names layers only if there are at most this many."""
NAMED = 40
"""A card names up to this many layers; the JSON names all."""
NEXT = 4
"""Up to this many next steps are listed; the cards hold the others."""

_NAME = re.compile(r"(`[^`]+`)")


def notices(findings: Sequence[Finding], rows: Sequence[Row] = ()) -> list[Notice]:
    """Return findings as one notice per code and severity, the most serious first; infos are one line each."""
    return [_card(group, rows) for group in groups(findings)]


def _card(group: Sequence[Finding], rows: Sequence[Row]) -> Notice:
    first, several = group[0], len(group) > 1
    heading = sentence(clause(group, rows)).removesuffix(".")
    seen, *others = [("seen", text) if not index else ("", text) for index, text in enumerate(_observations(group))]
    rest = [("layers", places(group, NAMED))] if several else []
    folded = (*others, *rest, ("why it matters", merged([f.why for f in group])), ("advice", advice(group)))
    quiet = first.severity is Severity.INFO
    named = bool(first.where) and (several or place(first.where) not in heading) and not (quiet and len(group) > FEW)
    return Notice(
        level=first.severity.value,
        heading=heading,
        where=places(group) if named else "",
        code=first.code,
        lines=() if quiet or not seen[1] else (seen,),
        more=tuple((label, text) for label, text in ((seen, *folded) if quiet else folded) if text),
    )


def next_steps(findings: Sequence[Finding], rows: Sequence[Row] = ()) -> list[str]:
    """Return what to do about errors and warnings, one step per kind, the most serious first."""
    serious = [group for group in groups(findings) if group[0].severity > Severity.INFO]
    wanted = [f"{sentence(clause(group, rows))} {advice(group)}" for group in serious if advice(group)]
    left = len(wanted) - NEXT
    return [*wanted[:NEXT], *([f"{pluralise(left, 'more kind')} of findings, above."] if left > 0 else [])]


def steps(items: Sequence[str]) -> list[Steps]:
    """Return steps under their heading, or nothing."""
    return [Steps(title="What to do next", items=tuple(items))] if items else []


def advice(group: Sequence[Finding]) -> str:
    """Return the advice of all findings of a group, given once where it differs in names alone."""
    return merged([finding.advice for finding in group], [finding.where for finding in group])


def merged(texts: Sequence[str], where: Sequence[str] = ()) -> str:
    """Return several sentences, merged into one where they differ in names between backticks alone.

    Example:
        >>> merged(["The bias of `1` takes its place.", "The bias of `4` takes its place."])
        'The bias of `1` and `4` takes its place.'
    """
    by_form: dict[tuple[str, ...], list[list[str]]] = {}
    layers: dict[tuple[str, ...], list[str]] = {}
    for index, text in enumerate(texts):
        parts = _NAME.split(text)
        form = tuple(parts[::2])
        by_form.setdefault(form, []).append(parts[1::2])
        layers.setdefault(form, []).extend(place(name) for name in where[index : index + 1])
    written = {form: _filled(form, names) for form, names in by_form.items() if any(form)}
    if len(written) < 2 or not where:
        return " ".join(written.values())
    return " ".join(f"{listed(list(dict.fromkeys(layers[form])))}: {text}" for form, text in written.items())


def _filled(form: tuple[str, ...], names: Sequence[Sequence[str]]) -> str:
    """Return a sentence with the names of all findings filled into each of its gaps."""
    gaps = [listed(list(dict.fromkeys(found))) for found in zip(*names)]
    return "".join(text + gap for text, gap in zip(form, (*gaps, "")))


def _observations(group: Sequence[Finding]) -> list[str]:
    """Return what was seen: one sentence if the findings differ in names alone, otherwise the first few."""
    texts = [finding.seen for finding in group]
    forms = {tuple(_NAME.split(text)[::2]) for text in texts}
    if len(forms) == 1:
        return [merged(texts)]
    return [
        text if finding.where in text else f"{place(finding.where)}: {text}" for finding, text in zip(group, texts)
    ][:SHOWN]
