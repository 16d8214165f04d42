"""The training cost of a model, from its audit."""

import pytest
import torch
from torch import nn

import normscope as ns
from normscope_lab.extremal import theorem6
from normscope_lab.rates import training_cost


def test_the_counts_of_an_extremal_network_are_known():
    network = theorem6([3, 4, 5, 3], [2.0, 3.0, 5.0]).eval()
    cost = training_cost(ns.audit(network, torch.ones(4, 3, dtype=torch.float64)), alpha=0.1)
    assert [10**layer.log10_at_least for layer in cost.at_data] == pytest.approx([150.0, 50.0], rel=0.02)
    assert cost.normalizers == 0
    assert "nothing to compare" in " ".join(str(cost).split())


@pytest.mark.slow
def test_rescaling_moves_the_ratio_and_not_the_normalized_count():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.LayerNorm(8, eps=1e-12), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-12)]
    model = nn.Sequential(*layers, nn.Linear(8, 3))
    batch = torch.randn(16, 6)
    before = training_cost(ns.audit(model, batch, rtol=1e-3))
    for layer in (model[0], model[3]):
        for parameter in layer.parameters():
            parameter.data *= 10.0
    after = training_cost(ns.audit(model, batch, rtol=1e-3))
    assert before.normalizers == 2
    assert after.at_data[0].log10_ratio == pytest.approx(before.at_data[0].log10_ratio - 2.0, abs=0.01)
    # of the two weights that grew, one stands before the first layer's own normalizer and not behind the layer
    assert after.at_data[0].log10_normalized == pytest.approx(before.at_data[0].log10_normalized - 1.0, abs=0.01)
    assert after.at_data[1].log10_normalized == pytest.approx(before.at_data[1].log10_normalized - 1.0, abs=0.01)
    assert "can be made anything" in " ".join(str(after).split())
