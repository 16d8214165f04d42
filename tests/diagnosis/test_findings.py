"""Every finding on a model that has the fault and on one that has not."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.auditing.audited import AuditedRow
from normscope.doctor.facts.layers_over_data import UnitsOverData
from normscope.doctor.symptoms.registry import diagnose_model
from normscope.listening.not_finite import Origin

from ..net import Net
from .seen import ERROR, INFO, WARNING, Untraced, audited, codes, examined, normalizer, randn, weight

# ------------------------------------------------------------ values that are no numbers


def test_non_finite_weights_are_named_and_counted():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    with torch.no_grad():
        model[2].weight[0, :2] = math.inf
        model[2].bias[0] = math.nan
        model[1].running_mean[1] = math.nan
    (finding,) = diagnose_model(examined(model=model))
    assert (finding.code, finding.where, finding.severity) == ("non-finite-weights", "2.weight", ERROR)
    assert finding.numbers == {"values": 2, "nan": 0, "size": 9, "count": 3}


def test_infinite_masks_are_no_broken_weights():
    model = nn.Linear(3, 3)
    model.register_buffer("mask", torch.full((2, 2), -math.inf))
    assert not diagnose_model(examined(model=model))
    model.register_buffer("table", torch.tensor([math.nan]))
    assert codes(model=model) == [("non-finite-weights", "table", ERROR)]


def test_the_module_that_makes_the_first_nan_is_named():
    origin = Origin(where="encoder.log", function="log")
    assert codes(not_finite=origin) == [("non-finite-activations", "encoder.log", ERROR)]
    assert not codes(not_finite=None)


def test_non_finite_output_of_broken_weights_is_a_consequence():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    of_itself, of_another = (Origin(where=where, function="linear") for where in ("1", "0"))
    assert [code for code, _, _ in codes(model=model, not_finite=of_itself)] == ["non-finite-weights"]
    assert len(codes(model=model, not_finite=of_another)) == 2


# --------------------------------------------------------- gradients that are not the forward's


class Reversed(torch.autograd.Function):
    """Gradient reversal, as for domain adaptation."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.1 * gradient


