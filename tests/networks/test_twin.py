"""Twins: normalizers removed, replaced, inserted, folded; weights kept; the model untouched; round trips."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.networks import twin as module_under_test
from normscope.core.errors import InputError
from normscope.networks.normalizer_modules import Absent, Normalized

pytestmark = pytest.mark.usefixtures("seeded")

KINDS = (None, "batch", "layer", "group", "instance", "rms")


def lived(model):
    """Give normalizers scales, shifts and statistics of their own."""
    for module in model.modules():
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None and value.is_floating_point() and (value.ndim == 1 or "norm" in name):
                value.data.uniform_(0.5, 1.5)
    return model


class Residual(nn.Module):
    """Pre-activation: no layer feeds the first BatchNorm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 32, 3, padding=1)
        self.norm1, self.first = nn.BatchNorm2d(32), nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.norm2, self.second = nn.BatchNorm2d(32), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):
        x = self.stem(x)
        return x + self.second(self.norm2(self.first(self.norm1(x).relu())).relu())


def mlp():
    return nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 3)), torch.randn(8, 6)


def cnn():
    layers = (nn.Conv2d(2, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 3))
    return nn.Sequential(*layers), torch.randn(8, 2, 8, 8)


def residual():
    return Residual(), torch.randn(4, 2, 6, 6)


def encoder():
    return nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True), torch.randn(4, 5, 32)


def grouped():
    return nn.Sequential(nn.Conv1d(2, 32, 3), nn.GroupNorm(4, 32), nn.Tanh()), torch.randn(4, 2, 9)


def rms():
    return nn.Sequential(nn.Linear(6, 32), nn.RMSNorm(32, eps=1e-6), nn.SiLU(), nn.Linear(32, 2)), torch.randn(4, 6)


def instance():
    return nn.Sequential(nn.Conv2d(2, 32, 3), nn.InstanceNorm2d(32, affine=True), nn.ReLU()), torch.randn(4, 2, 6, 6)


def volume():
    return nn.Sequential(nn.Conv3d(1, 32, 2), nn.BatchNorm3d(32), nn.ReLU()), torch.randn(4, 1, 4, 4, 4)


OWN = {mlp: "batch", cnn: "batch", residual: "batch", encoder: "layer", grouped: "group", rms: "rms",
       instance: "instance", volume: "batch"}  # fmt: skip
FLAT = {mlp, rms}


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", OWN, ids=lambda case: case.__name__)
def test_a_twin_runs_keeps_the_weights_leaves_the_model_and_comes_back(case, kind):
    model, batch = case()
    lived(model).eval()
    before, output, generator = state(model), model(batch), torch.random.get_rng_state()
    if kind == "instance" and case in FLAT:
        with pytest.raises(InputError, match="sets of 1 entry"):
            ns.twin(model, batch, normalizer=kind)
        return
    found = ns.twin(model, batch, normalizer=kind)
    assert torch.equal(generator, torch.random.get_rng_state())
    assert same(state(model), before)
    assert found.checked
    assert bool(found.changes) == (kind != OWN[case])
    assert torch.isfinite(found.model(batch)).all()
    kept = {name for name, value in model.named_parameters() if value.ndim > 1}
    twins = found.model.state_dict()
    assert all(torch.equal(twins[name], before[name]) for name in kept)
    assert not {id(p) for p in model.parameters()} & {id(p) for p in found.model.parameters()}
    assert (kind == OWN[case]) == bool(torch.allclose(found.model(batch), output))
    back = ns.twin(found.model, batch, normalizer=OWN[case])
    assert same(state(back.model), before)
    assert torch.equal(back.model.eval()(batch), output)


def test_scale_shift_and_eps_go_to_the_new_one():
    model, batch = cnn()
    model[1] = lived(nn.BatchNorm2d(32, eps=1e-3))
    new = ns.twin(model, batch, normalizer="layer").model[1]
    assert (new.num_groups, new.eps) == (1, 1e-3)
    assert torch.equal(new.weight, model[1].weight)
    assert torch.equal(new.bias, model[1].bias)
    dropped = ns.twin(model, batch, normalizer="rms")
    assert "shift dropped" in dropped.changes[0].note
    assert torch.equal(dropped.model[1].weight, model[1].weight)


