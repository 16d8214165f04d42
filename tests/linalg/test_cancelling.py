"""Parts that cancel are seen in rows and in columns, and the slack of a part counts wherever the part is used."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.dense_form import cancels, write_out
from normscope.bounds.linalg.folding import add, compose
from normscope.bounds.linalg.linear_map import Composite, Diagonal, LinearMap, Matrix, Sum
from normscope.bounds.linalg.operator_norms import absolute, bracket, row_norms, upper

DOUBLE = torch.float64


def matrix(*rows: list[float], slack: float = 0.0) -> Matrix:
    made = Matrix(torch.tensor(rows, dtype=DOUBLE))
    made.slack = slack
    return made


ROW = matrix([0.1], [0.2], [-0.3])  # its sum is rounding
COLUMN = matrix([0.1, 1.0], [0.2, 0.0], [-0.3, 0.0])
ONES = matrix([1.0, 1.0, 1.0])


@pytest.mark.parametrize("first", [ROW, COLUMN], ids=["a row", "a column of a row that does not cancel"])
def test_parts_that_cancel_are_not_folded(first: Matrix) -> None:
    assert cancels(Composite([first, ONES]))
    assert isinstance(compose(ONES, first), Composite)


def test_a_column_that_cancels_in_a_sum_keeps_its_terms() -> None:
    terms = matrix([1.0, 2.0], [3.0, 4.0]), matrix([-1.0, 5.0], [-3.0, 6.0])
    assert cancels(Sum(terms))
    assert isinstance(add(*terms), Sum)
    assert isinstance(add(terms[0], matrix([-1.0, 5.0], [7.0, 6.0])), Matrix)  # one entry alone is no column


SLACK = {
    "matrix": matrix([0.0, 0.0], slack=1e-3),
    "diagonal": Diagonal(torch.zeros(2, dtype=DOUBLE), (2,)),
    "convolution": Convolution(torch.zeros(1, 1, 1, dtype=DOUBLE), (2,)),
}
SLACK["diagonal"].slack = SLACK["convolution"].slack = 1e-3


@pytest.mark.parametrize("name", SLACK)
def test_absolute_entries_are_larger_by_the_slack(name: str) -> None:
    linear = SLACK[name]
    spread = absolute(linear)
    assert spread is not None
    moved = spread.apply(torch.ones(1, *linear.in_shape, dtype=DOUBLE))
    assert bool((moved >= 1e-3).all())


def loose(size: float) -> LinearMap:
    """A matrix of zeros known to within 1e-3, and one that makes `size` of what it lets through."""
    return Composite([matrix([0.0, 0.0], [0.0, 0.0], slack=1e-3), matrix([size, 0.0], [0.0, 1.0])])


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_the_slack_of_a_part_counts_behind_the_next_one(size: float) -> None:
    linear = loose(size)
    rows, spread = row_norms(linear), absolute(linear)
    assert upper(linear).log10 >= math.log10(1e-3 * size) - 1e-12
    assert rows is not None
    assert spread is not None
    assert float(rows.max()) >= 1e-3 * size * (1 - 1e-12)
    assert float(write_out(spread).max()) >= 1e-3 * size * (1 - 1e-12)


def test_no_gain_is_attained_within_the_slack_of_a_part() -> None:
    doubtful = Composite([matrix([1.0, 0.0], [0.0, 0.9], slack=0.5), matrix([1.0, 0.0], [0.0, 1.1])])
    assert bracket(doubtful).log10_lower <= math.log10(0.5) + 1e-9


def test_zero_times_an_overflow_is_zero() -> None:
    far = Composite([matrix([1e200]), matrix([1e200]), Diagonal(torch.zeros(1, dtype=DOUBLE), (1,))])
    rows = row_norms(far)
    assert rows is not None
    assert rows.tolist() == [0.0]
