"""The conditional independence test: by hand, for measures that decide everything, one hyperparameter or nothing."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from normscope_lab.population import conditional
from normscope_lab.population.conditional import information
from normscope_lab.population.kendall import Sample, advantage, power

AXES = ("depth", "width", "rate")
PLACES = list(itertools.product(range(2), range(3), range(2)))


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(conditional, "DRAWS", 20)


def sample(gaps):
    return Sample(gaps=list(gaps), configurations=PLACES, seeds=[0] * len(PLACES))


def told(values, gaps):
    return information(list(values), sample(gaps), AXES, generator=np.random.default_rng(0))


def by_hand(values, gaps, axes):
    """Return the information over all ordered pairs, as the paper defines it."""
    counts = Counter()
    for one, two in itertools.permutations(range(len(gaps)), 2):
        given = tuple((PLACES[one][axis], PLACES[two][axis]) for axis in axes)
        counts[given, np.sign(values[one] - values[two]), np.sign(gaps[one] - gaps[two])] += 1

    def entropy(part):
        joint, given = Counter(), Counter()
        for key, count in counts.items():
            joint[part(key)] += count
            given[key[0]] += count
        terms = [count * math.log(count / given[key[0]]) for key, count in joint.items()]
        return -sum(terms) / sum(joint.values())

    gap = entropy(lambda key: (key[0], key[2]))
    return (gap + entropy(lambda key: (key[0], key[1])) - entropy(lambda key: key)) / gap


def test_it_is_the_least_information_over_all_sets_of_two_hyperparameters_or_fewer():
    values, gaps = np.random.default_rng(1).integers(0, 6, (2, len(PLACES))).astype(float)  # with ties
    values += 0.5 * gaps
    sets = [axes for size in range(3) for axes in itertools.combinations(range(3), size)]
    shares = {axes: by_hand(values, gaps, axes) for axes in sets}
    least = min(shares, key=shares.__getitem__)
    found = told(values, gaps)
    assert found.share.value == pytest.approx(shares[least])
    assert found.known == tuple(AXES[axis] for axis in least)


def test_a_measure_that_orders_all_gaps_says_everything_also_turned_round():
    gaps = np.random.default_rng(2).normal(size=len(PLACES))
    for values in (gaps**3, -gaps):
        found = told(values, gaps)
        assert found.share.value == pytest.approx(1.0)
        assert found.chance < 0.8


def test_a_measure_that_only_recognises_a_hyperparameter_says_nothing():
    widths = np.array([place[1] for place in PLACES], dtype=float)
    gaps = widths + np.random.default_rng(3).normal(size=len(PLACES)) / 10.0
    found = told(widths, gaps)
    assert by_hand(widths, gaps, ()) > 0.5
    assert found.share.value == pytest.approx(0.0, abs=1e-12)
    assert "width" in found.known


def test_without_two_gaps_there_is_nothing_to_know():
    assert told(range(len(PLACES)), [0.5] * len(PLACES)).share.value is None


def test_the_advantage_is_the_difference_of_the_means_and_surer_than_either():
    gaps = np.random.default_rng(4).normal(size=len(PLACES))
    first, second = gaps + 0.1, gaps + np.random.default_rng(5).normal(size=len(PLACES)) / 100.0
    ours, theirs = (
        power(list(values), sample(gaps), AXES, generator=np.random.default_rng(0)).mean for values in (first, -gaps)
    )
    found = advantage(list(first), list(-gaps), sample(gaps), AXES, generator=np.random.default_rng(0))
    assert found.value == pytest.approx(ours.value - theirs.value) == pytest.approx(2.0)
    same = advantage(list(second), list(second), sample(gaps), AXES, generator=np.random.default_rng(0))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
