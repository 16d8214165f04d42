"""On a CUDA device certified radii are the CPU's, and the attack stays there."""

import copy

import pytest
import torch
from torch import nn

import normscope as ns

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_radii_on_the_device_are_those_of_the_cpu(effort):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 4)).eval()
        x = torch.randn(6, 12)
    moved = copy.deepcopy(model).cuda()
    here, there = ns.certified_radius(model, x, effort=effort), ns.certified_radius(moved, x.cuda(), effort=effort)
    assert there.label == here.label
    assert there.radius == pytest.approx(here.radius, rel=0.02)
    assert there.attacked == pytest.approx(here.attacked, rel=0.02)
    assert all(witness is None or witness.is_cuda for witness in there.witness)
    assert all(parameter.is_cuda for parameter in moved.parameters())
