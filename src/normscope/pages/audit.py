"""`audit_document`: an audit as the report a person reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..diagnosis.audit_result import Audit, Row
from ..diagnosis.branches import branch_lines, main_line
from ..diagnosis.findings.loose import useful
from ..report.brackets import bracket_chart, bracket_table
from ..report.cells import format_cell
from ..report.document import Block, Cell, Chart, Column, Document, Figures, Notice, Series, Table, Text
from ..report.glossary import glossary
from ..report.words import listed
from .audit_curve import curve_part
from .audit_tables import (
    BRIEF,
    LAYERS,
    NORMALIZERS,
    cost_table,
    log10_eps,
    norm_lower,
    norm_upper,
    of_variance,
    row_table,
    sensitivity_lower,
    sensitivity_upper,
)
from .audit_words import NO_BOUND, briefly_useless, cuts, figures, headline, nothing_found, subject, to_do, why_useless
from .cards import notices, steps
from .radii import radii_blocks
from .signal import signal_chart, signal_table

READING_THE_LADDER = (
    "Every figure is an exponent of ten. Each bound that holds is true for all inputs; the best is the smallest of "
    "them. What was seen at the data is a fact about the data and no bound for other inputs. A lower side is attained "
    "by inputs that were found."
)

READING_GROWTH = (
    "Seen at the data, along the direction that the network stretches most. A bound far above it is loose, or the "
    "worst inputs are not in your data."
)

READING_THE_LAYERS = "In the order they run. Gains and variances are exponents of ten (log10); a dash is not measured."


def audit_document(audit: Audit, *, brief: bool = False) -> Document:
    """Return the report of an audit: the verdict, what explains it and what to do first; everything else folded.

    Args:
        audit: what `normscope.audit` or `Audit.from_json` returned; nothing is measured again.
        brief: whether to make the short form for a terminal: the verdict, the findings, the bounds and one
            table of layers.

    Returns:
        Plain blocks. A part for which nothing was measured is left out.
    """
    blocks = _brief(audit) if brief else _full(audit)
    return Document(title=f"Audit of {audit.name}", blocks=tuple(blocks))


def _full(audit: Audit) -> list[Block]:
    shown = [*_first(audit), *_details(audit)]
    return [*shown, *glossary(shown)]


def _first(audit: Audit) -> list[Block]:
    """Return the blocks of the first screen."""
    chart = growth_chart(audit) or _gain_chart(audit)
    return [
        Text(heading="Verdict", body=audit.verdict, lead=True),
        Text(body=subject(audit)),
        Figures(items=tuple(figures(audit))),
        *([] if chart is None else [chart]),
        *_findings(audit),
        *cut_short({audit.name: audit}),
        *not_measured({audit.name: audit}),
        *steps(to_do(audit)),
    ]


def _details(audit: Audit) -> list[Block]:
    normalizers = [row for row in audit.layers if row.role == "normalizer"]
    growth = growth_chart(audit)
    return [
        *part(
            "How much a change can grow",
            *(() if audit.mode is None else (Text(body=text) for text in headline(audit)[1:])),
            _ladder_chart(audit),
            _ladder(audit, "Bounds by method (log10)", READING_THE_LADDER),
            *curve_part(audit.curve),
            term="ladder of bounds",
            folded=True,
        ),
        *part(
            "Layers",
            *(() if growth is None else (_gain_chart(audit),)),
            _sensitivity_chart(audit),
            row_table(audit.layers, LAYERS, caption=READING_THE_LAYERS),
            folded=True,
        ),
        *part(
            "Normalizers",
            _variance_chart(audit),
            row_table(normalizers, NORMALIZERS, caption=READING_THE_LAYERS),
            term="normalized variance",
            folded=True,
        ),
        *part("Signal by depth", signal_chart(audit.signal), signal_table(audit.signal), folded=True),
        *part(
            "Changes that cannot change the class",
            *(() if audit.radii is None else radii_blocks(audit.radii)),
            term="certified radius",
            folded=True,
        ),
        *part(
            "About this audit",
            *(Text(body=note) for note in audit.notes),
            cost_table(audit.cost),
            _provenance(audit),
            folded=True,
        ),
    ]


def _brief(audit: Audit) -> list[Block]:
    shown_above = set(cuts(audit))
    blocks = [
        Text(body=audit.verdict, lead=True),
        *(Text(body=sentence) for sentence in headline(audit)),
        *_findings(audit),
        *cut_short({audit.name: audit}),
        _ladder(audit, "bounds (log10)"),
        row_table(audit.layers, BRIEF, title="layers (log10)"),
        _skipped(audit),
        *(Text(body=f"Note: {note}") for note in audit.notes if note not in shown_above),
    ]
    return [block for block in blocks if block is not None]


def part(heading: str, *blocks: Block | None, term: str = "", folded: bool = False) -> list[Block]:
    """Return blocks under a heading, or nothing at all where every block is None.

    Args:
        heading: the heading, in plain words.
        blocks: the blocks under it.
        term: the term of the papers for what the heading says.
        folded: whether the part shows its heading alone at first.
    """
    shown = [block for block in blocks if block is not None]
    return [Text(heading=heading, term=term, folded=folded), *shown] if shown else []


def _findings(audit: Audit) -> list[Block]:
    return [*notices(audit.findings, audit.layers)] if audit.findings else [Text(body=nothing_found(audit))]


def cut_short(audits: Mapping[str, Audit]) -> list[Notice]:
    """Return a notice of the audits that `max_seconds` cut short, and of what was cut in each; or nothing.

    Args:
        audits: audits by name.
    """
    cut = {name: found for name, audit in audits.items() if (found := cuts(audit))}
    if not cut:
        return []
    which = listed(list(cut), most=len(cut))
    heading = "This audit was cut short by max_seconds" if len(audits) == 1 else f"Cut short by max_seconds: {which}"
    effect = "Bounds hold, but could be tighter; what was not reached is missing. Raise `max_seconds`."
    others = "" if len(cut) == len(audits) else " A difference to the others may come from this alone."
    more = tuple((name if len(audits) > 1 else "", f"{'; '.join(found)}.") for name, found in cut.items())
    return [Notice(level="info", heading=heading, lines=(("", effect + others),), more=more)]


def not_measured(audits: Mapping[str, Audit]) -> list[Notice]:
    """Return one line for each audit in which something was not measured, with the reasons folded behind it.

    Args:
        audits: audits by name.
    """
    return [
        Notice(
            level="info",
            heading=f"Not measured{f' in {name}' if len(audits) > 1 else ''}: "
            f"{listed([what for what, _ in audit.skipped], most=2)}",
            more=audit.skipped,
        )
        for name, audit in audits.items()
        if audit.skipped
    ]


def _ladder(audit: Audit, title: str, caption: str = "") -> Table | None:
    return bracket_table(audit.ladder, title=title, caption=caption) if audit.ladder else None


def _ladder_chart(audit: Audit) -> Chart | None:
    """Return the bounds by method as a chart; None where a useless bound would press all others into one point."""
    if why_useless(audit) is not None:
        return None
    return bracket_chart(audit.ladder, title="The same limit, bounded in several ways")


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


def growth_chart(audit: Audit) -> Chart | None:
    """Return how much a change of the input has grown at each layer: at the data, and at most.

    Args:
        audit: any audit.

    Returns:
        Lines by depth, with parallel branches beside the main line; None where neither was measured. The line of the
        bound ends at the first layer where it is useless, and the caption says so.
    """
    rows = audit.layers
    seen, bound = _seen_lines(rows), _bound_line(rows)
    return _row_chart(
        rows,
        (*seen, *bound),
        title="How much a change of the input has grown, layer by layer",
        caption=" ".join(filter(None, (READING_GROWTH if seen else "", _where_it_ends(audit, bound)))),
        axis="log10 of the growth (1 is ten times)",
        rules=(("no growth", 0.0),),
        term="Jacobian norm",
    )


def _where_it_ends(audit: Audit, bound: Sequence[Series]) -> str:
    """Say where the curve of the bound ends and why; empty where the bound is useful throughout."""
    if why_useless(audit) is None:
        return ""
    drawn = [row.path for line in bound for row, value in zip(audit.layers, line.values) if value is not None]
    where = f"ends at `{drawn[-1]}`: behind it there is" if drawn else "is not drawn: there is"
    return f"The curve for any input {where} {NO_BOUND} ({briefly_useless(audit)})."


def useful_bound(row: Row) -> float | None:
    """Return log10 of the bound from the input to a row, None where it is useless."""
    return useful(row.log10_cumulative, row.log10_observed)


def _seen_lines(rows: Sequence[Row]) -> list[Series]:
    """Return the growth that was seen along the main line, and that inside the branches."""
    trunk = _along(rows, "seen at the data", lambda row: row.log10_observed, lambda row: row.log10_trunk_observed)
    inside = row_series("inside branches", "line", rows, lambda row: row.log10_observed if row.bypassed else None)
    return [*trunk, *(replace(series, paths=branch_lines(rows), faint=True) for series in inside)]


def _bound_line(rows: Sequence[Row]) -> list[Series]:
    name = "at most, for any input"
    return _along(rows, name, useful_bound, lambda row: useful(row.log10_trunk_cumulative, row.log10_trunk_observed))


def _along(
    rows: Sequence[Row], name: str, own: Callable[[Row], Cell], at_branch: Callable[[Row], Cell]
) -> list[Series]:
    """Return values along the main line: those of its own rows, and those at the points where branches leave it."""
    found = row_series(name, "line", rows, lambda row: at_branch(row) if row.bypassed else own(row))
    return [replace(series, paths=(main_line(rows),)) for series in found]


def _gain_chart(audit: Audit) -> Chart | None:
    rows = audit.layers
    series = (
        *row_series("weight layer", "spans", rows, norm_lower, norm_upper),
        *row_series("normalizer, any input", "marks", rows, lambda row: row.log10_exact),
        *row_series("normalizer, at the data", "marks", rows, lambda row: row.log10_at_data),
        *row_series("normalizer with the layer before it", "marks", rows, lambda row: row.log10_folded),
    )
    return _row_chart(
        rows,
        series,
        title="How much each layer alone can stretch what it is given",
        caption="At its real input size. Above 0 a layer can stretch a change, below 0 it shrinks all of them.",
        axis="log10 of the gain (1 is ten times)",
        rules=(("gain 1", 0.0),),
        term="operator norm",
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
        term="weight sensitivity",
    )


def _upper_if(attained: bool) -> Callable[[Row], Cell]:
    """Return a function that reads the upper side of sensitivities that have (or do not have) a lower side."""
    return lambda row: sensitivity_upper(row) if (sensitivity_lower(row) is not None) is attained else None


def _variance_chart(audit: Audit) -> Chart | None:
    rows = [row for row in audit.layers if row.variance is not None]
    minimum, median, maximum = (
        of_variance(lambda variance: variance.log10_min),
        of_variance(lambda variance: variance.log10_median),
        of_variance(lambda variance: variance.log10_max),
    )
    series = (
        *row_series("smallest to largest", "spans", rows, minimum, maximum),
        *row_series("median", "marks", rows, median),
        *row_series("eps", "marks", rows, log10_eps),
    )
    return _row_chart(
        rows,
        series,
        title="How much the input of each normalizer varies",
        caption="The variance of what is normalized together, over the data. A normalizer that divides by it expands "
        "what varies less than 1 (log10 0), and near eps the stabiliser decides the result. BatchNorm in eval mode "
        "divides by its stored variances instead.",
        axis="log10 of the variance",
        rules=(("variance 1", 0.0),),
        term="normalized variance",
    )


def _row_chart(
    rows: Sequence[Row],
    series: tuple[Series, ...],
    *,
    title: str,
    caption: str,
    axis: str,
    rules: tuple[tuple[str, float], ...] = (),
    term: str = "",
) -> Chart | None:
    if not series:
        return None
    return Chart(
        title=title,
        labels=tuple(row.path for row in rows),
        series=series,
        caption=caption,
        axis=axis,
        rules=rules,
        term=term,
    )


def _skipped(audit: Audit) -> Table | None:
    columns = (Column(title="not measured"), Column(title="why"))
    return Table(columns=columns, rows=audit.skipped) if audit.skipped else None


def _provenance(audit: Audit) -> Table:
    columns = (Column(title="what", kind="name"), Column(title="value"))
    time = () if audit.seconds is None else (("time", format_cell(audit.seconds, "seconds")),)
    return Table(columns=columns, rows=(*audit.provenance.items(), *time))
