"""`normscope ops`: the operators that have a rule."""

from __future__ import annotations

import json

import typer

from ..report.document import Document, ReadColumn, tabulate
from ..report.terminal import print_document
from ..rules.registry import Operator, operators


def ops(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """List the operators Normscope can bound, and what it knows of each.

    A model can be bounded if every operator between its input and its output is in this list. The error names an
    operator that is not, with its module and source line; add it with @normscope.rule, or give a constant for its
    module with known={...}.

    Near a point (bounds over balls, certified radii) an operator is known by its map, by steps with slopes of their
    own, or by its gain alone, which is looser. In a saved proof it is known by its map or by a word; one that is
    opaque is not followed by the checker, which says so.
    """
    if as_json:
        known = [{KEYS.get(column.title, column.title): column.read(one) for column in COLUMNS} for one in operators()]
        typer.echo(json.dumps(known, indent=2))
    else:
        caption = "Every example of every rule runs through the same soundness tests."
        print_document(Document(blocks=(tabulate(operators(), COLUMNS, caption=caption),)))


COLUMNS: tuple[ReadColumn[Operator], ...] = (
    ReadColumn("operator", "text", lambda one: one.name),
    ReadColumn("family", "text", lambda one: one.family),
    ReadColumn("what it gives", "text", lambda one: one.summary),
    ReadColumn("near a point", "text", lambda one: one.near),
    ReadColumn("in a proof", "text", lambda one: one.proof),
    ReadColumn("examples", "count", lambda one: len(one.examples)),
)
KEYS = {"what it gives": "gives", "near a point": "near", "in a proof": "proof"}
"""Names of columns in JSON, where they differ."""
