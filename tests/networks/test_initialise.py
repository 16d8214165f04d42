"""Rescaling a fresh model: every layer hands on values of deviation one, and what was done is said."""

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import InputError

pytestmark = pytest.mark.usefixtures("seeded")


def chain(depth=12, gain=1.0, width=24):
    model = nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())), nn.Linear(width, 3))
    for parameter in model.parameters():
        parameter.data *= gain
    return model


def deviations(model, batch):
    found = []
    for layer in model:
        batch = layer(batch)
        found += [float(batch.detach().double().std(correction=0))] if isinstance(layer, nn.Linear | nn.Conv2d) else []
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("gain", [0.1, 1.0, 10.0])
def test_every_layer_hands_on_a_deviation_of_one(gain):
    model, batch = chain(gain=gain), torch.randn(64, 24)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    done = ns.initialise(model, batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert deviations(done.model, batch) == pytest.approx([1.0] * 13, abs=0.011)
    assert [layer.before for layer in done.layers] == pytest.approx(deviations(model, batch), rel=1e-6)
    for path, factor in done.factors.items():
        layer, old = done.model.get_submodule(path), model.get_submodule(path)
        assert torch.allclose(layer.weight, factor * old.weight)
        assert torch.allclose(layer.bias, factor * old.bias)


def test_vanishing_is_cured():
    model, batch = chain(20, gain=0.5), torch.randn(64, 24)
    assert "gradient-vanishing" in {finding.code for finding in ns.check(model, batch).findings}
    done = ns.initialise(model, batch)
    assert not [finding for finding in ns.check(done.model, batch).findings if finding.severity is ns.Severity.WARNING]
    assert done.layers[0].log10_gradient_before < -8.0
    assert abs(done.layers[0].log10_gradient_after) < 1.5


def test_layers_that_feed_a_normalizer_are_left_alone():
    model = nn.Sequential(
        nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 3)
    )
    done = ns.initialise(model.train(), torch.randn(32, 6))
    reasons = {layer.path: layer.reason for layer in done.layers}
    assert "feeds `1`" in reasons["0"]
    assert "feeds `4`" in reasons["3"]
    assert list(done.factors) == ["5"]
    assert int(model[1].num_batches_tracked) == int(done.model[1].num_batches_tracked) == 0


def test_shared_and_parametrized_weights_are_left_alone():
    one, other, third = nn.Linear(8, 8), nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    other.weight = one.weight
    done = ns.initialise(nn.Sequential(one, other, third, nn.Linear(8, 2)), torch.randn(16, 8))
    reasons = [layer.reason for layer in done.layers]
    assert "shares" in reasons[0]
    assert "shares" in reasons[1]
    assert "parametrization" in reasons[2]
    assert list(done.factors) == ["3"]


def test_convolutions_where_and_constants():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))
    batch = torch.randn(8, 1, 8, 8)
    done = ns.initialise(model, batch, where=["0", "4"])
    assert list(done.factors) == ["0", "4"]
    assert done.layers[1].reason == "not asked for"
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    constant = ns.initialise(model, batch)
    assert constant.layers[-1].reason == "its output is constant"
    assert constant.layers[-1].factor == 1.0


def test_a_transformer_layer_and_a_model_that_cannot_be_traced():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    done = ns.initialise(layer, torch.randn(4, 5, 16))
    assert "linear1" in done.factors

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x) if float(x.sum()) > -1e9 else x

    done = ns.initialise(Branch(), torch.randn(8, 4))
    assert list(done.factors) == ["inner"]
    assert "not known" in done.notes[0]


def test_refusals():
    with pytest.raises(InputError, match="nothing to rescale"):
        ns.initialise(nn.LayerNorm(4), torch.randn(2, 4))
    with pytest.raises(InputError, match="NaN or infinite"):
        ns.initialise(chain(gain=1e30), torch.randn(4, 24))
    with pytest.raises(InputError, match="raises"):
        ns.initialise(chain(), torch.randn(4, 7))
