"""Contradictions between inequalities: what is proven is true, with exact arithmetic for a judge."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

from normscope.bounds.patterns import ENTRIES, EQUAL, STRICT, WEAK, contradictory


def shown(matrix: object, sides: object, y: object, kinds: object = WEAK, off: float = 0.0) -> bool:
    """Ask with entries that may be off as much as products of two numbers are."""
    rows, right = np.array(matrix, dtype=float), np.array(sides, dtype=float)
    far = (ENTRIES + off) * np.abs(rows), ENTRIES * np.abs(right)
    return contradictory(rows, far[0], right, far[1], np.zeros(len(rows)) + kinds, np.array(y, dtype=float))


def solvable(matrix: np.ndarray, sides: np.ndarray) -> bool:
    """Say whether G z <= h has a solution, by elimination in rational numbers (Fourier and Motzkin)."""
    rows = [([Fraction(float(x)) for x in row], Fraction(float(h))) for row, h in zip(matrix, sides, strict=True)]
    for place in range(matrix.shape[1]):
        above = [row for row in rows if row[0][place] > 0]
        below = [row for row in rows if row[0][place] < 0]
        kept = [row for row in rows if row[0][place] == 0]
        for (a, h), (b, g) in itertools.product(above, below):
            p, q = -b[place], a[place]
            kept.append(([p * x + q * y for x, y in zip(a, b, strict=True)], p * h + q * g))
        rows = kept
    return all(h >= 0 for _, h in rows)


def multipliers(matrix: np.ndarray, sides: np.ndarray) -> np.ndarray:
    cost = np.append(np.zeros(matrix.shape[1]), 1.0)
    bounds = [(None, None)] * matrix.shape[1] + [(0.0, None)]
    found = linprog(cost, np.hstack([matrix, -np.ones((len(matrix), 1))]), sides, bounds=bounds)
    return -found.ineqlin.marginals


@pytest.mark.slow
def test_what_is_proven_is_true_and_most_that_is_true_is_proven() -> None:
    random, proven, true = np.random.default_rng(0), 0, 0
    for trial in range(300):
        rows, size = int(random.integers(2, 7)), int(random.integers(1, 4))
        matrix, sides = random.standard_normal((rows, size)), random.standard_normal(rows) - 0.5
        if trial % 3 == 0:
            matrix *= 10.0 ** random.integers(-8, 1, matrix.shape)
        parallel = trial % 4 == 0 and size > 1  # two rows over several variables: kept
        if trial % 4 == 0:
            matrix[-1] = -2.0 * matrix[0]
        if trial % 5 == 0:
            matrix[random.random(matrix.shape) < 0.4] = 0.0
        answer = shown(matrix, sides, multipliers(matrix, sides))
        impossible = not solvable(matrix, sides)
        assert impossible or not answer
        proven, true = proven + (answer and not parallel), true + (impossible and not parallel)
    assert 0.9 * true <= proven <= true


@pytest.mark.parametrize("wrong", [0.0, 1.0, 1e-12])
def test_rows_that_are_nearly_parallel(wrong: float) -> None:
    """x + wrong y <= -1 and -x <= 0 contradict each other only if wrong is 0."""
    assert shown([[1.0, wrong], [-1.0, 0.0]], [-1.0, 0.0], [1.0, 1.0]) == (wrong == 0.0)


def test_nothing_is_said_of_rows_that_only_touch() -> None:
    """x <= 0 and x >= 0 leave one point, which a strict row takes away; x <= h and x >= h + 1e-15 may by rounding."""
    rows = [[1.0], [-1.0]]
    assert not shown(rows, [0.0, 0.0], [1.0, 1.0])
    assert shown(rows, [0.0, 0.0], [1.0, 1.0], [STRICT, WEAK])
    assert not shown(rows, [1e-300, 0.0], [1.0, 1.0], [STRICT, WEAK])
    assert not shown(rows, [1.0, -1.0 - 1e-15], [1.0, 1.0])
    assert shown(rows, [1.0, -1.0 - 1e-13], [1.0, 1.0])


def test_multipliers_of_equalities_may_be_negative() -> None:
    """v = x + 1, v <= 0, -x <= -1: the equality counts with either sign."""
    rows, sides, y = [[0.0, 1.0], [-1.0, 0.0], [-1.0, 1.0]], [0.0, -1.0, 1.0], [1.0, 1.0, -1.0]
    assert shown(rows, sides, y, [WEAK, WEAK, EQUAL])
    assert not shown(rows, sides, y)


def test_entries_that_may_be_off_prove_less() -> None:
    """x + y <= -1, -x <= 0, -y <= 1 - 1e-3: true by a thousandth, and not if entries may be off by as much."""
    rows, sides = [[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [-1.0, 0.0, 1.0 - 1e-3]
    assert shown(rows, sides, [1.0, 1.0, 1.0])
    assert not shown(rows, sides, [1.0, 1.0, 1.0], off=1e-2)
