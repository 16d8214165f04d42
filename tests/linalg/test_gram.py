"""Gram matrices in float32: their rounding stays within the allowance, and norms taken from them stay certified."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from normscope.core.bracket import Evidence
from normscope.core.rounding import narrow_underflow
from normscope.diagnosis import weight_norms
from normscope.linalg import certify, conv_norm, operator_norms
from normscope.linalg.convolution_map import Convolution
from normscope.linalg.layer_norms import linear_map
from normscope.linalg.linear_map import Matrix, Repeated

from .cases import dense, matrices, sigma

F64 = torch.float64
COARSE = 1e-2


def narrow_gram(matrix: Tensor) -> Tensor:
    return certify.gram_of_rows(matrix.T.split(certify.PIECE), len(matrix), narrow=True)


LARGE = [name for name, matrix in matrices().items() if matrix.shape == (100, 200)]
"""Matrices that are large enough for float32."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coarse_norms_of_stored_matrices_are_certified(name: str, dtype: torch.dtype, monkeypatch) -> None:
    monkeypatch.setattr(weight_norms, "_SMALL", 0)
    monkeypatch.setattr(weight_norms, "_PIECE", 3333)
    matrix = matrices()[name].to(dtype)
    for whole in (matrix, matrix.T):
        truth, found = sigma(whole.double()), weight_norms.matrix_norm(whole, rtol=COARSE)
        assert found.lower <= truth * (1.0 + 1e-12)
        assert truth <= found.upper * (1.0 + 1e-12)
        assert found.converged


@pytest.mark.parametrize("name", LARGE)
def test_the_allowance_covers_the_rounding(name: str) -> None:
    matrix = matrices()[name]
    matrix = matrix / matrix.abs().max()
    exact, rounded = matrix @ matrix.T, narrow_gram(matrix)
    size = min(float(matrix.norm()), math.sqrt(float(matrix.abs().sum(0).max() * matrix.abs().sum(1).max())))
    allowed = certify.narrow_share(matrix.shape[1]) * size**2 + narrow_underflow(*matrix.shape)
    assert sigma(exact - rounded) <= allowed + 1e-14 * size**2
    assert torch.equal(rounded, rounded.T)


def test_float32_sums_stay_short() -> None:
    """A long sum of equal numbers drifts by thousands of units: not here."""
    for terms in (64, 1000, 5000, 70_000):
        matrix = torch.full((4, terms), 0.7, dtype=F64)
        exact = float(matrix.float()[0].double().square().sum())
        rounded = narrow_gram(matrix)
        assert abs(float(rounded[1, 2]) / exact - 1.0) <= certify.narrow_share(terms) <= 90 * 2.0**-24
    assert certify.narrow_share(10**9) == certify.narrow_share(1024)
    with pytest.raises(AssertionError, match="short sums"):
        certify.gram_of_rows([torch.ones(certify.PIECE + 1, 3)], 3, narrow=True)


def test_where_float32_rounds_too_much_float64_takes_over(monkeypatch) -> None:
    monkeypatch.setattr(weight_norms, "narrow_share", lambda terms: 1.0)
    monkeypatch.setattr(weight_norms, "_SMALL", 0)
    stored = weight_norms.matrix_norm(matrices()["random"].float(), rtol=COARSE)
    assert stored.gap < 1e-3


def applied_entries(monkeypatch, kind) -> list[int]:
    """Count the entries that a kind of map is applied to."""
    entries: list[int] = []
    real = kind.apply

    def apply(self, x):
        entries.append(x.numel())
        return real(self, x)

    monkeypatch.setattr(kind, "apply", apply)
    return entries


@pytest.mark.parametrize("rtol", [1e-2, 1e-3])
def test_one_slice_is_measured_where_all_are_alike(rtol: float, monkeypatch) -> None:
    torch.manual_seed(0)
    matrix = Matrix(torch.randn(40, 30), (50, 7))
    conv = Repeated(Convolution(torch.randn(8, 8, 3, 3), (9, 9), padding=1), (6,))
    for linear, size, kind in ((matrix, 30, Matrix), (conv, 8 * 81, Convolution)):
        entries = applied_entries(monkeypatch, kind)
        found = operator_norms.bracket(linear, rtol=rtol)
        assert max(entries) == size
        assert found.witness.shape == linear.in_shape == found.input_shape
        gain = float(linear.apply(found.witness[None]).norm() / found.witness.norm())
        assert found.lower <= gain * (1.0 + 1e-12)
        assert gain <= found.upper
        known = operator_norms.upper(linear, rtol=rtol)
        assert known.log10 == found.log10_upper
        entries.clear()
        again = operator_norms.bracket(linear, rtol=rtol)
        assert (again.log10_lower, again.log10_upper) == pytest.approx((found.log10_lower, found.log10_upper), abs=1e-2)


def layers() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "plain": (nn.Conv1d(10, 10, 3, padding=1), (10, 9)),
        "two axes": (nn.Conv2d(9, 11, 3, padding=1), (9, 4, 3)),
        "strided": (nn.Conv1d(9, 10, 3, padding=1, stride=2), (9, 11)),
        "strided, few inputs": (nn.Conv1d(3, 20, 4, stride=2), (3, 22)),
        "few outputs": (nn.Conv1d(20, 7, 5, padding=2), (20, 8)),
        "many terms": (nn.Conv1d(1100, 3, 2), (1100, 2)),
        "circular": (nn.Conv1d(9, 9, 3, padding=1, padding_mode="circular"), (9, 10)),
        "replicate": (nn.Conv1d(9, 9, 3, padding=1, padding_mode="replicate"), (9, 10)),
        "transposed": (nn.ConvTranspose1d(9, 10, 3, stride=2), (9, 6)),
        "one tap": (nn.Conv2d(9, 13, 1), (9, 3, 3)),
        "dilated": (nn.Conv1d(9, 9, 3, padding=2, dilation=2), (9, 9)),
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", layers())
@pytest.mark.parametrize("factor", [1.0, 1e25])
def test_coarse_norms_of_convolutions_are_certified(name: str, factor: float, monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(conv_norm, "_FAST", 0.0)  # not written out
    layer, shape = layers()[name]
    layer.bias = None
    layer = layer.double()
    for smooth in (False, True):
        with torch.no_grad():
            weight = torch.randn_like(layer.weight)
            layer.weight.copy_((weight.mean(-1, keepdim=True) + 0.1 * weight if smooth else weight) * factor)
        truth, linear = sigma(dense(layer, shape)), linear_map(layer, shape)
        upper = operator_norms.upper(linear, rtol=COARSE)
        assert upper.evidence is Evidence.PROVEN
        assert math.log10(truth) <= upper.log10 + 1e-12
        found = operator_norms.bracket(linear_map(layer, shape), rtol=COARSE)
        assert found.lower * (1.0 - 1e-12) <= truth <= found.upper * (1.0 + 1e-12)
