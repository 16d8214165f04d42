"""The pass over the data against the same figures taken the plain way, all data at once."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError
from normscope.doctor.facts.data import run_over_data

from ..net import Net

EPS = 1e-5


def draw(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def summary(seen):
    variance = seen.variance
    return variance.log10_min, variance.log10_median, variance.log10_max, variance.share_below_one, variance.share_eps


def check(seen, variances, eps=EPS):
    """Extremes and shares are exact, the median is that of a histogram with bins of 3.7 %."""
    least, median, most, below, dominated = summary(seen)
    ordered = variances.double().flatten().sort().values
    assert least == pytest.approx(math.log10(ordered[0]), abs=1e-5)
    assert most == pytest.approx(math.log10(ordered[-1]), abs=1e-5)
    assert median == pytest.approx(float(ordered.log10().median()), abs=0.03)
    assert below == pytest.approx(float((ordered < 1).double().mean()), abs=1e-12)
    assert dominated == pytest.approx(float((ordered < 10 * eps).double().mean()), abs=1e-12)


def test_batchnorm_channels_are_pooled_over_all_batches_in_eval_mode():
    norm = nn.BatchNorm2d(3).eval()
    batches = [draw(n, 3, 4, 5, seed=n, scale=n) + n for n in (2, 5, 3)]
    (seen,) = run_over_data(norm, batches).normalizers.values()
    everything = torch.cat(batches).double().transpose(0, 1).reshape(3, -1)
    assert torch.allclose(seen.channel_mean, everything.mean(1))
    assert torch.allclose(seen.channel_variance, everything.var(1, correction=0))
    assert (seen.samples, seen.entries, seen.uses_running) == (2, 40, True)
    check(seen, everything.var(1, correction=0))


def test_batchnorm_variances_are_those_within_batches_in_train_mode():
    norm = nn.BatchNorm1d(3).train()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    batches = [draw(16, 3, seed=n) + 10 * n for n in range(5)]
    (seen,) = run_over_data(norm, batches).normalizers.values()
    within = torch.stack([batch.double().var(0, correction=0) for batch in batches])
    assert torch.allclose(seen.channel_variance, within.mean(0))
    assert seen.batch_spread == pytest.approx(float((within.std(0) / within.mean(0)).median()))
    assert all(torch.equal(value, norm.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("norm", "shape", "sets"),
    [
        (nn.LayerNorm(7), (6, 5, 7), lambda x: x.reshape(-1, 7)),
        (nn.LayerNorm((5, 7)), (6, 5, 7), lambda x: x.reshape(-1, 35)),
        (nn.GroupNorm(2, 4), (6, 4, 3, 3), lambda x: x.reshape(-1, 18)),
        (nn.InstanceNorm2d(4), (6, 4, 3, 3), lambda x: x.reshape(-1, 9)),
        (nn.InstanceNorm1d(4), (6, 4, 9), lambda x: x.reshape(-1, 9)),
    ],
    ids=["layer", "layer over two", "group", "instance 2d", "instance 1d"],
)
def test_sets_of_the_other_normalizers(norm, shape, sets):
    batches = [draw(*shape, seed=n, scale=10.0**-n) for n in range(3)]
    (seen,) = run_over_data(norm, batches).normalizers.values()
    rows = torch.cat([sets(batch) for batch in batches]).double()
    assert seen.variance.sets == len(rows)
    assert seen.entries == rows.shape[1]
    check(seen, rows.var(1, correction=0))


def test_rms_norm_counts_mean_squares():
    norm = nn.RMSNorm(7, eps=1e-3)
    batch = draw(4, 7) + 3
    (seen,) = run_over_data(norm, [batch]).normalizers.values()
    check(seen, batch.double().square().mean(1), eps=1e-3)


class Functional(nn.Module):
    """Layers called as functions, two of the same family in one module, one of them twice."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(draw(4, 3, 3, 3))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.relu(F.layer_norm(F.conv2d(x, self.kernel), (6, 6)))
        x = F.group_norm(x, 2).mean((2, 3))
        return self.head(self.head(x).relu())


def test_functions_are_seen_with_the_module_that_calls_them():
    seen = run_over_data(Functional(), [draw(5, 3, 8, 8)])
    assert set(seen.normalizers) == {("", "layer_norm", 0), ("", "group_norm", 0)}
    assert set(seen.weights) == {("", "convolution", 0), ("head", "linear", 0), ("head", "linear", 1)}
    assert set(seen.units) == {("", "relu", 0), ("", "relu", 1)}


