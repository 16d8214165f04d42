"""Committed results: many trials in several processes, where they come from, and the files they are written to."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import normscope as ns
from normscope.core.errors import SoundnessError

Trial = tuple[int, list[str], Any]
"""A seed, what its network is made of, and what came: an outcome, or a violation in words."""
RESULTS = Path(__file__).parents[2] / "docs" / "results"


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


def run_trials(trial: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield what a trial gives for each of its arguments, in order, from as many processes as there are cores."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(trial, *arguments, chunksize=8)


def attempt(seed: int, parts: Iterable[str], trial: Callable[[], Any]) -> Trial:
    """Try one case; a violation comes back as its message."""
    try:
        return seed, sorted(set(parts)), trial()
    except (SoundnessError, AssertionError) as error:
        return seed, sorted(set(parts)), f"{type(error).__name__}: {error}"


def count_trials(trials: list[Trial], *, base: int, began: float) -> dict[str, Any]:
    """Return what every record of trials begins with."""
    return {
        "schema_version": 1,
        "made": provenance(),
        "seed_base": base,
        "seconds": round(time.monotonic() - began),
        "networks": len(trials),
        "violations": {str(seed): outcome for seed, _, outcome in trials if isinstance(outcome, str)},
        "networks_with": Counter(part for _, parts, _ in trials for part in parts),
    }


def write_result(name: str, result: dict[str, Any], page: str) -> None:
    """Write a result as data, and the page made from it, to `docs/results`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(page)


def page_of(result: dict[str, Any], title: str, written_by: str, counted: str, text: str, tables: list[str]) -> str:
    """Return the page of a record of trials: what was done, what came, and what the networks were made of."""
    ranked = sorted(result["networks_with"].items(), key=lambda item: (-item[1], item[0]))
    lines = [f"# {title}", "", f"Written by {written_by}.", ""]
    lines += [
        f"{counted}, {len(result['violations'])} violations; {in_words(result['made'])}, "
        f"seed base {result['seed_base']}, {result['seconds']} s.",
        "",
        text,
        *tables,
    ]
    lines += ["", "| with | networks |", "|---|---|", *(f"| {name} | {number} |" for name, number in ranked)]
    return "\n".join(lines) + "\n"
