"""`normscope ops`: the operators that have a rule."""

from __future__ import annotations

import json

import typer

from ..report.document import Column, Document, Table
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
    listed = operators()
    if as_json:
        typer.echo(json.dumps([_plain(known) for known in listed], indent=2))
    else:
        print_document(Document(blocks=(_table(listed),)))


def _plain(known: Operator) -> dict[str, str | int]:
    return {
        "operator": known.name,
        "family": known.family,
        "gives": known.summary,
        "near": known.near,
        "proof": known.proof,
        "examples": len(known.examples),
    }


def _table(listed: tuple[Operator, ...]) -> Table:
    return Table(
        columns=(
            Column(title="operator"),
            Column(title="family"),
            Column(title="what it gives"),
            Column(title="near a point"),
            Column(title="in a proof"),
            Column(title="examples", kind="count"),
        ),
        rows=tuple(tuple(_plain(known).values()) for known in listed),
        caption="Every example of every rule runs through the same soundness tests.",
    )
