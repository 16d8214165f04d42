"""What was worked out about a map: once, by the map itself, and gone with it."""

from __future__ import annotations

import torch

from normscope.bounds.linalg.linear_map import Matrix
from normscope.bounds.linalg.operator_norms import remembered, upper
from normscope.core import budget as cost
from normscope.core.budget import Budget


def matrix(rows: int = 3, columns: int = 4) -> Matrix:
    return Matrix(torch.arange(1.0, rows * columns + 1).reshape(rows, columns))


def test_a_norm_is_taken_once_and_again_where_it_must_be_tighter() -> None:
    linear, meter = matrix(40, 50), cost.Meter(Budget())
    with meter.part("norms"):
        for _ in range(3):
            upper(linear, rtol=1e-2)
    assert meter.cost().norms == {"norms": 1}
    assert remembered(linear, 1e-2)
    assert not remembered(linear, 1e-4)
    with meter.part("norms"):
        upper(linear, rtol=1e-4)
        upper(linear, rtol=1e-2)
    assert meter.cost().norms == {"norms": 2}


def test_a_bound_that_the_clock_cut_is_not_kept_as_a_tight_one() -> None:
    linear = matrix(80, 90)
    late = upper(linear, budget=Budget(max_seconds=0.0))
    assert not remembered(linear, 1.0)
    assert upper(linear).log10 < late.log10
