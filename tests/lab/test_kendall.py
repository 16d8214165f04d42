"""Kendall's tau: against scipy, by hand, along single axes, and its intervals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import kendalltau

from normscope_lab.population import kendall as populations
from normscope_lab.population.kendall import Sample, power
from normscope_lab.statistics import kendall


def crossed(*axes: int, seeds: int = 1) -> Sample:
    """Every combination of values, gaps not yet known."""
    places = [place for place in itertools.product(*map(range, axes)) for _ in range(seeds)]
    return Sample(gaps=[0.0] * len(places), configurations=places, seeds=list(range(seeds)) * (len(places) // seeds))


def found(values, sample, *, gaps=None, seed=0):
    sample = sample if gaps is None else Sample(gaps=gaps, configurations=sample.configurations, seeds=sample.seeds)
    names = [f"axis{k}" for k in range(len(sample.configurations[0]))]
    return power(values, sample, names, generator=np.random.default_rng(seed))


def test_tau_is_that_of_scipy_with_and_without_ties():
    generator = np.random.default_rng(0)
    for most in (3, 5, 1000):
        for _ in range(40):
            count = int(generator.integers(2, 15))
            x, y = generator.integers(0, most, (2, count)).astype(float)
            ours, theirs = kendall(x, y), float(kendalltau(x, y).statistic)
            assert ours == pytest.approx(theirs, abs=1e-12, nan_ok=True)


def test_infinite_figures_are_tied_with_each_other_and_above_all_others():
    assert kendall([1.0, math.inf, math.inf], [1.0, 2.0, 3.0]) == kendall([1.0, 9.0, 9.0], [1.0, 2.0, 3.0])
    assert kendall([-math.inf, 0.0, math.inf], [1.0, 2.0, 3.0]) == 1.0


def test_psi_separates_an_axis_that_a_measure_orders_from_one_that_it_reverses():
    sample = crossed(2, 3)
    gaps = [10.0 * a + b for a, b in sample.configurations]
    values = [10.0 * a - b for a, b in sample.configurations]
    one = found(values, sample, gaps=gaps)
    assert (one.axes["axis0"].value, one.axes["axis1"].value, one.mean.value) == (1.0, -1.0, 0.0)
    assert one.overall.value == pytest.approx(kendalltau(values, gaps).statistic)  # the first axis hides the second
    assert one.overall.value > 0.1
    assert one.seed.value is None


def test_seeds_are_compared_apart_and_only_networks_of_one_seed_along_axes():
    sample = crossed(2, seeds=2)
    gaps = [1.0, 4.0, 2.0, 3.0]
    one = found([1.0, 9.0, 2.0, 0.0], sample, gaps=gaps)
    assert one.axes["axis0"].value == 1.0  # seed 0: 1 < 2 as 1 < 2; seed 1: 9 > 0 as 4 > 3
    assert one.seed.value == 0.0  # in order for the first configuration, reversed for the second


def test_seeds_do_not_count_as_independent():
    generator = np.random.default_rng(1)
    few, many = crossed(4, 5), crossed(4, 5, seeds=6)
    gaps, values = generator.normal(size=(2, 20))
    copies = found(np.repeat(values, 6), many, gaps=list(np.repeat(gaps, 6)))
    alone = found(values, few, gaps=list(gaps))
    width = alone.overall.high - alone.overall.low
    assert copies.overall.value == pytest.approx(alone.overall.value)
    assert copies.overall.high - copies.overall.low == pytest.approx(width, rel=0.01)
    assert copies.mean.high - copies.mean.low == pytest.approx(alone.mean.high - alone.mean.low, rel=0.01)
    by_axis = copies.axes["axis0"], alone.axes["axis0"]
    assert by_axis[0].high - by_axis[0].low == pytest.approx(by_axis[1].high - by_axis[1].low, rel=0.01)


def test_the_same_generator_gives_the_same_intervals_and_they_hold_the_figure():
    sample = crossed(3, 4)
    gaps, values = np.random.default_rng(2).normal(size=(2, 12))
    first, second = (found(values, sample, gaps=list(gaps)) for _ in range(2))
    assert first == second
    for tau in (first.overall, first.mean, *first.axes.values()):
        assert tau.low <= tau.value <= tau.high


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_resamples_spread_as_fresh_draws_do(noise, monkeypatch):
    """Of populations with known noise: the mean over axes, single axes and the overall tau."""
    monkeypatch.setattr(populations, "DRAWS", 200)
    generator, sample = np.random.default_rng(3), crossed(2, 2, 3, 2, 2, seeds=2)
    places = np.array(sample.configurations)
    slopes = np.array([1.0, -0.5, 0.5, 0.3, 1.0])
    configurations, means, overalls, firsts, widths = len(places) // 2, [], [], [], []
    for _ in range(150):
        own = np.repeat(generator.normal(size=(2, configurations)), 2, axis=1)
        gaps = 0.5 * places @ slopes + noise * (own[0] + 0.3 * generator.normal(size=len(places)))
        values = 0.5 * places @ slopes + 0.5 * own[1] + 0.2 * generator.normal(size=len(places))
        one = found(list(values), sample, gaps=list(gaps))
        for tau, kept in ((one.mean, means), (one.overall, overalls), (one.axes["axis0"], firsts)):
            kept.append(tau.value)
        widths.append([tau.high - tau.low for tau in (one.mean, one.overall, one.axes["axis0"])])
    spreads = np.std([means, overalls, firsts], axis=1)
    assert np.mean(widths, axis=0) / (2 * 1.96 * spreads) == pytest.approx([1.0, 1.0, 1.0], abs=0.25)
