"""`audit_document`: an audit as the report a person reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ..bounds.radius.page import radii_blocks
from ..core.bracket import Bracket
from ..report.brackets import bracket_table
from ..report.cells import format_cell
from ..report.document import Block, Cell, Chart, Column, Document, Figures, Series, Table, Text
from .page_tables import (
    BRIEF,
    LAYERS,
    NORMALIZERS,
    log10_eps,
    norm_lower,
    norm_upper,
    of_variance,
    row_table,
    sensitivity_lower,
    sensitivity_upper,
)
from .page_words import figures, headline, nothing_found, notices
from .result import Audit, Row
from .signal_page import signal_chart, signal_table

READING_THE_LADDER = (
    "Every figure is an exponent of ten. 'printed' is the product of layer constants as papers print it, 'product' the "
    "same with constants that hold; 'folded' joins each run of linear layers into one map first; 'liplt', "
    "'closed-form', 'tight' and 'exact' are certificates of their own; 'best' is the smallest bound that holds. "
    "'observed' is the Jacobian norm at the data: a fact about it, no bound for other inputs. A lower side is attained "
    "by inputs that were found."
)

READING_THE_LAYERS = "In the order they run. Gains and variances are exponents of ten (log10); a dash is not measured."


def audit_document(audit: Audit, *, brief: bool = False) -> Document:
    """Return the report of an audit: what was found first, then the figures, then where they come from.

    Args:
        audit: what `normscope.audit` or `Audit.from_json` returned; nothing is measured again.
        brief: for a terminal: the headline, the findings, the bounds and one table of layers.

    Returns:
        Plain blocks. A part for which nothing was measured is left out.
    """
    blocks = _brief(audit) if brief else _full(audit)
    return Document(title=f"Audit of {audit.name}", blocks=tuple(blocks))


def _full(audit: Audit) -> list[Block]:
    normalizers = [row for row in audit.layers if row.role == "normalizer"]
    return [
        Text(heading="Summary"),
        *(Text(body=sentence) for sentence in headline(audit)),
        Figures(items=tuple(figures(audit))),
        *_findings(audit, heading="Findings"),
        *part("Bounds", ladder_chart(audit.ladder), _ladder(audit, "Brackets by method (log10)", READING_THE_LADDER)),
        *part("Certified radii", *(() if audit.radii is None else radii_blocks(audit.radii))),
        *part("Gain by layer", _gain_chart(audit), _depth_chart(audit)),
        *part("Sensitivity to the weights", _sensitivity_chart(audit)),
        *part("Variance at the normalizers", _variance_chart(audit)),
        *part("Layers", row_table(audit.layers, LAYERS, caption=READING_THE_LAYERS)),
        *part("Normalizers", row_table(normalizers, NORMALIZERS, caption=READING_THE_LAYERS)),
        *part("Signal by depth", signal_chart(audit.signal), signal_table(audit.signal)),
        *part("Not measured", _skipped(audit)),
        *part("Notes", *(Text(body=note) for note in audit.notes)),
        *part("Provenance", _provenance(audit)),
    ]


def _brief(audit: Audit) -> list[Block]:
    blocks = [
        *(Text(body=sentence) for sentence in headline(audit)),
        *_findings(audit),
        _ladder(audit, "bounds (log10)"),
        row_table(audit.layers, BRIEF, title="layers (log10)"),
        _skipped(audit),
        *(Text(body=f"Note: {note}") for note in audit.notes),
    ]
    return [block for block in blocks if block is not None]


def part(heading: str, *blocks: Block | None) -> list[Block]:
    """Return blocks under a heading, or nothing at all where every block is None."""
    shown = [block for block in blocks if block is not None]
    return [Text(heading=heading), *shown] if shown else []


def _findings(audit: Audit, heading: str = "") -> list[Block]:
    if not audit.findings:
        return [Text(heading=heading, body=nothing_found(audit))]
    return [*([Text(heading=heading)] if heading else []), *notices(audit.findings)]


def _ladder(audit: Audit, title: str, caption: str = "") -> Table | None:
    return bracket_table(audit.ladder, title=title, caption=caption) if audit.ladder else None


def ladder_chart(ladder: Mapping[str, Bracket]) -> Chart | None:
    """Return brackets as bars from the lower to the upper side, formulas that are no bound as marks; all in log10.

    Args:
        ladder: brackets by the name of their method.

    Returns:
        A sideways chart, or None without brackets.
    """
    if not ladder:
        return None
    bounds = [bracket if bracket.holds else None for bracket in ladder.values()]
    spans = Series(
        name="from the lower to the upper side",
        style="spans",
        values=tuple(None if bracket is None else bracket.log10_lower for bracket in bounds),
        until=tuple(None if bracket is None else bracket.log10_upper for bracket in bounds),
    )
    loose = tuple(None if bracket.holds else bracket.log10_upper for bracket in ladder.values())
    marks = Series(name="a formula that is no bound for this network", style="marks", values=loose)
    return Chart(
        title="From the printed product to what was observed",
        labels=tuple(ladder),
        series=(spans, marks) if any(value is not None for value in loose) else (spans,),
        axis="log10 of the Lipschitz constant",
        sideways=True,
    )


def row_series(
    name: str,
    style: Literal["line", "marks", "spans"],
    rows: Sequence[Row],
    value: Callable[[Row], Cell],
    until: Callable[[Row], Cell] | None = None,
) -> list[Series]:
    """Return a list with one series over rows, or an empty list where no row has a value."""
    values = _numbers(map(value, rows))
    if all(item is None for item in values):
        return []
    return [Series(name=name, style=style, values=values, until=until and _numbers(map(until, rows)))]


def _numbers(cells: Iterable[Cell]) -> tuple[float | None, ...]:
    return tuple(None if isinstance(cell, str) else cell for cell in cells)


def _gain_chart(audit: Audit) -> Chart | None:
    rows = audit.layers
    series = (
        *row_series("operator norm of a weight layer", "spans", rows, norm_lower, norm_upper),
        *row_series("constant of a normalizer over all inputs", "marks", rows, lambda row: row.log10_exact),
        *row_series("its constant at the data", "marks", rows, lambda row: row.log10_at_data),
        *row_series("a normalizer with the layer before it", "marks", rows, lambda row: row.log10_folded),
    )
    return _row_chart(
        rows,
        series,
        title="Gain of each layer",
        caption="Each layer alone, at its real input size. Above 0 it can amplify a change, below 0 it shrinks all.",
        axis="log10 of the gain",
        rules=(("gain 1", 0.0),),
    )


def _depth_chart(audit: Audit) -> Chart | None:
    rows = audit.layers
    series = (
        *row_series("bound, over all inputs", "line", rows, lambda row: row.log10_cumulative),
        *row_series("observed at the data", "line", rows, lambda row: row.log10_observed),
    )
    return _row_chart(
        rows,
        series,
        title="Gain from the input to each layer",
        caption="The observed gain is that of the direction which the network as a whole stretches most. Where the "
        "two part, the bound is loose or the data harmless.",
        axis="log10 of the gain",
    )


def _sensitivity_chart(audit: Audit) -> Chart | None:
    rows = [row for row in audit.layers if row.sensitivity is not None]
    series = (
        *row_series("from the attained to the upper side", "spans", rows, sensitivity_lower, _upper_if(True)),
        *row_series("upper side alone", "marks", rows, _upper_if(False)),
    )
    return _row_chart(
        rows,
        series,
        title="How far the output moves with each weight",
        caption="Per unit (Frobenius) of change of the weight, at the first samples of the batch, everything else "
        "fixed. The attained side is that of the weight as it is; the upper side holds for every value of it. Scaling "
        "a weight in front of a normalizer divides the attained side by the same factor.",
        axis="log10 of norm(h, W)",
    )


def _upper_if(attained: bool) -> Callable[[Row], Cell]:
    """Return a reader of the upper side of sensitivities that have, or have not, a lower side beside it."""
    return lambda row: sensitivity_upper(row) if (sensitivity_lower(row) is not None) is attained else None


def _variance_chart(audit: Audit) -> Chart | None:
    rows = [row for row in audit.layers if row.variance is not None]
    minimum, median, maximum = (
        of_variance(lambda seen: seen.log10_min),
        of_variance(lambda seen: seen.log10_median),
        of_variance(lambda seen: seen.log10_max),
    )
    series = (
        *row_series("smallest to largest", "spans", rows, minimum, maximum),
        *row_series("median", "marks", rows, median),
        *row_series("eps", "marks", rows, log10_eps),
    )
    return _row_chart(
        rows,
        series,
        title="Variance at the input of each normalizer",
        caption="The variance of what is normalized together, over the data. Below 1 (log10 0) the normalizer expands "
        "its input; near eps the stabiliser decides the result.",
        axis="log10 of the variance",
        rules=(("variance 1", 0.0),),
    )


def _row_chart(
    rows: Sequence[Row],
    series: tuple[Series, ...],
    *,
    title: str,
    caption: str,
    axis: str,
    rules: tuple[tuple[str, float], ...] = (),
) -> Chart | None:
    if not series:
        return None
    labels = tuple(row.path for row in rows)
    return Chart(title=title, labels=labels, series=series, caption=caption, axis=axis, rules=rules)


def _skipped(audit: Audit) -> Table | None:
    columns = (Column(title="not measured"), Column(title="why"))
    return Table(columns=columns, rows=audit.skipped) if audit.skipped else None


def _provenance(audit: Audit) -> Table:
    columns = (Column(title="what", kind="name"), Column(title="value"))
    time = () if audit.seconds is None else (("time", format_cell(audit.seconds, "seconds")),)
    return Table(columns=columns, rows=(*audit.provenance.items(), *time))