class Frozen(nn.Module):
    """A backbone without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize(
    ("layer", "factor"),
    [
        (Net(lambda _, x: Reversed.apply(x)), -0.1),
        (Frozen(), 0.0),
        (Net(lambda _, x: x + (x.round() - x).detach()), None),
    ],
)
def test_gradient_mismatch(layer: nn.Module, factor: float | None, traced: bool):
    first = nn.Identity() if traced else Untraced()
    model = nn.Sequential(first, nn.Linear(4, 4), layer, nn.Linear(4, 3)).eval()
    if isinstance(layer, Frozen):  # its own weights are cut off as well, which says more
        assert audited(model, randn(64, 4), "gradient-cut")
        return
    (finding,) = audited(model, randn(64, 4), "gradient-mismatch")
    assert (finding.where, finding.severity) == ("2", WARNING)
    assert "`2`" in finding.seen
    assert "on purpose" in finding.advice
    if factor is not None:
        assert finding.numbers["factor"] == pytest.approx(factor, abs=1e-3)
    honest = nn.Sequential(first, nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)).eval()
    assert not audited(honest, randn(64, 4), "gradient-mismatch")


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradients_of_ordinary_layers_match(mode: str):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.5),
        nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3),
    )  # fmt: skip
    assert not audited(model, randn(16, 1, 4, 4), "gradient-mismatch", mode=mode)


# ------------------------------------------------------------------------- sets and batches


@pytest.mark.parametrize(
    ("kind", "entries", "severity"),
    [("layer", 1, ERROR), ("group", 1, ERROR), ("instance", 2, WARNING), ("batch", 2, WARNING), ("rms", 1, WARNING)],
)
def test_tiny_sets(kind, entries, severity):
    assert codes(normalizer(kind=kind, entries=entries)) == [("tiny-sets", "norm", severity)]


@pytest.mark.parametrize(("kind", "entries"), [("layer", 3), ("group", 3), ("rms", 2)])
def test_small_sets_that_still_work(kind, entries):
    assert not codes(normalizer(kind=kind, entries=entries))


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({"entries": 16, "samples": 16}, True),
        ({"entries": 32, "samples": 32}, False),
        ({"entries": 512, "samples": 2}, True),
        ({"entries": 512, "samples": 8}, False),
        ({"entries": 512, "samples": 8, "batch_spread": 0.8}, True),
        ({"entries": 512, "samples": 8, "batch_spread": 0.3}, False),
        ({"entries": 16, "samples": 16, "uses_running": True}, False),
    ],
)
def test_small_batch(known, found):
    expected = [("small-batch", "norm", WARNING)] if found else []
    assert codes(normalizer(kind="batch", **known), mode="train") == expected


def batch_norm(path: str = "norm", *, mean: float = 0.0, ratio: float = 1.0, **known) -> AuditedRow:
    return normalizer(
        path, "batch", uses_running=True, channel_mean=torch.full((8,), mean).double(),
        channel_variance=torch.full((8,), 3.0 * ratio).double(), running_mean=torch.zeros(8).double(),
        running_variance=torch.full((8,), 3.0).double(), **known,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("known", "samples", "found"),
    [
        ({}, 256, False),
        ({"ratio": 4.0}, 256, True),
        ({"ratio": 0.2}, 256, True),
        ({"ratio": 1.7}, 256, False),
        ({"mean": 1.5}, 256, True),
        ({"mean": 0.5}, 256, False),
        ({"ratio": 4.0}, 4, False),
        ({"mean": 1.5}, 4, False),
    ],
)
def test_stale_statistics_are_told_from_chance(known, samples, found):
    expected = [("stale-statistics", "norm", WARNING)] if found else []
    assert codes(batch_norm(**known), samples=samples) == expected


def test_stale_statistics_name_the_first_of_many():
    (finding,) = diagnose_model(examined(batch_norm("a"), batch_norm("b", ratio=9.0), batch_norm("c", ratio=9.0)))
    assert (finding.where, finding.numbers["count"]) == ("b", 2)
    assert finding.numbers["log2_variance"] == pytest.approx(math.log2(9.0), rel=1e-3)


def test_statistics_that_were_never_taken_are_a_fact():
    place = batch_norm(ratio=50.0)
    fresh = dataclasses.replace(place.normalizer, running_variance=torch.ones(8).double())
    assert codes(dataclasses.replace(place, normalizer=fresh)) == [("stale-statistics", "norm", INFO)]


# -------------------------------------------------------------------------------------- eps


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({"eps": 0.0}, True),
        ({"eps": 0.1, "log10": -2.0}, True),
        ({"eps": 0.1, "log10": 1.0}, False),
        ({"eps": 1e-3, "log10": -3.5}, False),
        ({"eps": 1e-12}, False),
    ],
)
def test_eps_scale(known, found):
    assert codes(normalizer(**known)) == ([("eps-scale", "norm", WARNING)] if found else [])


def test_eps_that_float16_does_not_hold_is_a_fact():
    place = normalizer("norm", eps=1e-12)
    half, single = nn.Sequential(), nn.Sequential()
    half.add_module("norm", nn.LayerNorm(4).half())
    single.add_module("norm", nn.LayerNorm(4))
    assert codes(place, model=half) == [("eps-scale", "norm", INFO)]
    assert not codes(place, model=single)


@pytest.mark.parametrize(("share", "severity"), [(0.0, None), (0.05, INFO), (0.5, INFO)])
def test_eps_dominated(share, severity):
    expected = [] if severity is None else [("eps-dominated", "norm", severity)]
    assert codes(normalizer(log10=-4.2, share_eps=share)) == expected


def test_stored_variances_decide_in_eval_mode():
    quiet = torch.tensor([1e-5] * 6 + [1.0] * 2).double()
    place = batch_norm(share_eps=0.0)
    seen = dataclasses.replace(place.normalizer, running_variance=quiet, channel_variance=quiet)
    (found,) = diagnose_model(examined(dataclasses.replace(place, normalizer=seen)))
    assert (found.code, found.numbers["share"]) == ("eps-dominated", 0.75)


# ------------------------------------------------------------------------------------- dead


def test_dead_layer_by_collapsed_variance():
    assert codes(normalizer(log10=-9.0, share_eps=1.0)) == [("dead-layer", "norm", WARNING)]
    assert codes(normalizer(log10=-math.inf, share_eps=1.0)) == [("dead-layer", "norm", WARNING)]
    assert not codes(normalizer(log10=-3.0))


def test_dead_layer_names_the_weights_that_collapsed():
    layers = [weight("a", 0.5), weight("b", -9.0), weight("c", 0.7)]
    place = normalizer(log10=-16.0, share_eps=1.0, row={"folded_with": "b"})
    assert codes(layers[0], layers[1], place, layers[2])[0] == ("dead-layer", "b", WARNING)


def test_dead_layer_by_negligible_weights():
    assert codes(weight("a", 0.5), weight("b", -7.0), weight("c", 0.7)) == [("dead-layer", "b", WARNING)]
    assert not codes(weight("a", -7.0), weight("b", -7.0), weight("c", -7.0)), "small all over is not dead"
    assert not codes(weight("a", 0.5), weight("b", -2.0), weight("c", 0.7))


def test_dead_layer_by_negligible_scale():
    assert codes(normalizer(weight=torch.full((8,), 1e-9))) == [("dead-layer", "norm", WARNING)]
    assert not codes(normalizer(weight=torch.full((8,), 1e-2)))


def test_a_zero_layer_is_an_initialisation_unless_everything_leads_through_it():
    assert codes(normalizer(weight=torch.zeros(8))) == [("dead-layer", "norm", INFO)]
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    nn.init.zeros_(model[4].weight)
    (finding,) = audited(model, randn(64, 4), "zero-weights")
    assert (finding.where, finding.severity) == ("4", INFO)


@pytest.mark.parametrize(("dead", "severity"), [(0, None), (1, INFO), (16, WARNING)])
def test_dead_channels_by_scale(dead, severity):
    scale = torch.linspace(0.5, 2.0, 64)
    scale[:dead] = 0.0
    expected = [] if severity is None else [("dead-channels", "norm", severity)]
    assert codes(normalizer(weight=scale)) == expected


def test_dead_channels_by_constant_input_are_the_fault_of_what_comes_before():
    values = torch.ones(8).double()
    values[:3] = 0.0
    place = normalizer(kind="batch", channel_variance=values, share_eps=3 / 8)
    (finding,) = diagnose_model(examined(place, mode="train"))
    assert (finding.code, finding.severity, finding.numbers["dead"]) == ("dead-channels", INFO, 3)
    assert finding.numbers["share"] == pytest.approx(3 / 8)
    assert [code for code, _, _ in codes(place, mode="train", samples=4)] == ["eps-dominated"], "too few samples"


@pytest.mark.slow
def test_filters_that_shrank_to_nothing_are_dead_channels_of_the_normalizer():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).train()
    with torch.no_grad():
        model[0].weight[:3] *= 1e-9
    (finding,) = audited(model, randn(64, 8), "dead-channels")
    assert (finding.where, finding.severity, finding.numbers["dead"]) == ("1", WARNING, 3)


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_zero_filters_are_reported_once_where_they_are(padding_mode):
    convolution = nn.Conv2d(2, 8, 3, padding=1, padding_mode=padding_mode)
    model = nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    batch = randn(64, 2, 6, 6)
    assert not audited(model, batch, "dead-channels", mode="train")
    with torch.no_grad():
        model[0].weight[:4] = 0.0
    (finding,) = audited(model, batch, "dead-channels", mode="train")
    assert (finding.where, finding.numbers["dead"]) == ("0", 4)


@pytest.mark.parametrize(
    ("dead", "samples", "severity"),
    [(0, 256, None), (3, 256, INFO), (32, 256, INFO), (60, 256, WARNING), (60, 8, None)],
)
def test_dead_relu(dead, samples, severity):
    site = ("act", "relu", 0)
    units = {site: UnitsOverData(site=site, dead=torch.arange(64) < dead)}
    expected = [] if severity is None else [("dead-relu", "act", severity)]
    assert codes(units=units, samples=samples) == expected


@pytest.mark.slow
def test_dead_relu_after_batch_norm_needs_fewer():
    model = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)).train()
    batch = randn(64, 4)
    assert not audited(model, batch, "dead-relu")
    with torch.no_grad():
        model[1].bias[:13] = -9.0
    (finding,) = audited(model, batch, "dead-relu")
    assert (finding.where, finding.severity, finding.numbers["dead"]) == ("1", WARNING, 13)


# -------------------------------------------------------------------------------- expansion


@pytest.mark.parametrize(
    ("gain", "share", "severity"), [(0.5, 1.0, None), (3.5, 1.0, WARNING), (-0.5, 1.0, None), (3.5, 0.1, None)]
)
def test_expanding_normalizer(gain, share, severity):
    place = normalizer(log10=-2.0, share_below_one=share, row={"log10_folded": gain})
    expected = [] if severity is None else [("expanding-normalizer", "norm", severity)]
    assert codes(place) == expected


def test_one_quiet_token_makes_no_warning():
    place = normalizer(log10=-2.0, share_below_one=1.0, eps=1e-12, row={"log10_folded": 4.5})
    assert codes(place) == [("expanding-normalizer", "norm", WARNING)]
    quiet = dataclasses.replace(place.normalizer.variance, log10_min=-8.0)
    place = dataclasses.replace(place, normalizer=dataclasses.replace(place.normalizer, variance=quiet))
    assert codes(place) == []


def chain(gain: float, depth: int = 6, width: int = 16, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(width, width)
        nn.init.normal_(linear.weight, std=gain * math.sqrt(2.0 / width))
        layers += [linear, *([nn.LayerNorm(width)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 2)).eval()


@pytest.mark.slow
def test_exploding_run():
    batch = randn(64, 16)
    (finding,) = audited(chain(3.0), batch, "exploding-run")
    assert (finding.where, finding.severity, finding.numbers["layers"]) == ("0", WARNING, 6)
    assert finding.numbers["growth_per_layer"] == pytest.approx(3.0, rel=0.3)
    assert not audited(chain(1.0), batch, "exploding-run")
    assert not audited(chain(3.0, norm=True), batch, "exploding-run")


def test_one_large_layer_is_no_run():
    model = chain(1.0)
    with torch.no_grad():
        model[4].weight *= 1e4
    assert not audited(model, randn(64, 16), "exploding-run")


class Parallel(nn.Module):
    """Five projections side by side, each of which triples the signal."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(16, 16) for _ in range(5)])
        self.head = nn.Linear(16, 2)
        for part in self.parts:
            nn.init.normal_(part.weight, std=3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([part(x) for part in self.parts]).sum(0))


