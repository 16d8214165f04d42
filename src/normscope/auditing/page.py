"""An audit as the report a person reads: the columns of its tables, its charts, and the parts of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..bounds.pages.radii import radii_blocks
from ..doctor.pages.check import loss_words, notices, signal_chart, signal_table, steps
from ..report.brackets import bracket_chart, bracket_table
from ..report.document import (
    Block,
    Chart,
    Column,
    Document,
    Figures,
    Notice,
    Read,
    ReadColumn,
    Series,
    Table,
    Text,
    part,
    read_from,
    tabulate,
)
from ..report.glossary import glossary
from ..report.words import format_cell, listed, pluralise, shape
from .audit_result import Audit, Row
from .branches import branch_lines, main_line
from .data_share import quantile_part
from .findings import useful
from .headline import NO_BOUND, briefly_useless, cuts, figures, headline, to_see_more, why_useless
from .normalizer_effects import NormalizerEffects


def row_table(rows: Sequence[Row], titles: Sequence[str], *, title: str = "", caption: str = "") -> Table | None:
    """Return a table over rows, without the columns in which nothing was measured; None without rows."""
    columns = [COLUMNS[name] for name in titles]
    return tabulate(rows, columns, title=title, caption=caption, drop_empty=True) if rows else None


def own_gain(row: Row) -> float | None:
    """Return log10 of a row's own constant: a weight layer's norm, a normalizer's constant over all inputs."""
    return row.log10_exact if row.norm is None else row.norm.log10_upper


def sensitivity_lower(row: Row) -> float | None:
    """Return log10 of the attained side of a weight's sensitivity; None where no search was made."""
    sides = row.sensitivity
    return None if sides is None or (sides.log10_lower == -math.inf < sides.log10_upper) else sides.log10_lower


def log10_eps(row: Row) -> float | None:
    """Return log10 of a normalizer's stabiliser, if it saw data and has one."""
    return math.log10(row.variance.eps) if row.variance is not None and row.variance.eps > 0 else None


_COLUMNS: tuple[ReadColumn[Row], ...] = (
    ReadColumn("layer", "name", lambda row: row.path or "(model)"),
    ReadColumn("kind", "name", "kind", "The module's class."),
    ReadColumn(
        "gain",
        "log10",
        own_gain,
        "log10 of the layer's own constant: the operator norm of a weight layer (upper side), the constant of a "
        "normalizer over all inputs.",
    ),
    ReadColumn(
        "norm, lower",
        "log10",
        "norm.log10_lower",
        "log10 of a weight layer's operator norm: the side that is attained.",
    ),
    ReadColumn(
        "norm, upper", "log10", "norm.log10_upper", "log10 of a weight layer's operator norm: the side that bounds it."
    ),
    ReadColumn(
        "evidence",
        "name",
        "norm.evidence.name",
        "How the upper side of the norm is known: PROVEN includes rounding, NUMERICAL does not, SAMPLED is no bound.",
    ),
    ReadColumn("printed", "log10", "log10_printed", "log10 of the normalizer's constant as papers print it."),
    ReadColumn("exact", "log10", "log10_exact", "log10 of the normalizer's exact constant over all inputs."),
    ReadColumn("at data", "log10", "log10_at_data", "log10 of the normalizer's largest constant at the data seen."),
    ReadColumn(
        "folded",
        "log10",
        "log10_folded",
        "log10 of the gain of the normalizer and the linear map before it as one map, with the variance seen in the "
        "data: an estimate from below. Rescaling those weights does not move it.",
    ),
    ReadColumn("folded with", "name", "folded_with", "The linear map before the normalizer."),
    ReadColumn("from input", "log10", "log10_cumulative", "log10 of the bound on the map from the input to here."),
    ReadColumn(
        "observed",
        "log10",
        "log10_observed",
        "log10 of the gain from the input to here at the data, along the direction the network stretches most.",
    ),
    ReadColumn(
        "sensitivity",
        "log10",
        sensitivity_lower,
        "log10 of how far the output moves per unit of change of the layer's weight, at the batch: the side that is "
        "attained.",
    ),
    ReadColumn(
        "sensitivity, lower",
        "log10",
        sensitivity_lower,
        "log10 of how far the output moves per unit (Frobenius) of change of the layer's weight, at the first "
        "samples of the batch: the side that is attained.",
    ),
    ReadColumn(
        "sensitivity, upper",
        "log10",
        "sensitivity.log10_upper",
        "log10 of the same for every value of the weight, all others as they are: norm(H) of what the layer reads "
        "times the constant of the network behind it.",
    ),
    ReadColumn(
        "var, min",
        "log10",
        "variance.log10_min",
        "log10 of the smallest variance among the sets the normalizer saw; -inf is a variance of zero.",
    ),
    ReadColumn(
        "var, median",
        "log10",
        "variance.log10_median",
        "log10 of the median variance (RMSNorm: mean square) among the sets the normalizer saw.",
    ),
    ReadColumn(
        "var, max", "log10", "variance.log10_max", "log10 of the largest variance among the sets the normalizer saw."
    ),
    ReadColumn(
        "near eps",
        "percent",
        "variance.share_eps",
        "Share of the sets with a variance below 10 eps, where eps decides the result.",
    ),
    ReadColumn("eps", "log10", log10_eps, "log10 of the stabiliser."),
    ReadColumn("sets", "count", "variance.sets", "How many sets were normalized."),
    ReadColumn("entries", "count", "variance.entries", "How many values one set holds."),
    ReadColumn(
        "dead",
        "count",
        "dead_channels",
        "Output channels that carry nothing: their scale or filter is zero, or their input constant.",
    ),
    ReadColumn("channels", "count", "channels", "Output channels."),
    ReadColumn("parameters", "count", "parameters", "How many the layer holds."),
    ReadColumn("output", "name", lambda row: shape(row.output_shape), "Shape of the output."),
    ReadColumn("notes", "text", lambda row: "; ".join(row.notes) or None, "What was not measured here, and why."),
)
COLUMNS = {column.title: column for column in _COLUMNS}

