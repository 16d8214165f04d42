"""`normscope show`: a saved result, or training runs, in the terminal, as a page, or live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..pages.live import Followed, LiveServer
from ..report.terminal import print_document
from .messages import one_line, say_written
from .options import Html
from .saved import is_run, open_saved, run_names
from .targets import check_targets

HELP = """Show a saved result, or a training run.

The file is one that `normscope audit`, `check`, `radius`, `curve`, `curvature`, `symmetries` or `lipschitz --scope
data` wrote with `--json FILE`, or `to_json(path)` of such a result; the folder is one that `ns.watch(..., log=FOLDER)`
writes to, also while the run goes on. Nothing is measured again.

With `--live` one or more runs are shown on a page that updates itself while they go on: open the address that is
printed. The page is served to this machine alone, under an address that nobody can guess, and makes no request to any
other machine; Ctrl-C ends it. On another machine: `ssh -L PORT:127.0.0.1:PORT HOST` with `--port PORT`.
"""

EXAMPLES = """**Examples**

```
normscope show audit.json
normscope show audit.json --html report.html
normscope show radii.json --html radii.html
normscope show curvature.json --html curvature.html
normscope show runs/a
normscope show runs/a --html run.html
normscope show runs/a --live
normscope show runs/a runs/b --live --port 8000
```
"""


def show(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A saved result as JSON, or the folder of a run; with --live one run or several.",
            show_default=False,
        ),
    ],
    html: Html = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve a page that updates itself while the runs go on.")
    ] = False,
    port: Annotated[int, typer.Option(help="The port of --live; 0 for any free port.", min=0, max=65535)] = 0,
) -> None:
    """Show a saved result or a run (the help of the command is HELP)."""
    if live:
        if html is not None:
            raise InputError("--live shows a page and writes none: leave --html out")
        _serve(files, port)
        return
    if len(files) > 1:
        raise InputError(
            f"{len(files)} files given: normscope compare sets them side by side, --live shows several runs"
        )
    check_targets(html, inputs=files)
    result = open_saved(files[0])
    if html is not None:
        result.to_html(html)
    print_document(result.document(brief=True))
    say_written(html)


def _serve(files: Sequence[Path], port: int) -> None:
    """Serve a page of some runs until the user ends it."""
    for file in files:
        if not is_run(file):
            raise InputError(f"{file} is no folder of a run: --live shows runs that ns.watch(..., log=FOLDER) writes")
    runs = [Followed(file) for file in files]
    names = run_names([(file, followed.run) for file, followed in zip(files, runs, strict=True)])
    with LiveServer(runs, names, port) as server:
        typer.echo(one_line(f"live at {server.address} (Ctrl-C ends)"))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")
