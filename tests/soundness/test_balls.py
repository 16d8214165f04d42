"""Random balls: no attack from inside gets above a bound."""

from __future__ import annotations

import dataclasses
import os
import random
import time

import pytest
import torch
from torch import nn

from normscope.bounds.operators.registry import operators
from normscope.bounds.traced_network import TracedNetwork
from normscope.bounds.trial import shaken
from normscope.core.log10 import log10

from .balls import ROUNDING, Case, Found, case, try_ball
from .networks import Function, Network
from .records import Trial, attempt, run_trials, write_record


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 14, 28, 37])
def test_no_attack_from_inside_gets_above_a_bound(seed: int, monkeypatch) -> None:
    """Two radii for every centre of a few networks; a thousand networks in `make test-slow`."""
    monkeypatch.setattr("normscope.bounds.balls.ball.SEARCH_STEPS", 3)
    drawn = case(seed)
    work = TracedNetwork.of(drawn.network.model, drawn.network.batch, on_missing="inf")
    for radius, effort in ((drawn.radius, drawn.effort), (0.05, "fast")):
        found = try_ball(dataclasses.replace(drawn, radius=radius, effort=effort), steps=6, work=work)
        assert_met(found)


@pytest.mark.slow
def test_a_thousand_balls() -> None:
    """Writes `docs/results/balls.json` and `.md`, whatever comes, and fails on any violation."""
    count = int(os.environ.get("NORMSCOPE_BALLS", "1000"))
    base = int(os.environ.get("NORMSCOPE_SEED", random.SystemRandom().randrange(2**31)))
    began = time.monotonic()
    trials = list(run_trials(tried, range(base, base + count)))
    record = write_record("balls", "Random balls against their bounds", trials, base=base, began=began)
    assert not record["violations"]
    assert record["networks_with"]["attention"] > 0.05 * count
    assert record["networks_with"]["train"] > 0.05 * count


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1944530162, 1944530548, 1456266910], ids=["infinite lines", "infinite lines and a skip", "GELU far left"]
)
def test_seeds_that_once_failed(seed: int) -> None:
    assert_met(try_ball(case(seed)))


def assert_met(found: Found) -> None:
    """Every centre has a bound above what was reached there, and an attack got somewhere."""
    assert all(lower <= upper * (1 + ROUNDING) for lower, upper in zip(found.lower, found.upper, strict=True))
    assert max(found.lower) > 0.0


def tried(seed: int) -> Trial:
    """Try one case."""
    one = case(seed)
    parts = [*one.network.parts, one.network.mode, one.effort]
    parts += ["attention"] if any("attention" in part for part in parts) else []

    def trial() -> list[float]:
        found = try_ball(one)
        return [log10(upper) - log10(lower) for upper, lower in zip(found.upper, found.lower, strict=True)]

    return attempt(seed, parts, trial)


@pytest.mark.slow
def test_every_example_of_every_rule_over_balls() -> None:
    """What the global rules are tried on, over a small and a large ball; nothing fails, whatever is bounded holds."""
    met = set()
    for rule in operators():
        for index, (function, *shapes) in enumerate(rule.examples):
            if len(shapes) != 1 or id(function) in met:
                continue
            met.add(id(function))
            generator = torch.Generator().manual_seed(index)
            model = shaken(function, generator) if isinstance(function, nn.Module) else Function(function)
            network = Network(index, model, torch.randn(shapes[0], generator=generator), "eval", ())
            work = TracedNetwork.of(model, network.batch, on_missing="inf")
            for radius, effort in ((1e-4, "tight"), (0.3, "fast")):
                try_ball(Case(network, radius, effort), steps=12, work=work, twin=False)
