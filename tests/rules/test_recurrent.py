"""Recurrent layers: the bound over the captured steps holds, grows with them, and says where there is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.operators.recurrent import _Taken

pytestmark = pytest.mark.usefixtures("seeded")


def scaled(layer: nn.Module, factor: float) -> nn.Module:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(factor)
    return layer


LAYERS = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm of two layers, both ways": lambda: nn.LSTM(3, 2, num_layers=2, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4),
    "gru without biases, both ways": lambda: nn.GRU(3, 2, bias=False, bidirectional=True),
    "tanh": lambda: nn.RNN(3, 4),
    "relu": lambda: nn.RNN(3, 4, nonlinearity="relu"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("factor", [0.3, 4.0])
def test_no_jacobian_at_random_inputs_is_above_the_bound(name, factor):
    layer = scaled(LAYERS[name](), factor).double()
    parts = 3 if isinstance(layer, nn.LSTM) else 2
    for index in range(parts):
        model = _Taken(layer, index).eval()
        bound = ns.lipschitz(model, torch.randn(4, 1, 3).double(), max_seconds=0.0).upper
        for size in (0.01, 1.0, 10.0):
            x = size * torch.randn(4, 1, 3).double()
            matrix = torch.autograd.functional.jacobian(model, x).reshape(-1, 12)
            assert float(torch.linalg.matrix_norm(matrix, 2)) <= bound < math.inf


def test_a_linear_recurrence_is_met_up_to_the_schur_test():
    """A ReLU network with positive weights and inputs is linear: one number each, h' = 0.5 h + 2 x."""
    layer = nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(2.0)
        layer.weight_hh_l0.fill_(0.5)
    found = ns.lipschitz(_Taken(layer), torch.ones(5, 1, 1))
    matrix = torch.tensor([[2 * 0.5 ** (t - s) if s <= t else 0.0 for s in range(5)] for t in range(5)])
    exact = float(torch.linalg.matrix_norm(matrix.double(), 2))
    assert exact <= found.upper <= 2 * sum(0.5**k for k in range(5)) * (1 + 1e-9)
    assert found.lower == pytest.approx(exact, rel=1e-3)


class Decoder(nn.Module):
    """The first state of a layer depends on the input."""

    def __init__(self, layer: nn.Module, bounded: bool) -> None:
        super().__init__()
        self.layer, self.bounded = layer, bounded

    def forward(self, x: Tensor) -> Tensor:
        start = x[:1].tanh() if self.bounded else x[:1]
        return self.layer(x, (start, start) if isinstance(self.layer, nn.LSTM) else start)[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_first_state_that_depends_on_the_input_must_be_bounded(kind):
    x = torch.randn(3, 1, 2).double()
    layer = kind(2, 2).double()
    found = ns.lipschitz(Decoder(layer, True), x, max_seconds=0.0)
    matrix = torch.autograd.functional.jacobian(Decoder(layer, True), x).reshape(-1, 6)
    assert float(torch.linalg.matrix_norm(matrix, 2)) <= found.upper < math.inf
    loose = ns.lipschitz(Decoder(layer, False), x, max_seconds=0.0)
    assert loose.upper == math.inf
    assert "first state" in loose.reason
    assert "unbounded" in loose.reason


def test_projections_have_no_bound_and_a_reason():
    found = ns.lipschitz(_Taken(nn.LSTM(2, 3, proj_size=2)), torch.randn(3, 1, 2), max_seconds=0.0)
    assert found.upper == math.inf
    assert "projection" in found.reason


@pytest.mark.slow
def test_a_bound_beyond_every_float_is_infinite_with_a_reason():
    found = ns.lipschitz(_Taken(scaled(nn.LSTM(2, 4), 1e3)), torch.randn(200, 1, 2), max_seconds=0.0)
    assert found.upper == math.inf
    assert "200 steps" in found.reason