def test_parallel_layers_are_no_run():
    assert not audited(Parallel().eval(), randn(64, 16), "exploding-run")


# ------------------------------------------------------------------------------ spectral norm


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("old", [True, False])
def test_spectral_norm_off(old):
    wrap = nn.utils.spectral_norm if old else nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), wrap(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 2))
    for _ in range(50):
        model.train()(randn(4, 16))
    model.eval()
    assert not audited(model, randn(64, 16), "spectral-norm-off")
    original = model[2].weight_orig if old else model[2].parametrizations.weight.original
    with torch.no_grad():
        original.copy_(randn(16, 16, seed=1))
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (finding,) = audited(model, randn(64, 16), "spectral-norm-off")
    assert (finding.where, finding.severity) == ("2", WARNING)
    model(torch.zeros(1, 16))  # the old kind computes its weight when it runs
    weight = model[2].weight.detach()
    assert finding.numbers["norm"] == pytest.approx(float(torch.linalg.matrix_norm(weight, ord=2)), rel=1e-4)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())


def test_spectral_norm_of_a_convolution_is_not_its_operator_norm():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 8, 3, padding=1))).eval()
    (finding,) = audited(model, randn(64, 1, 8, 8), "spectral-norm-off")
    assert (finding.where, finding.severity) == ("0", INFO)
    assert finding.numbers["operator_norm"] > 1.1 > finding.numbers["norm"]


