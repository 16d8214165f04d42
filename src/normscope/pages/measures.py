"""`measures_document`: measures of generalization as the report a person reads."""

from __future__ import annotations

from ..diagnosis.verdict import sentence
from ..generalize.measure_table import MeasureRow, Measures
from ..report.document import Block, Chart, Column, Document, ReadColumn, Series, Table, Text, tabulate
from ..report.words import pluralise

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
