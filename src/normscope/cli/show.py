"""`normscope show`: a saved audit or saved radii, in the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..bounds.radius.page import radii_document
from ..bounds.radius.radii import Radii
from ..diagnosis.page import audit_document
from ..report.terminal import print_document
from .lines import say_written
from .saved import open_saved
from .targets import check_targets

HELP = """Show a saved audit, or saved certified radii.

The file is one that `normscope audit --json FILE`, `normscope radius --json FILE` or `to_json(path)` of an audit or of
radii wrote. Nothing is measured again.
"""

EXAMPLES = """**Examples**

```
normscope show audit.json
normscope show audit.json --html report.html
normscope show radii.json --html radii.html
```
"""


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit or radii as JSON.", show_default=False)],
    html: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Show a saved result (its help is HELP)."""
    check_targets(html, inputs=[file])
    found = open_saved(file)
    brief = radii_document(found, brief=True) if isinstance(found, Radii) else audit_document(found, brief=True)
    print_document(brief)
    if html is not None:
        found.to_html(html)
        say_written(html)