# ------------------------------------------------------------------------------------- facts


@pytest.mark.slow
def test_redundant_bias():
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    found = audited(nn.Sequential(*layers).train(), randn(32, 1, 8, 8), "redundant-bias")
    assert [(finding.where, finding.severity) for finding in found] == [("0", INFO), ("3", INFO)]
    assert found[0].numbers == {"parameters": 4}
    bare = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4))
    assert not audited(bare.train(), randn(32, 1, 8, 8), "redundant-bias")
    assert not audited(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), randn(32, 8), "redundant-bias")


@pytest.mark.slow
def test_a_steep_activation_is_a_remark_beside_the_bounds_and_no_finding():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)).eval()
    audit = ns.audit(model, randn(64, 4))
    assert not audit.findings
    assert "has a constant of 1.129, and the formula assumes 1" in audit.ladder["printed"].reason


class Square(nn.Module):
    """Not Lipschitz over all inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


@pytest.mark.slow
def test_not_lipschitz():
    (finding,) = audited(nn.Sequential(nn.Linear(4, 4), Square()).eval(), randn(64, 4), "not-lipschitz")
    assert (finding.where, finding.severity) == ("1", INFO)
    assert 'scope="ball"' in finding.advice
    assert not audited(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Square()).eval(), randn(64, 4), "not-lipschitz")
