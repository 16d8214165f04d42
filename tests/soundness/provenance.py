"""Where a committed result comes from: date, versions, machine and commit."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess

import torch

import normscope as ns


def provenance() -> dict[str, str]:
    """Return what made a result; where there is no checkout the commit is given as NORMSCOPE_COMMIT."""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": os.environ.get("NORMSCOPE_COMMIT") or asked.stdout.strip() or "unknown",
        "normscope": ns.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores {platform.machine()}",
    }


def in_words(made: dict[str, str]) -> str:
    """Return it as part of a sentence."""
    return ", ".join(made[key] if key in ("date", "machine") else f"{key} {made[key]}" for key in made)
