"""The number of samples of the Slides' Theorem 1, against its formula by hand."""

import math

import pytest

from normscope.theory.sample_sizes import generalization_slack, sample_size


def test_the_sample_size_solves_the_bound():
    for gap, sensitivity, cells in ((0.1, 0.0, 1), (0.5, 0.3, 40), (5.0, 0.1, 100)):
        given = {"cells": cells, "partition": 100, "delta": 0.01, "most": 2.0}
        samples = sample_size(gap, sensitivity=sensitivity, **given)
        assert sensitivity + generalization_slack(samples, **given) == pytest.approx(gap, rel=1e-12)
        assert sensitivity + generalization_slack(samples / 2, **given) > gap
    root = math.sqrt(10 * math.log(2 * 100 / 0.05) / 400)
    by_hand = (math.sqrt(2) + 1) * root + 2 * root**2
    assert generalization_slack(400, cells=10, partition=100, delta=0.05) == pytest.approx(by_hand)


def test_no_number_of_samples_makes_up_for_a_large_sensitivity():
    assert sample_size(0.1, sensitivity=0.1, cells=5, partition=10, delta=0.1) == math.inf
