"""A sigmoid or tanh of which an activation is written out is a part of that activation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns

from ..net import Net

ROOT = math.sqrt(2.0 / math.pi)
BATCH = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(8, 32), nn.Linear(32, 1), between
        nn.init.normal_(self.first.weight, std=scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


def test_the_first_layer_may_be_an_activation_that_is_written_out() -> None:

    model = Net(lambda net, x: net.last(x * torch.sigmoid(x)), last=nn.Linear(8, 1))
    assert [row.kind for row in ns.check(model, BATCH).signal.rows] == ["input", "gate", "linear"]


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0))))


WRITTEN = {
    "GELU": gelu,
    "GELU in another order": lambda x: x * 0.5 * (1 + torch.tanh(ROOT * x * (1 + 0.044715 * x * x))),
    "GELU as a sum": lambda x: 0.5 * x + 0.5 * x * torch.tanh(ROOT * (x + 0.044715 * x**3)),
    "GELU of a sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "SiLU": lambda x: torch.sigmoid(x) * x,
    "SiLU of a tanh": lambda x: x * (torch.tanh(x / 2) + 1) / 2,
    "Mish": lambda x: x * torch.tanh(F.softplus(x)),
}
OTHERS = {
    "tanh": torch.tanh,
    "halves": lambda x: torch.cat([(h := x.chunk(2, -1))[0] * torch.sigmoid(h[1])] * 2, -1),
    "slices": lambda x: torch.cat([x[:, :16] * torch.sigmoid(x[:, 16:])] * 2, -1),
    "gate of the mean": lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True)),
    "gate of something else": lambda x: F.relu(x) * torch.sigmoid(x),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_an_activation_that_is_written_out_has_no_flat_tanh(name: str) -> None:
    """Nearly all of its tanhs or sigmoids lie at their limits, where the activation is a line or zero."""
    result = ns.check(Between(WRITTEN[name], scale=30.0), BATCH)
    gates = [row for row in result.signal.rows if row.kind == "gate"]
    assert [row.saturated for row in gates] == [None]
    assert not {row.kind for row in result.signal.rows} & {"sigmoid", "tanh"}
    assert "saturated-units" not in [finding.code for finding in result.findings]


@pytest.mark.parametrize("name", OTHERS)
def test_a_sigmoid_that_weighs_something_else_stays_one(name: str) -> None:
    result = ns.check(Between(OTHERS[name], scale=30.0), BATCH)
    assert not [row for row in result.signal.rows if row.kind == "gate"]
    assert [row.saturated is not None for row in result.signal.rows if row.kind in ("sigmoid", "tanh")] == [True]


@pytest.mark.parametrize(
    ("act", "named"),
    [(torch.tanh, "in place of tanh"), (gelu, "Initialise with gain 1"), (F.gelu, "Initialise with gain 1")],
)
def test_a_vanishing_gradient_names_the_activations_of_the_model(act: Callable[[Tensor], Tensor], named: str) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(9))
            for layer in self.layers:
                nn.init.normal_(layer.weight, std=0.02)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = act(layer(x))
            return x

    told = [f.advice for f in ns.check(Deep(), BATCH).findings if f.code == "gradient-vanishing"]
    assert len(told) == 1
    assert named in told[0]
