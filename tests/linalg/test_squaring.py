"""The largest eigenvalue by repeated squaring, against dense eigenvalues and inside certificates."""

import pytest
import torch

from normscope.linalg import lanczos
from normscope.linalg.lanczos import squared_eigenpairs
from normscope.linalg.linear_map import Matrix
from normscope.linalg.operator_norms import bracket


def family(values, *, complex_=False, seed=0):
    """Return a Hermitian matrix with given eigenvalues, and a start."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if complex_ else torch.float64
    size = len(values)
    basis, _ = torch.linalg.qr(torch.randn(size, size, dtype=dtype, generator=generator))
    matrix = (basis * torch.tensor(values, dtype=torch.float64)) @ basis.mH
    return matrix[None], torch.randn(1, size, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("rtol", [1e-4, 1e-10])
@pytest.mark.parametrize("gap", [0.5, 1e-5, 0.0])
def test_estimates_come_close_whatever_the_gap(gap, rtol, complex_):
    values = [1.0] * 3 + [1.0 - gap] * 40 + [0.3] * 20
    matrix, start = family(values, complex_=complex_)
    found, vector = squared_eigenpairs(matrix, start, rtol=rtol)
    assert 1.0 - rtol <= float(found) <= 1.0 + 1e-13
    assert float(vector.norm()) == pytest.approx(1.0, abs=1e-12)
    gain = float((vector.conj() * (matrix @ vector[:, :, None])[:, :, 0]).sum().real)
    assert gain >= 1.0 - rtol


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e140])
def test_scales_do_not_matter(scale):
    matrix, start = family([2.0, 1.0, 0.5])
    found, _ = squared_eigenpairs(matrix * scale, start, rtol=1e-9)
    assert float(found) / scale == pytest.approx(2.0, rel=1e-9)


def test_a_zero_matrix_has_the_eigenvalue_zero():
    found, vector = squared_eigenpairs(torch.zeros(2, 4, 4, dtype=torch.float64), torch.ones(2, 4), rtol=1e-9)
    assert found.tolist() == [0.0, 0.0]
    assert bool(vector.isfinite().all())


def test_certificates_built_on_it_close(monkeypatch):
    """What a GPU does, on the CPU: the certificate takes its thresholds from squaring."""

    def squared(matrices, *, steps=48, rtol=1e-6, generator=None):
        start = torch.randn(matrices.shape[:2], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return squared_eigenpairs(matrices, start, rtol=rtol)

    monkeypatch.setattr("normscope.linalg.certify.top_eigenpairs", squared)
    assert lanczos.top_eigenpairs is not squared
    for seed in range(4):
        weight = torch.randn(150, 140, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        found = bracket(Matrix(weight), rtol=1e-6)
        truth = float(torch.linalg.matrix_norm(weight, 2))
        assert found.lower <= truth * (1 + 1e-12)
        assert truth <= found.upper <= truth * (1 + 1e-6)
        assert found.converged
