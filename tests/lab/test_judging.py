"""Figures become verdicts: medians with intervals, and what they decide."""

from __future__ import annotations

import math
import random

import pytest

from normscope_lab.experiments.akbar.experiment1 import RATES
from normscope_lab.experiments.base import Claim, Job, Verdict
from normscope_lab.experiments.beyond.digits import LEARNING_RATE
from normscope_lab.experiments.beyond.gauge import RUNGS
from normscope_lab.experiments.beyond.reduction import REDUCTION
from normscope_lab.experiments.claims import stored as stored_result
from normscope_lab.experiments.judging import (
    SeedSpread,
    decided,
    judged,
    near,
    of_all,
    of_readings,
    reaches,
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


@pytest.mark.parametrize(
    ("low", "high", "step", "expected"),
    [(2.0, 4.0, 2.0, H), (0.25, 0.5, 2.0, F), (1.0, 2.0, 2.0, N), (1.1, 1.2, 2.0, N), (1.1, 1.2, 1.05, H)],
)
def test_rates_decide_nothing_below_the_step_between_them(
    low: float, high: float, step: float, expected: Verdict
) -> None:
    (claim,) = [claim for one in registered().values() for claim in one.claims if claim.id == "akbar.5.1.rates"]
    name = "ratio of largest stable rates"
    figures = {f"{name}.low": low, f"{name}.median": (low + high) / 2, f"{name}.high": high, f"{name}.seeds": 20.0}
    assert claim.judge(figures | {"step of the rates": step}).verdict == expected


@pytest.mark.parametrize(
    ("value", "printed", "same"),
    [(2.6, 5.0, True), (9.9, 5.0, True), (2.4, 5.0, False), (10.1, 5.0, False), (1e45, 1e50, True),
     (1e44, 1e50, False), (1e-23, 1e-25, True), (1e-22, 1e-25, False)],
)  # fmt: skip
def test_a_printed_figure_comes_out_to_a_factor_of_2_or_a_tenth_of_its_exponent(
    value: float, printed: float, same: bool
) -> None:
    assert near(math.log10(value), math.log10(printed)) is same


def claim_of(id: str) -> Claim:
    """Return a claim by its id."""
    (claim,) = [claim for one in registered().values() for claim in one.claims if claim.id == id]
    return claim


@pytest.mark.parametrize(
    ("exponential", "power", "slope", "expected"),
    [(0.99, 0.9, 1.0, H), (0.9, 0.99, 1.0, C), (0.99, 0.9, -1.0, F), (0.9, 0.99, -1.0, F)],
)
def test_growth_is_exponential_where_that_fits_better_than_a_power(
    exponential: float, power: float, slope: float, expected: Verdict
) -> None:
    figures = {
        f"{network}.none.{name}": value
        for network in ("relu", "resnet18")
        for name, value in {
            "log10_variances_per_epoch": slope,
            "variances_straightness": exponential,
            "variances_power_straightness": power,
            "variances_power": 3.0,
            "epochs": 100.0,
            "epochs_planned": 100.0,
        }.items()
    }
    judgement = claim_of("than.figure2.exponential").judge(figures)
    assert judgement.verdict == expected
    assert [row[0] for row in judgement.table] == ["", "ReLU network", "ResNet18"]
    assert judgement.table[0] == ("", "no decay")


def test_short_runs_decide_nothing_about_the_end_of_training() -> None:
    figures = {"configurations": 18.0, "growing_tenfold": 0.0, "steps": 600.0}
    assert claim_of("digest.variances.persistence").judge(figures).verdict == N
    assert claim_of("digest.variances.persistence").judge(figures | {"steps": 40_000.0}).verdict == F


def test_one_rule_about_eps_for_batch_and_layer_norm() -> None:
    figures = {
        f"{kind}.{case}.change": change
        for kind in ("batch", "layer")
        for case, change in {"no eps": 1e-15, "eps": 1e-7, "small weights": 0.1, "eval": 0.5}.items()
    }
    assert [claim_of(id).judge(figures).verdict for id in ("akbar.4.1", "akbar.4.2")] == [C, C]
    exact = {name: 1e-15 if "eval" not in name else 0.5 for name in figures}
    assert [claim_of(id).judge(exact).verdict for id in ("akbar.4.1", "akbar.4.2")] == [H, H]


def twins(losses: tuple[float, float], change: float) -> dict[Job, dict[str, float]]:
    """Return measured twins of six seeds, whose bounds differ by `change` for each normalizer."""
    settings = REDUCTION.full | {"seeds": 6}
    names = ("global", "point", "gap", "tested", "printed", "variance")
    found = {}
    for job in REDUCTION.jobs(settings):
        kind, depth = job.kind.split()
        moved = 0.0 if kind == "none" else change * (int(depth) - 1)
        found[job] = dict.fromkeys(names, moved) | {"loss": losses[kind == "none"]}
    return found


@pytest.mark.parametrize(("change", "expected"), [(-0.3, H), (0.3, F)])
def test_normalizers_reduce_where_the_bounds_of_twins_fall_with_each(change: float, expected: Verdict) -> None:
    figures = REDUCTION.figures(REDUCTION.full | {"seeds": 6}, twins((0.1, 0.1), change))
    assert claim_of("than.6.reduction").judge(figures).verdict == expected
    assert figures["batch.each.global.median"] == pytest.approx(change)


def test_twins_of_unequal_loss_are_not_compared() -> None:
    figures = REDUCTION.figures(REDUCTION.full | {"seeds": 6}, twins((0.1, 0.2), -0.3))
    assert figures["batch.each.global.seeds"] == 0
    assert claim_of("than.6.reduction").judge(figures).verdict == N


@pytest.mark.parametrize(("stored", "data", "expected"), [(0.3, 0.0, H), (0.0, 0.3, F)])
def test_statistics_of_training_cost_accuracy_where_those_of_new_data_do_not(
    stored: float, data: float, expected: Verdict
) -> None:
    figures = spread("batch.change.stored", [stored] * 6) | spread("batch.change.data", [data] * 6)
    assert claim_of("akbar.9.4.shift").judge(figures).verdict == expected


@pytest.mark.parametrize(("power", "expected"), [(1.0, C), (2.0, F)])
def test_the_norm_is_said_to_grow_with_the_rate_only_where_its_exponents_say_so(
    power: float, expected: Verdict
) -> None:
    changes = {rate: 0.2 * rate**power for rate in RATES}
    figures = {
        name: value
        for rate, change in changes.items()
        for name, value in spread(f"batch.{rate:g} 1.change", [change] * 6).items()
    }
    claim = claim_of("akbar.experiment1.norm")
    judgement = claim.judge(figures)
    assert judgement.verdict == expected
    assert f"to the power {power:.2f} and {power:.2f}" in judgement.evidence
    assert "in proportion to the learning rate" in claim.corrected  # what `holds with correction` then says


@pytest.mark.parametrize(
    "id",
    ["digest.question1", "digest.question1.reduction", "digest.question2", "digest.question3", "beyond.reduction",
     "than.6.reduction"],
)  # fmt: skip
def test_answers_from_networks_at_one_learning_rate_say_that_it_is_not_controlled(id: str) -> None:
    [experiment] = [one for one in registered().values() if id in {claim.id for claim in one.claims}]
    result = stored_result(experiment)
    assert result is not None
    [claim] = [one for one in result.claims if one.id == id]
    assert "Not controlled: the learning rate." in claim.evidence
    assert f"{LEARNING_RATE:g}" in claim.evidence
    if id == "digest.question3":
        small, large = result.settings["scales"]
        assert f"turn {large / small:g} times as fast" in claim.evidence


def test_a_bound_that_is_reached_is_said_to_be() -> None:
    assert reaches(1.0, "the bound") == "reaches the bound"
    assert reaches(0.25, "the bound") == "reaches 0.25 of the bound"
