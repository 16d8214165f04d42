"""The growth by share of the data, as an audit shows it: two headline figures, sentences, a chart and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..bounds.curve.shares import ShareCurve
from ..diagnosis.scope_shares import SHARE
from ..diagnosis.verdict import sentence
from ..report.document import Block, Figure, Text
from ..report.words import counted, factor
from .share_curve import curve_blocks, statements


def curve_figures(curve: ShareCurve | None) -> Iterator[Figure]:
    """Yield the headline values: at a share of the data (DATA), and inside a domain with its coverage (DOMAIN)."""
    share = None if curve is None else curve.reach(SHARE)
    if curve is not None and curve.data is not None and share is not None:
        yield Figure(
            label=f"At {100 * share:g} % of data like yours a small change grows at most",
            value=f"{factor(curve.limits(share)[0])} times",
            note=f"with confidence {100 * curve.confidence:g} %, from {counted(curve.data.samples, 'sample')}",
            term="Jacobian norm",
        )
    point = None if curve is None else curve.domain(SHARE)
    if point is not None and point.bracket.log10_upper < math.inf:
        cover = point.coverage
        seen = (
            "its coverage was not measured"
            if cover is None
            else f"{cover.inside} of {cover.samples} fresh samples are inside: at least {cover.at_least} of the data"
        )
        yield Figure(
            label="At any input in the ranges of your data a small change grows at most",
            value=f"{factor(point.bracket.log10_upper)} times",
            note=f"{point.width}; {seen}",
            term="domain",
        )


def curve_sentences(curve: ShareCurve | None) -> list[str]:
    """Return the sentences about DATA and DOMAIN, or nothing without a curve."""
    if curve is None:
        return []
    share = curve.reach(SHARE)
    return statements(curve, SHARE if share is None else share)[:-1]  # the last speaks of all inputs


def curve_part(curve: ShareCurve | None) -> list[Block]:
    """Return the chart and the tables, or nothing without a curve."""
    return [] if curve is None else [*curve_blocks(curve), *(Text(body=sentence(note)) for note in curve.notes)]
