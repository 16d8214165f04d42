"""The finding about normalizers that expand what they see a thousandfold.

What normalizers do short of that is no finding: `normalizer_effects.py` measures it in figures that no rescaling moves.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.finding import Finding, Severity
from ...core.log10 import log10, power10
from ..examined import Examined, NormalizerOverData
from .finding_words import figures, percent, power

EXPANDING_SETS = 0.5
"""Of the sets, those with a variance below 1: a normalizer divides by their deviation, and so expands them."""
HUGE_GAIN = 3.0
"""log10 of a folded gain: a thousand is more than any normalizer of a healthy fresh network."""


def expanding_normalizer(examined: Examined) -> Iterator[Finding]:
    """Normalizers that see variances below 1 and stretch a change a thousandfold with the weights before them."""
    for place, seen in examined.normalizers():
        row, share, where = place.row, seen.variance.share_below_one, place.path
        if row.log10_folded is None or not share >= EXPANDING_SETS:
            continue
        typical = row.log10_folded - _above_typical(seen)
        if typical < HUGE_GAIN:
            continue
        together = "" if row.folded_with is None else f"`{row.folded_with}` followed by "
        yield Finding(
            code="expanding-normalizer",
            severity=Severity.WARNING,
            where=where,
            seen=f"{percent(share)} of what `{where}` normalizes has a variance below 1, and {together}`{where}` can "
            f"stretch a change {power(row.log10_folded)} times.",
            why="A normalizer divides by the deviation of its input: what enters it as noise leaves it as signal, and "
            "gradients grow by the same factor on their way back.",
            advice="Find out why its input hardly varies (dead or constant features before it), or raise eps, which "
            "caps the gain at the largest scale over sqrt(eps).",
            numbers=figures(
                log10_folded=row.log10_folded,
                log10_typical=typical,
                share_below_one=share,
                log10_median=seen.variance.log10_median,
            ),
        )


def _above_typical(seen: NormalizerOverData) -> float:
    """Return log10 of how much more a normalizer expands its quietest set than its median one.

    The folded gain is that of the quietest; BatchNorm's is that of all its channels together.
    """
    if seen.kind == "batch":
        return 0.0
    quiet, usual = (power10(v) + seen.eps for v in (seen.variance.log10_min, seen.variance.log10_median))
    return (log10(usual) - log10(quiet)) / 2.0 if quiet > 0.0 else 0.0
