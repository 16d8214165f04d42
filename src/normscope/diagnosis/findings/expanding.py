"""The finding about normalizers that expand what they see, where that costs something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...core.finding import Finding, Severity
from ...core.log10 import log10, power10
from ...report.words import listed
from ..audit_result import Row
from ..examined import Examined, NormalizerOverData
from .finding_words import figures, percent, power

CODE = "expanding-normalizer"
EXPANDING_SETS = 0.5
"""Of the sets, those with a variance below 1: a normalizer divides by their deviation, and so expands them."""
CLEAR_GAIN = 0.5
"""log10 of a folded gain, and of the growth measured across it: nearly every fresh layer doubles some direction."""
WHOLE_GAIN = 1.0
"""log10 of the growth through the whole network: below ten times there is nothing to complain of."""
MATERIAL = 0.5
"""Share of the whole network's growth, in powers of ten, that all expanding normalizers together must have."""
HUGE_GAIN = 3.0
"""log10 of a folded gain: a thousand is more than any normalizer of a healthy fresh network."""


def expanding_normalizer(examined: Examined) -> Iterator[Finding]:
    """Normalizers that see variances below 1 and make up much of what the network does to a change of its input.

    Nearly every normalizer expands some direction together with the weights before it. That costs something where
    changes at the data grow in it, and where that is a material part of their growth through the whole network; or
    where the gain is huge whatever the rest does.
    """
    rows = [place.row for place in examined.places]
    whole = rows[-1].log10_observed if rows else None
    found: list[tuple[Finding, float]] = []
    for place, seen in examined.normalizers():
        gain, share = place.row.log10_folded, seen.variance.share_below_one
        if gain is None or not share >= EXPANDING_SETS:
            continue
        typical, step = gain - _above_typical(seen), _step(rows, place.row)
        if typical >= HUGE_GAIN:
            yield _huge(place.path, place.row, share, typical, seen)
        elif whole is not None and whole >= WHOLE_GAIN and step is not None and min(typical, step) >= CLEAR_GAIN:
            found.append((_finding(place.path, place.row, share, typical, seen, step, whole), step))
    if whole is not None and sum(step for _, step in found) >= MATERIAL * whole:
        yield from (finding for finding, _ in found)


def joined(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with all infos about expanding normalizers as one, at the layer where most of it happens."""
    several = [f for f in findings if f.code == CODE and f.severity is Severity.INFO]
    if len(several) < 2:
        return list(findings)
    grown = {finding.where: finding.numbers["log10_growth"] or 0.0 for finding in several}
    first = max(several, key=lambda finding: grown[finding.where])
    names = listed([f"`{finding.where}`" for finding in several])
    whole = first.numbers["log10_network"] or 0.0
    one = replace(
        first,
        seen=f"In {names} a change at the data grows {power(sum(grown.values()))} times in all; through the whole "
        f"network it grows {power(whole)} times.",
        numbers={**first.numbers, "log10_growth": sum(grown.values()), "count": len(several)},
    )
    return [one if finding is first else finding for finding in findings if finding is first or finding not in several]


def _step(rows: Sequence[Row], row: Row) -> float | None:
    """Return log10 of how much a change at the data grows across a normalizer and the weight layer before it."""
    if row.log10_observed is None or row.folded_with is None or row.follows is None:
        return None
    weights = [rows[index] for index in row.follows if rows[index].path == row.folded_with]
    if len(weights) != 1 or weights[0].follows is None:
        return None
    before = [rows[index].log10_observed for index in weights[0].follows]
    known = [gain for gain in before if gain is not None]
    if len(known) < len(before):
        return None
    return row.log10_observed - max(known, default=0.0)


def _finding(
    where: str, row: Row, share: float, typical: float, seen: NormalizerOverData, step: float, whole: float
) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        where=where,
        seen=f"{percent(share)} of what `{where}` normalizes has a variance below 1: through `{row.folded_with}` and "
        f"`{where}` a change at the data grows {power(step)} times; through the whole network {power(whole)} times.",
        why="Here normalization increases the network's capacity instead of reducing it: noise in the input grows with "
        "the signal, and bounds and margins get worse by the same factor.",
        advice="If the input is not standardised, standardise it. Weight decay on the scale of these normalizers "
        "(`weight`) lowers the gain, and a larger eps caps it at the largest scale over sqrt(eps). Rescaling the "
        "weights before them changes nothing.",
        numbers={**_numbers(row, share, typical, seen), **figures(log10_growth=step, log10_network=whole)},
    )


def _huge(where: str, row: Row, share: float, typical: float, seen: NormalizerOverData) -> Finding:
    together = "" if row.folded_with is None else f"`{row.folded_with}` followed by "
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        where=where,
        seen=f"{percent(share)} of what `{where}` normalizes has a variance below 1, and {together}`{where}` can "
        f"stretch a change {power(row.log10_folded or 0.0)} times.",
        why="A normalizer divides by the deviation of its input: what enters it as noise leaves it as signal, and "
        "gradients grow by the same factor on their way back.",
        advice="Find out why its input hardly varies (dead or constant features before it), or raise eps, which caps "
        "the gain at the largest scale over sqrt(eps).",
        numbers=_numbers(row, share, typical, seen),
    )


def _numbers(row: Row, share: float, typical: float, seen: NormalizerOverData) -> dict[str, float | int | None]:
    return figures(
        log10_folded=row.log10_folded,
        log10_typical=typical,
        share_below_one=share,
        log10_median=seen.variance.log10_median,
    )


def _above_typical(seen: NormalizerOverData) -> float:
    """Return log10 of how much more a normalizer expands its quietest set than its median one.

    The folded gain is that of the quietest; BatchNorm's is that of all its channels together.
    """
    if seen.kind == "batch":
        return 0.0
    quiet, usual = (power10(v) + seen.eps for v in (seen.variance.log10_min, seen.variance.log10_median))
    return (log10(usual) - log10(quiet)) / 2.0 if quiet > 0.0 else 0.0
