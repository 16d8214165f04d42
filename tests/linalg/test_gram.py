"""Norms at a coarse tolerance stay certified: of matrices read in pieces, and of slices."""

from __future__ import annotations

import pytest
import torch

from normscope.bounds.linalg import operator_norms, weight_norms
from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.linear_map import Matrix, Repeated

from .cases import matrices, sigma

F64 = torch.float64
COARSE = 1e-2


LARGE = [name for name, matrix in matrices().items() if matrix.shape == (100, 200)]
"""Large matrices."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coarse_norms_of_stored_matrices_are_certified(name: str, dtype: torch.dtype, monkeypatch) -> None:
    monkeypatch.setattr(weight_norms, "_WHOLE_ENTRIES", 0)
    monkeypatch.setattr(weight_norms, "_PIECE_ENTRIES", 3333)
    matrix = matrices()[name].to(dtype)
    for whole in (matrix, matrix.T):
        truth, found = sigma(whole.double()), weight_norms.matrix_norm(whole, rtol=COARSE)
        assert found.lower <= truth * (1.0 + 1e-12)
        assert truth <= found.upper * (1.0 + 1e-12)
        assert found.converged


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