def test_values_are_those_of_the_definitions():
    x = torch.randn(4, 32, 5, 5) + 1.0
    single = nn.Sequential(lived(nn.BatchNorm2d(32)))
    scale, shift = (value.reshape(-1, 1, 1) for value in (single[0].weight, single[0].bias))
    centred = (x - x.mean((1, 2, 3), keepdim=True)) / (x.var((1, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(ns.twin(single, normalizer="layer").model(x), centred * scale + shift, atol=1e-5)
    roots = x / (x.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(ns.twin(single, normalizer="rms").model(x), roots * scale, atol=1e-5)
    tokens, norm = torch.randn(3, 5, 32) + 1.0, nn.LayerNorm(32)
    train = ns.twin(norm, normalizer="batch").model.train()
    wanted = (tokens - tokens.mean((0, 1))) / (tokens.var((0, 1), correction=0) + 1e-5).sqrt()
    assert torch.allclose(train(tokens), wanted, atol=1e-5)
    parts = tokens.reshape(3, 5, 2, 16)
    wanted = (parts - parts.mean(-1, keepdim=True)) / (parts.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(ns.twin(norm, normalizer="group").model(tokens), wanted.reshape(3, 5, 32), atol=1e-5)
    wanted = (tokens - tokens.mean(1, keepdim=True)) / (tokens.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(ns.twin(norm, normalizer="instance").model(tokens), wanted, atol=1e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", [mlp, cnn, residual, volume])
def test_folding_keeps_the_function_of_eval_mode(case):
    model, batch = case()
    lived(model).eval()
    found = ns.twin(model, batch, normalizer=None, fold=True)
    assert torch.allclose(found.model(batch), model(batch), rtol=1e-4, atol=1e-5)
    assert not [m for m in found.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    dropped = ns.twin(model, batch, normalizer=None)
    assert not torch.allclose(dropped.model(batch), model(batch), rtol=1e-2)


def test_folding_into_transposed_and_grouped_convolutions():
    layers = [nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, groups=2)]
    model = lived(nn.Sequential(*layers, nn.BatchNorm2d(4), nn.ReLU())).double().eval()
    batch = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    found = ns.twin(model, batch, normalizer=None, fold=True).model
    assert torch.allclose(found(batch), model(batch), rtol=1e-12)
    assert isinstance(found[1], Absent)
    assert isinstance(found[3], Absent)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["batch", "layer", "group", "rms"])
def test_normalizers_are_put_behind_the_layers_that_feed_an_activation(kind):
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3)).eval()
    batch = torch.randn(8, 6)
    found = ns.twin(model, batch, normalizer=kind)
    assert [change.path for change in found.changes] == ["0", "2"]
    assert isinstance(found.model[0], Normalized)
    assert found.model[0].weight is found.model[0].layer.weight
    assert torch.equal(found.model[0].weight, model[0].weight)
    back = ns.twin(found.model, batch, normalizer=None)
    assert same(state(back.model), state(model))
    assert torch.equal(back.model(batch), model(batch))


def test_running_statistics_of_new_batchnorms_are_those_of_the_batch():
    model, batch = rms()
    found = ns.twin(model, batch, normalizer="batch")
    seen = model[0](batch)
    assert torch.allclose(found.model[1].running_mean, seen.mean(0), atol=1e-6)
    assert torch.allclose(found.model[1].running_var, seen.var(0), rtol=1e-5)
    assert found.model[1].momentum == 0.1
    assert any("running statistics" in note for note in found.notes)


def test_where_names_places_by_pattern_list_or_function():
    model, batch = residual()
    one = ns.twin(model, batch, normalizer="layer", where="norm1")
    assert [change.path for change in one.changes] == ["norm1"]
    both = ns.twin(model, batch, normalizer="group", where=["*1", "norm2"])
    assert [change.path for change in both.changes] == ["norm1", "norm2"]
    chosen = ns.twin(model, batch, normalizer="layer", where=lambda path, module: path == "norm2")
    assert [change.path for change in chosen.changes] == ["norm2"]
    behind = ns.twin(model, batch, normalizer="layer", where="stem")
    assert [change.path for change in behind.changes] == ["stem"]
    assert isinstance(behind.model.stem, Normalized)
    with pytest.raises(InputError, match="names no normalizer and no weight layer"):
        ns.twin(model, batch, normalizer="layer", where="nothing*")


class Functional(nn.Module):
    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:])


class NormAct(nn.BatchNorm1d):
    """More than a BatchNorm, under its name."""

    def forward(self, x):
        return super().forward(x).relu()


class Odd(nn.Module):
    """A normalizer of another kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x / x.abs().amax(-1, keepdim=True) * self.weight


class OddNorm(Odd):
    pass


@pytest.mark.parametrize(
    ("model", "asked", "reason"),
    [
        (nn.Sequential(nn.Linear(6, 6), Functional()), {"normalizer": None}, "as a function"),
        (nn.Sequential(nn.Linear(6, 6), NormAct(6)), {"normalizer": "layer"}, "`1`.*NormAct.*forward of its own"),
        (nn.Sequential(nn.Linear(6, 6), OddNorm()), {"normalizer": "layer"}, "OddNorm"),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), {"normalizer": "instance"}, "sets of 1 entry"),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), {"normalizer": "group", "groups": 4}, "4 groups"),
        (nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)), {"normalizer": "layer"}, "sets of 2 entries.*signs"),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), {"normalizer": "spectral"}, "normalizer is one of"),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), {"normalizer": "layer", "fold": True}, "normalizer=None"),
        (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), {"normalizer": None, "fold": True}, "only BatchNorm folds"),
        (nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False)), {"normalizer": None, "fold": True}, "statistics"),
        (nn.Sequential(nn.Linear(6, 6)), {"normalizer": "layer"}, "feeds an activation"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(model, asked, reason):
    before = state(model)
    with pytest.raises(InputError, match=reason):
        ns.twin(model, torch.randn(8, 6), **asked)
    assert same(state(model), before)


def test_tokens_before_samples_are_not_mixed_by_instance_normalization():
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0)  # [tokens, samples, features]
    with pytest.raises(InputError, match="would mix them"):
        ns.twin(layer, torch.randn(5, 5, 32), normalizer="instance")


def test_the_fused_kernel_of_torch_does_not_pass_a_new_normalizer_by(monkeypatch):
    model, batch = encoder()
    lived(model).eval()
    found = ns.twin(model, batch, normalizer="batch").model
    with torch.no_grad():
        fast = found(batch)
    assert torch.allclose(fast, found(batch).detach(), atol=1e-5)
    monkeypatch.setattr(module_under_test, "_without_fast_path", lambda model: None)
    with pytest.raises(InputError, match=r"never run|raises"):
        ns.twin(model, batch, normalizer="batch")
