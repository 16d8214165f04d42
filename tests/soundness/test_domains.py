"""Random networks over domains: no bound below the Jacobian at a point inside, none above the bound over all inputs."""

from __future__ import annotations

import os
import time

import pytest

from .domains import try_domain
from .networks import network
from .records import Trial, attempt, run_trials, write_record

NORMALIZED = ("layer", "group", "rms", "attention")
"""Parts of networks whose bound over all inputs says little, and for which domains were made."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_some_networks(seed: int) -> None:
    try_domain(network(1000 + seed), effort="fast", record=("ranges", "gains")[seed % 5 == 0], proposals=6, samples=6)


@pytest.mark.slow
def test_a_certificate_that_begins_at_a_part_of_an_operator() -> None:
    try_domain(network(220), effort="tight", record="gains", proposals=2, samples=2)


@pytest.mark.slow
def test_a_thousand_networks() -> None:
    """Writes `docs/results/domain_soundness.json` and `.md`, and fails on any violation."""
    count, base = int(os.environ.get("NORMSCOPE_NETWORKS", "1000")), int(os.environ.get("NORMSCOPE_SEED", "0"))
    began = time.monotonic()
    trials = list(run_trials(tried, range(base, base + count)))
    record = write_record("domain_soundness", "Random networks over domains", trials, base=base, began=began)
    assert not record["violations"]
    assert record["comparisons"] - record["infinite"] > 0.8 * count
    assert all(record["networks_with"].get(name, 0) > 0.02 * count for name in NORMALIZED)


def tried(seed: int) -> Trial:
    """Try one network."""
    drawn = network(seed)
    parts = [*drawn.parts, drawn.mode, *(["attention"] if any("attention" in part for part in drawn.parts) else [])]
    return attempt(seed, parts, lambda: [try_domain(drawn, record=("ranges", "gains")[seed % 5 == 0])])
