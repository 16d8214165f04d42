"""Rounding outward, attacked in exact arithmetic: this file is the only way to PROVEN.

Truths are fractions. What is compared with a power of ten is compared in eighty digits, far beyond any float64.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from normscope.core.bracket import Evidence
from normscope.core.rounding import (
    ONE,
    UNIT,
    ZERO,
    Upper,
    cholesky_allowance,
    gamma,
    gram_allowance,
    inward,
    largest,
    numerical,
    residual_allowance,
    root_sum_squares,
    smallest,
    total,
)

PROVEN, NUMERICAL, SAMPLED = Evidence.PROVEN, Evidence.NUMERICAL, Evidence.SAMPLED
Gaussian = tuple[Fraction, Fraction]
"""A complex number: its real and its imaginary part."""


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with mpmath.workdps(80):
        yield


def log10(value: Fraction) -> mpmath.mpf:
    """Return log10 of a fraction in eighty digits."""
    return mpmath.log10(mpmath.mpf(value.numerator) / value.denominator)


def magnitudes(seed: int, count: int) -> list[float]:
    """Return positive floats over the whole range, some of them next to 1 and next to the ends."""
    source = random.Random(seed)
    edges = [5e-324, 2.0**-1022, 1.7976931348623157e308, math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0), 1.0, 10.0]
    drawn = [math.ldexp(source.uniform(0.5, 1.0), source.randint(-1070, 1023)) for _ in range(count // 2)]
    near = [1.0 + source.uniform(-1e-9, 1e-9) for _ in range(count - count // 2)]
    return [*edges, *drawn, *near]


def exact_gram(rows: Sequence[Sequence[Fraction]]) -> list[list[Fraction]]:
    """Return A^T A of a matrix that is given by its rows."""
    columns = list(zip(*rows, strict=True))
    return [[sum((a * b for a, b in zip(x, y, strict=True)), Fraction()) for y in columns] for x in columns]


def exact(matrix: np.ndarray) -> list[list[Fraction]]:
    """Return the entries of a matrix of floats as fractions."""
    return [[Fraction(float(value)) for value in row] for row in matrix]


def distance(computed: np.ndarray, truth: Sequence[Sequence[Fraction]]) -> Fraction:
    """Return the squared Frobenius distance of a computed matrix from the truth."""
    pairs = zip(exact(computed), truth, strict=True)
    return sum(((a - b) ** 2 for row, other in pairs for a, b in zip(row, other, strict=True)), Fraction())


def squares(matrix: np.ndarray) -> Fraction:
    """Return the squared Frobenius norm of a matrix of floats."""
    return sum((value**2 for row in exact(matrix) for value in row), Fraction())


# ------------------------------------------------------------------------------------------------------- allowances
@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_gamma_covers_that_many_factors_each_off_by_a_unit(count: int) -> None:
    u = Fraction(UNIT)
    assert Fraction(gamma(count)) >= (1 + u) ** count - 1
    assert Fraction(gamma(count)) >= 1 - (1 - u) ** count


@pytest.mark.parametrize("seed", range(10))
def test_gamma_covers_sums_of_products_in_any_order(seed: int) -> None:
    source = random.Random(seed)
    count = source.choice([2, 5, 30, 200])
    pairs = [(source.gauss(0, 1), source.gauss(0, 1) * 10 ** source.uniform(-8, 8)) for _ in range(count)]
    for order in (pairs, pairs[::-1], sorted(pairs, key=lambda pair: abs(pair[0] * pair[1]))):
        computed = 0.0
        for a, b in order:
            computed += a * b
        truth = sum(Fraction(a) * Fraction(b) for a, b in pairs)
        absolute = sum(abs(Fraction(a) * Fraction(b)) for a, b in pairs)
        assert abs(Fraction(computed) - truth) <= Fraction(gamma(count)) * absolute


def test_gamma_refuses_where_it_would_mean_nothing() -> None:
    with pytest.raises(ValueError, match="meaningless"):
        gamma(2.0**52)
    assert gamma(2.0**51) < 1.0


@pytest.mark.parametrize("seed", range(6))
def test_gram_matrices_of_matrices(seed: int) -> None:
    source = np.random.default_rng(seed)
    matrix = source.normal(size=(int(source.integers(1, 40)), 4)) * 10.0 ** source.uniform(-6, 6, size=(1, 4))
    allowed = Fraction(gram_allowance(len(matrix), 1, 0)) * squares(matrix)
    assert distance(matrix.T @ matrix, exact_gram(exact(matrix))) <= allowed**2


def conjugate_product(a: Gaussian, b: Gaussian) -> Gaussian:
    """Return conj(a) b."""
    return a[0] * b[0] + a[1] * b[1], a[0] * b[1] - a[1] * b[0]


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("seed", range(3))
def test_gram_matrices_of_symbols(turns: int, seed: int) -> None:
    """At quarter turns the phases are 1, i, -1 and -i, while their floats are not."""
    source = np.random.default_rng(seed)
    taps = source.normal(size=(5, 3, 2))
    phases = np.exp(2j * np.pi * np.array([(turns * k) % 4 for k in range(5)]) / 4)
    symbol = np.tensordot(phases, taps.astype(complex), 1)
    computed = symbol.conj().T @ symbol
    true: list[list[Gaussian]] = []
    for i in range(3):
        row = []
        for j in range(2):
            real = imaginary = Fraction()
            for k in range(5):
                value, quarter = Fraction(float(taps[k, i, j])), (turns * k) % 4
                real += value * (1, 0, -1, 0)[quarter]
                imaginary += value * (0, 1, 0, -1)[quarter]
            row.append((real, imaginary))
        true.append(row)
    off = Fraction()
    for i, j in itertools.product(range(2), range(2)):
        parts = [conjugate_product(true[k][i], true[k][j]) for k in range(3)]
        off += (Fraction(float(computed[i, j].real)) - sum(part[0] for part in parts)) ** 2
        off += (Fraction(float(computed[i, j].imag)) - sum(part[1] for part in parts)) ** 2
    # the sum of the Frobenius norms of the taps, from below: what is allowed is not made larger by rounding
    least = sum(Fraction(math.sqrt(float(squares(tap)))) for tap in taps) * (1 - Fraction(1, 10**12))
    assert off <= (Fraction(gram_allowance(3, 5, 1)) * least**2) ** 2


def positive_definite(matrix: Sequence[Sequence[Fraction]]) -> bool:
    """Say whether a symmetric matrix is, by its pivots in exact arithmetic."""
    rows = [list(row) for row in matrix]
    for k in range(len(rows)):
        if rows[k][k] <= 0:
            return False
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return True


def test_a_cholesky_factorization_that_ran_proves_what_it_claims() -> None:
    """Matrices of rank four of five but for their rounding, which makes about half of them indefinite."""
    fooled = 0
    for seed in range(200):
        source = np.random.default_rng(seed)
        low = source.normal(size=(5, 4))
        matrix = low @ low.T
        matrix = (matrix + matrix.T) / 2
        if int(torch.linalg.cholesky_ex(torch.from_numpy(matrix)).info) != 0:
            continue
        truth = exact(matrix)
        fooled += not positive_definite(truth)
        allowed = Fraction(cholesky_allowance(5, float(np.trace(matrix)), is_complex=False))
        shifted = [[value + (allowed if i == j else 0) for j, value in enumerate(row)] for i, row in enumerate(truth)]
        assert positive_definite(shifted)
    assert fooled > 3, "the attack found no indefinite matrix that factorizes: it has no teeth"


@pytest.mark.parametrize("seed", range(5))
def test_residuals_of_factorizations(seed: int) -> None:
    source = np.random.default_rng(seed)
    drawn = source.normal(size=(6, 6)) * 10.0 ** source.uniform(-3, 3, size=(1, 6))
    matrix = drawn @ drawn.T
    matrix = (matrix + matrix.T) / 2 + np.eye(6)
    factor = np.linalg.cholesky(matrix)
    truth = [
        [a - b for a, b in zip(row, other, strict=True)]
        for row, other in zip(exact(matrix), exact_gram(exact(factor.T)), strict=True)
    ]
    allowed = Fraction(residual_allowance(6, is_complex=False)) * squares(factor)
    assert distance(matrix - factor @ factor.T, truth) <= allowed**2


# ------------------------------------------------------------------------------------------------------- bounds
def test_no_bound_is_below_its_value() -> None:
    for value, allowance in itertools.product(magnitudes(0, 300), (0.0, 1e-15, 1e-9, 0.5)):
        bound = Upper.of(value, PROVEN, allowance=allowance)
        truth = log10(Fraction(value) * (1 + Fraction(allowance)))
        assert mpmath.mpf(bound.log10) >= truth
        assert mpmath.mpf(bound.log10) - truth < 1e-14 * (1 + abs(truth))
    assert Upper.of(0.0, PROVEN).log10 == -math.inf
    assert Upper.of(math.inf, PROVEN).log10 == math.inf


def test_no_lower_side_is_above_its_value() -> None:
    for value, allowance in itertools.product(magnitudes(1, 300), (0.0, 1e-15, 1e-9, 0.5)):
        truth = log10(Fraction(value) * (1 - Fraction(allowance)))
        found = mpmath.mpf(inward(value, allowance))
        assert found <= truth
        assert truth - found < 1e-14 * (1 + abs(truth))
    assert inward(0.0) == inward(-1.0) == inward(3.0, 1.0) == inward(3.0, 2.0) == -math.inf


@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("seed", range(5))
def test_products(count: int, seed: int) -> None:
    values = random.Random(seed).sample(magnitudes(seed, 200), count)
    bounds = [Upper.of(value, PROVEN) for value in values]
    truth = log10(math.prod((Fraction(value) for value in values), start=Fraction(1)))
    assert mpmath.mpf(bounds[0].times(*bounds[1:]).log10) >= truth


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("count", [2, 3, 50, 1000])
def test_sums_and_roots_of_sums_of_squares(count: int, near: bool) -> None:
    for seed in range(3):
        source = random.Random(seed)
        values = [source.uniform(1, 2) if near else 10.0 ** source.uniform(-150, 150) for _ in range(count)]
        bounds = [Upper.of(value, PROVEN) for value in values]
        assert mpmath.mpf(total(bounds).log10) >= log10(sum(map(Fraction, values), Fraction()))
        squared = sum((Fraction(value) ** 2 for value in values), Fraction())
        assert mpmath.mpf(root_sum_squares(bounds).log10) >= log10(squared) / 2


def test_many_terms_that_vanish_one_by_one_are_not_lost() -> None:
    """A thousand terms, each below the rounding of the first: a plain sum would return the first."""
    values = [1.0] + [1e-17] * 1000
    bounds = [Upper.of(value, PROVEN) for value in values]
    assert mpmath.mpf(total(bounds).log10) >= log10(sum(map(Fraction, values), Fraction()))


def test_the_largest_and_the_smallest() -> None:
    low, high = Upper.of(2.0, PROVEN, "low"), Upper.of(3.0, NUMERICAL, "high")
    assert largest([low, high]) == high
    assert smallest([high, low]) == low
    tied = Upper.of(2.0, SAMPLED, "tied")
    assert smallest([tied, low]) == smallest([low, tied]) == low


def test_a_short_computation_gets_room_for_its_rounding() -> None:
    for value in magnitudes(2, 100):
        if value != 1.0:
            assert numerical(value).evidence == NUMERICAL
            assert mpmath.mpf(numerical(value).log10) >= log10(Fraction(value) * (1 + Fraction(1, 10**13)))
    assert numerical(1.0) == ONE


# ------------------------------------------------------------------------------------------------------- evidence
COMPOSITIONS = {
    "product": lambda bounds: bounds[0].times(*bounds[1:]),
    "sum": total,
    "root of the sum of squares": root_sum_squares,
    "largest": largest,
}


@pytest.mark.parametrize("compose", COMPOSITIONS.values(), ids=COMPOSITIONS.keys())
@pytest.mark.parametrize("values", [(2.0, 3.0, 5.0), (1.0, 1.0, 1.0), (0.0, 3.0, 0.0), (0.0, 0.0, 0.0)])
def test_every_composition_keeps_the_weakest_evidence(compose, values) -> None:
    """Also of parts that seem to change nothing: a factor of 1 and a term of 0 may be rounded figures."""
    for evidence in itertools.product(Evidence, repeat=3):
        bounds = [Upper.of(value, known) for value, known in zip(values, evidence, strict=True)]
        assert compose(bounds).evidence == min(evidence)


@pytest.mark.parametrize("compose", COMPOSITIONS.values(), ids=COMPOSITIONS.keys())
def test_an_infinite_part_makes_the_whole_infinite_and_keeps_its_reason(compose) -> None:
    bounds = [ZERO, Upper.infinite("a step"), Upper.of(2.0, NUMERICAL)]
    for order in itertools.permutations(bounds):
        found = compose(list(order))
        assert (found.log10, found.reason, found.evidence) == (math.inf, "a step", NUMERICAL)


def test_nan_is_refused() -> None:
    for make in (lambda: Upper(math.nan, PROVEN), lambda: Upper.of(math.nan, PROVEN), lambda: Upper.of(-1.0, PROVEN)):
        with pytest.raises(ValueError, match="a norm is a number >= 0"):
            make()


def test_no_terms_are_zero() -> None:
    assert total([]) == root_sum_squares([]) == ZERO
    assert Upper.of(2.0, PROVEN, "a").named("b") == Upper.of(2.0, PROVEN, "b")
