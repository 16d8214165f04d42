"""Random networks over domains: no bound below the Jacobian at a point inside, none above the bound over all inputs."""

from __future__ import annotations

import os

import pytest

from .domains import try_domain
from .networks import network


@pytest.mark.parametrize("block", [pytest.param(n, marks=[pytest.mark.slow] * (n > 0)) for n in range(8)])
def test_forty_networks(block: int) -> None:
    for seed in range(5 * block, 5 * block + 5):
        try_domain(network(1000 + seed), effort="fast", proposals=6, samples=6)


@pytest.mark.parametrize("seed", [3, 11, 26])
def test_gains(seed: int) -> None:
    try_domain(network(seed), effort="fast", record="gains", proposals=6, samples=6)


@pytest.mark.slow
def test_a_thousand_networks() -> None:
    count = int(os.environ.get("NORMSCOPE_NETWORKS", "1000"))
    points = sum(try_domain(network(seed), record=("ranges", "gains")[seed % 5 == 0]).points for seed in range(count))
    assert points > 20 * count
