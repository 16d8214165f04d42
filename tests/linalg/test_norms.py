"""Matrices and the other maps: brackets against LAPACK, exact figures, evidence and memory of bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from normscope.bounds.linalg import operator_norms
from normscope.bounds.linalg.certify import below, certify, cheap_bounds
from normscope.bounds.linalg.conv_norm import bound_matrices
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.linear_map import (
    Averaging,
    Centering,
    Coded,
    Composite,
    Diagonal,
    Identity,
    Matrix,
    Reindex,
    Repeated,
    Sum,
)
from normscope.bounds.linalg.singular_vector import largest_singular_vector
from normscope.core.bracket import Evidence
from normscope.core.budget import Budget
from normscope.core.errors import InputError

from .cases import matrices, sigma

F64 = torch.float64


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("rtol", "gap"), [(1e-3, 1e-7), (1e-2, 1e-2)])
@pytest.mark.parametrize("name", matrices())
@pytest.mark.parametrize("factor", [1.0, 1e-200, 1e200])
def test_matrices(name: str, factor: float, rtol: float, gap: float) -> None:
    matrix = matrices()[name] * factor
    result = operator_norms.bracket(Matrix(matrix), rtol=rtol)
    truth = sigma(matrix)
    assert result.lower <= truth * (1.0 + 1e-12)
    assert truth <= result.upper * (1.0 + 1e-12)
    assert result.gap <= gap
    assert result.evidence is Evidence.PROVEN
    assert result.witness.norm() == pytest.approx(1.0)
    assert float((matrix / factor @ result.witness).norm()) * factor >= result.lower * (1.0 - 1e-12)


def test_extreme_values() -> None:
    assert operator_norms.bracket(Matrix(torch.full((2, 2), 1e308, dtype=F64))).log10_upper == pytest.approx(
        308 + math.log10(2)
    )
    tiny = operator_norms.bracket(Matrix(torch.full((2, 2), 5e-324, dtype=F64)))
    assert tiny.log10_upper == pytest.approx(math.log10(5e-324) + math.log10(2), abs=1e-6)
    assert operator_norms.bracket(Matrix(torch.zeros(3, 4))).log10_upper == -math.inf
    assert operator_norms.bracket(Matrix(torch.zeros(0, 4))).log10_upper == -math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_without_a_norm_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="NaN or infinite"):
        operator_norms.upper(Matrix(torch.tensor([[1.0, value]])))
    with pytest.raises(InputError, match="NaN or infinite"):
        operator_norms.upper(Diagonal(torch.tensor([1.0, value]), (2,)))


def dense_sigma(linear) -> float:
    return float(np.linalg.norm(write_out(linear).numpy(), 2))


def other_maps() -> dict[str, tuple]:
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=F64, generator=generator)

    pool = torch.nn.functional.avg_pool2d
    return {
        "identity": (Identity((3, 4), (12,)), Evidence.PROVEN, 1e-12),
        "diagonal": (Diagonal(random(4), (3, 4)), Evidence.PROVEN, 1e-12),
        "permute": (Reindex.of(lambda x: x.permute(1, 0), (3, 4)), Evidence.PROVEN, 1e-12),
        "expand": (Reindex.of(lambda x: x[None].expand(5, -1, -1), (3, 4)), Evidence.PROVEN, 1e-12),
        "dropped": (Reindex.of(lambda x: x[:1] * 0.0, (3, 4)), Evidence.PROVEN, 0.0),
        "centering": (Centering((3, 4)), Evidence.PROVEN, 1e-12),
        "centering of two dims": (Centering((3, 4), 2), Evidence.PROVEN, 1e-12),
        "centering of one entry": (Centering((3, 1)), Evidence.PROVEN, 0.0),
        "pooling": (Averaging(lambda x: pool(x, 2), (2, 6, 6), (2, 3, 3)), Evidence.NUMERICAL, 1e-9),
        "overlapping pooling": (Averaging(lambda x: pool(x, 3, 2), (2, 9, 9), (2, 4, 4)), Evidence.NUMERICAL, 0.3),
        "code": (Coded(lambda x: x - 2.0 * x.flip(1), (6,), (6,)), Evidence.NUMERICAL, 1e-6),
        "repeated": (Repeated(Matrix(random(4, 5)), (3, 2)), Evidence.PROVEN, 1e-8),
        "leading": (Matrix(random(4, 5), (3, 2)), Evidence.PROVEN, 1e-8),
        "composite": (
            Composite([Matrix(random(6, 5)), Reindex.of(lambda x: x.flip(0), (6,)), Matrix(random(5, 6))]),
            Evidence.NUMERICAL,
            1e-6,
        ),
        "sum": (Sum([Matrix(random(5, 5)), Reindex.of(lambda x: x.flip(0), (5,))]), Evidence.NUMERICAL, 1e-6),
        "batched composite": (
            Composite([Matrix(random(6, 5), (7,)), Reindex.of(lambda x: x.flip(1), (7, 6))]),
            Evidence.PROVEN,
            1e-6,
        ),
    }


@pytest.mark.parametrize("name", other_maps())
def test_other_maps(name: str) -> None:
    linear, evidence, gap = other_maps()[name]
    result = operator_norms.bracket(linear)
    truth = dense_sigma(linear)
    assert result.lower <= truth * (1.0 + 1e-12)
    assert truth <= result.upper * (1.0 + 1e-12)
    assert result.evidence is evidence
    assert result.gap <= gap
    if truth > 0.0:
        gain = linear.apply(result.witness[None]).norm() / result.witness.norm()
        assert float(gain) >= result.lower * (1.0 - 1e-12)


def test_certificate_covers_every_matrix_of_a_family() -> None:
    generator = torch.Generator().manual_seed(0)
    for size, count in ((1, 50), (2, 50), (7, 200), (40, 60), (130, 12)):
        for is_complex in (False, True):
            dtype = torch.complex128 if is_complex else F64
            factor = torch.randn(count, size, size + 3, dtype=dtype, generator=generator)
            gram = factor @ factor.mH
            gram[count // 3] *= 1.7
            truth = float(torch.linalg.eigvalsh(gram).max())
            found = certify(gram.split(17), delta=1e-7)
            assert truth <= found.bound * (1.0 + 1e-13)
            assert found.bound <= truth * (1.0 + 1e-5)
            assert found.estimate <= truth * (1.0 + 1e-12)
            assert bool((torch.linalg.eigvalsh(gram)[:, -1] <= cheap_bounds(gram)).all())


def test_cholesky_refuses_what_is_above() -> None:
    gram = torch.diag_embed(torch.tensor([[1.0, 2.0], [1.0, 3.0]], dtype=F64))
    assert below(gram.clone(), 2.5).tolist() == [True, False]
    assert below(gram.clone(), 3.0 * (1.0 - 1e-12)).tolist() == [True, False]
    assert below(gram.clone(), 3.0 * (1.0 + 1e-12)).tolist() == [True, True]


def test_search_restarts_when_its_memory_is_full() -> None:
    generator = torch.Generator().manual_seed(2)
    matrix = Matrix(torch.randn(120, 140, dtype=F64, generator=generator))
    start = torch.randn(140, dtype=F64, generator=generator)
    search = largest_singular_vector(matrix, start, rtol=1e-9, steps=2000, memory=8.0 * 140 * 12)
    assert search.settled
    assert search.value == pytest.approx(dense_sigma(matrix), rel=1e-7)


@pytest.mark.parametrize("gains", [True, False], ids=["rows that differ", "a whole batch"])
def test_a_map_is_written_out_where_that_gains_something(gains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear layer and the mean over a batch act on two axes, so that the product of their norms is attained."""
    generator = torch.Generator().manual_seed(0)
    rows, width = 21, 32
    layer = Matrix(torch.randn(width, width, dtype=F64, generator=generator), (rows,))
    swapped = torch.arange(rows * width).reshape(rows, width).T.contiguous()
    back = torch.arange(rows * width).reshape(width, rows).T.contiguous()
    parts = [layer, Reindex(swapped, (rows, width)), Centering((width, rows), 1), Reindex(back, (width, rows))]
    if gains:
        parts[2] = Diagonal(torch.rand(width, rows, dtype=F64, generator=generator), (width, rows))
    linear, sides = Composite(parts), []
    written_out = operator_norms.write_out
    monkeypatch.setattr(operator_norms, "write_out", lambda m: sides.append(m.in_size) or written_out(m))
    upper = 10.0 ** operator_norms.upper(linear, rtol=1e-2).log10
    truth = dense_sigma(linear)
    assert truth <= upper * (1.0 + 1e-12)
    assert upper <= truth * 1.01
    assert sides == ([rows * width] if gains else [])


@pytest.mark.gpu
@pytest.mark.parametrize("name", matrices())
def test_matrices_on_a_gpu(name: str) -> None:
    matrix = matrices()[name]
    result = operator_norms.bracket(Matrix(matrix.cuda()))
    truth = sigma(matrix)
    assert result.lower <= truth * (1.0 + 1e-12)
    assert truth <= result.upper * (1.0 + 1e-12)
    assert result.gap <= 1e-7


@pytest.mark.parametrize("shape", [(3, 4, 7), (3, 7, 4), (1, 130, 140), (2, 5, 5)])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_matrices_along_a_diagonal_are_bounded_by_the_largest_norm(shape: tuple[int, int, int], size: float) -> None:
    matrices = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * size
    upper, start = bound_matrices(matrices, Budget())
    norms = torch.linalg.matrix_norm(matrices / size, 2)
    truth = math.log10(float(norms.max())) + math.log10(size)
    assert truth <= upper.log10 <= truth + 1e-8
    assert upper.evidence is Evidence.PROVEN
    assert start is not None
    image = torch.einsum("gmn,gn->gm", matrices / size, start.reshape(shape[0], shape[2]))
    assert float(image.norm() / start.norm()) == pytest.approx(float(norms.max()), rel=1e-9)
