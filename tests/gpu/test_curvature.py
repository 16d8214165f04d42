"""On a CUDA device the curvature is the CPU's, in both modes, and the model stays where and as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import normscope as ns

pytestmark = pytest.mark.gpu


def network() -> nn.Module:
    """Return convolutions with every kind of normalizer, and attention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(2), nn.Linear(16, 8), layer, nn.Flatten(),
        nn.Linear(64, 3),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_eigenvalues_are_those_of_the_cpu(mode: str) -> None:
    model = network().double()
    x, y = torch.randn(12, 2, 6, 6, dtype=torch.float64), torch.randint(3, (12,))
    options = {"mode": mode, "rtol": 1e-8, "bottom": 1, "probes": 2, "blocks": True}
    here = ns.hessian(model, (x, y), loss="cross_entropy", **options)
    there = copy.deepcopy(model).cuda()
    state = copy.deepcopy(there.state_dict())
    found = ns.hessian(there, (x, y), loss="cross_entropy", **options)
    assert found.eigenvalues == pytest.approx(here.eigenvalues, rel=1e-6)
    assert found.bottom_eigenvalues == pytest.approx(here.bottom_eigenvalues, rel=1e-6)
    assert found.trace.value == pytest.approx(here.trace.value, rel=1e-6)
    assert [b.eigenvalue for b in found.blocks] == pytest.approx(
        [b.eigenvalue for b in here.blocks], rel=1e-5, abs=1e-9
    )
    assert found.directions == here.directions
    assert found.vectors.is_cuda
    assert all(torch.equal(value, state[name]) for name, value in there.state_dict().items())


def test_channel_scales_are_projected_out_whatever_the_user_allows_convolutions_to_round_to() -> None:
    torch.manual_seed(0)
    block = [layer for _ in range(6) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *block, nn.Flatten(), nn.Linear(512, 3))
    x, y = torch.randn(16, 3, 10, 10), torch.randint(3, (16,))
    options = {"k": 1, "mode": "train", "products": 1}
    here = ns.hessian(model, (x, y), loss="cross_entropy", **options)
    held = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = True
        there = ns.hessian(model.cuda(), (x, y), loss="cross_entropy", **options)
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = held
    assert there.directions == there.directions_found == here.directions == 6 * (8 + 8)
    assert there.gradient_norm == pytest.approx(here.gradient_norm, rel=1e-4)


def test_recurrent_layers_are_differentiated_twice() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)[0][:, -1]

    x, y = torch.randn(5, 6, 3), torch.randint(4, (5,))
    assert ns.hessian(Recurrent().cuda(), (x, y), loss="cross_entropy", k=1).converged


def test_the_paths_run_where_the_model_is() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).cuda()
    x, y = torch.randn(20, 4), torch.randint(3, (20,))
    assert ns.flatness(model, (x, y), loss="cross_entropy", levels=(0.1,), draws=2).ascent > 0
    assert ns.smoothness(model, (x, y), loss="cross_entropy", steps=1, trial_steps=2).stable > 0
    assert len(ns.margins(model, (x, y))) == 20
