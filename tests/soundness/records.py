"""Records of many trials: run in several processes, counted, and kept as data and as a page in `docs/results`."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from normscope.core.errors import SoundnessError
from normscope.core.provenance import provenance

Trial = tuple[int, list[str], list[float] | str]
"""A seed, what its case is made of, and log10 of figure over attack for each comparison, or a violation in words."""
RESULTS = Path(__file__).parents[2] / "docs" / "results"
WIDEST_GAP = 10.0
"""Distances beyond this, as log10, are counted together."""


def run_trials(trial: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield what a trial gives for each of its arguments, in order, from as many processes as there are cores."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(trial, *arguments, chunksize=8)


def attempt(seed: int, parts: Iterable[str], trial: Callable[[], list[float]]) -> Trial:
    """Try one case; a violation comes back as its message."""
    try:
        return seed, sorted(set(parts)), trial()
    except (SoundnessError, AssertionError) as error:
        return seed, sorted(set(parts)), f"{type(error).__name__}: {error}"


def write_record(name: str, title: str, trials: list[Trial], *, base: int, began: float) -> dict[str, Any]:
    """Count trials, write them to `docs/results` as data and as a page, whatever came, and return the counts."""
    gaps = [gap for _, _, outcome in trials if not isinstance(outcome, str) for gap in outcome]
    histogram = Counter(min(math.floor(2 * gap) / 2, WIDEST_GAP) for gap in gaps if math.isfinite(gap))
    record = {
        "schema_version": 2,
        "made": {**provenance(torch.device("cpu")), "commit": os.environ.get("NORMSCOPE_COMMIT", "unknown")},
        "seed_base": base,
        "seconds": round(time.monotonic() - began),
        "networks": len(trials),
        "comparisons": len(gaps),
        "infinite": sum(not math.isfinite(gap) for gap in gaps),
        "violations": {str(seed): outcome for seed, _, outcome in trials if isinstance(outcome, str)},
        "log10_gap_histogram": {f"{low:g}": histogram[low] for low in sorted(histogram)},
        "networks_with": dict(Counter(part for _, parts, _ in trials for part in parts).most_common()),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(_page(title, record))
    return record


def _page(title: str, record: dict[str, Any]) -> str:
    made = ", ".join(f"{key} {value}" for key, value in record["made"].items())
    lines = [f"# {title}", "", "Written by the slow tests in `tests/soundness` from the file of the same name.", ""]
    lines += [
        f"{record['networks']} random cases, {record['comparisons']} figures compared with attacks that use nothing of "
        f"the package's searches, {len(record['violations'])} violations. {record['infinite']} figures are infinite or "
        f"were not attacked. {made}, seed base {record['seed_base']}, {record['seconds']} s.",
        "",
        "| log10 of figure over attack | figures |",
        "|---|---|",
        *(f"| {low} and up | {number} |" for low, number in record["log10_gap_histogram"].items()),
        "",
        "| with | cases |",
        "|---|---|",
        *(f"| {part} | {number} |" for part, number in record["networks_with"].items()),
    ]
    return "\n".join(lines) + "\n"
