"""Both ends of a spectrum: against dense eigenvalues, with restarts, multiple eigenvalues and treacherous starts."""

import pytest
import torch

from normscope.core.budget import Budget
from normscope.products.spectrum_ends import extreme_eigenpairs


def symmetric(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Return a matrix with these eigenvalues and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
    return basis @ torch.diag(values.double()) @ basis.T


def start(size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("room", [256, 24])
def test_both_ends_with_and_without_restarts(room: int) -> None:
    values = torch.linspace(-1, 1, 120, dtype=torch.float64) ** 3
    matrix = symmetric(values)
    found = extreme_eigenpairs(
        lambda v: matrix @ v, start(120), top=3, bottom=2, rtol=1e-9, budget=Budget(2000), room=room
    )
    assert all(found.converged)
    assert found.top == pytest.approx(values.flip(0)[:3].tolist(), rel=1e-8)
    assert found.bottom == pytest.approx(values[:2].tolist(), rel=1e-8)
    assert torch.allclose(found.vectors @ found.vectors.T, torch.eye(5, dtype=torch.float64), atol=1e-10)
    for value, residual, vector in zip((*found.top, *found.bottom), found.residuals, found.vectors):
        assert float((matrix @ vector - value * vector).norm()) <= residual + 1e-10


@pytest.mark.parametrize("steps", [17, 18, 19])
def test_vectors_belong_to_their_values_where_the_budget_ends_with_a_full_space(steps: int) -> None:
    matrix = symmetric(torch.linspace(-1, 1, 120, dtype=torch.float64))
    ends = extreme_eigenpairs(lambda v: matrix @ v, start(120), top=1, rtol=1e-9, budget=Budget(steps), room=18)
    assert ends.products == steps
    assert not ends.converged[0]
    vector = ends.vectors[0]
    assert float((matrix @ vector - ends.top[0] * vector).norm()) == pytest.approx(ends.residuals[0], rel=1e-6)


def test_an_eigenvalue_that_is_there_twice_is_found_twice() -> None:
    values = torch.tensor([5.0, 5.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    matrix = symmetric(values)
    found = extreme_eigenpairs(lambda v: matrix @ v, start(8), top=4, rtol=1e-9, budget=Budget(100))
    assert found.top == pytest.approx([5.0, 5.0, 2.0, 1.0])


def test_a_start_that_is_another_eigenvector_is_not_believed() -> None:
    matrix = torch.diag(torch.arange(10.0, 0.0, -1.0, dtype=torch.float64))
    second = torch.zeros(10, dtype=torch.float64)
    second[1] = 1.0
    found = extreme_eigenpairs(lambda v: matrix @ v, second, top=1, rtol=1e-3, budget=Budget(100))
    assert found.top[0] == pytest.approx(10.0, rel=1e-3)


def test_a_projection_keeps_the_search_inside() -> None:
    matrix = torch.diag(torch.tensor([9.0, 5.0, 4.0, 1.0, 0.5], dtype=torch.float64))

    def project(vector: torch.Tensor) -> torch.Tensor:
        return torch.cat([vector.new_zeros(1), vector[1:]])

    found = extreme_eigenpairs(lambda v: matrix @ v, start(5), top=5, rtol=1e-9, budget=Budget(100), project=project)
    assert found.whole
    assert found.top == pytest.approx([5.0, 4.0, 1.0, 0.5])