LAYERS = (
    "layer", "kind", "norm, upper", "norm, lower", "exact", "at data", "folded", "from input", "observed",
    "sensitivity, upper", "sensitivity, lower", "var, median", "dead", "channels", "evidence", "parameters",
    "output", "notes",
)  # fmt: skip
"""Every weight layer and normalizer, in the order they run."""

NORMALIZERS = (
    "layer", "kind", "var, min", "var, median", "var, max", "near eps", "printed", "exact", "at data",
    "folded", "folded with", "eps", "sets", "entries",
)  # fmt: skip
"""The variances that the normalizers saw, and their constants."""

BRIEF = (
    "layer", "kind", "gain", "at data", "folded", "from input", "observed", "sensitivity", "var, median", "dead",
)  # fmt: skip
"""One table for a terminal."""


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
    """Return the report of an audit: the verdict, what explains it and what to do first; everything else folded."""
    blocks = _brief(audit) if brief else [*_first(audit), *_details(audit)]
    return Document(title=f"Audit of {audit.name}", blocks=(*blocks, *([] if brief else glossary(blocks))))


def _first(audit: Audit) -> list[Block]:
    """Return the blocks of the first screen."""
    chart = normalizer_chart(audit.normalizers) or growth_chart(audit) or _gain_chart(audit)
    cards = notices(audit.findings, audit.layers)
    return [
        Text(heading="Verdict", body=audit.verdict, lead=True),
        *(Text(body=text) for text in headline(audit)[: 1 if audit.mode else None]),
        Figures(items=tuple(figures(audit))),
        *(card for card in cards if card.level != "info"),
        *([] if audit.normalizers is None else [Text(body=audit.normalizers.sentence)]),
        *([] if chart is None else [chart]),
        *(card for card in cards if card.level == "info"),
        *cut_short({audit.name: audit}),
        *not_measured({audit.name: audit}),
        *steps(to_see_more(audit)),
    ]


