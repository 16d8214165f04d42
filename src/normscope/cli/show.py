"""`normscope show`: a saved audit, in the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..diagnosis.page import audit_document
from ..diagnosis.result import Audit
from ..report.terminal import print_document
from .lines import say_written
from .targets import check_targets

HELP = """Show a saved audit.

The file is one that `normscope audit --json FILE` or `audit.to_json(path)` wrote. Nothing is measured again.
"""

EXAMPLES = """**Examples**

```
normscope show audit.json
normscope show audit.json --html report.html
```
"""


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit as JSON.", show_default=False)],
    html: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Show a saved audit (its help is HELP)."""
    check_targets(html, inputs=[file])
    found = Audit.from_json(file)
    print_document(audit_document(found, brief=True))
    if html is not None:
        found.to_html(html)
        say_written(html)
