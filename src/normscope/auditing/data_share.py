"""DATA: how much a small change grows, by the share of the data: taken in an audit, and as pages show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..bounds.data.quantile import SHARES, DataBracket, draws_needed
from ..bounds.data.streaming import SampleNorms
from ..bounds.graph_weights import multiplications, passes
from ..bounds.lower import USUAL_STEPS
from ..bounds.point import STEP_PASSES, first_samples
from ..bounds.traced_network import BoundSettings, TracedNetwork
from ..calls.data_reader import Batches
from ..core.bracket import Bracket
from ..core.errors import CaptureError, InputError, JacobianError
from ..report.document import Block, Chart, Column, Document, Figure, Figures, Notice, Series, Table, Text
from ..report.words import factor, pluralise, sentence
from .findings import useful

SHARE, CONFIDENCE = 0.99, 0.95
"""What the headline speaks of, as far as the samples go."""
WORK, FEWEST_NORMS = 3e11, 29
"""Multiplications of the norms, and samples in the largest networks: enough to speak of 90 %."""
SMALL = 5e5
"""A fast audit takes it of networks with at most so many multiplications a pass, from `FEWEST_NORMS` samples."""
WHAT = "DATA, the growth by share of the data"
ONCE = "the loader can be read once only, and that was for the statistics: pass a DataLoader or a list of batches"


def worth_it(captured: TracedNetwork, rungs: Mapping[str, Bracket]) -> bool:
    """Return whether a fast audit takes it: where the bound over all inputs says nothing, of a small network."""
    best, observed = rungs.get("best"), rungs.get("observed")
    if best is None or observed is None or useful(best.log10_upper, observed.log10_upper) is not None:
        return False
    return multiplications(captured.graph) <= SMALL


def audited_quantile(
    captured: TracedNetwork,
    loader: Batches,
    skipped: list[tuple[str, str]],
    *,
    brief: bool,
    bounding: BoundSettings,
    seed: int,
) -> DataBracket | None:
    """Return DATA of an audited model, or say why there is none.

    Args:
        captured: the captured model.
        loader: the data, which the audit has read before.
        skipped: takes the reason.
        brief: from few samples; otherwise from as many as it takes to speak of `SHARE`, fewer in large networks.
        bounding: what all of it may cost.
        seed: the seed of the starts of Lanczos.
    """
    if not loader.readable_again:
        skipped.append((WHAT, ONCE))
        return None
    needed = FEWEST_NORMS if brief else draws_needed(SHARE, CONFIDENCE)
    needed = passes(captured.graph, needed, work=WORK / (STEP_PASSES * USUAL_STEPS), least=FEWEST_NORMS)
    reading = bounding.budget.search("the pass over the data")
    try:
        norms = SampleNorms(
            captured.model,
            mode=captured.mode,
            output=captured.output,
            rtol=bounding.rtol,
            seed=seed,
            graph=captured.traced,
        )
        for batch in loader:
            norms.add(first_samples(batch, needed))
            if len(norms) >= needed or reading.over:
                break
        return norms.quantile(SHARE, CONFIDENCE)
    except (InputError, CaptureError, JacobianError) as error:
        skipped.append((WHAT, str(error)))
        return None


def quantile_figures(bracket: DataBracket | None) -> Iterator[Figure]:
    """Yield the headline value of an audit: the growth at a share of the data."""
    share = None if bracket is None else bracket.reach(SHARE)
    if bracket is not None and share is not None:
        yield Figure(
            label=f"At {100 * share:g} % of data like yours a small change grows at most",
            value=f"{factor(bracket.limits(share)[1])} times",
            note=f"with confidence {100 * bracket.confidence:g} %, from {pluralise(bracket.samples, 'sample')}",
            term="Jacobian norm",
        )


def quantile_sentences(bracket: DataBracket | None) -> list[str]:
    """Return the sentence about DATA, or nothing without it."""
    if bracket is None:
        return []
    share, samples = bracket.reach(SHARE), pluralise(bracket.samples, "sample")
    if share is None:
        return [f"{samples} are too few to speak of {100 * SHARE:g} % of the data."]
    return [
        f"At {100 * share:g} % of the data (DATA) a small change grows at most {factor(bracket.limits(share)[1])} "
        f"times, with confidence {100 * bracket.confidence:g} % (from {samples})."
    ]


def quantile_part(bracket: DataBracket | None) -> list[Block]:
    """Return the chart and the table of an audit, or nothing without DATA."""
    if bracket is None:
        return []
    return [_share_chart(bracket), _share_table(bracket), *(Text(body=sentence(note)) for note in bracket.notes)]


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
    if not brief:
        items = (
            Figure(label="samples", value=bracket.samples, kind="count"),
            Figure(label=f"{100 * bracket.share:g} % quantile, at most", value=bracket.log10_upper, kind="log10"),
            Figure(label="largest norm seen", value=bracket.largest[0][1], kind="log10"),
        )
        blocks += [Figures(items=items), _share_chart(bracket)]
    blocks += [
        _share_table(bracket),
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
    blocks += [_class_table(bracket.per_class)] if bracket.per_class else []
    blocks += [Text(body=sentence(note)) for note in bracket.notes]
    return Document(title="How much a small change of the input grows, over the data", blocks=tuple(blocks))


def _points(bracket: DataBracket) -> list[tuple[float, float, float]]:
    """Return the shares for which there are enough samples, and the asked one, with both limits."""
    points = [(share, *bracket.limits(share)) for share in sorted({*SHARES, bracket.share})]
    return [point for point in points if point[2] < math.inf or point[0] == bracket.share]


def _share_chart(bracket: DataBracket) -> Chart:
    limited = [point for point in _points(bracket) if math.isfinite(point[2])]
    return Chart(
        title="Jacobian norm by share of the data",
        labels=tuple(_percent(share) for share, _, _ in limited),
        series=(Series(name="at most", style="line", values=tuple(high for _, _, high in limited)),),
        axis="log10 of the norm",
        caption="The larger the share, the larger the norm that it does not exceed; more samples reach larger shares.",
    )


def _share_table(bracket: DataBracket) -> Table:
    return Table(
        title="By share of the data",
        columns=(
            Column("share", "text", "of the distribution"),
            Column("at least", "log10", "the quantile is no smaller, with that confidence"),
            Column("at most", "log10", "the quantile is no larger, with that confidence"),
        ),
        rows=tuple((_percent(share), low, high) for share, low, high in _points(bracket)),
        caption=f"Each side holds with confidence {bracket.confidence:g}, one at a time. Exponents of ten of the norm.",
    )


def _class_table(parts: Mapping[str, DataBracket]) -> Table:
    """Return one line per class."""
    one = next(iter(parts.values()))
    return Table(
        title="By class",
        columns=(
            Column("class", "name"),
            Column("samples", "count"),
            Column("median, at most", "log10", "half of the data do not exceed it"),
            Column(f"{100 * one.share:g} %, at most", "log10", "with that confidence"),
            Column("largest seen", "log10"),
        ),
        rows=tuple(
            (name, part.samples, *(_known(part.limits(share)[1]) for share in (0.5, part.share)), part.largest[0][1])
            for name, part in parts.items()
        ),
        caption="Exponents of ten, each with its own confidence; a dash stands for too few samples.",
    )


def _known(value: float) -> float | None:
    return value if value < math.inf else None


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"
