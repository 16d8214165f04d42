"""Lanczos quadrature: what it says of a random vector against the spectral measure of that vector, written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from normscope.bounds.linalg.quadrature import Quadrature, quadratures, random_units


def normal(size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64)


def picked(values: tuple[float, ...], size: int, generator: torch.Generator) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[torch.randint(0, len(values), (size,), generator=generator)]


def orders(size: int, generator: torch.Generator) -> Tensor:
    """Return numbers between 1e-8 and 1."""
    return 10.0 ** (-8 * torch.rand(size, generator=generator, dtype=torch.float64))


KINDS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "spread": normal,
    "clusters": lambda n, g: picked((-1.0, 0.0, 1e-3, 0.3, 2.0), n, g) + 1e-7 * normal(n, g),
    "degenerate": lambda n, g: picked((-1.0, 0.0, 0.5, 2.0), n, g),
    "exact zeros": lambda n, g: normal(n, g) * picked((0.0, 0.0, 1.0), n, g),
    "orders of size": lambda n, g: orders(n, g) * picked((-1.0, 1.0), n, g),
    "few large": lambda n, g: torch.cat([orders(n, g), 20.0 * normal(3, g).abs()])[-n:],
    "all equal": lambda n, g: normal(1, g).repeat(n),
    "all zero": lambda n, g: torch.zeros(n, dtype=torch.float64),
}
"""Eigenvalues of a matrix of any order."""
ORDERS = (1, 2, 5, 12, 33, 60)
LIMITS = (1e-3, 0.1, 0.15, 0.25, 0.5, 0.7, 1.0)
"""Limits relative to the largest eigenvalue; 0.15, 0.25, 0.5 and 1.0 are eigenvalues of some kinds."""


class Seen:
    """A matrix with given eigenvalues, quadratures of random vectors with it, and their exact weights."""

    def __init__(self, values: Tensor, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> None:
        self.values, self.generator = values, generator
        self.basis = torch.linalg.qr(normal(len(values) ** 2, generator).reshape(len(values), -1)).Q
        self.matrix = ((self.basis * values) @ self.basis.T).to(dtype)

    def start(self, count: int) -> Tensor:
        """Return random unit vectors as rows."""
        size = len(self.values)
        return random_units(count, size, project=lambda v: v, generator=self.generator, like=self.matrix)

    def quadratures(self, start: Tensor, steps: int) -> tuple[list[Quadrature], Tensor, float]:
        """Return what the package finds from some vectors."""
        return quadratures(lambda rows: rows @ self.matrix, start, steps=min(steps, len(self.values)))

    def quadrature(self, steps: int) -> tuple[Quadrature, Tensor]:
        """Return the last of three quadratures, and the exact weight of every eigenvalue for the vector of it."""
        start = self.start(3)
        return self.quadratures(start, steps)[0][2], (start[2].double() @ self.basis).square()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("dtype", "times"),
    [
        (torch.float64, 1),
        pytest.param(torch.float64, 8, marks=pytest.mark.slow),
        pytest.param(torch.float32, 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_share_lies_between_the_sides(kind: str, dtype: torch.dtype, times: int) -> None:
    """Random matrices of six orders, with up to 20 products; those of small matrices end before that."""
    generator = torch.Generator().manual_seed(sum(map(ord, kind)))
    tolerance = 1e-9 if dtype is torch.float64 else 1e-4  # rounding moves eigenvectors too
    for order in ORDERS * times:
        values = KINDS[kind](order, generator)
        seen, largest = Seen(values, generator, dtype), float(values.abs().max())
        for steps in (1, 3, 8, 20):
            rule, weights = seen.quadrature(steps)
            for limit in (share * largest for share in LIMITS):
                lower, value, upper = rule.share(limit, 64 * torch.finfo(dtype).eps * largest)
                exact = float(weights[values.abs() <= limit].sum())
                assert 0.0 <= lower <= value <= upper <= 1.0
                assert lower - tolerance <= exact <= upper + tolerance, (order, steps, limit)


def test_polynomials_are_integrated_exactly() -> None:
    seen = Seen(torch.linspace(-1, 3, 40, dtype=torch.float64), torch.Generator().manual_seed(0))
    rule, weights = seen.quadrature(5)
    assert float(rule.weights.sum()) == pytest.approx(1.0)
    for power in range(10):
        exact = float((weights * seen.values**power).sum())
        assert float((rule.weights * rule.nodes**power).sum()) == pytest.approx(exact, abs=1e-8)


def test_vectors_that_share_a_space_give_what_each_gives_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = Seen(KINDS["spread"](60, generator), generator)
    start = seen.start(4)
    together = seen.quadratures(start, 9)[0]
    for rule, row in zip(together, start, strict=True):
        [alone] = seen.quadratures(row[None], 9)[0]
        torch.testing.assert_close(rule.nodes, alone.nodes)
        torch.testing.assert_close(rule.weights, alone.weights)
        assert rule.beta == pytest.approx(alone.beta)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("steps", [1, 2, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_trace_of_a_captured_space_and_of_the_rest_is_the_whole_trace(
    kind: str, steps: int, dtype: torch.dtype
) -> None:
    """Also where the vectors have nearly the same directions, or more of them than the matrix has."""
    generator = torch.Generator().manual_seed(steps)
    seen = Seen(KINDS[kind](50, generator), generator, dtype)
    start = seen.start(4)
    start[3] = start[0] + 1e-3 * start[1]
    start[3] /= start[3].norm()
    _, basis, trace = seen.quadratures(start, steps)
    basis = basis.double()
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis), dtype=torch.float64), atol=100 * unit, rtol=0)
    off = torch.eye(50, dtype=torch.float64) - basis.T @ basis
    largest = float(seen.values.abs().max())
    left = float((off @ seen.matrix.double() @ off).trace())
    assert trace + left == pytest.approx(float(seen.values.sum()), abs=1e4 * unit * largest)
    if kind in ("all equal", "all zero"):
        assert len(basis) == 3


def test_a_space_of_sharp_directions_leaves_none_of_them() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.tensor([100.0, 50.0, -70.0]), torch.rand(297, generator=generator)]).double()
    seen = Seen(values, generator)
    _, basis, _ = seen.quadratures(seen.start(4), 12)
    assert len(basis) == 48
    off = torch.eye(300, dtype=torch.float64) - basis.T @ basis
    assert float(torch.linalg.matrix_norm(off @ seen.matrix @ off, 2)) < 1.0
