"""Open saved results and runs; the `type` in a file says which result it holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..bounds.curve.curve import ShareCurve
from ..bounds.data.quantile import DataBracket
from ..bounds.radius.radii import Radii
from ..core.errors import InputError
from ..core.files import read_json
from ..diagnosis.audit_result import Audit
from ..diagnosis.checked import Check
from ..generalize.generalization_table import Generalization
from ..geometry.curvature import KINDS as MEASURED
from ..geometry.curvature import Curvature
from ..geometry.symmetry import Symmetries
from ..monitor.log import FILE
from ..monitor.run import Run
from ..report.shown import Shown


def is_run(path: Path) -> bool:
    """Whether a path names the folder of a run, or the log in it; every folder counts as one."""
    return path.is_dir() or path.name == FILE


def open_saved(path: Path) -> Shown:
    """Read a saved result, or the log of a run. A pipe counts as an audit: it can be read only once."""
    if is_run(path):
        return Run(path)
    kinds: dict[str, Any] = {
        "check": Check,
        "radii": Radii,
        "data_bracket": DataBracket,
        "share_curve": ShareCurve,
        "symmetries": Symmetries,
        "curvature": Curvature,
        "generalization": Generalization,
        **MEASURED,
    }
    kind = _type(path)
    result: Shown = kinds.get(kind if isinstance(kind, str) else "", Audit).from_json(path)
    return result


def run_names(runs: Sequence[tuple[Path, Run]]) -> list[str]:
    """Return a unique name for each run: the name of its folder, or its path if several folders share a name."""
    own = [run.name for _, run in runs]
    names: list[str] = []
    for path, run in runs:
        name = run.name if own.count(run.name) == 1 else path.as_posix()
        while name in names:
            name += "'"
        names.append(name)
    return names


def open_audit(path: Path) -> Audit:
    """Read a saved audit, for commands that take nothing else."""
    if _type(path) == "radii":
        raise InputError(
            f"{path} holds certified radii and no audit: normscope compare takes audits alone, "
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
