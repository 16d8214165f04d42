"""Maps with entries from 1e-323 to 1e300: no upper side is below the norm in many digits, and nothing is NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mpmath
import pytest
import torch

from normscope.bounds.linalg.certify import below
from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.folding import compose
from normscope.bounds.linalg.linear_map import Centering, Composite, LinearMap, Matrix, Sum
from normscope.bounds.linalg.operator_norms import absolute, absolute_norm, applied, bracket, row_norms, upper

from .extreme import drawn, exact, log10_norm

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def assert_sound(linear: LinearMap) -> None:
    """No side of the norm, of the rows or of the entries is beyond the truth."""
    matrix = exact(linear)
    truth = log10_norm(matrix)
    assert upper(linear).log10 >= truth - 1e-12
    found = bracket(linear, steps=20)
    assert found.log10_upper >= truth - 1e-12
    assert found.log10_lower <= truth + 1e-9 or linear.slack > 0
    assert absolute_norm(linear) >= 10.0 ** min(truth - 1e-12, 308.0)
    rows = row_norms(linear)
    for i, value in enumerate([] if rows is None else rows.reshape(-1).tolist()):
        assert value >= mpmath.sqrt(sum(matrix[i, j] ** 2 for j in range(matrix.cols))) * (1 - mpmath.mpf(10) ** -14)
    spread = absolute(linear)
    sums = [] if spread is None else spread.apply(torch.ones(1, *linear.in_shape, dtype=DOUBLE)).reshape(-1).tolist()
    for i, value in enumerate(sums):
        assert value >= sum(abs(matrix[i, j]) for j in range(matrix.cols)) * (1 - mpmath.mpf(10) ** -12)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, 60, 10)], ids=lambda s: str(s.start))
def test_random_maps(seeds):
    for seed in seeds:
        assert_sound(drawn(seed))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(60, 1060, 100))
def test_more_random_maps(start):
    for seed in range(start, start + 100):
        assert_sound(drawn(seed))


def row(*values: float) -> Matrix:
    return Matrix(torch.tensor([values], dtype=DOUBLE))


def terms_within_parts() -> Composite:
    return Composite([row(1e8), Sum([row(0.1), row(0.2), row(-0.3)]), row(1e-30)])


CANCELLED = {
    "terms": Sum([row(0.1), row(0.2), row(-0.3)]),
    "terms within parts": terms_within_parts(),
    "a mean": Composite([Matrix(torch.tensor([[0.1], [0.1 + 2**-55], [0.1]], dtype=DOUBLE)), Centering((3,), 1)]),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_what_cancels_is_not_attained(name):
    assert_sound(CANCELLED[name])


def scaled(first: float, second: float) -> Convolution:
    """Two channels, each times a number."""
    return Convolution(torch.diag(torch.tensor([first, second], dtype=DOUBLE))[:, :, None], (3,))


def vanishing(small: float, times: int) -> LinearMap:
    """Parts with a largest entry of 1 each, whose product is `small` to the power of `times`."""
    result: LinearMap = scaled(1.0, small)
    for index in range(1, 2 * times):
        result = compose(scaled(small, 1.0) if index % 2 else scaled(1.0, small), result)
    return result


@pytest.mark.parametrize(("small", "times"), [(1e-170, 2), (1e-90, 4), (1e-120, 3), (1e-300, 2), (1e-320, 1)])
def test_products_that_vanish_are_not_zero(small, times):
    assert_sound(vanishing(small, times))
    assert upper(vanishing(small, times)).log10 > -math.inf


UNUSED = {
    "the first tap": ([1e300, 1e-30, 0.0], 1),
    "far": ([1e160, 0.0, 1e-160, 0.0, 1e160], 2),
}


@pytest.mark.parametrize("name", UNUSED)
@pytest.mark.parametrize("transposed", [True, False])
def test_a_tap_that_meets_padding_alone_hides_no_other(name, transposed):
    weights, padding = UNUSED[name]
    conv = Convolution(torch.tensor([[weights]], dtype=DOUBLE), (1,), padding=padding, transposed=transposed)
    assert_sound(conv)
    assert upper(conv).log10 == pytest.approx(math.log10(abs(weights[len(weights) // 2])), abs=1e-9)


@pytest.mark.parametrize("mode", ["zeros", "circular", "replicate", "reflect"])
def test_padding_modes_at_mixed_scales(mode):
    for exponents in ((200, 0, -200), (-200, 0, 200), (-160, -160, -320), (300, -300, 0), (0, 290, 290)):
        weight = torch.tensor([[[10.0**e for e in exponents]]], dtype=DOUBLE)
        conv = Convolution(weight, (3,), padding=1, padding_mode=mode)
        assert upper(conv).log10 >= max(exponents) - 1e-9
        rows = row_norms(conv)
        assert bool((rows >= write_out(conv).abs().amax(1).reshape(rows.shape)).all())


def test_rows_of_small_taps_beside_large_ones():
    conv = Convolution(torch.tensor([[[1e200, 1e-100, 0.0]]], dtype=DOUBLE), (3,), padding=1)
    assert row_norms(conv)[0].tolist() == pytest.approx([1e-100, 1e200, 1e200], rel=1e-9, abs=0)


def test_changes_that_vanish_behind_a_small_weight_are_kept():
    spread = absolute(Matrix(torch.tensor([[1e-250, 0.0], [0.0, 0.0]], dtype=DOUBLE)))
    moved = applied(spread, torch.tensor([[1e-90, 1.0]], dtype=DOUBLE))[0]
    assert moved[0] >= 1e-340
    assert moved[0] > 0
    assert moved[1] == 0


@pytest.mark.parametrize("where", [(0, 0), (1, 1), (1, 0)])
def test_nan_is_below_nothing(where):
    """LAPACK factorizes a matrix with NaN without a complaint."""
    gram = torch.eye(2, dtype=DOUBLE)
    gram[where] = gram[where[::-1]] = math.nan
    assert below(torch.stack([torch.eye(2, dtype=DOUBLE), gram]), 2.0).tolist() == [True, False]
