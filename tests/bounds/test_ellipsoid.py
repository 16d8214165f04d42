"""One step of the ellipsoid engine against the inverted quadratic form, and against changes that obey the step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from normscope.bounds.ellipsoids.ellipsoid import Uncertain, advance, balanced, image, image_above, largest

DOUBLE = torch.float64


class Case:
    """A random state, a linear value of it, and what is known of a step: entrywise or as a whole."""

    def __init__(self, seed: int, *, whole: bool = False, zeros: bool = False, centred: bool = True) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        entries, n, m = 3 + seed % 4, 1 + seed % 5, 2 + seed % 3
        root = self.normal(entries, entries)
        self.q = root @ root.mT / entries + 1e-3 * torch.eye(entries, dtype=DOUBLE)
        self.form = self.normal(n, entries)
        self.kept = torch.randperm(entries, generator=self.generator)[: seed % entries]
        self.qvv = image(self.q, self.form)
        if whole:
            centre = self.normal(m, n) if centred else None
            self.known = Uncertain(centre, self.uniform(1) + 0.1, m, whole=True)
        else:
            radius = self.uniform(n) + 0.1
            if zeros:
                radius = torch.where(self.uniform(n) < 0.5, torch.zeros_like(radius), radius)
            self.known = Uncertain(self.normal(n), radius, n)
        root = self.uniform(len(self.known.radius)).sqrt()
        scaled = root[:, None] * self.qvv * root[None, :]
        self.sigma = (0.1 + 0.8 * float(self.uniform(1))) * root.square() / largest(scaled)
        self.sigma = torch.where(self.known.radius > 0, self.sigma, self.sigma * (seed % 2))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=DOUBLE, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, dtype=DOUBLE, generator=self.generator)

    @property
    def matrix(self) -> Tensor:
        """M, written out."""
        n = len(self.form)
        if self.known.centre is None:
            return torch.zeros(self.known.size, n, dtype=DOUBLE)
        return self.known.centre if self.known.whole else torch.diag(self.known.centre)

    def advanced(self) -> Tensor:
        return self.at(self.sigma)

    def at(self, sigma: Tensor) -> Tensor:
        joint = image_above(self.q, self.form, self.kept)
        return advance(joint, len(self.kept), self.known.centre, sigma, self.known.spread(sigma))

    def reference(self) -> Tensor:
        """(g, w) with the multipliers' inequality added to the quadratic form, inverted, and read off at (kept, u)."""
        entries, size = len(self.q), self.known.size
        sigma, radius = self.sigma.expand(len(self.form)), self.known.radius
        free = radius.expand(size) > 0
        weights = (self.sigma / radius.square()).expand(size)
        form = torch.linalg.inv(self.q) - self.form.mT @ torch.diag(sigma) @ self.form
        covariance = torch.zeros(entries + size, entries + size, dtype=DOUBLE)
        covariance[:entries, :entries] = torch.linalg.inv(form)
        noise = torch.where(free, 1.0 / weights, torch.zeros(size, dtype=DOUBLE))
        covariance[entries:, entries:] = torch.diag(noise)
        chosen = torch.eye(entries, dtype=DOUBLE)[self.kept]
        zero = torch.zeros(len(self.kept), size, dtype=DOUBLE)
        u = torch.cat([self.matrix @ self.form, torch.eye(size, dtype=DOUBLE)], dim=1)
        read = torch.cat([torch.cat([chosen, zero], dim=1), u])
        return read @ covariance @ read.mT

    def changes(self, count: int) -> Tensor:
        """Changes (kept, u) of the step for inputs of norm 1: on the edge of what is known, and inside."""
        z = self.normal(count, len(self.q))
        z = z / z.norm(dim=1, keepdim=True)
        g = z @ torch.linalg.cholesky(self.q).mT
        v = g @ self.form.mT
        if self.known.whole:
            w = self.normal(count, self.known.size)
            w = w / w.norm(dim=1, keepdim=True) * self.known.radius * v.norm(dim=1, keepdim=True)
        else:
            w = self.normal(count, len(self.form)).sign() * self.known.radius * v
        inside = torch.where(torch.arange(count) % 3 == 0, self.uniform(count), torch.ones(count, dtype=DOUBLE))
        return torch.cat([g[:, self.kept], v @ self.matrix.mT + w * inside[:, None]], dim=1)


