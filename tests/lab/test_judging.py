"""Figures become verdicts: medians with intervals, and what they decide."""

from __future__ import annotations

import math
import random

import pytest

from normscope_lab.experiments.base import Verdict
from normscope_lab.experiments.beyond.gauge import RUNGS
from normscope_lab.experiments.judging import (
    SeedSpread,
    decided,
    judged,
    of_all,
    of_readings,
    readings,
    spread,
    with_seeds,
)
from normscope_lab.experiments.registry import registered


def test_a_correction_needs_a_violation_and_a_form_that_holds() -> None:
    assert judged(True, "x", corrected=True).verdict == Verdict.HOLDS
    assert judged(False, "x", corrected=True).verdict == Verdict.CORRECTED
    assert judged(False, "x").verdict == Verdict.FAILS


H, C, F, N = Verdict.HOLDS, Verdict.CORRECTED, Verdict.FAILS, Verdict.NOT_TESTABLE


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [((H, H), H), ((H, F), F), ((H, H, F), C), ((H, N), N), ((H, H, N), N), ((F, N), F), ((F, F, N), F), ((N, N), N)],
)
def test_what_is_open_matters_only_where_it_can_change_the_verdict(
    verdicts: tuple[Verdict, ...], whole: Verdict
) -> None:
    assert of_all(verdicts) == whole


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [((H, H), H), ((F, F), F), ((H, C), C), ((C, C), C), ((H, F), Verdict.CONVENTION), ((C, F), Verdict.CONVENTION),
     ((H, F, N), Verdict.CONVENTION), ((H, N), N), ((F, N), N)],
)  # fmt: skip
def test_of_readings(verdicts: tuple[Verdict, ...], whole: Verdict) -> None:
    assert of_readings(verdicts) == whole


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    draw = random.Random(0)
    covered = 0
    for _ in range(2000):
        found = spread("x", [draw.expovariate(1.0) for _ in range(20)])
        covered += found["x.low"] <= math.log(2.0) <= found["x.high"]
    assert 0.95 <= covered / 2000 < 0.98  # 0.9586 by the binomial distribution


def test_nothing_is_decided_by_an_interval_that_covers_the_value() -> None:
    assert decided(SeedSpread(2.0, 1.5, 3.0, 20), above=1.0, evidence="").verdict == Verdict.HOLDS
    assert decided(SeedSpread(2.0, 0.5, 3.0, 20), above=1.0, evidence="").verdict == Verdict.NOT_TESTABLE
    assert decided(SeedSpread(0.5, 0.4, 0.9, 20), above=1.0, evidence="").verdict == Verdict.FAILS
    assert decided(SeedSpread(0.5, 0.4, 0.9, 20), below=1.0, evidence="").verdict == Verdict.HOLDS
    assert decided(SeedSpread(2.0, 1.5, 3.0, 20), below=1.0, evidence="").verdict == Verdict.FAILS


def test_nothing_is_decided_by_fewer_than_six_seeds() -> None:
    few = SeedSpread(2.0, 1.5, 3.0, 5)
    assert with_seeds(5, judged(True, "x")).verdict == Verdict.NOT_TESTABLE
    assert with_seeds(6, judged(True, "x")) == judged(True, "x")
    assert decided(few, above=1.0, evidence="").verdict == Verdict.NOT_TESTABLE
    assert readings([(few,), (few,)], above=1.0, evidence="").verdict == Verdict.NOT_TESTABLE


def test_readings_of_medians() -> None:
    more, less, open_ = SeedSpread(2.0, 1.5, 3.0, 20), SeedSpread(0.5, 0.4, 0.9, 20), SeedSpread(1.0, 0.5, 2.0, 20)
    for found, verdict in (
        ([(more,), (more,)], Verdict.HOLDS),
        ([(less,), (less,)], Verdict.FAILS),
        ([(more,), (less,)], Verdict.CONVENTION),
        ([(more,), (open_,)], Verdict.NOT_TESTABLE),
        ([(more, more)], Verdict.HOLDS),
        ([(more, less)], Verdict.FAILS),  # two networks, one of which does not do it
        ([(more, more, less)], Verdict.CORRECTED),
        ([(more, more), (more, less)], Verdict.CONVENTION),
        ([(less, open_)], Verdict.FAILS),
    ):
        assert readings(found, above=1.0, evidence="").verdict == verdict, found


GAUGE = {"before.weights": 3.0, "before.constants": -1.0, "before.observed": 1.0, "moved.weights": 2.0}
GAUGE |= {"moved.constants": -2.0, "outputs": 1e-8, **{f"moved.{name}": 0.0 for name in (*RUNGS, "observed")}}


class TestNothingIsGranted:
    """Verdicts that rest on figures alone: each of these can fail, or be decided otherwise."""

    def test_a_product_that_bounds_nothing_fails(self):
        claims = {claim.id: claim for claim in registered()["beyond.gauge"].claims}
        factor = claims["than.reduction-factor"].judge
        assert factor(GAUGE).verdict is Verdict.CONVENTION
        assert factor(GAUGE | {"before.observed": 5.0}).verdict is Verdict.FAILS

    @pytest.mark.parametrize("still", ["moved.weights", "moved.constants"])
    def test_printed_factors_must_move(self, still):
        (claim,) = [claim for claim in registered()["beyond.gauge"].claims if claim.id == "beyond.gauge"]
        assert claim.judge(GAUGE).verdict is Verdict.HOLDS
        assert claim.judge(GAUGE | {still: 0.0}).verdict is Verdict.FAILS

    @pytest.mark.parametrize(
        ("one", "other", "change", "verdict"),
        [(-1.0, -2.0, 0.0, "holds"), (1.0, 2.0, 0.0, "fails"), (1.0, -2.0, 0.0, "depends on convention"),
         (1.0, -2.0, 0.5, "fails")],
    )  # fmt: skip
    def test_fewer_evaluations_in_every_gauge(self, one, other, change, verdict):
        (claim,) = [c for e in registered().values() for c in e.claims if c.id == "than.corollary19"]
        figures = {"corollary19.log10 ratio": one, "corollary19.log10 ratio in another gauge": other}
        assert claim.judge(figures | {"corollary19.change of the outputs": change}).verdict == verdict
