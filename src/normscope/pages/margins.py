"""`margins_document`: the margins of a classifier as the report a person reads."""

from __future__ import annotations

import math

from ..diagnosis.verdict import sentence
from ..geometry.margins import Margins
from ..report.document import Block, Chart, Column, Document, Figure, Figures, Series, Table, Text
from ..report.words import counted

SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The shares of samples for which the table gives quantiles."""
BINS = 24
"""The histogram has at most one bar more than this."""


def margins_document(found: Margins, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    who = "are classified correctly" if found.labelled else "have a class that wins"
    head = (
        f"{100 * found.accuracy:.3g} % of {counted(len(found), 'sample')} {who}; half of all margins are above "
        f"{found.quantile(0.5):.3g}."
    )
    blocks: list[Block] = [Text(body=head, lead=True)]
    if not brief:
        items = [Figure(label="Median margin", value=found.quantile(0.5), kind="number")]
        items += [
            Figure(label=f"Median margin over {scope.upper()}", value=_middle(found.normalised(scope)), kind="number")
            for scope in found.log10_constants
        ]
        blocks += [Figures(items=tuple(items)), _histogram(found)]
    columns = (
        Column(title="share of samples below", kind="percent"),
        Column(title="margin", kind="number"),
        *(Column(title=f"over {scope.upper()}", kind="number") for scope in found.log10_constants),
    )
    scaled = [sorted(found.normalised(scope)) for scope in found.log10_constants]
    ordered = sorted(found.margin)
    ranks = [min(len(found) - 1, math.ceil(s * len(found)) - 1 if s > 0 else 0) for s in SHARES]
    rows = tuple((s, ordered[p], *(values[p] for values in scaled)) for s, p in zip(SHARES, ranks))
    blocks.append(Table(title="Quantiles of the margins", columns=columns, rows=rows))
    used = ("margin", *(f"margin over {scope.upper()}" for scope in found.log10_constants))
    blocks += [Text(body=sentence(f"{name}: {what}")) for name, what in found.definitions if name in used]
    blocks += [Text(body=sentence(note)) for note in found.notes]
    return Document(title=f"Margins of {found.name}", blocks=tuple(blocks))


def _histogram(found: Margins) -> Chart:
    width = _round_width(max(found.margin) - min(found.margin))
    first, last = (math.floor(end / width) for end in (min(found.margin), max(found.margin)))
    counts = [0] * (last - first + 1)
    for value in found.margin:
        counts[math.floor(value / width) - first] += 1
    shares = tuple(count / len(found) for count in counts)
    return Chart(
        title="How the margins are spread",
        labels=tuple(f"{index * width:.6g}" for index in range(first, last + 1)),
        series=(Series(name="samples", style="spans", values=(0.0,) * len(counts), until=shares),),
        axis="share of the samples",
        caption=f"A bar holds the margins from the number below it up to {width:g} more; below zero another class "
        "wins.",
    )


def _round_width(reach: float) -> float:
    """Return 1, 2 or 5 times a power of ten such that at most `BINS` intervals of this width have a given length."""
    least = reach / BINS or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least)


def _middle(values: tuple[float, ...]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
