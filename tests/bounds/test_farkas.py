"""Contradictions between inequalities: what is proven is true, with exact arithmetic for a judge."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

from normscope.bounds.exact.farkas import System, contradictory, enclosed


def system(matrix: list[list[float]], sides: list[float], equal: int = 0) -> System:
    rows = np.array(matrix, dtype=float)
    ones, zeros = np.ones(len(rows)), np.zeros_like(rows)
    return System(ones, rows, np.ones(rows.shape[1]), zeros, np.array(sides, dtype=float), zeros, equal, ones)


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


def test_what_is_proven_is_true_and_most_that_is_true_is_proven() -> None:
    random, proven, true = np.random.default_rng(0), 0, 0
    for trial in range(300):
        rows, size = int(random.integers(2, 7)), int(random.integers(1, 4))
        matrix, sides = random.standard_normal((rows, size)), random.standard_normal(rows) - 0.5
        if trial % 3 == 0:
            matrix *= 10.0 ** random.integers(-8, 1, matrix.shape)
        if trial % 4 == 0:
            matrix[-1] = -2.0 * matrix[0]
        if trial % 5 == 0:
            matrix[random.random(matrix.shape) < 0.4] = 0.0
        shown = contradictory(system(matrix.tolist(), sides.tolist()), multipliers(matrix, sides))
        impossible = not solvable(matrix, sides)
        assert impossible or not shown
        proven, true = proven + shown, true + impossible
    assert 0.9 * true <= proven <= true


@pytest.mark.parametrize("wrong", [0.0, 1.0, 1e-12])
def test_rows_that_are_nearly_parallel(wrong: float) -> None:
    """x + wrong y <= -1 and -x <= 0 contradict each other only if wrong is 0."""
    shown = contradictory(system([[1.0, wrong], [-1.0, 0.0]], [-1.0, 0.0]), np.array([1.0, 1.0]))
    assert shown == (wrong == 0.0)


def test_nothing_is_said_of_rows_that_only_touch() -> None:
    """x <= 0 and x >= 0; x <= 1e-300 and x >= 0; 3 x <= 0.1 * 3 and x >= 0.1 leave room, or may by rounding."""
    for sides in ([0.0, 0.0], [1e-300, 0.0]):
        assert not contradictory(system([[1.0], [-1.0]], sides), np.array([1.0, 1.0]))
    matrix, off = np.array([[1.0], [-1.0]]), np.full((2, 1), 1e-15)
    both = np.array([True, True])
    assert not enclosed(matrix, off, np.array([1.0, -1.0 - 1e-15]), np.full(2, 1e-15), both, np.ones(2))
    assert enclosed(matrix, off, np.array([1.0, -1.0 - 1e-13]), np.full(2, 1e-15), both, np.ones(2))


def test_multipliers_of_equalities_may_be_negative() -> None:
    """v = x + 1, v <= 0, -x <= -1: the equality counts with either sign."""
    rows = [[0.0, 1.0], [-1.0, 0.0], [-1.0, 1.0]]
    assert contradictory(system(rows, [0.0, -1.0, 1.0], equal=1), np.array([1.0, 1.0, -1.0]))
    assert not contradictory(system(rows, [0.0, -1.0, 1.0]), np.array([1.0, 1.0, -1.0]))


def test_entries_in_doubt_are_not_solved_in_rational_numbers() -> None:
    rows, doubt = [[1.0, 2.0], [-1.0, -2.0]], np.full((2, 2), 1e-14)
    plain = system(rows, [-1.0, 0.0])
    assert contradictory(plain, np.ones(2))
    unsure = System(plain.left, plain.rows, plain.right, plain.own, plain.last, doubt, 0, plain.sizes)
    assert not contradictory(unsure, np.ones(2))
