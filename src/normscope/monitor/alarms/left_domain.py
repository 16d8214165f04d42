"""The alarm about data that leave a domain."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.finding import Finding, Severity
from ...diagnosis.findings.finding_words import figures, percent
from ...report.words import counted
from ..history import History
from .medians import current, step

LEFT = 0.2
"""By how much the share of samples outside must exceed that at the start, in every record of a lasting state.

A share that stays does not do that by chance: with 32 samples, of which half are outside, in one of a million windows.
"""
NEVER_INSIDE = 0.9
"""Share of the samples outside that says, also without a rise, that these are not the data of the domain."""


def left_domain(history: History) -> Iterator[Finding]:
    """Training data that leave the domain that is followed, or never were inside."""
    course = history.total("share_outside")
    shares, start = course.lasting(), max(course.first, default=0.0)
    if not shares or min(shares) < min(start + LEFT, NEVER_INSIDE):
        return
    share = min(shares)
    operators = history.of("operator")
    known = [current(history, "operator", "excess", i) for i in range(len(operators))]
    reach = [-math.inf if value is None else value for value in known]
    excess = max(reach)
    place = operators[reach.index(excess)]
    yield Finding(
        code="left-domain",
        severity=Severity.WARNING,
        where=place.name,
        seen=f"For {counted(len(shares), 'record')} at least {percent(share)} of the samples were outside of the "
        f"domain that is followed; at the start it was at most {percent(start)}. The {place.family} in "
        f"`{place.name}` leaves its range most.",
        why="The network as it was recorded has inner values at these samples that it did not have at the data of the "
        "domain: the data have changed. Bounds over the domain, and its coverage, say nothing about them.",
        advice="Look at the data first: scaling, augmentation, a new source, a shifted label mix. If they are meant to "
        "be so, record the domain anew with them: normscope.domain(model, loader).",
        numbers=figures(share=share, share_first=start, excess=excess),
        step=step(history),
    )
