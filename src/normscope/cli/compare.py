"""`normscope compare`: two or more saved audits, or training runs, side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import typer

from ..core.errors import InputError
from ..core.files import write_text
from ..diagnosis.audit_result import Audit
from ..monitor.run import Run
from ..pages.audit_comparison import compare_document
from ..pages.run_comparison import compare_runs_document
from ..report.document import Document
from ..report.html import to_html
from ..report.terminal import print_document
from .messages import say_written
from .saved import is_run, open_audit, run_names
from .targets import check_targets

HELP = """Compare saved audits, or training runs.

Audits are files that `normscope audit --json FILE` or `audit.to_json(path)` wrote: the comparison has their bounds,
what their normalizers do, and the findings of each. Runs are folders that `ns.watch(..., log=FOLDER)` writes to: the
comparison has their losses, products and variances, the settings that differ, and the alarms of each. Nothing is
measured again.
"""

EXAMPLES = """**Examples**

```
normscope compare plain.json batchnorm.json
normscope compare epoch1.json epoch10.json epoch100.json --html training.html
normscope compare runs/a runs/b --html runs.html
```
"""


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Two or more audits as JSON, or folders of runs.", show_default=False),
    ],
    html: Annotated[Path | None, typer.Option(help="Write the comparison to this file.")] = None,
) -> None:
    """Compare saved audits or runs (the help of the command is HELP)."""
    if len(files) < 2:
        raise InputError("a comparison takes two audits or more, or two runs or more: normscope compare a.json b.json")
    folders = [path for path in files if is_run(path)]
    if folders and len(folders) < len(files):
        other = next(path for path in files if path not in folders)
        raise InputError(f"{folders[0]} is a run and {other} is none: compare runs with runs, audits with audits")
    check_targets(html, inputs=files)
    comparison = _runs(files) if folders else _audits(files)
    if html is not None:
        write_text(html, to_html(comparison(brief=False)))
    print_document(comparison(brief=True))
    say_written(html)


class _Comparison(Protocol):
    """Returns the comparison as a document, for a page or, if brief, for a terminal."""

    def __call__(self, *, brief: bool) -> Document: ...


def _audits(files: list[Path]) -> _Comparison:
    return partial(compare_document, named([(path, open_audit(path)) for path in files]))


def _runs(files: list[Path]) -> _Comparison:
    runs = [(path, Run(path)) for path in files]
    names = run_names(runs)
    return partial(compare_runs_document, {name: run for name, (_, run) in zip(names, runs, strict=True)})


def named(audits: list[tuple[Path, Audit]]) -> dict[str, Audit]:
    """Return audits by unique names: the name of the model, with the name of the file if several models share it."""
    names = [audit.name for _, audit in audits]
    by_name: dict[str, Audit] = {}
    for path, audit in audits:
        name = audit.name if names.count(audit.name) == 1 else f"{audit.name} ({path.stem})"
        while name in by_name:
            name += "'"
        by_name[name] = audit
    return by_name
