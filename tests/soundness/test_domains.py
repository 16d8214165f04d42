"""Random networks over domains: no bound below the Jacobian at a point inside, none above the bound over all inputs."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.core.errors import SoundnessError

from .domains import Inside, try_domain
from .networks import network
from .provenance import in_words, provenance

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NORMALIZED = ("layer", "group", "rms", "attention")
"""Parts of networks whose bound over all inputs says little, and for which domains were made."""
CHUNK = 64


@pytest.mark.parametrize("block", [pytest.param(n, marks=[pytest.mark.slow] * (n > 0)) for n in range(8)])
def test_forty_networks(block: int) -> None:
    for seed in range(5 * block, 5 * block + 5):
        try_domain(network(1000 + seed), effort="fast", proposals=6, samples=6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [3, 11, 26])
def test_gains(seed: int) -> None:
    try_domain(network(seed), effort="fast", record="gains", proposals=6, samples=6)


@pytest.mark.slow
def test_a_certificate_that_begins_at_a_part_of_an_operator() -> None:
    try_domain(network(220), effort="tight", record="gains", proposals=2, samples=2)


@pytest.mark.slow
def test_a_thousand_networks() -> None:
    """Writes `docs/results/domain_soundness.json` and `.md` after every few networks, and fails on any violation.

    With NORMSCOPE_SECONDS nothing is begun after so many seconds; the next run, with the same code, goes on.
    """
    count = int(os.environ.get("NORMSCOPE_NETWORKS", "1000"))
    seconds = float(os.environ.get("NORMSCOPE_SECONDS", "inf"))
    began, result = time.monotonic(), _begun(int(os.environ.get("NORMSCOPE_SEED", "0")))
    before = result["seconds"]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork"), torch.set_num_threads, (1,)) as pool:
        while result["networks"] < count and time.monotonic() - began < seconds:
            first = result["seed_base"] + result["networks"]
            last = min(first + CHUNK, result["seed_base"] + count)
            for seed, parts, outcome in pool.map(tried, range(first, last)):
                _add(result, seed, parts, outcome)
            result["seconds"] = before + round(time.monotonic() - began)
            _write(result)
    assert not result["violations"]
    if result["networks"] < count:
        pytest.skip(f"{result['networks']} of {count} networks are done: run it again to go on")
    assert result["points"] > 20 * count
    assert all(result["networks_with"].get(name, 0) > 0.02 * count for name in NORMALIZED)


def tried(seed: int) -> tuple[int, list[str], Inside | str]:
    """Try one network; a violation comes back as its message."""
    drawn = network(seed)
    parts = {*drawn.parts, drawn.mode, *(["attention"] if any("attention" in part for part in drawn.parts) else [])}
    try:
        return seed, sorted(parts), try_domain(drawn, record=("ranges", "gains")[seed % 5 == 0])
    except (SoundnessError, AssertionError) as error:
        return seed, sorted(parts), f"{type(error).__name__}: {error}"


def _begun(base: int) -> dict[str, Any]:
    """Return what an earlier run of the same code left, or an empty result."""
    path, made = RESULTS / "domain_soundness.json", provenance()
    if path.exists():
        known = json.loads(path.read_text())
        if known["made"]["commit"] == made["commit"] and known["seed_base"] == base:
            return known
    return {
        "schema_version": 1,
        "made": made,
        "seed_base": base,
        "seconds": 0,
        "networks": 0,
        "points": 0,
        "violations": {},
        "infinite_with_reason": 0,
        "bound_over_search": {},
        "global_over_bound": {},
        "networks_with": {},
    }


def _add(result: dict[str, Any], seed: int, parts: list[str], outcome: Inside | str) -> None:
    """Count one network."""
    result["networks"] += 1
    result["networks_with"] = dict(Counter(result["networks_with"]) + Counter(parts))
    if isinstance(outcome, str):
        result["violations"][str(seed)] = outcome
        return
    result["points"] += outcome.points
    result["infinite_with_reason"] += outcome.upper == math.inf
    for key, above, below in (
        ("bound_over_search", outcome.upper, outcome.seen),
        ("global_over_bound", outcome.everywhere, outcome.upper),
    ):
        if below > -math.inf and outcome.upper < math.inf:
            decades = "no bound" if above == math.inf else _decades(max(above - below, 0.0))
            result[key][decades] = result[key].get(decades, 0) + 1


def _decades(distance: float) -> str:
    edges = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
    below = [0.0, *(edge for edge in edges if edge <= distance)][-1]
    above = next((edge for edge in edges if edge > distance), None)
    return f"{below:g} and more" if above is None else f"{below:g} to {above:g}"


def _write(result: dict[str, Any]) -> None:
    """Write what came as data, and a page made from the data."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "domain_soundness.json").write_text(json.dumps(result, indent=2) + "\n")
    (RESULTS / "domain_soundness.md").write_text(page(result))


def page(result: dict[str, Any]) -> str:
    """The result as a short page."""
    lines = [
        "# Random networks against their bounds over domains",
        "",
        "Written by `pytest -m slow tests/soundness/test_domains.py -k thousand` from `domain_soundness.json`.",
        "",
        f"{result['networks']} random networks, {len(result['violations'])} violations; {in_words(result['made'])}, "
        f"seed base {result['seed_base']}, {result['seconds']} s.",
        "",
        "A domain was recorded over a few batches; every fifth has the gains of blocks as well. Every method's bound "
        f"was compared with dense Jacobians of the model at {result['points']} points inside, found by an ascent that "
        "never leaves the domain and by random steps, and with the bound over all inputs. "
        f"{result['infinite_with_reason']} domains have no finite bound, and the result says why.",
    ]
    for key, title in (
        ("bound_over_search", "log10 of the bound over the steepest point found inside"),
        ("global_over_bound", "log10 of the bound over all inputs over the bound inside"),
    ):
        rows = sorted(
            result[key].items(), key=lambda item: math.inf if item[0] == "no bound" else float(item[0].split()[0])
        )
        lines += ["", f"| {title} | networks |", "|---|---|", *(f"| {name} | {number} |" for name, number in rows)]
    lines += ["", "| with | networks |", "|---|---|"]
    ranked = sorted(result["networks_with"].items(), key=lambda item: (-item[1], item[0]))
    lines += [f"| {name} | {number} |" for name, number in ranked]
    return "\n".join(lines) + "\n"
