"""Which defects are a correction, which a failure, and which a convention: claims on figures made up for each case."""

from __future__ import annotations

import pytest

from normscope_lab.experiments.base import Verdict
from normscope_lab.experiments.registry import registered

CLAIMS = {claim.id: claim for one in registered().values() for claim in one.claims}
HOLDS, CORRECTED, FAILS = Verdict.HOLDS, Verdict.CORRECTED, Verdict.FAILS
CONVENTION, OPEN = Verdict.CONVENTION, Verdict.NOT_TESTABLE


def verdict(id: str, figures: dict[str, float]) -> Verdict:
    return CLAIMS[id].judge(figures).verdict


def spread(name: str, low: float, high: float, seeds: int = 20) -> dict[str, float]:
    return {f"{name}.low": low, f"{name}.median": (low + high) / 2, f"{name}.high": high, f"{name}.seeds": seeds}


@pytest.mark.parametrize(
    ("low", "high", "step", "expected"),
    [(2.0, 4.0, 2.0, HOLDS), (0.25, 0.5, 2.0, FAILS), (1.0, 1.0, 2.0, OPEN), (1.0, 2.0, 2.0, OPEN),
     (1.1, 1.2, 2.0, OPEN), (1.1, 1.2, 1.05, HOLDS), (0.8, 0.9, 1.05, FAILS)],
)  # fmt: skip
def test_rates_decide_nothing_below_the_step_between_them(low, high, step, expected):
    figures = spread("ratio of largest stable rates", low, high) | {"step of the rates": step}
    assert verdict("akbar.5.1.rates", figures) == expected
    assert f"each {step:g} times the one before" in CLAIMS["akbar.5.1.rates"].judge(figures).evidence


@pytest.mark.parametrize(
    ("changes", "expected"),
    [((0.001, 0.002, 0.009), HOLDS), ((0.002, 0.02, 0.2), CORRECTED), ((0.002, 0.008, 0.2), CORRECTED),
     ((0.02, 0.2, 0.5), FAILS), ((0.002, 0.2, 0.002), FAILS), ((0.02, 0.002, 0.002), FAILS)],
)  # fmt: skip
def test_a_condition_on_the_rate_is_a_correction_where_all_smaller_rates_meet_it(changes, expected):
    figures = {}
    for rate, change in zip((0.01, 0.1, 1.0), changes):
        figures |= spread(f"batch.{rate:g} 1.change", change, change)
    assert verdict("akbar.experiment1.norm", figures) == expected


@pytest.mark.parametrize(
    ("data", "stored", "expected"),
    [(0.0, 0.0, HOLDS), (0.0, 0.3, CONVENTION), (0.3, 0.0, CONVENTION), (0.3, 0.3, FAILS)],
)
def test_the_mode_of_batch_norm_is_a_convention(data, stored, expected):
    figures = {}
    for kind in ("none", "input", "batch", "layer input"):
        figures |= spread(f"{kind}.change.data", data, data) | spread(f"{kind}.change.stored", stored, stored)
    assert verdict("akbar.7.2.changes", figures) == expected
    one = figures | spread("batch.change.data", 0.3, 0.3)  # of two networks, which are counted in each mode
    assert verdict("akbar.7.2.changes", one) == (CONVENTION if stored == 0.0 else FAILS)
