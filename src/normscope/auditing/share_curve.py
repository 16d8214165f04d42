"""How much a small change grows over the data: by share of the data, as a quantile, and as an audit shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..bounds.curve.curve import DomainPoint, ShareCurve
from ..bounds.data.quantile import SHARES, DataBracket
from ..report.document import (
    Block,
    Chart,
    Column,
    Document,
    Figure,
    Figures,
    Notice,
    ReadColumn,
    Series,
    Table,
    Text,
    tabulate,
)
from ..report.words import factor, pluralise, sentence
from .scope_shares import SHARE

USELESS = 6.0
"""The bound over all inputs is not drawn if it lies more than this many decades above the other figures."""
MEANING = (
    "Two answers to one question. At the samples: at that share of the data the growth at that very input is at most "
    "this. In a domain: that share of the data lies in a set of inputs, at ALL of which the growth is at most this. "
    "Both speak of fresh draws of the same data, each share with its own confidence."
)


def curve_document(curve: ShareCurve, *, brief: bool = False) -> Document:
    """Return the report of a curve."""
    blocks: list[Block] = [*(Text(body=line) for line in statements(curve)), *curve_blocks(curve, brief=brief)]
    blocks += [Text(body=sentence(note)) for note in curve.notes]
    return Document(title="How much a small change grows, by the share of the data", blocks=tuple(blocks))


def curve_blocks(curve: ShareCurve, *, brief: bool = False) -> list[Block]:
    """Return the chart and the tables of a curve."""
    chart = None if brief else share_chart(curve)
    blocks: list[Block] = [] if chart is None else [chart]
    blocks += [table for table in (_shares(curve), _domains(curve)) if table is not None]
    if curve.skipped:
        blocks.append(Notice(level="info", heading="Not measured", lines=curve.skipped))
    return blocks


def statements(curve: ShareCurve, share: float = 0.99) -> list[str]:
    """Return a curve in sentences: one at the samples, one inside a domain and one over all inputs."""
    lines = []
    if curve.data is not None:
        high = curve.limits(share)[0]
        samples = pluralise(curve.data.samples, "sample")
        lines.append(
            f"{samples} are too few to speak of {100 * share:g} % of the data."
            if high == math.inf
            else f"At {100 * share:g} % of the data (DATA) a small change grows at most {factor(high)} times, with "
            f"confidence {100 * curve.confidence:g} % (from {samples})."
        )
    point = curve.domain(share)
    if point is not None:
        size = _times(point.bracket.log10_upper)
        lines.append(
            f"At every input whose inner values stay in the ranges of {_count_recorded(curve)} (DOMAIN; "
            f"{point.width}) a small change grows {size}; {covering(point)}."
        )
    lines.append(f"Over all inputs (GLOBAL) a change grows {_times(curve.everywhere.log10_upper)}.")
    return lines


def covering(point: DomainPoint) -> str:
    """Say how much fresh data lies in a domain."""
    cover = point.coverage
    if cover is None:
        return "how much fresh data lies inside was not measured"
    return (
        f"{cover.inside} of {cover.samples} fresh samples lie inside, so at least {cover.at_least} of the data with "
        f"confidence {100 * cover.confidence:g} %"
    )


def share_chart(curve: ShareCurve) -> Chart | None:
    """Return DATA and DOMAIN by share of the data in one chart; None where neither has a point."""
    points = _points(curve)
    if not points:
        return None
    names = ("at the samples (DATA)", "at every input of a domain (DOMAIN)")
    columns = [[point[i] for point in points] for i in (1, 2)]
    series = tuple(
        Series(name=name, style="line", values=tuple(v if math.isfinite(v) else None for v in column))
        for name, column in zip(names, columns, strict=True)
        if any(map(math.isfinite, column))
    )
    top = max(v for column in columns for v in column if math.isfinite(v))
    everywhere = curve.everywhere.log10_upper
    shown = everywhere - top <= USELESS
    beyond = "" if shown else f" Over all inputs the bound is {_times(everywhere)}, far above this chart."
    return Chart(
        title="How much a small change grows, by the share of the data",
        labels=tuple(_percent(share) for share, _, _ in points),
        series=series,
        axis="log10 of the growth (1 is ten times)",
        caption=f"{MEANING}{beyond}",
        rules=(("any input (GLOBAL)", everywhere),) if shown else (),
        term="domain",
    )


def _points(curve: ShareCurve) -> list[tuple[float, float, float]]:
    """Return the shares for which there are enough samples, with the limits of DATA and DOMAIN."""
    points = [(share, *curve.limits(share)) for share in SHARES]
    return [point for point in points if min(point[1:]) < math.inf]


def _shares(curve: ShareCurve) -> Table | None:
    rows = tuple((_percent(share), *map(_known, high)) for share, *high in _points(curve))
    columns = (
        Column("share", "text", "of the distribution that the samples come from"),
        Column("at the samples (DATA)", "log10", "the growth that this share does not exceed"),
        Column("in a domain (DOMAIN)", "log10", "over all of a set in which this share lies"),
    )
    caption = f"Exponents of ten; each holds with confidence {100 * curve.confidence:g} %, one at a time."
    return Table(title="By share of the data", columns=columns, rows=rows, caption=caption) if rows else None


DOMAIN_COLUMNS: tuple[ReadColumn[DomainPoint], ...] = (
    ReadColumn("ranges", "text", "width", "how wide they are, beside what was seen at the samples"),
    ReadColumn("growth, at most", "log10", "bracket.log10_upper", "of a small change, at every input inside"),
    ReadColumn("fresh samples inside", "percent", "coverage.share", "of those that did not define it"),
    ReadColumn("at least", "text", "coverage.at_least", "of the distribution, with that confidence"),
    ReadColumn("method", "name", "bracket.method"),
)


def _domains(curve: ShareCurve) -> Table | None:
    caption = (
        f"Recorded over {_count_recorded(curve)}. A domain need not be convex: between two inputs the bound holds if "
        "the whole segment lies inside."
    )
    title = "Domains, each inside the next"
    return tabulate(curve.domains, DOMAIN_COLUMNS, title=title, caption=caption) if curve.domains else None


def _count_recorded(curve: ShareCurve) -> str:
    """Say over how many samples or batches the domains were recorded."""
    shape = curve.everywhere.input_shape or (1,)
    whole = curve.mode == "train" or shape[0] > 1
    return pluralise(curve.samples, *(("whole batch", "whole batches") if whole else ("sample",)))


def _known(value: float) -> float | None:
    return value if value < math.inf else None


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"


def _times(exponent: float) -> str:
    return "without a known bound" if exponent == math.inf else f"at most {factor(exponent)} times"


QUANTILE_MEANING = (
    "It speaks of fresh independent draws from the distribution that these samples come from; it says nothing about "
    "shifted or adversarial inputs, nor about two inputs far apart."
)


def quantile_document(bracket: DataBracket, *, brief: bool = False) -> Document:
    """Return the report: the statement, limits by share, and the samples with the largest norms."""
    statement = (
        f"With confidence {bracket.confidence:.4g}, at {100 * bracket.share:.6g} % of inputs or more a small change "
        f"grows at most {factor(bracket.log10_upper)} times (from {pluralise(bracket.samples, 'sample')}). "
        f"{QUANTILE_MEANING}"
    )
    none = bracket.log10_upper == math.inf
    blocks: list[Block] = [Text(body=f"No statement: {bracket.reason}." if none else statement)]
    if not bracket.converged:
        blocks.append(Notice(level="warning", heading="what to do", lines=(("", f"{bracket.advice}"),)))
    points = [(share, *bracket.limits(share)) for share in sorted({*SHARES, bracket.share})]
    points = [point for point in points if point[2] < math.inf or point[0] == bracket.share]
    if not brief:
        items = (
            Figure(label="samples", value=bracket.samples, kind="count"),
            Figure(label=f"{100 * bracket.share:g} % quantile, at most", value=bracket.log10_upper, kind="log10"),
            Figure(label="largest norm seen", value=bracket.largest[0][1], kind="log10"),
        )
        limited = [point for point in points if math.isfinite(point[2])]
        chart = Chart(
            title="Jacobian norm by share of the data",
            labels=tuple(_percent(share) for share, _, _ in limited),
            series=(Series(name="at most", style="line", values=tuple(high for _, _, high in limited)),),
            axis="log10 of the norm",
            caption="The larger the share, the larger the norm that it does not exceed; more samples reach larger "
            "shares.",
        )
        blocks += [Figures(items=items), chart]
    blocks += [
        Table(
            title="By share of the data",
            columns=(
                Column("share", "text", "of the distribution"),
                Column("at least", "log10", "the quantile is no smaller, with that confidence"),
                Column("at most", "log10", "the quantile is no larger, with that confidence"),
            ),
            rows=tuple((_percent(share), low, high) for share, low, high in points),
            caption=f"Each side holds with confidence {bracket.confidence:g}, one at a time. Exponents of ten of the "
            "norm.",
        ),
        Table(
            title="Samples with the largest norms",
            columns=(
                Column("sample", "count", "its index in the order of the data, from 0"),
                Column("norm", "log10", "of the Jacobian there, at most"),
            ),
            rows=bracket.largest,
            caption="Look at these first: outliers, broken samples and inputs close to a jump of the function are "
            "here.",
        ),
    ]
    blocks += [_part_table(bracket.per_class, "By class", "class")] if bracket.per_class else []
    blocks += [_part_table(bracket.per_layer, "By layer", "layer")] if bracket.per_layer else []
    blocks += [Text(body=sentence(note)) for note in bracket.notes]
    return Document(title="How much a small change of the input grows, over the data", blocks=tuple(blocks))


def _part_table(parts: Mapping[str, DataBracket], title: str, what: str) -> Table:
    """Return one line per class or layer."""
    one = next(iter(parts.values()))
    return Table(
        title=title,
        columns=(
            Column(what, "name"),
            Column("samples", "count"),
            Column("median, at most", "log10", "half of the data do not exceed it"),
            Column(f"{100 * one.share:g} %, at most", "log10", "with that confidence"),
            Column("largest seen", "log10"),
        ),
        rows=tuple(
            (name, part.samples, *(_known(part.limits(share)[1]) for share in (0.5, part.share)), part.largest[0][1])
            for name, part in parts.items()
        ),
        caption="Exponents of ten, each with its own confidence; a dash stands for too few samples."
        + (" The product of the layers' gains bounds that of the network." if what == "layer" else ""),
    )


def curve_figures(curve: ShareCurve | None) -> Iterator[Figure]:
    """Yield the headline values: at a share of the data (DATA), and inside a domain with its coverage (DOMAIN)."""
    share = None if curve is None else curve.reach(SHARE)
    if curve is not None and curve.data is not None and share is not None:
        yield Figure(
            label=f"At {100 * share:g} % of data like yours a small change grows at most",
            value=f"{factor(curve.limits(share)[0])} times",
            note=f"with confidence {100 * curve.confidence:g} %, from {pluralise(curve.data.samples, 'sample')}",
            term="Jacobian norm",
        )
    point = None if curve is None else curve.domain(SHARE)
    if point is not None and point.bracket.log10_upper < math.inf:
        cover = point.coverage
        coverage = (
            "its coverage was not measured"
            if cover is None
            else f"{cover.inside} of {cover.samples} fresh samples are inside: at least {cover.at_least} of the data"
        )
        yield Figure(
            label="At any input in the ranges of your data a small change grows at most",
            value=f"{factor(point.bracket.log10_upper)} times",
            note=f"{point.width}; {coverage}",
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
