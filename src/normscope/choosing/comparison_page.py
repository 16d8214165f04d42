"""Audits, measures or runs side by side: the sentences, the tables and the charts of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..auditing.audit_result import Audit, Row
from ..auditing.findings import useful
from ..auditing.headline import to_see_more, why_useless
from ..auditing.page import COLUMNS, cut_short, not_measured, own_gain, useful_bound
from ..bounds.pages.measures import compared_measures
from ..bounds.pages.radii import compared_curves, compared_radii
from ..bounds.radius.radii import Radii
from ..core.errors import InputError
from ..core.finding import Finding, Severity
from ..doctor.checking.verdict import groups, places
from ..doctor.monitor.run import Run
from ..doctor.pages.check import NAMED, notices, steps, tally
from ..doctor.pages.run import (
    NORM,
    PRODUCTS,
    VARIANCE,
    LayerPicture,
    Points,
    settings,
    steps_taken,
    total_curves,
    view_curves,
)
from ..report.brackets import LADDER_CHART, PLAIN
from ..report.document import (
    Block,
    Cell,
    CellFormat,
    Chart,
    Column,
    Curves,
    Document,
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
from ..report.words import factor, format_cell, listed, pluralise, sentence
from .comparison import Comparison, Key, difference, find_changes, match_rows, merged_order


def comparison_document(comparison: Comparison, *, brief: bool = False) -> Document:
    """Return audits, measures or runs as one comparison."""
    if comparison.runs:
        return compare_runs_document(comparison.runs, brief=brief)
    if comparison.measures:
        return compared_measures(comparison.measures, brief=brief)
    return compare_document(comparison.audits, brief=brief)


def _side_by_side(
    results: Mapping[str, Any], verdict: str, blocks: Iterable[Block | None], *, brief: bool, title: str = ""
) -> Document:
    """Return the page of results: its verdict, what is compared, and the meanings of its terms."""
    shown = [Text(heading="Verdict", body=verdict, lead=True), *(block for block in blocks if block is not None)]
    title = title or f"Comparison of {listed(list(results), most=4)}"
    return Document(title=title, blocks=(*shown, *([] if brief else glossary(shown))))


def compared_verdict(audits: Mapping[str, Audit]) -> str:
    """Return in one sentence in which audit a change at the data grows most, and in which problems were found."""
    growth = {name: audit.observed.log10_upper for name, audit in audits.items() if audit.observed is not None}
    clauses = []
    if len(growth) > 1:
        most, least = max(growth, key=lambda name: growth[name]), min(growth, key=lambda name: growth[name])
        if factor(growth[most]) == factor(growth[least]):
            clauses.append(f"a small change of the data grows alike in all of them ({factor(growth[most])} times)")
        else:
            clauses.append(
                f"a small change of the data grows most in {most} ({factor(growth[most])} times) and least in {least} "
                f"({factor(growth[least])} times)"
            )
    wrong = [name for name, audit in audits.items() if any(f.severity > Severity.INFO for f in audit.findings)]
    clauses.append(f"problems were found in {listed(wrong, most=4)}" if wrong else "no problems found in any of them")
    return sentence("; ".join(clauses))


def compared_steps(audits: Mapping[str, Audit]) -> list[str]:
    """Return what to do so that audits show more; a step for several audits once."""
    owners: dict[str, list[str]] = {}
    for name, audit in audits.items():
        for step in to_see_more(audit):
            owners.setdefault(step, []).append(name)
    return [
        f"{'All' if len(names) == len(audits) else listed(names, most=4)}: {step}" for step, names in owners.items()
    ]


def compared_findings(audits: Mapping[str, Audit]) -> list[Block]:
    """Return one card per kind of finding, which says in which audits it was found and where in each."""
    owner = {id(finding): name for name, audit in audits.items() for finding in audit.findings}
    every = [finding for audit in audits.values() for finding in audit.findings]
    if not every:
        return [Text(body="Nothing was found in any of them.")]
    blocks: list[Block] = []
    for group in groups(every):
        by_audit: dict[str, list[Finding]] = {}
        for finding in group:
            by_audit.setdefault(owner[id(finding)], []).append(finding)
        distinct = list({finding.where: finding for finding in reversed(group)}.values())[::-1]
        (card,) = notices(distinct)
        met = (
            "in every audit"
            if len(by_audit) == len(audits)
            else f"only in {listed(list(by_audit), most=len(by_audit))}"
        )
        where = tuple((name, places(members, NAMED)) for name, members in by_audit.items()) if group[0].where else ()
        rest = tuple(line for line in card.more if line[0] != "layers")
        blocks.append(replace(card, where=met, more=(*where, *rest)))
    return blocks


def headline_table(audits: Mapping[str, Audit], accuracy: Mapping[str, float]) -> Table:
    """Return how much a change grows in each audited network, at the data, near it and anywhere, and what was found."""
    columns: list[ReadColumn[tuple[str, Audit]]] = [
        ReadColumn("audit", "text", lambda named: named[0]),
        ReadColumn("accuracy", "percent", lambda named: accuracy.get(named[0]), "Share of correct answers."),
        ReadColumn(
            "growth at the data",
            "log10",
            lambda named: read_from(named[1], "observed.log10_upper"),
            "log10 of how much a small change of the data grows at most: the largest Jacobian norm seen.",
        ),
        ReadColumn(
            "for any input",
            "log10",
            lambda named: _any_input(named[1]),
            "log10 of how much any change of any input grows at most: the upper side of the Lipschitz "
            "constant. 'none' is a bound of no use, more than a millionfold above the data.",
        ),
        ReadColumn("findings", "text", lambda named: tally(named[1].findings)),
    ]
    kept = [column for column in columns if accuracy or column.title != "accuracy"]
    return tabulate(audits.items(), kept, title="Side by side (log10: 1 is ten times)")


def _any_input(audit: Audit) -> Cell:
    """Return the bound over all inputs, or "none" where it is useless."""
    useless = audit.lipschitz is not None and why_useless(audit) is not None
    return "none" if useless else read_from(audit, "lipschitz.log10_upper")


LEFT_OUT = "Bounds that are infinite or a millionfold above the data are not drawn; the table has them."

READING = "Every figure is an exponent of ten (log10) unless its heading says otherwise; a dash is not measured."


MOST_CHANGED = 10
"""How many layers the table of the largest changes has."""


def _changes_table(audits: Mapping[str, Audit]) -> Table | None:
    """Return the layers that differ most between the audits, the largest difference first; None where none does."""
    changes = find_changes(audits)
    rows = tuple((one.path, one.quantity, *compare_values(one.values)) for one in changes[:MOST_CHANGED])
    caption = _reading_delta(audits)
    if len(changes) > MOST_CHANGED:
        caption += f" The {MOST_CHANGED} largest of {len(changes):,} changes."
    columns = (Column("layer", "name"), Column("what", "text"), *compared_columns(audits))
    title = "What changed most, layer by layer (log10)"
    return Table(title=title, caption=caption, columns=columns, rows=rows) if rows else None


def compare_document(
    audits: Mapping[str, Audit],
    *,
    brief: bool = False,
    accuracy: Mapping[str, float] | None = None,
    radii: Mapping[str, Radii] | None = None,
    about: str = "",
    title: str = "",
) -> Document:
    """Return audits by the names to show as one comparison with the first: the main differences, then layers by path.

    The brief form, for a terminal, has no charts, and layers only where two audits are compared. Accuracies and radii
    are by the same names; without radii those of the audits are shown if they all have some.
    """
    if len(audits) < 2:
        raise InputError(f"{pluralise(len(audits), 'audit')} given: a comparison needs at least two")
    rows = match_rows(audits)
    owned = {name: audit.radii for name, audit in audits.items() if audit.radii is not None}
    radii = radii or (owned if len(owned) == len(audits) else {})
    observed, bounded, alone = (None, None, None) if brief else _charts(audits, rows)
    first = observed or bounded or alone  # it is shown above all parts
    modes = ", ".join(f"{name}: {audit.mode or 'weights only'}" for name, audit in audits.items())
    warning = f"The audits were made in different modes, so their figures are of different functions ({modes})."
    with_layers = not brief or len(audits) == 2
    blocks = [
        Text(body=about) if about and not brief else None,
        Text(body=warning) if len({audit.mode for audit in audits.values()}) > 1 else None,
        headline_table(audits, accuracy or {}),
        _changes_table(audits),
        first,
        *compared_findings(audits),
        *cut_short(audits),
        *not_measured(audits),
        *([] if brief else steps(compared_steps(audits))),
        *part(
            "How much a change can grow",
            None if brief else _ladder_chart(audits),
            _ladder_table(audits),
            None if bounded is first else bounded,
            term="ladder of bounds",
            folded=True,
        ),
        *part(
            "Layers",
            None if alone is first else alone,
            *(_layer_tables(audits, rows) if with_layers else []),
            folded=True,
        ),
        *part(
            "Changes that cannot change the class",
            compared_radii(radii) if radii else None,
            *(compared_curves(radii) if radii and not brief else []),
            term="certified radius",
            folded=True,
        ),
        *([] if brief else part("About these audits", _about_layers(audits, rows), _about_table(audits), folded=True)),
    ]
    return _side_by_side(audits, compared_verdict(audits), blocks, brief=brief, title=title)


def _about_layers(audits: Mapping[str, Audit], rows: Mapping[Key, Mapping[str, Row]]) -> Text:
    common = sum(len(owners) == len(audits) for owners in rows.values())
    return Text(
        body=f"{pluralise(len(audits), 'audit')}, compared with {next(iter(audits))}: "
        f"{pluralise(len(rows), 'layer')} by path, of which {common:,} in every audit."
    )


def _left_out(audits: Mapping[str, Audit]) -> str:
    """Return a sentence that some bounds are not drawn; empty if all are."""
    return "" if all(why_useless(audit) is None for audit in audits.values()) else LEFT_OUT


def _about_table(audits: Mapping[str, Audit]) -> Table:
    columns: list[ReadColumn[tuple[str, Audit]]] = [
        ReadColumn("audit", "text", lambda named: named[0]),
        ReadColumn("parameters", "count", lambda named: named[1].parameters),
        ReadColumn("layers", "count", lambda named: len(named[1].layers)),
        ReadColumn("mode", "name", lambda named: named[1].mode or "weights only"),
        ReadColumn("samples", "count", lambda named: named[1].samples),
        ReadColumn(
            "lower",
            "log10",
            lambda named: read_from(named[1], "lipschitz.log10_lower"),
            "log10 of the growth between two inputs that were found.",
        ),
        ReadColumn("notes", "text", lambda named: "; ".join(named[1].notes) or None),
    ]
    return tabulate(audits.items(), columns, title="What was audited", caption=READING)


def _ladder_table(audits: Mapping[str, Audit]) -> Table | None:
    rungs = _rungs(audits)
    if not rungs:
        return None
    return Table(
        title="Upper sides by method (log10)",
        caption=f"{READING} {_reading_delta(audits)}",
        columns=(Column("bound"), *compared_columns(audits), Column("methods")),
        rows=tuple((label, *compare_values(values), ", ".join(names)) for label, names, values in rungs),
    )


def _rungs(audits: Mapping[str, Audit]) -> list[tuple[str, list[str], list[float | None]]]:
    """Return a label, the names and the upper sides of each method; methods that agree in every audit are merged."""
    merged: dict[tuple[str, ...], list[str]] = {}
    names = list(dict.fromkeys(rung for audit in audits.values() for rung in audit.ladder))
    values = {
        rung: [audit.ladder[rung].log10_upper if rung in audit.ladder else None for audit in audits.values()]
        for rung in names
    }
    for rung in names:
        key = ("observed" if rung == "observed" else "", *(format_cell(value, "log10") for value in values[rung]))
        merged.setdefault(key, []).append(rung)
    return [
        (PLAIN["best"] if "best" in alike else PLAIN.get(alike[0], alike[0]), alike, values[alike[0]])
        for alike in merged.values()
    ]


def _reading_delta(audits: Mapping[str, Audit]) -> str:
    return f"Δ is how much larger an exponent is than that of {next(iter(audits))}: 1 is ten times as much."


def compared_columns(names: Iterable[str]) -> list[Column]:
    """Return a column for each of several results, and one for the difference of each other from the first."""
    first, *others = names
    differences = [Column(f"Δ {name}", "log10", f"{name} less {first}: 1 is ten times as much.") for name in others]
    return [*(Column(name, "log10") for name in (first, *others)), *differences]


def compare_values(values: Sequence[float | None]) -> list[Cell]:
    """Return the cells of these columns."""
    first, *others = values
    return [*values, *(difference(value, first) for value in others)]


def _ladder_chart(audits: Mapping[str, Audit]) -> Chart | None:
    observed = [None if audit.observed is None else audit.observed.log10_upper for audit in audits.values()]
    useful_values = [(label, list(map(useful, values, observed))) for label, _, values in _rungs(audits)]
    drawn = [(label, values) for label, values in useful_values if any(value is not None for value in values)]
    if not drawn:
        return None
    series = tuple(
        Series(name=name, style="marks", values=tuple(values[index] for _, values in drawn))
        for index, name in enumerate(audits)
    )
    return Chart(
        title="The same limit, bounded in several ways",
        caption=_left_out(audits),
        labels=tuple(label for label, _ in drawn),
        series=series,
        **LADDER_CHART,
    )


def _layer_tables(audits: Mapping[str, Audit], rows: Mapping[Key, Mapping[str, Row]]) -> list[Table]:
    columns = {
        "Gain of each layer (log10)": "gain",
        "Gain of a normalizer with the layer before it (log10)": "folded",
        "Bound from the input to each layer (log10)": "from input",
        "Observed from the input to each layer (log10)": "observed",
        "Sensitivity of the output to each weight, attained (log10)": "sensitivity, lower",
        "Sensitivity of the output to each weight, upper side (log10)": "sensitivity, upper",
    }
    tables = (_layer_table(audits, rows, title, COLUMNS[column]) for title, column in columns.items())
    return [table for table in tables if table is not None]


def _layer_table(
    audits: Mapping[str, Audit], rows: Mapping[Key, Mapping[str, Row]], title: str, column: ReadColumn[Row]
) -> Table | None:
    """Return a column of one audit as a table with a column for each audit."""
    lines = []
    for (path, *_), by_audit in rows.items():
        values = [read_from(by_audit[name], column.read) if name in by_audit else None for name in audits]
        if any(value is not None for value in values):
            kinds = " / ".join(dict.fromkeys(row.kind for row in by_audit.values()))
            lines.append(
                (path, kinds, *compare_values(values), None if len(by_audit) == len(audits) else ", ".join(by_audit))
            )
    if not lines:
        return None
    caption = f"{column.help} {_reading_delta(audits)}"
    columns = [Column("layer", "name"), Column("kind", "name"), *compared_columns(audits)]
    owners = Column("only in", help="The audits that have this layer, where not all do.")
    if all(line[-1] is None for line in lines):
        return Table(title=title, caption=caption, columns=tuple(columns), rows=tuple(line[:-1] for line in lines))
    return Table(title=title, caption=caption, columns=(*columns, owners), rows=tuple(lines))


def _charts(
    audits: Mapping[str, Audit], rows: Mapping[Key, Mapping[str, Row]]
) -> tuple[Chart | None, Chart | None, Chart | None]:
    """Return three charts of all audits: the observed growth, the bound on it, and the gain of each layer.

    A chart is None where nothing was measured. Each audit has the same colour throughout.
    """
    labels, aligned = _align_rows(audits, rows)

    def chart(
        title: str, style: Literal["line", "marks"], read: Read[Row], term: str, caption: str = ""
    ) -> Chart | None:
        values = {
            name: tuple(None if row is None else read_from(row, read) for row in layers)
            for name, layers in aligned.items()
        }
        if all(value is None for series in values.values() for value in series):
            return None
        series = tuple(Series(name=name, style=style, values=values[name]) for name in audits)
        axis = f"log10 of the {'growth' if style == 'line' else 'gain'} (1 is ten times)"
        return Chart(title=title, labels=labels, series=series, axis=axis, term=term, caption=caption)

    bounded, limit = "How much any change may have grown, layer by layer", "Lipschitz constant"
    return (
        chart("How much a change of the data has grown, layer by layer", "line", "log10_observed", "Jacobian norm"),
        chart(bounded, "line", useful_bound, limit, _left_out(audits)),
        chart("How much each layer alone can stretch what it is given", "marks", own_gain, "operator norm"),
    )


def _align_rows(
    audits: Mapping[str, Audit], rows: Mapping[Key, Mapping[str, Row]]
) -> tuple[tuple[str, ...], dict[str, list[Row | None]]]:
    """Return the labels along the depth, and the row of each audit at each of them.

    Networks that share their layers are aligned by path. Where only the number of weight layers is the same (a network
    with and without normalizers) these are aligned; networks with less in common are not drawn in one chart.
    """
    weights = {name: [row for row in audit.layers if row.role == "weight"] for name, audit in audits.items()}
    shared = sum(len(by_audit) == len(audits) for by_audit in rows.values())
    as_many_weights = len({len(layers) for layers in weights.values()}) == 1
    if shared == len(rows) or (2 * shared >= len(rows) and not as_many_weights):
        by_path: dict[str, list[Row | None]] = {
            name: [by_audit.get(name) for by_audit in rows.values()] for name in audits
        }
        return tuple(path for path, *_ in rows), by_path
    if not as_many_weights:
        return (), {name: [] for name in audits}
    paths = [{row.path for row in aligned} for aligned in zip(*weights.values())]
    labels = (names.pop() if len(names) == 1 else f"weight layer {at + 1}" for at, names in enumerate(paths))
    return tuple(labels), {name: list(layers) for name, layers in weights.items()}


NOT_SETTINGS = ("began",)
"""Entries that differ between any two runs, and that a comparison leaves out."""


def compare_runs_document(runs: Mapping[str, Run], *, brief: bool = False) -> Document:
    """Return runs by the names to show, compared with the first; the brief form has no picture of all layers."""
    if len(runs) < 2:
        raise InputError(f"{pluralise(len(runs), 'run')} given: a comparison needs at least two")
    loss = _overlaid(runs, "loss", "Loss by step", "loss")
    products = [_overlaid(runs, key, f"Product: {name}", "log10 of the product") for key, name in PRODUCTS]
    gradient = _overlaid(runs, "log10_gradient", "Size of the whole gradient", "log10 of the norm")
    blocks = [
        None if brief else Text(body=_summary(runs)),
        _runs_table(runs),
        loss,
        *_alarms(runs),
        *part("Settings that differ", _settings_table(runs), folded=True),
        *part("Products", *products, term="printed product", folded=True),
        *part("Gradients", gradient, folded=True),
        *part("Normalizers", *_pictures(runs, VARIANCE, brief), _last_values_table(runs, VARIANCE), folded=True),
        *part("Weights", *_pictures(runs, NORM, brief), _last_values_table(runs, NORM), folded=True),
    ]
    return _side_by_side(runs, _runs_verdict(runs), blocks, brief=brief)


def _runs_verdict(runs: Mapping[str, Run]) -> str:
    """Return in one sentence in which runs alarms were raised, and which has the smallest loss."""
    wrong = [name for name, run in runs.items() if any(f.severity > Severity.INFO for f in run.findings)]
    clauses = [f"alarms were raised in {listed(wrong, most=4)}" if wrong else "no alarms in any of them"]
    losses = {name: loss for name, run in runs.items() if (loss := _end(run.total("loss"), -1)) is not None}
    finite = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    if len(losses) > 1 and finite:
        best = min(finite, key=lambda name: finite[name])
        clauses.append(f"the last loss is least in {best} ({finite[best]:.4g})")
    return sentence("; ".join(clauses))


def _summary(runs: Mapping[str, Run]) -> str:
    layers = [{(layer.kind, layer.name) for layer in run.layers} for run in runs.values()]
    return (
        f"{pluralise(len(runs), 'run')}, compared with {next(iter(runs))}: "
        f"{pluralise(len(set.union(*layers)), 'layer')} by "
        f"name, of which {len(set.intersection(*layers)):,} in every run. Figures are exponents of ten (log10) unless "
        "their heading says otherwise; a dash is not measured."
    )


def _runs_table(runs: Mapping[str, Run]) -> Table:
    def total(title: str, kind: CellFormat, quantity: str, index: int, help: str = "") -> ReadColumn[tuple[str, Run]]:
        return ReadColumn(title, kind, lambda named: _end(named[1].total(quantity), index), help)

    norms, folded = (
        "log10 of the product of the operator norms.",
        "log10 of the product with the normalizers folded in.",
    )
    columns: list[ReadColumn[tuple[str, Run]]] = [
        ReadColumn("run", "text", lambda named: named[0]),
        ReadColumn("model", "name", lambda named: named[1].metadata.get("model")),
        ReadColumn("steps", "count", lambda named: steps_taken(named[1])),
        total("first loss", "number", "loss", 0),
        total("last loss", "number", "loss", -1),
        total("norms, first", "log10", "log10_printed", 0, norms),
        total("norms, last", "log10", "log10_printed", -1),
        total("folded, first", "log10", "log10_folded", 0, folded),
        total("folded, last", "log10", "log10_folded", -1),
        ReadColumn("alarms", "name", lambda named: tally(named[1].findings)),
        ReadColumn(
            "overhead",
            "percent",
            lambda named: None if named[1].ended is None else named[1].ended.overhead,
            "Share of the time that watching took.",
        ),
        ReadColumn("end", "name", lambda named: None if named[1].ended is None else named[1].ended.how),
    ]
    return tabulate(runs.items(), columns, title="Headline figures")


def _end(points: Points, index: int) -> float | None:
    return points[index][1] if points else None


def _settings_table(runs: Mapping[str, Run]) -> Table | None:
    by_run = {name: settings(run) for name, run in runs.items()}
    keys = dict.fromkeys(key for values in by_run.values() for key in values if key not in NOT_SETTINGS)
    rows = [(key, *(values.get(key) for values in by_run.values())) for key in keys]
    different = tuple(row for row in rows if len(set(row[1:])) > 1)
    if not different:
        return None
    columns = (Column("setting", "name"), *(Column(name, "name") for name in runs))
    return Table(columns=columns, rows=different)


def _alarms(runs: Mapping[str, Run]) -> Iterator[Block]:
    if not any(run.findings for run in runs.values()):
        yield Text(body="No alarm was raised in any of them.")
        return
    for name, run in runs.items():
        yield Text(body=f"In {name}: {tally(run.findings)}.")
        yield from notices(run.findings)


def _overlaid(runs: Mapping[str, Run], quantity: str, title: str, axis: str) -> Curves | None:
    """Return one figure of the whole network as a picture with a curve per run; a run has one colour everywhere."""
    courses: dict[str, Points] = {name: run.total(quantity) for name, run in runs.items()}
    return total_curves(courses, title=title, axis=axis, logarithmic=quantity == "loss")


def _pictures(runs: Mapping[str, Run], view: LayerPicture, brief: bool) -> list[Curves]:
    """Return a picture per run, all with the same value axis."""
    if brief:
        return []
    values = [
        value
        for run in runs.values()
        for points in run.course(view.kind, view.quantity).values()
        for _, value in points
        if math.isfinite(value)
    ]
    span = (min(values), max(values)) if values else None
    pictures = ((name, view_curves(run, view, span=span)) for name, run in runs.items())
    drawn = [replace(picture, title=f"{view.title}: {name}") for name, picture in pictures if picture is not None]
    return [picture if picture is drawn[-1] else replace(picture, caption="") for picture in drawn]


def _last_values_table(runs: Mapping[str, Run], view: LayerPicture) -> Table | None:
    """Return the last value of every layer in every run, and its difference from that in the first run."""
    lasts = [
        {name: points[-1][1] for name, points in run.course(view.kind, view.quantity).items()} for run in runs.values()
    ]
    order = merged_order([[layer.name for layer in run.of(view.kind)] for run in runs.values()])
    rows = []
    for name in order:
        values = [by_name.get(name) for by_name in lasts]
        if any(value is not None for value in values):
            rows.append((name, *compare_values(values)))
    title, columns = (
        f"{view.title}: at the last measurement (log10)",
        (Column("layer", "name"), *compared_columns(runs)),
    )
    return Table(title=title, columns=columns, rows=tuple(rows)) if rows else None
