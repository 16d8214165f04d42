"""Numbers kept as log10: what is not zero never vanishes, and what cannot be a norm is refused."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import pytest

from normscope.core.log10 import (
    SMALLEST,
    ceiling10,
    log10,
    log10_root_sum_squares,
    log10_sum,
    product_above,
)

UNIT = Fraction(1, 2**53)


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


@pytest.mark.parametrize("value", [5e-324, 1e-310, 1e-5, 1.0, 3.7, 1e100, 1.7e308])
def test_log10_is_right_to_rounding(value: float) -> None:
    truth = mpmath.log10(mpmath.mpf(value))
    assert abs(mpmath.mpf(log10(value)) - truth) <= 2.0**-52 * max(abs(truth), 1)


@pytest.mark.parametrize("value", [-1.0, -5e-324, math.nan, -math.inf])
def test_what_is_no_norm_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="a norm is a number >= 0"):
        log10(value)


@pytest.mark.parametrize("exponent", [-1e9, -400.0, -323.9, -308.0])
def test_an_upper_bound_that_is_not_zero_does_not_become_zero(exponent: float) -> None:
    assert ceiling10(exponent) >= SMALLEST > 0.0


@pytest.mark.parametrize("seed", range(20))
def test_products_are_not_below_the_truth(seed: int) -> None:
    """But for the rounding of each multiplication, which callers allow for."""
    source = random.Random(seed)
    factors = [10.0 ** source.uniform(-300, 300) for _ in range(source.randint(1, 8))]
    found = product_above(*factors)
    truth = math.prod(map(Fraction, factors))
    assert found == math.inf or Fraction(found) >= truth * (1 - UNIT) ** len(factors)


def test_products_of_zeros_and_infinities() -> None:
    assert product_above() == 1.0
    assert product_above(0.0, 1e300, 1e300) == 0.0
    assert product_above(0.0, math.inf) == product_above(math.inf, 0.0) == math.inf
    with pytest.raises(ValueError, match="NaN"):
        product_above(1.0, math.nan)


@pytest.mark.parametrize("seed", range(10))
def test_sums_on_the_logarithmic_scale(seed: int) -> None:
    source = random.Random(seed)
    exponents = [source.uniform(-1000, 1000) if seed % 2 else source.uniform(999, 1000) for _ in range(30)]
    powers = [mpmath.mpf(10) ** mpmath.mpf(e) for e in exponents]
    assert log10_sum(exponents) == pytest.approx(float(mpmath.log10(sum(powers))), rel=1e-14)
    squared = mpmath.log10(sum(power**2 for power in powers)) / 2
    assert log10_root_sum_squares(exponents) == pytest.approx(float(squared), rel=1e-14)


def test_sums_of_nothing_of_zeros_and_with_an_infinity() -> None:
    assert log10_sum([]) == log10_sum([-math.inf, -math.inf]) == -math.inf
    assert log10_sum([1.0, -math.inf]) == 1.0
    assert log10_sum([1.0, math.inf]) == log10_root_sum_squares([math.inf, 0.0]) == math.inf
