"""`normscope lab reproduce`: run the experiments of the papers, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from normscope.commands import Html, Json, check_targets, options_of, show_result
from normscope.report import Column, Document, Table, print_document

from ..experiments.registry import registered
from ..experiments.reproducing import reproduce as run

HELP = """Run the experiments of the papers on normalization, and judge their claims by the results.

Without a name the experiments are listed. NAME is one of them, the beginning of several (`than`), or `all`.
`--quick`, the default, uses the embedded digits and takes seconds for each; `--full` has the settings of the paper and
may take hours and a GPU: the results of these runs are kept in the package, and `normscope lab claims` reads them.

With `--folder` every finished job is one line of JSON there, and results, tables (CSV) and pictures (SVG) are written
beside them. After an interruption, or if jobs failed, the same command continues from there.

Exit codes: 0 when every job finished, 1 when some did not (they are named with the reason), 2 for an error.
"""

EXAMPLES = """
normscope lab reproduce than.normalizers --quick --html normalizers.html

normscope lab reproduce all --quick --html reproduction.html
normscope lab reproduce than.figure1 --full --data ~/data --folder runs/than
normscope lab reproduce akbar --engine ray
"""


@options_of(run)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments; left out, they are listed.", show_default=False),
    ] = None,
    *,
    full: Annotated[bool, typer.Option("--full/--quick")],
    data: Path | None,
    folder: Path | None,
    engine: Literal["local", "ray"],
    workers: Annotated[int | None, typer.Option(min=0)],
    html: Html = None,
    json: Json = None,
) -> None:
    """Run experiments (the help of the command is HELP)."""
    if not names:
        print_document(_listing())
        return
    check_targets(html, json)
    result = run(names, full=full, data=data, folder=folder, engine=engine, workers=workers)
    show_result(result, html, json, folder)
    if any(one.failed for one in result.items):
        raise typer.Exit(1)


def _listing() -> Document:
    """Return the table of all experiments."""
    columns = (Column(title="name", kind="name"), Column(title="what it is"), Column(title="claims", kind="count"))
    rows = tuple((one.name, one.title, len(one.claims)) for one in registered().values())
    caption = "Run one with normscope lab reproduce NAME, or all of them with normscope lab reproduce all."
    return Document(title="Experiments", blocks=(Table(columns=columns, rows=rows, caption=caption),))
