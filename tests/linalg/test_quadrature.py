"""Lanczos quadrature: what it says of a random vector against the spectral measure of that vector, written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from normscope.linalg.lanczos import Quadrature, captured_trace, quadratures


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

    def quadrature(self, steps: int) -> tuple[Quadrature, Tensor]:
        """Return a quadrature, and the exact weight of every eigenvalue for the vector that it took."""
        vectors: list[Tensor] = []

        def operator(vector: Tensor) -> Tensor:
            vectors.append(vector)
            return self.matrix @ vector

        size = len(self.values)
        [rule] = quadratures(
            operator,
            size,
            dimension=size,
            probes=1,
            steps=steps,
            kept=steps,
            project=lambda v: v,
            generator=self.generator,
            like=self.matrix,
        )
        return rule, (vectors[0].double() @ self.basis).square()


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
    assert float(rule.matrix[0, 0]) == pytest.approx(float((weights * seen.values).sum()))


@pytest.mark.parametrize("kept", [0, 1, 2, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_trace_of_a_captured_space_and_of_the_rest_is_the_whole_trace(kind: str, kept: int) -> None:
    """What is captured equals the trace on an orthonormal basis of that space, and the projection leaves it out."""
    generator = torch.Generator().manual_seed(kept)
    seen = Seen(KINDS[kind](50, generator), generator)
    rules = [seen.quadrature(20)[0] for _ in range(3)]
    rules = [replace(rule, basis=rule.basis[:kept], matrix=rule.matrix[:kept, :kept]) for rule in rules]
    trace, dimension, outside = captured_trace(rules, lambda v: v)
    off = torch.stack([outside(row) for row in torch.eye(50, dtype=torch.float64)])
    assert dimension == pytest.approx(50 - float(off.trace()), abs=1e-9)
    rest = float((off @ seen.matrix @ off).trace())
    largest = float(seen.values.abs().max())
    assert trace + rest == pytest.approx(float(seen.values.sum()), abs=1e-7 * largest)
    torch.testing.assert_close(off @ off, off, atol=1e-9, rtol=0)


def test_directions_that_several_bases_span_count_once() -> None:
    """Each random vector has converged to the same three sharp directions, which are captured once."""
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.tensor([100.0, 50.0, -70.0]), torch.rand(297, generator=generator)]).double()
    seen = Seen(values, generator)
    trace, dimension, outside = captured_trace([seen.quadrature(12)[0] for _ in range(4)], lambda v: v)
    assert 3 < dimension < 4 * 11
    off = torch.stack([outside(row) for row in torch.eye(300, dtype=torch.float64)])
    left = off @ seen.matrix @ off
    assert float(torch.linalg.matrix_norm(left, 2)) < 1.1
    assert trace + float(left.trace()) == pytest.approx(float(values.sum()), abs=1e-6)
