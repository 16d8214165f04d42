"""Sensitivities to weights against brute force: dense Jacobians, weight changes of any size, and planted bugs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.bounds.weights.weight_constants import weight_sensitivity

from .networks import Function, network
from .weights import Weight, data_of, violations

pytestmark = pytest.mark.usefixtures("seeded")


class Products(nn.Module):
    """Weights applied from the left, from the right, scaled, and one per head."""

    def __init__(self) -> None:
        super().__init__()
        self.right, self.left = nn.Module(), nn.Module()
        self.right.weight, self.left.weight = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(3, 3))
        self.heads = nn.Module()
        self.heads.weight = nn.Parameter(torch.randn(2, 5, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.matmul(self.left.weight, (x @ self.right.weight).tanh())
        return torch.bmm(x.expand(2, 3, 5) * torch.tensor([1.0, 0.3]).to(x)[:, None, None], self.heads.weight).sum(0)


class Siamese(nn.Module):
    """One layer on two inputs that do not meet before the end."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(3, 4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x[:, :3], x[:, 3:]
        return self.head(torch.cat([self.shared(first).tanh(), self.shared(second).relu()], 1))


class Heads(nn.Module):
    """Attention with a layer each for queries, keys and values, behind a LayerNorm."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4, eps=0.1)
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.mixed = nn.Linear(4, 12, bias=False) if fused else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        parts = (self.query(x), self.key(x), self.value(x)) if self.mixed is None else self.mixed(x).chunk(3, -1)
        q, k, v = (part.reshape(*part.shape[:2], 2, 2).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Gate(nn.Module):
    """A product of two branches, and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x) * F.silu(self.gate(x)))


def tied() -> nn.Module:
    """A layer that reads what it made."""
    return Function(lambda net, x: net.layer(net.layer(x).relu()), layer=nn.Linear(4, 4))


def residual() -> nn.Module:
    return Function(
        lambda net, x: net.out((x + net.second(net.first(x).relu())).tanh()),
        first=nn.Linear(4, 6),
        second=nn.Linear(6, 4),
        out=nn.Linear(4, 3),
    )


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)), (2, 4)),
    "tokens": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (2, 5, 3)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 2, dilation=2, padding=1),
            nn.Flatten(), nn.Linear(18, 3),
        ),
        (2, 2, 5, 5),
    ),
    "circular": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh()), (2, 2, 5)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, groups=2), nn.ELU(), nn.Conv2d(2, 1, 2)),
        (1, 4, 3, 3),
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3), nn.BatchNorm1d(3)),
        (4, 4),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, eps=0.1), nn.ReLU(), nn.Linear(6, 3)), (2, 3, 4),
    ),
    "residual": (residual, (2, 4)),
    "siamese": (Siamese, (2, 6)),
    "products": (lambda: Products(), (3, 4)),
    "gate": (Gate, (2, 4)),
    "heads": (Heads, (2, 3, 4)),
}  # fmt: skip


LAST = {"mlp": "4", "tokens": "2", "conv": "4", "circular": "", "transposed": "2", "batch norm": "", "layer norm": "3",
        "residual": "out", "siamese": "head", "products": "", "gate": "down", "heads": ""}  # fmt: skip
"""Layers with nothing behind them: their brackets close."""


def built(name: str, mode: str = "eval") -> tuple[nn.Module, Tensor]:
    make, shape = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return make().train(mode == "train"), torch.randn(shape)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_no_weight_change_of_any_size_gets_above(name):
    model, batch = built(name)
    result = weight_sensitivity(model, batch)
    assert len(result) == len([p for p in model.parameters() if p.ndim > 1])
    assert violations(model, batch, result) == []
    for row in result:
        assert row.bracket_h.log10_upper < math.inf
        for sample, bracket in enumerate(row.bracket_h.per_sample):
            truth = Weight(model, row.parameter, data_of(result, batch, sample)).jacobian_norm()
            assert bracket.lower == pytest.approx(truth, rel=2e-3)
            assert truth <= bracket.upper * (1 + 1e-9)
            if row.path and row.path == LAST[name]:
                assert bracket.gap < 1e-6


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", ["batch norm", "conv"])
def test_in_train_mode_the_batch_is_one_input(name):
    model, batch = built(name, "train")
    result = weight_sensitivity(model, batch)
    assert [len(row.bracket_h.per_sample) for row in result] == [1] * len(result)
    assert violations(model, batch, result) == []
    for row in result:
        truth = Weight(model, row.parameter, batch).jacobian_norm()
        assert row.bracket_h.lower == pytest.approx(truth, rel=2e-3)


def test_a_weight_that_reads_what_it_made_has_no_constant():
    model, batch = tied(), torch.randn(1, 4)
    [row] = weight_sensitivity(model.eval(), batch)
    assert row.uses == 2
    assert row.bracket_h.log10_upper == math.inf
    assert "also to what it made itself" in row.bracket_h.reason
    attacked = Weight(model, "layer.weight", batch)
    assert row.bracket_h.lower == pytest.approx(attacked.jacobian_norm(), rel=2e-3)
    far = 1e6 * torch.diag(batch[0].double().sign())  # the slope of a square grows without limit
    assert attacked.slope(far, 0.1 * far) > 1e5
    bound = 10 ** float(row.bracket_h.reason.rsplit("10^", 1)[1])
    assert attacked.jacobian_norm() <= bound * 1.01


@pytest.mark.slow
def test_ranges_in_front_of_a_weight_are_none_behind_it():
    # behind the LayerNorm queries, keys and values are bounded, but not for every value of the weight that makes them
    model, batch = Heads(fused=True).eval(), torch.randn(1, 3, 4)
    row = weight_sensitivity(model, batch)["mixed"]
    assert row.bracket_h.log10_upper == math.inf
    assert "attention" in row.bracket_h.reason


def test_what_is_behind_a_weight_is_that_of_every_sample():
    """x (W x): the factor behind the weight is that of the sample, so that the constants are squares."""
    layer = nn.Linear(1, 1, bias=False)
    [row] = weight_sensitivity(
        Function(lambda net, x: x * net.layer(x), layer=layer).eval(), torch.tensor([[1.0], [9.0]])
    )
    assert [one.upper for one in row.bracket_h.per_sample] == pytest.approx([1.0, 81.0])


@pytest.mark.parametrize("seed", [24, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1000, 1120))])
def test_random_networks(seed):
    drawn = network(seed)
    result = weight_sensitivity(drawn.model, drawn.batch, on_missing="inf", max_seconds=20)
    assert violations(drawn.model, drawn.batch, result, seed=seed, samples=3) == []
