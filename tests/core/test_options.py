"""Options that are numbers: what is refused, and how."""

import math

import pytest

from normscope.core.errors import InputError, check_counts, check_positive


@pytest.mark.parametrize("value", [-1, True, 1.0, "3", None, math.nan])
def test_a_count_is_a_whole_number(value):
    check_counts(steps=0, draws=7)
    with pytest.raises(InputError, match=r"draws is a whole number from 0 on, not "):
        check_counts(steps=3, draws=value)


def test_a_count_is_at_least_the_least():
    check_counts(least=2, samples=2)
    with pytest.raises(InputError, match=r"samples is a whole number from 2 on, not 1"):
        check_counts(least=2, samples=1)


@pytest.mark.parametrize("value", [0, -0.1, True, math.inf, math.nan, "0.1", None])
def test_a_positive_number_is_finite_and_above_zero(value):
    check_positive(lr=1, time=1e-300)
    with pytest.raises(InputError, match=r"lr is a number above 0, not "):
        check_positive(time=1.0, lr=value)
