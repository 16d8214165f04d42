"""Counts of iterations and samples, against their formulas by hand."""

import math

import pytest

from normscope.core.errors import InputError
from normscope_lab.rates import GAUGE, RATES, corollaries, log10_data_ratio


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("nonconvex, at least", lambda L, a: L / a),
        ("nonconvex, Than", lambda L, a: L / a**2),
        ("nonconvex, Slides", lambda L, a: L**2 / a**3),
        ("convex, at least", lambda L, a: L**2 / a**2),
        ("convex, Slides", lambda L, a: L**2 / a**2),
        ("strongly convex, as printed", lambda L, a: L / a),
        ("strongly convex, corrected", lambda L, a: L**2 / a),
    ],
)
def test_rates_are_the_printed_powers(name, formula):
    for constant, alpha in ((7.0, 0.01), (0.3, 0.5), (1e6, 1e-3)):
        count = RATES[name].log10_iterations(math.log10(constant), alpha)
        assert count == pytest.approx(math.log10(formula(constant, alpha)), abs=1e-12)


def test_the_corollaries_by_hand():
    norms, sigma = [2.0, 3.0, 5.0, 7.0], 4.0
    found = corollaries([math.log10(n) for n in norms], [-math.log10(sigma)] * 4, alpha=0.1)
    assert [cost.layer for cost in found] == [1, 2, 3]
    for cost, behind in zip(found, (105.0, 35.0, 7.0)):
        i, depth = cost.layer, 4
        assert 10**cost.log10_at_least == pytest.approx(behind / 0.1)
        assert 10**cost.log10_unnormalized == pytest.approx(behind / 0.01)
        assert 10**cost.log10_normalized == pytest.approx(sigma ** (-depth + i - 1) * behind / 0.01)
        assert 10**cost.log10_ratio == pytest.approx(sigma ** (-depth + i - 1))


def test_the_ratio_is_gauge_dependent_and_the_product_is_not():
    """Scaling a weight in front of a normalizer: the network is the same, the ratio is not."""
    before = corollaries([1.0, 1.0, 1.0], [-0.5, -0.5, -0.5], alpha=0.1)[0]
    after = corollaries([1.0, 2.0, 1.0], [-0.5, -1.5, -0.5], alpha=0.1)[0]
    assert after.log10_normalized == pytest.approx(before.log10_normalized)
    assert after.log10_ratio == pytest.approx(before.log10_ratio - 1.0)
    assert "without changing the network" in GAUGE


def test_what_no_data_can_mend():
    given = {"cells": 5, "partition": 10, "delta": 0.1}
    assert log10_data_ratio(0.1, 0.01, 0.2, **given) == -math.inf
    assert log10_data_ratio(0.1, 0.0, 0.05, **given) == pytest.approx(2 * math.log10(0.5), abs=0.05)
    with pytest.raises(InputError, match="neither"):
        log10_data_ratio(0.1, 0.2, 0.3, **given)