KINDS = {
    "entrywise": {},
    "entrywise with fixed units": {"zeros": True},
    "whole around a map": {"whole": True},
    "whole": {"whole": True, "centred": False},
}
cases = pytest.mark.parametrize("kind", KINDS)
seeds = pytest.mark.parametrize("seed", range(12))


@cases
@seeds
def test_a_step_is_the_inverted_quadratic_form(kind: str, seed: int) -> None:
    case = Case(seed, **KINDS[kind])
    torch.testing.assert_close(case.advanced(), case.reference(), rtol=1e-7, atol=1e-9)


@cases
@seeds
def test_no_change_leaves_the_ellipsoid(kind: str, seed: int) -> None:
    case = Case(seed, **KINDS[kind])
    after, changes = case.advanced(), case.changes(400)
    # d d^T <= Q' for every d, singular Q' included
    lowest = torch.linalg.eigvalsh(after - changes[:, :, None] * changes[:, None, :])[:, 0]
    assert float(lowest.min()) >= -1e-9 * float(largest(after))


@seeds
def test_without_the_noise_a_change_would_leave_it(seed: int) -> None:
    """The sampled changes have teeth: e^2/sigma less and they are outside."""
    case = Case(seed)
    after, changes = case.advanced(), case.changes(400)
    k = len(case.kept)
    after.diagonal()[k:] -= 0.999 * case.known.radius.square() / case.sigma
    lowest = torch.linalg.eigvalsh(after - changes[:, :, None] * changes[:, None, :])[:, 0]
    assert float(lowest.min()) < -1e-9 * float(largest(after))


@cases
def test_too_large_multipliers_give_nan(kind: str) -> None:
    for seed in range(6):
        case = Case(seed, **KINDS[kind])
        case.sigma = torch.full_like(case.sigma, 1.001 / float(largest(case.qvv)))
        if not (case.known.radius > 0).any():
            continue
        assert case.advanced().isnan().any()


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.2, 1.0), (-0.6, 1.0), (1.0, 1.7), (-1.0, 1.0), (-0.13, 1.13)])
def test_the_default_multipliers_give_the_product_of_norms(a: float, b: float) -> None:
    """lambda_max(Q_u) <= max(abs(a), abs(b))^2 lambda_max(Q_v)."""
    for seed in range(6):
        n = 2 + seed
        case = Case(seed)
        root = case.normal(n, n)
        q = root @ root.mT
        centre = torch.full((n,), (a + b) / 2, dtype=DOUBLE)
        radius = torch.full((n,), (b - a) / 2, dtype=DOUBLE)
        known = Uncertain(centre, radius, n)
        weights, factor = balanced(known, alone=True)
        sigma = factor * weights / largest(q)
        after = advance(q, 0, centre, sigma, known.spread(sigma))
        beta = max(abs(a), abs(b))
        assert float(largest(after)) <= beta**2 * float(largest(q)) * (1 + 1e-8)
        assert float(largest(after)) >= beta**2 * float(q.diagonal().max()) * (1 - 1e-12)


def test_gradients_of_a_step() -> None:
    case = Case(7)

    def bound(logs: Tensor) -> Tensor:
        return case.at(logs.exp() * case.sigma).diagonal().sum()

    assert torch.autograd.gradcheck(bound, torch.zeros(len(case.sigma), dtype=DOUBLE, requires_grad=True))


def test_a_whole_step_knows_no_more_than_its_gain() -> None:
    """A gain c alone: the output's ellipsoid is a ball of radius c times the operand's."""
    case = Case(4, whole=True, centred=False)
    weights, factor = balanced(case.known, alone=True)
    case.kept = case.kept[:0]
    case.sigma = factor * weights / largest(case.qvv)
    want = float(case.known.radius.square() * largest(case.qvv))
    assert float(largest(case.advanced())) == pytest.approx(want, rel=1e-6)
    assert math.isclose(float(case.advanced().diagonal().min()), want, rel_tol=1e-6)


@cases
def test_the_default_multipliers_are_feasible(kind: str) -> None:
    for seed in range(6):
        case = Case(seed, **KINDS[kind])
        weights, factor = balanced(case.known, alone=True)
        case.sigma = factor * weights / largest(case.qvv)
        after = case.advanced()
        assert after.isfinite().all()
        assert float(torch.linalg.eigvalsh(after)[0]) >= -1e-9 * float(largest(after))