def _details(audit: Audit) -> list[Block]:
    normalizers = [row for row in audit.layers if row.role == "normalizer"]
    growth, useless = growth_chart(audit), why_useless(audit) is not None  # it would press all others into one point
    ladder = None if useless else bracket_chart(audit.ladder, title="The same limit, bounded in several ways")
    time = () if audit.seconds is None else (("time", format_cell(audit.seconds, "seconds")),)
    what = (Column("what", "name"), Column("value"))
    return [
        *part(
            "How much a change can grow",
            *(() if audit.mode is None else (Text(body=text) for text in headline(audit)[1:])),
            None if normalizer_chart(audit.normalizers) is None else growth,
            ladder,
            bracket_table(audit.ladder, title="Bounds by method (log10)", caption=READING_THE_LADDER, noted=audit.notes)
            if audit.ladder
            else None,
            *quantile_part(audit.quantile),
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
            normalizer_table(audit.normalizers),
            row_table(normalizers, NORMALIZERS, caption=READING_THE_LAYERS),
            term="normalized variance",
            folded=True,
        ),
        *part("Loss", Text(body=told) if (told := loss_words(audit.signal)) else None, folded=True),
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
            Table(columns=what, rows=(*audit.provenance.items(), *time)),
            folded=True,
        ),
    ]


def _brief(audit: Audit) -> list[Block]:
    shown_above = set(cuts(audit))
    columns = (Column("not measured"), Column("why"))
    blocks = [
        Text(body=audit.verdict, lead=True),
        *(Text(body=sentence) for sentence in headline(audit)),
        *([] if audit.normalizers is None else [Text(body=audit.normalizers.sentence)]),
        *notices(audit.findings, audit.layers),
        *cut_short({audit.name: audit}),
        bracket_table(audit.ladder, title="bounds (log10)", noted=audit.notes) if audit.ladder else None,
        row_table(audit.layers, BRIEF, title="layers (log10)"),
        Table(columns=columns, rows=audit.skipped) if audit.skipped else None,
        *(Text(body=f"Note: {note}") for note in audit.notes if note not in shown_above),
    ]
    return [block for block in blocks if block is not None]


def cut_short(audits: Mapping[str, Audit]) -> list[Notice]:
    """Return a notice of the audits that `max_seconds` cut short, and of what was cut in each; or nothing."""
    cut = {name: sentences for name, audit in audits.items() if (sentences := cuts(audit))}
    if not cut:
        return []
    which = listed(list(cut), most=len(cut))
    heading = "This audit was cut short by max_seconds" if len(audits) == 1 else f"Cut short by max_seconds: {which}"
    effect = "Bounds hold, but could be tighter; what was not reached is missing. Raise `max_seconds`."
    others = "" if len(cut) == len(audits) else " A difference to the others may come from this alone."
    more = tuple((name if len(audits) > 1 else "", f"{'; '.join(sentences)}.") for name, sentences in cut.items())
    return [Notice(level="info", heading=heading, lines=(("", effect + others),), more=more)]


def not_measured(audits: Mapping[str, Audit]) -> list[Notice]:
    """Return one line for each audit in which something was not measured, with the reasons folded behind it."""
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


def row_series(
    name: str,
    style: Literal["line", "marks", "spans"],
    rows: Sequence[Row],
    value: Read[Row],
    until: Read[Row] | None = None,
) -> list[Series]:
    """Return a list with one series over rows, or an empty list where no row has a value."""
    values = tuple(read_from(row, value) for row in rows)
    if all(item is None for item in values):
        return []
    ends = None if until is None else tuple(read_from(row, until) for row in rows)
    return [Series(name=name, style=style, values=values, until=ends)]


