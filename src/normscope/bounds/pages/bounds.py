"""The reports of a bracket, a ladder of them and a graph."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.bracket import Bracket
from ...report.brackets import BRACKET_COLUMNS, Rung, bracket_chart, bracket_table, span_series
from ...report.document import Block, Chart, Column, Document, ReadColumn, Table, Text, tabulate
from ...report.words import pluralise, shape
from ..graph.ir import Graph
from ..ladder import Ladder


def bracket_document(bracket: Bracket, *, brief: bool = False) -> Document:
    """Return the report: the bracket, those of its samples and outputs, and what the reader must know."""
    brackets = {bracket.method or "bracket": bracket} | _parts(bracket)
    rows = [Rung(names=(name,), bracket=one) for name, one in brackets.items()]
    columns: tuple[ReadColumn[Rung], ...] = (
        ReadColumn("bracket", "text", lambda rung: rung.names[0]),
        *BRACKET_COLUMNS,
        ReadColumn("why", "text", "bracket.reason"),
    )
    blocks: list[Block] = [Text(body=str(bracket), lead=True), span_chart(brackets)]
    blocks.append(tabulate(rows, columns, title="Both sides (log10)", drop_empty=True))
    blocks += [Text(body=f"Note: {note}") for note in bracket.notes]
    return Document(title="A number between two sides", blocks=tuple(blocks))


def _parts(bracket: Bracket) -> dict[str, Bracket]:
    """Return the brackets of samples and of outputs, by a name."""
    samples = {f"sample {number}": one for number, one in enumerate(bracket.per_sample or ())}
    return samples | {f"output {number}": one for number, one in enumerate(bracket.per_output or ())}


def span_chart(brackets: Mapping[str, Bracket], title: str = "From the lower to the upper side") -> Chart:
    """Return brackets as bars from the lower to the upper side."""
    spans = span_series(brackets.values())
    return Chart(title=title, labels=tuple(brackets), series=(spans,), axis="log10", sideways=True)


def ladder_document(ladder: Ladder, *, brief: bool = False) -> Document:
    """Return the brackets as a chart and a table; methods that agree are one line."""
    chart = bracket_chart(ladder, title="How much a change of the input can grow, bounded in several ways")
    blocks = (*(() if chart is None else (chart,)), bracket_table(ladder, title="Bounds by method (log10)"))
    return Document(blocks=blocks)


def graph_document(graph: Graph, *, brief: bool = False) -> Document:
    """Return the operators as a table, in the order they run."""
    titles = ("name", "operator", "reads", "shape", "module", "source")
    rows: list[tuple[str | None, ...]] = [
        (item.name, "input", None, shape(item.shape), item.path or None, None) for item in graph.inputs
    ]
    rows += [
        (n.name, n.operator, ", ".join(n.refs) or None, shape(n.shape), n.path or None, n.source or None)
        for n in graph.nodes
    ]
    what = "one sample" if graph.per_sample else "the whole batch"
    title = f"Graph of {pluralise(len(graph.nodes), 'operator')} in {graph.mode} mode, over {what}"
    columns = tuple(Column(title=title, kind="name") for title in titles)
    notes = [Text(body=f"Note: {note}") for note in graph.notes]
    return Document(blocks=(Table(title=title, columns=columns, rows=tuple(rows)), *notes))
