"""`normscope show` and `normscope compare`: saved results and runs; the `type` in a file says which result it holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import load_from_lab
from ..auditing.audit_result import Audit
from ..auditing.auditing import audit as audit_model
from ..bounds.data.quantile import DataBracket
from ..bounds.geometry.curvature import CURVATURE_RESULTS, Curvature
from ..bounds.geometry.measure_table import Measures
from ..bounds.geometry.symmetries import Symmetries
from ..bounds.radius.radii import Radii
from ..bounds.weights.sensitivity import WeightSensitivity
from ..choosing.choice import Choice
from ..choosing.comparison import Comparison, unique_names
from ..core.errors import InputError
from ..core.files import read_json
from ..core.shown import Shown
from ..doctor.checking.check_result import Check
from ..doctor.monitor.log import FILE
from ..doctor.monitor.run import Run
from ..doctor.pages.live import Followed, LiveServer
from .data_forms import open_data
from .messages import check_targets, one_line, show_result
from .model_forms import open_runnable
from .options import DataOrNoise, Device, Html, Json, Mode, Output, Seed, options_of, output_of

SHOW_EXAMPLES = """
normscope check normscope.networks:mlp --data digits --json check.json
normscope show check.json --html report.html

normscope show audit.json
normscope show runs/a --html run.html
normscope show runs/a --live
normscope show runs/a runs/b --live --port 8000
"""
COMPARE_EXAMPLES = """
normscope audit normscope.networks:mlp --data digits --mode eval --json plain.json
normscope audit normscope.networks:residual_mlp --data digits --mode eval --json residual.json
normscope compare plain.json residual.json --html difference.html