def test_gains_of_weight_layers_are_root_mean_squares_over_all_batches():
    layer = nn.Linear(6, 3)
    batches = [draw(4, 6, seed=n, scale=n + 1) for n in range(3)]
    (seen,) = run_over_data(layer, batches).weights.values()
    given = torch.cat(batches)
    assert seen.rms_input == pytest.approx(float(given.square().mean().sqrt()), rel=1e-5)
    assert seen.rms_output == pytest.approx(float(layer(given).detach().square().mean().sqrt()), rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 6, 6), (8, 9, 5)], ids=str)
def test_units_that_never_fire_are_dead(shape):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(5, 5, 1) if len(shape) == 4 else nn.Linear(5, 5)
            with torch.no_grad():
                self.first.weight.copy_(torch.eye(5).reshape(self.first.weight.shape))
                self.first.bias.copy_(torch.tensor([0.0, 0.0, -1e6, 0.0, 0.0]))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.first(x))

    (seen,) = run_over_data(Net(), [draw(*shape, seed=n) for n in range(4)]).units.values()
    assert seen.dead.tolist() == [False, False, True, False, False]


def test_the_first_module_that_breaks_is_named():

    model = nn.Sequential(
        nn.Linear(3, 3), nn.Tanh(), nn.Sequential(nn.Identity(), Net(lambda _, x: x.log())), nn.Linear(3, 3)
    )
    seen = run_over_data(model, [draw(4, 3)])
    assert seen.not_finite is not None
    assert (seen.not_finite.where, seen.not_finite.function) == ("2.1", "log")
    assert run_over_data(model[:2], [draw(4, 3)]).not_finite is None


def test_a_model_that_raises_is_told_with_the_batch():
    seen = run_over_data(nn.Linear(3, 3), [draw(4, 3), draw(4, 5)])
    assert seen.error is not None
    assert "batch 2" in seen.error
    assert seen.batches == 1


def test_an_empty_loader_is_refused():
    with pytest.raises(InputError, match="`loader` yields no batch"):
        ns.check(nn.Linear(3, 3), draw(4, 3), loader=[])


def test_labels_and_generators_are_taken():
    seen = run_over_data(nn.Linear(3, 3), ((draw(4, 3), torch.zeros(4)) for _ in range(3)))
    assert (seen.samples, seen.batches) == (12, 3)


def test_statistics_do_not_depend_on_how_the_data_is_cut():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.LayerNorm(6)).eval()
    data = draw(60, 6)
    whole, cut = run_over_data(model, [data]), run_over_data(model, data.split(7))
    for one, other in zip(whole.normalizers.values(), cut.normalizers.values(), strict=True):
        assert summary(one) == pytest.approx(summary(other), abs=1e-4)


@pytest.mark.slow
def test_compiled_modules_are_watched_eagerly():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    model.compile()
    assert set(run_over_data(model, [draw(4, 3)]).normalizers) == {("1", "layer_norm", 0)}


@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_counts_as_off_in_train_mode_wherever_it_is(norm_first):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True, norm_first=norm_first)
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            y = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)
            return self.norm(F.dropout(self.encoder(x) + y, 0.5, self.training))

    model, batch = Dropping(), draw(4, 5, 8)
    train, eval_ = run_over_data(model, [batch], mode="train"), run_over_data(model, [batch], mode="eval")
    for site, seen in train.normalizers.items():
        assert summary(seen) == pytest.approx(summary(eval_.normalizers[site]), abs=1e-4)


def test_a_relu_that_changes_its_width_is_left_out():
    assert not run_over_data(nn.ReLU(), [-draw(4, 5).abs(), draw(4, 6)]).units
    (seen,) = run_over_data(nn.ReLU(), [-draw(4, 5).abs(), draw(4, 5).abs()]).units.values()
    assert not seen.dead.any()


def test_root_mean_squares_of_half_precision_do_not_overflow():
    layer = nn.Linear(4096, 8).half()
    (seen,) = run_over_data(layer, [torch.full((64, 4096), 200.0, dtype=torch.float16)]).weights.values()
    assert seen.rms_input == pytest.approx(200.0)


@pytest.mark.parametrize("normalizer", ["batch", "layer"])
def test_the_median_of_an_even_number_of_variances_is_the_lower_one(normalizer):
    variances = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    if normalizer == "batch":  # one channel for each variance
        model, x = nn.BatchNorm1d(6).eval(), signs[:, None] * variances.sqrt()
    else:  # one sample for each
        model, x = nn.LayerNorm(4).eval(), signs * variances.sqrt()[:, None]
    (row,) = ns.audit(nn.Sequential(model), x, loader=[x]).layers
    assert 10**row.variance.log10_median == pytest.approx(3.0, rel=0.04)
