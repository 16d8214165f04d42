"""The origin of a result: day, commit, machine, versions and processor time."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from normscope.report import pluralise
from normscope.toolkit import provenance


def origin() -> dict[str, str]:
    """Return the day (UTC), the commit, the kind of machine and the versions behind a result; no host, no path."""
    versions = provenance(torch.device("cuda") if torch.cuda.is_available() else None)
    threads = f"{pluralise(torch.get_num_threads(), 'CPU thread')} ({versions['machine']})"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": f"{versions['device']}, {threads}" if "device" in versions else threads,
        "torch": versions["torch"],
        "normscope": versions["normscope"],
    }


def processor_seconds() -> float:
    """Return the processor time of this process so far: what a job took of it is the cost of its result."""
    return time.process_time()


def commit() -> str:
    """Return the commit of this source, with `+` if files were changed; `NORMSCOPE_COMMIT` overrides it."""
    if named := os.environ.get("NORMSCOPE_COMMIT"):
        return named
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if Path(git("rev-parse", "--show-toplevel") or "/").resolve() != here.parents[1].resolve():
            return "unknown"  # the package is installed inside another project
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", str(here)) else "")
    except OSError:
        return "unknown"
