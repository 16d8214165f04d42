"""The line that heads every result: commit, versions, device."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch


def commit() -> str:
    """Return the commit that is measured, `+` behind it where files differ from it; `NORMSCOPE_COMMIT` goes first."""
    if named := os.environ.get("NORMSCOPE_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
        changed = subprocess.run(["git", "status", "--porcelain", "../src"], cwd=here, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "") or "unknown"


def header(device: str = "cpu") -> str:
    """Return the line."""
    threads = f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
    where = torch.cuda.get_device_name() if device == "cuda" else threads
    return f"commit {commit()}, torch {torch.__version__}, Python {platform.python_version()}, {where}"
