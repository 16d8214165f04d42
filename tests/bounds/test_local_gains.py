"""Norms of Jacobians from above, as closely as somebody asks: never below, and no product more than is needed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.domain.gains import CLOSE, norms_above, norms_by_rows
from normscope.products.lanczos import Krylov

from .test_domain import data, drawn, jacobian_norm

WIDE = 40
"""Outputs, more than are differentiated one by one."""


def flat(width: int) -> Callable[[Tensor], Tensor]:
    """A map whose singular values lie close together, so that upper sides close slowly."""
    matrix = torch.linalg.qr(data(width, width).double()).Q * torch.linspace(0.9, 1.0, width, dtype=torch.float64)
    return lambda rows: torch.tanh(rows @ matrix) @ matrix


def steep(width: int) -> Callable[[Tensor], Tensor]:
    """A map with one singular value far above the others."""
    matrix = data(width, width).double() / math.sqrt(width)
    return lambda rows: torch.sin(rows @ matrix) + 3 * rows.sum(1, keepdim=True) * rows


def cubed(rows: Tensor) -> Tensor:
    return rows**3


def attention(rows: Tensor) -> Tensor:
    x = rows.reshape(len(rows), -1, 4)
    return ((2 * x @ x.mT).softmax(-1) @ x.flip(-1)).flatten(1)


def saturated(rows: Tensor) -> Tensor:
    return torch.tanh(50 * rows)


def dense(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The norms of the Jacobians, written out."""
    found = [torch.autograd.functional.jacobian(lambda row: function(row[None])[0], point) for point in points]
    return torch.stack([torch.linalg.matrix_norm(jacobian, ord=2) for jacobian in found])


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("function", [flat(WIDE), steep(WIDE), cubed, attention, saturated])
def test_never_below_the_norm(function: Callable[[Tensor], Tensor]) -> None:
    points = (data(3, WIDE) * torch.linspace(0.1, 2.0, 3)[:, None]).double()
    exact = dense(function, points)
    for steps in (2, 5, 12, 48):
        with torch.enable_grad():
            found = norms_above(function, points, steps)
        assert bool((found >= exact * (1 - 1e-12)).all())
    assert bool((found <= exact * (1 + 2 * CLOSE)).all())


def test_what_is_not_finite_is_infinite_and_the_others_go_on() -> None:
    points = data(5, WIDE).double()
    points[2, 0] = 0.0
    with torch.enable_grad():
        found = norms_above(lambda rows: rows * rows[:, :1].abs().sqrt(), points, 24)
    exact = dense(lambda rows: rows * rows[:, :1].abs().sqrt(), points[[0, 1, 3, 4]])
    assert found[2] == math.inf
    assert bool((found[[0, 1, 3, 4]] >= exact * (1 - 1e-12)).all())
    assert bool((found[[0, 1, 3, 4]] <= exact * (1 + 2 * CLOSE)).all())
    with torch.enable_grad():
        assert norms_by_rows(lambda rows: rows * rows[:, :1].abs().sqrt(), points)[2] == math.inf


def test_an_upper_side_holds_for_all_but_few_starts() -> None:
    values = torch.linspace(0.0, 1.0, 60, dtype=torch.float64) ** 3
    starts = torch.randn(500, 60, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    below = 0
    krylov = Krylov(starts)
    for _ in range(6):
        krylov.extend(lambda rows: rows * values)
        below = max(below, int((krylov.ritz(0.5)[3] < 1.0).sum()))
    assert 0 < below <= 0.5 * 500  # a risk of 0.5 is taken, and not more


class Encoder(nn.Module):
    """Self-attention behind a LayerNorm: its gain takes Lanczos steps."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])


def uneven(samples: int) -> Tensor:
    """Tokens of several sizes."""
    return data(samples, 5, 8) * (0.05 + data(samples, 1, 1, seed=2).abs())


def gain(domain: ns.Domain) -> float:
    return next(float(limit[0]) for key, limit in domain.limits.items() if key.endswith(":attention0"))


@pytest.mark.slow
def test_a_record_does_not_depend_on_the_batches_and_has_all_data_inside() -> None:
    model, x = drawn(Encoder()), uneven(8)
    exact = max(jacobian_norm(model, row) for row in x)
    for domain in [ns.domain(model, [x]), ns.domain(model, list(x.flip(0).split(3)))]:
        assert exact <= gain(domain) <= exact * (1 + 2 * CLOSE)
        assert domain.contains(x).all()
        assert all(bool(domain.contains(row[None])) for row in x[:3])
