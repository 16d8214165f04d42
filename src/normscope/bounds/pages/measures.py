"""`measures_document`: measures of generalization as the report a person reads."""

from __future__ import annotations

from collections.abc import Mapping

from ...report.document import Block, Chart, Column, Document, ReadColumn, Series, Table, Text, tabulate
from ...report.words import pluralise, sentence
from ..geometry.measure_table import MeasureRow, Measures

READING = (
    "A larger value should mean a larger gap between training and test error; only the order of two networks counts. "
    "None of these is a bound."
)
INVARIANT = "whether it stays when two layers of a ReLU network are multiplied by c and 1/c"
COLUMNS: tuple[ReadColumn[MeasureRow], ...] = (
    ReadColumn("measure", "name", "name"),
    ReadColumn("value", "number", "value"),
    ReadColumn("", "text", lambda row: "log10" if row.is_log10 else ""),
    ReadColumn("rests on", "text", lambda row: ", ".join(row.rests_on) or "weights"),
    ReadColumn("invariant", "text", "invariant", INVARIANT),
    ReadColumn("formula", "text", "formula"),
    ReadColumn("source", "text", "source"),
)
"""The columns of a page; a terminal has the first five."""
MISSING = (Column("why there is no value"), Column("measures"))


def measures_document(result: Measures, *, brief: bool = False) -> Document:
    """Return the report: what was measured, the table, and why other measures have no value."""
    taken = [row for row in result.rows if row.value is not None]
    missing: dict[str, list[str]] = {}
    for row in result.rows:
        if row.value is None:
            missing.setdefault(row.reason, []).append(row.name)
    head = (
        f"{len(taken)} of {pluralise(len(result.rows), 'measure')} on {pluralise(result.samples, 'sample')} in "
        f"{result.mode} mode, {pluralise(result.layers, 'weight layer')}."
    )
    blocks: list[Block] = [Text(body=head, lead=True)]
    exponents = [row for row in taken if row.is_log10]
    if not brief and exponents:
        values = tuple(row.value for row in exponents)
        blocks.append(
            Chart(
                title="Products and ratios",
                labels=tuple(row.name for row in exponents),
                series=(Series(name="this model", style="marks", values=values),),
                axis="log10 of the measure",
                sideways=True,
            )
        )
    blocks.append(tabulate(taken, COLUMNS[:5] if brief else COLUMNS, title="Measures", caption=READING))
    if missing:
        rows = tuple((sentence(reason), ", ".join(names)) for reason, names in missing.items())
        blocks.append(Table(title="Not measured", columns=MISSING, rows=rows))
    blocks += [Text(body=sentence(note)) for note in result.notes]
    return Document(title=f"Measures of {result.name}", blocks=tuple(blocks))


def compared_measures(results: Mapping[str, Measures], *, brief: bool = False) -> Document:
    """Return measures of several models side by side, and how much each differs."""
    by_name = {name: {row.name: row for row in result.rows} for name, result in results.items()}
    names = dict.fromkeys(row.name for result in results.values() for row in result.rows)
    rows = {name: [rows.get(name) for rows in by_name.values()] for name in names}
    values = {name: tuple(None if row is None else row.value for row in each) for name, each in rows.items()}
    exponents = [name for name, each in rows.items() if any(row is not None and row.is_log10 for row in each)]
    columns = (Column("measure", "name"), Column(""), *(Column(name, "number") for name in results))
    lines = tuple((name, "log10" if name in exponents else "", *values[name]) for name in names)
    blocks: list[Block] = [Text(body=f"Measures of {pluralise(len(results), 'model')} side by side.", lead=True)]
    if not brief and exponents:
        series = tuple(
            Series(name=model, style="marks", values=tuple(values[name][at] for name in exponents))
            for at, model in enumerate(results)
        )
        title, axis = "Products and ratios", "log10 of the measure"
        blocks.append(Chart(title=title, labels=tuple(exponents), series=series, axis=axis, sideways=True))
    blocks.append(Table(title="Measures", columns=columns, rows=lines, caption=READING))
    return Document(title=f"Measures of {', '.join(results)}", blocks=tuple(blocks))
