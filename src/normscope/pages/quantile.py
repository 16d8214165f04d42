"""`quantile_document`: a quantile of the Jacobian norm as the report a person reads."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..bounds.data.quantile import SHARES, DataBracket
from ..diagnosis.verdict import sentence
from ..report.document import Block, Chart, Column, Document, Figure, Figures, Notice, Series, Table, Text
from ..report.words import counted, factor

MEANING = (
    "It speaks of fresh independent draws from the distribution that these samples come from; it says nothing about "
    "shifted or adversarial inputs, nor about two inputs far apart."
)


def quantile_document(found: DataBracket, *, brief: bool = False) -> Document:
    """Return the report: the statement, limits by share, and the samples with the largest norms."""
    blocks: list[Block] = [Text(body=headline(found)), *_advice(found)]
    if not brief:
        blocks += [_figures(found), _chart(found)]
    blocks += [_shares(found), _largest(found)]
    blocks += [_parts(found.per_class, "By class", "class")] if found.per_class else []
    blocks += [_parts(found.per_layer, "By layer", "layer")] if found.per_layer else []
    blocks += [Text(body=sentence(note)) for note in found.notes]
    return Document(title="How much a small change of the input grows, over the data", blocks=tuple(blocks))


def headline(found: DataBracket) -> str:
    """Return the statement, and what it does not say."""
    samples = counted(found.samples, "sample")
    if found.log10_upper == math.inf:
        return f"No statement: {found.reason}."
    return (
        f"With confidence {found.confidence:.4g}, at {100 * found.share:.6g} % of inputs or more a small change grows "
        f"at most {factor(found.log10_upper)} times (from {samples}). {MEANING}"
    )


def _advice(found: DataBracket) -> list[Block]:
    return [] if found.converged else [Notice(level="warning", heading="what to do", lines=(("", f"{found.advice}"),))]


def _figures(found: DataBracket) -> Figures:
    return Figures(
        items=(
            Figure(label="samples", value=found.samples, kind="count"),
            Figure(label=f"{100 * found.share:g} % quantile, at most", value=found.log10_upper, kind="log10"),
            Figure(label="largest norm seen", value=found.largest[0][1], kind="log10"),
        )
    )


def _points(found: DataBracket) -> list[tuple[float, float, float]]:
    shares = sorted({*SHARES, found.share})
    points = [(share, *found.limits(share)) for share in shares]
    return [point for point in points if point[2] < math.inf or point[0] == found.share]


def _shares(found: DataBracket) -> Table:
    return Table(
        title="By share of the data",
        columns=(
            Column(title="share", kind="text", help="of the distribution"),
            Column(title="at least", kind="log10", help="the quantile is no smaller, with that confidence"),
            Column(title="at most", kind="log10", help="the quantile is no larger, with that confidence"),
        ),
        rows=tuple((f"{100 * share:.6g} %", low, high) for share, low, high in _points(found)),
        caption=f"Each side holds with confidence {found.confidence:g}, one at a time. Exponents of ten of the norm.",
    )


def _chart(found: DataBracket) -> Chart:
    points = [point for point in _points(found) if math.isfinite(point[2])]
    return Chart(
        title="Jacobian norm by share of the data",
        labels=tuple(f"{100 * share:.6g} %" for share, _, _ in points),
        series=(Series(name="at most", style="line", values=tuple(high for _, _, high in points)),),
        axis="log10 of the norm",
        caption="The larger the share, the larger the norm that it does not exceed; more samples reach larger shares.",
    )


def _parts(parts: Mapping[str, DataBracket], title: str, what: str) -> Table:
    """Return one line per class or layer."""
    one = next(iter(parts.values()))
    return Table(
        title=title,
        columns=(
            Column(title=what, kind="name"),
            Column(title="samples", kind="count"),
            Column(title="median, at most", kind="log10", help="half of the data do not exceed it"),
            Column(title=f"{100 * one.share:g} %, at most", kind="log10", help="with that confidence"),
            Column(title="largest seen", kind="log10"),
        ),
        rows=tuple(
            (name, part.samples, *(_known(part.limits(share)[1]) for share in (0.5, part.share)), part.largest[0][1])
            for name, part in parts.items()
        ),
        caption="Exponents of ten, each with its own confidence; a dash stands for too few samples."
        + (" The product of the layers' gains bounds that of the network." if what == "layer" else ""),
    )


def _known(value: float) -> float | None:
    return value if value < math.inf else None


def _largest(found: DataBracket) -> Table:
    return Table(
        title="Samples with the largest norms",
        columns=(
            Column(title="sample", kind="count", help="its index in the order of the data, from 0"),
            Column(title="norm", kind="log10", help="of the Jacobian there, at most"),
        ),
        rows=found.largest,
        caption="Look at these first: outliers, broken samples and inputs close to a jump of the function are here.",
    )
