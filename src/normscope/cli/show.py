"""`normscope show`: a saved audit, check or radii, or a training run, in the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..report.terminal import print_document
from .lines import say_written
from .saved import open_saved
from .targets import check_targets

HELP = """Show a saved audit, check or certified radii, or a training run.

The file is one that `normscope audit --json FILE`, `normscope check --json FILE`, `normscope radius --json FILE`,
`normscope lipschitz --scope data --json FILE` or `to_json(path)` of such a result wrote; the folder one that
`ns.watch(..., log=FOLDER)` writes to, also while it does. Nothing is measured again.
"""

EXAMPLES = """**Examples**

```
normscope show audit.json
normscope show audit.json --html report.html
normscope show radii.json --html radii.html
normscope show runs/a
normscope show runs/a --html run.html
```
"""


def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="An audit, a check or radii as JSON, or the folder of a run.", show_default=False
        ),
    ],
    html: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Show a saved result or a run (its help is HELP)."""
    check_targets(html, inputs=[file])
    found = open_saved(file)
    if html is not None:
        found.to_html(html)
    print_document(found.document(brief=True))
    say_written(html)
