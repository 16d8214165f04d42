"""`normscope compare`: two or more saved audits side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..core.files import write_text
from ..diagnosis.comparing import compare_document
from ..diagnosis.result import Audit
from ..report.html import to_html
from ..report.terminal import print_document
from .lines import say_written
from .saved import open_audit
from .targets import check_targets

HELP = """Compare saved audits: their bounds, what their normalizers do, and what was found in each.

The files are those that `normscope audit --json FILE` or `audit.to_json(path)` wrote. Nothing is measured again.
"""

EXAMPLES = """**Examples**

```
normscope compare plain.json batchnorm.json
normscope compare epoch1.json epoch10.json epoch100.json --html training.html
```
"""


def compare(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Two or more audits as JSON.", show_default=False)
    ],
    html: Annotated[Path | None, typer.Option(help="Write the comparison to this file.")] = None,
) -> None:
    """Compare saved audits (its help is HELP)."""
    if len(files) < 2:
        raise InputError("a comparison takes two audits or more: normscope compare a.json b.json")
    check_targets(html, inputs=files)
    audits = named([(path, open_audit(path)) for path in files])
    print_document(compare_document(audits, brief=True))
    if html is not None:
        write_text(html, to_html(compare_document(audits)))
        say_written(html)


def named(audits: list[tuple[Path, Audit]]) -> dict[str, Audit]:
    """Return audits by a name of their own: the model's, with the file's where several models share it.

    Args:
        audits: with the files they come from.
    """
    names = [audit.name for _, audit in audits]
    found: dict[str, Audit] = {}
    for path, audit in audits:
        name = audit.name if names.count(audit.name) == 1 else f"{audit.name} ({path.stem})"
        while name in found:
            name += "'"
        found[name] = audit
    return found
