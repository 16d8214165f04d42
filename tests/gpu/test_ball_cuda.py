"""Over balls every figure on a CUDA device is the CPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from normscope.bounds.balls.ball import Balls
from normscope.bounds.balls.ball_bracket import ball_bracket
from normscope.bounds.traced_network import TracedNetwork

from .test_cuda import Residual, encoder

pytestmark = pytest.mark.gpu


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


@pytest.mark.parametrize("effort", ["fast", "tight"])
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Residual, (2, 4, 6, 6)),
        (encoder, (2, 3, 16)),
        (pooled, (2, 1, 8, 8)),
    ],
    ids=["residual", "encoder", "pooled"],
)
def test_the_same_figures_on_both_devices(build, shape: tuple[int, ...], effort: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double().eval()
        batch = torch.randn(shape, dtype=torch.float64)
    here = Balls(TracedNetwork.of(model, batch)).over(0.02, effort=effort)
    there = Balls(TracedNetwork.of(copy.deepcopy(model).cuda(), batch.cuda())).over(0.02, effort=effort)
    top = here.balls.values.argmax(1)
    assert torch.allclose(here.constant, there.constant.cpu(), rtol=1e-3)
    assert torch.allclose(here.margins(top), there.margins(top.cuda()).cpu(), rtol=1e-3, atol=1e-3)


def test_a_bracket_on_the_device() -> None:
    model = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)).eval().cuda()
    bracket = ball_bracket(TracedNetwork.of(model, torch.randn(3, 5).cuda()), radius=1e-3)
    assert 0 < bracket.lower <= bracket.upper
