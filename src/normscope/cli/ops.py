"""`normscope ops`: the operators that have a rule."""

from __future__ import annotations

import json

import typer

from ..report.document import Column, Document, Table
from ..report.terminal import print_document
from ..rules.registry import Rule, rules


def ops(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """List the operators Normscope can bound, and what it knows of each.

    A model can be bounded if every operator between its input and its output is in this list. The error names an
    operator that is not, with its module and source line; add it with @normscope.rule, or give a constant for its
    module with known={...}.
    """
    listed = rules()
    if as_json:
        typer.echo(json.dumps([_plain(rule) for rule in listed], indent=2))
    else:
        print_document(Document(blocks=(_table(listed),)))


def _plain(rule: Rule) -> dict[str, str | int]:
    return {"operator": rule.name, "family": rule.family, "gives": rule.summary, "examples": len(rule.examples)}


def _table(listed: tuple[Rule, ...]) -> Table:
    return Table(
        columns=(
            Column(title="operator"),
            Column(title="family"),
            Column(title="what it gives"),
            Column(title="examples", kind="count"),
        ),
        rows=tuple(tuple(_plain(rule).values()) for rule in listed),
        caption="Every example of every rule runs through the same soundness tests.",
    )