def growth_chart(audit: Audit) -> Chart | None:
    """Return the growth of a change by layer, seen and at most; the line of the bound ends where it is useless."""
    rows = audit.layers
    trunk = _along(rows, "seen at the data", "log10_observed", "log10_trunk_observed")
    inside = row_series("inside branches", "line", rows, lambda row: row.log10_observed if row.bypassed else None)
    observed = [*trunk, *(replace(series, paths=branch_lines(rows), faint=True) for series in inside)]
    bound = _along(
        rows,
        "at most, for any input",
        useful_bound,
        lambda row: useful(row.log10_trunk_cumulative, row.log10_trunk_observed),
    )
    return _row_chart(
        rows,
        (*observed, *bound),
        title="How much a change of the input has grown, layer by layer",
        caption=" ".join(filter(None, (READING_GROWTH if observed else "", _where_it_ends(audit, bound)))),
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


def _along(rows: Sequence[Row], name: str, own: Read[Row], at_branch: Read[Row]) -> list[Series]:
    """Return values along the main line: those of its own rows, and those at the points where branches leave it."""
    lines = row_series(name, "line", rows, lambda row: read_from(row, at_branch if row.bypassed else own))
    return [replace(series, paths=(main_line(rows),)) for series in lines]


def _gain_chart(audit: Audit) -> Chart | None:
    rows = audit.layers
    series = (
        *row_series("weight layer", "spans", rows, "norm.log10_lower", "norm.log10_upper"),
        *row_series("normalizer, any input", "marks", rows, "log10_exact"),
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

    def upper_if(attained: bool) -> Read[Row]:
        return lambda row: (
            read_from(row, "sensitivity.log10_upper") if (sensitivity_lower(row) is not None) is attained else None
        )

    series = (
        *row_series("from the attained to the upper side", "spans", rows, sensitivity_lower, upper_if(True)),
        *row_series("upper side alone", "marks", rows, upper_if(False)),
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


def _row_chart(rows: Sequence[Row], series: tuple[Series, ...], **texts: Any) -> Chart | None:
    """Return a chart over rows, or None where it has no series; `texts` are the other fields of the chart."""
    return Chart(labels=tuple(row.path for row in rows), series=series, **texts) if series else None


EFFECT_NAMES = {
    "shrinks": "shrinks it",
    "grows": "lets it grow",
    "keeps": "keeps it",
    "idle": "idle",
    "eps": "eps decides",
    "few-values": "too few values",
}
"""What normalizers of each kind do, in legends and tables."""
SIDEWAYS = 12
"""Up to this many normalizers have a line each; the bars of more stand side by side."""

EFFECT_COLUMNS = (
    Column(title="normalizer", kind="name"),
    Column(title="fed by", kind="name", help="The weight layer that counts as one with it."),
    Column(title="what it does", kind="name", help="To a small change, as in the chart."),
    Column(
        title="growth",
        kind="factor",
        help="The change as a share of the values, behind the normalizer over in front of the layer that feeds it.",
    ),
    Column(
        title="reaction",
        kind="percent",
        help="How much of the change its statistics take away or add, beside a fixed scale and shift.",
    ),
    Column(
        title="network, frozen",
        kind="factor",
        help="The growth through the whole network, by the distance of the samples, with this normalizer frozen.",
    ),
)


def normalizer_chart(effects: NormalizerEffects | None) -> Chart | None:
    """Return the growth across each normalizer, coloured by what it does; None where none was measured."""
    if effects is None or all(effect.log10_growth is None for effect in effects.normalizers):
        return None
    series = []
    for kind, name in EFFECT_NAMES.items():  # all of them, so that a kind has the same colour on every page
        growths = tuple(effect.log10_growth if effect.kind == kind else None for effect in effects.normalizers)
        start = tuple(None if growth is None else 0.0 for growth in growths)
        series.append(Series(name=name, style="spans", values=start, until=growths))
    return Chart(
        title="What each normalizer does to a small change, together with the layer before it",
        labels=tuple(effect.path for effect in effects.normalizers),
        series=tuple(series),
        caption=f"A random change of {pluralise(effects.samples, 'sample')}, as a share of the values that it changes: "
        "behind the normalizer over in front of the layer that feeds it. Rescaling weights whose size the "
        "function hides moves none of this.",
        axis="log10 of the growth (0.3 is twice, -0.3 is half)",
        sideways=len(effects.normalizers) <= SIDEWAYS,
        term="growth across a normalizer",
    )


def normalizer_table(effects: NormalizerEffects | None) -> Table | None:
    """Return the figures behind the chart; None where there are none."""
    if effects is None:
        return None
    rows = (
        (one.path, one.feeding, EFFECT_NAMES[one.kind], one.log10_growth, one.reaction, one.log10_frozen)
        for one in effects.normalizers
    )
    return Table(title="What each does to a small change", columns=EFFECT_COLUMNS, rows=tuple(rows))