normscope compare epoch1.json epoch10.json epoch100.json --html training.html
normscope compare net.py:before net.py:after --data digits
normscope compare runs/a runs/b --html runs.html
"""


def is_run(path: Path) -> bool:
    """Whether a path names the folder of a run, or the log in it; every folder counts as one."""
    return path.is_dir() or path.name == FILE


def open_saved(path: Path) -> Shown:
    """Read a saved result, or the log of a run. A pipe counts as an audit: it can be read only once."""
    if is_run(path):
        return Run(path)
    if path.suffix == ".html":
        raise InputError(f"{path} is a page: open it in a browser. Shown here are results as JSON, and folders of runs")
    kinds: dict[str, Any] = {
        "check": Check,
        "radii": Radii,
        "run": Run,
        "data_bracket": DataBracket,
        "symmetries": Symmetries,
        "curvature": Curvature,
        "measures": Measures,
        "comparison": Comparison,
        "choice": Choice,
        "weight_sensitivity": WeightSensitivity,
        **CURVATURE_RESULTS,
    }
    kind = _type(path)
    form = load_from_lab("Generalization") if kind == "generalization" else Audit
    result: Shown = kinds.get(kind if isinstance(kind, str) else "", form).from_json(path)
    return result


def open_audit(path: Path) -> Audit:
    """Read a saved audit, for commands that take nothing else."""
    if _type(path) == "radii":
        raise InputError(
            f"{path} holds certified radii and no audit: normscope compare takes audits, models, measures and runs, "
            "normscope show shows radii"
        )
    return Audit.from_json(path)


def _type(path: Path) -> object:
    """Return the `type` in a file; None if there is none: opening the file will then raise the error."""
    try:
        data = read_json(path) if os.path.isfile(path) else None
    except InputError:
        return None
    return data.get("type") if isinstance(data, dict) else None


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
    json: Json = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve a page that updates itself while the runs go on.")
    ] = False,
    port: Annotated[int, typer.Option(help="The port of --live; 0 for any free port.", min=0, max=65535)] = 0,
) -> None:
    """Show a saved result, or a training run.

    The file is one that `normscope audit`, `check`, `choose`, `compare`, `curvature`, `generalization`, `measures`,
    `bound radius`, `bound symmetries` or `bound lipschitz --scope data` wrote with `--json FILE`, or
    `to_json(path)` of such a result; the folder is one that `ns.watch(..., log=FOLDER)` writes to, also while the run
    goes on. Nothing is measured again.

    With `--live` one or more runs are shown on a page that updates itself while they go on: open the address that is
    printed. The page is served to this machine alone, under an address that nobody can guess, and makes no request to
    any other machine; Ctrl-C ends it. On another machine: `ssh -L PORT:127.0.0.1:PORT HOST` with `--port PORT`.
    """
    if live:
        if html is not None or json is not None:
            raise InputError("--live shows a page and writes no file: leave --html and --json out")
        _serve(files, port)
        return
    if len(files) > 1:
        raise InputError(
            f"{len(files)} files given: normscope compare sets them side by side, --live shows several runs"
        )
    check_targets(html, json, inputs=files)
    result = open_saved(files[0])
    show_result(result, html, json)


def _serve(files: Sequence[Path], port: int) -> None:
    """Serve a page of some runs until the user ends it."""
    for file in files:
        if not is_run(file):
            raise InputError(f"{file} is no folder of a run: --live shows runs that ns.watch(..., log=FOLDER) writes")
    runs = [Followed(file) for file in files]
    names = unique_names([followed.run.name for followed in runs], [file.as_posix() for file in files])
    with LiveServer(runs, names, port) as server:
        typer.echo(one_line(f"live at {server.address} (Ctrl-C ends)"))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")


def _audit_model(
    text: str, data: str | None, device: str | None, mode: str | None, output: str | None, seed: int
) -> Audit:
    """Return the audit of a model that the command line names."""
    subject = open_runnable(text, trust=False, device=device, mode=mode)
    batches = open_data(data, subject, batch_size=None, seed=seed)
    options: dict[str, Any] = {"loader": batches.loader, "mode": mode, "seed": seed, "name": subject.name}
    return audit_model(subject.module, batches.first, output=output_of(output), **options)


@options_of(audit_model)
def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Two or more audits as JSON, models (with --data), measures as JSON, or folders of runs.",
            show_default=False,
        ),
    ],
    data: DataOrNoise = None,
    *,
    html: Html = None,
    json: Json = None,
    mode: Mode,
    output: Output,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Compare models, saved audits or measures, or training runs, and show what changed most, layer by layer.

    Audits are files that `normscope audit --json FILE` or `audit.to_json(path)` wrote: the comparison has the layers
    that differ most, their bounds, what their normalizers do, and the findings of each. A model, in the forms that
    `normscope audit` takes but for files and folders, is audited first. Measures are files of `normscope measures
    --json FILE`. Runs are folders that `ns.watch(..., log=FOLDER)` writes to:
    the comparison has their losses, products and variances, the settings that differ, and the alarms of each.
    """
    if len(files) < 2:
        raise InputError("a comparison takes two audits or more, or two runs or more: normscope compare a.json b.json")
    folders = [path for path in files if is_run(path)]
    if folders and len(folders) < len(files):
        other = next(path for path in files if path not in folders)
        raise InputError(f"{folders[0]} is a run and {other} is none: compare runs with runs, audits with audits")
    check_targets(html, json, inputs=files)
    measured = [path for path in files if _type(path) == "measures"]
    if measured and len(measured) < len(files):
        other = next(path for path in files if path not in measured)
        raise InputError(f"{measured[0]} holds measures and {other} does not: compare measures with measures")
    results: list[Any] = [
        Run(path)
        if folders
        else Measures.from_json(path)
        if measured
        else open_audit(path)
        if path.exists() or ":" not in path.name
        else _audit_model(str(path), data, device, mode, output, seed)
        for path in files
    ]
    own = [result.name for result in results]
    names = unique_names(own, [p.as_posix() if folders else f"{n} ({p.stem})" for p, n in zip(files, own, strict=True)])
    by_name = dict(zip(names, results))
    kind = "runs" if folders else "measures" if measured else "audits"
    show_result(Comparison(**{kind: by_name}), html, json)
