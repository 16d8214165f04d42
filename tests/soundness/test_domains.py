"""Random networks over domains: no bound below the Jacobian at a point inside, none above the bound over all inputs."""

from __future__ import annotations

import bisect
import math
import os
import time
from collections import Counter
from typing import Any

import pytest

from .domains import Inside, try_domain
from .networks import network
from .provenance import Trial, attempt, count_trials, page_of, run_trials, write_result

NORMALIZED = ("layer", "group", "rms", "attention")
"""Parts of networks whose bound over all inputs says little, and for which domains were made."""


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_forty_networks(block: int) -> None:
    for seed in range(2 * block, 2 * block + 2):
        try_domain(network(1000 + seed), effort="fast", proposals=6, samples=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 11, 26])
def test_gains(seed: int) -> None:
    try_domain(network(seed), effort="fast", record="gains", proposals=6, samples=6)


@pytest.mark.slow
def test_a_certificate_that_begins_at_a_part_of_an_operator() -> None:
    try_domain(network(220), effort="tight", record="gains", proposals=2, samples=2)


@pytest.mark.slow
def test_a_thousand_networks() -> None:
    """Writes `docs/results/domain_soundness.json` and `.md`, and fails on any violation."""
    count, base = int(os.environ.get("NORMSCOPE_NETWORKS", "1000")), int(os.environ.get("NORMSCOPE_SEED", "0"))
    began = time.monotonic()
    trials = list(run_trials(tried, range(base, base + count)))
    result = count_trials(trials, base=base, began=began) | summary(trials)
    write_result("domain_soundness", result, page(result))
    assert not result["violations"]
    assert result["points"] > 20 * count
    assert all(result["networks_with"].get(name, 0) > 0.02 * count for name in NORMALIZED)


def tried(seed: int) -> Trial:
    """Try one network."""
    drawn = network(seed)
    parts = [*drawn.parts, drawn.mode, *(["attention"] if any("attention" in part for part in drawn.parts) else [])]
    return attempt(seed, parts, lambda: try_domain(drawn, record=("ranges", "gains")[seed % 5 == 0]))


def summary(trials: list[Trial]) -> dict[str, Any]:
    """Count what the trials saw."""
    seen = [outcome for _, _, outcome in trials if isinstance(outcome, Inside)]
    bounded = [one for one in seen if one.upper < math.inf]
    return {
        "points": sum(one.points for one in seen),
        "infinite_with_reason": len(seen) - len(bounded),
        "bound_over_search": Counter(_decades(one.upper - one.seen) for one in bounded if one.seen > -math.inf),
        "global_over_bound": Counter(_decades(one.everywhere - one.upper) for one in bounded if one.upper > -math.inf),
    }


def _decades(distance: float) -> str:
    if distance == math.inf:
        return "no bound"
    edges = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
    place = max(bisect.bisect_right(edges, distance), 1)
    return f"{edges[place - 1]:g} " + (f"to {edges[place]:g}" if place < len(edges) else "and more")


def page(result: dict[str, Any]) -> str:
    """The result as a short page."""
    text = (
        "A domain was recorded over a few batches; every fifth has the gains of blocks as well. Every method's bound "
        f"was compared with dense Jacobians of the model at {result['points']} points inside, found by an ascent that "
        "never leaves the domain and by random steps, and with the bound over all inputs. "
        f"{result['infinite_with_reason']} domains have no finite bound, and the result says why."
    )
    tables: list[str] = []
    for key, title in (
        ("bound_over_search", "log10 of the bound over the steepest point found inside"),
        ("global_over_bound", "log10 of the bound over all inputs over the bound inside"),
    ):
        rows = sorted(
            result[key].items(), key=lambda item: math.inf if item[0] == "no bound" else float(item[0].split()[0])
        )
        tables += ["", f"| {title} | networks |", "|---|---|", *(f"| {name} | {number} |" for name, number in rows)]
    written_by = "`pytest -m slow tests/soundness/test_domains.py -k thousand` from `domain_soundness.json`"
    counted = f"{result['networks']} random networks"
    return page_of(result, "Random networks against their bounds over domains", written_by, counted, text, tables)
