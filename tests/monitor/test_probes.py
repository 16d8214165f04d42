"""The probes against plain formulas."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.doctor.monitor.forward_listening import FunctionListener
from normscope.doctor.monitor.forward_record import ForwardRecord
from normscope.doctor.monitor.quantities import normalizers, turning
from normscope.doctor.monitor.quantities.histograms import (
    HISTOGRAM_BINS,
    HISTOGRAM_MAX_ENTRIES,
    HISTOGRAM_SPAN,
    histogram,
)
from normscope.doctor.monitor.quantities.operator_norms import READABLE_DECADES, NormTracker
from normscope.doctor.monitor.run import Run
from normscope.doctor.monitor.schedule import Tier, TimeBudget
from normscope.doctor.monitor.watching import Watch, watch
from normscope.theory.normalizers import layer_norm_jacobian

from .training import sgd, take_step, tiny_network


def heard(model: nn.Module, x: Tensor) -> ForwardRecord:
    """Listen to a model."""
    with FunctionListener(model).recording(Tier.FULL) as seen:
        model(x)
    return seen


def norm(model: nn.Module, seen: ForwardRecord) -> list[float]:
    """Return the settled norms of the only weight layer: alone, and folded if there is a normalizer."""
    [(site, weight)] = seen.weights.items()
    tensor = weight.made if weight.made is not None else dict(model.named_parameters())[weight.parameters[0]].detach()
    behind = next(iter(seen.normalizers.values())) if seen.normalizers else None
    known = NormTracker()
    with torch.no_grad():
        for _ in range(12):
            layers = {site: (weight.geometry, tensor)}
            options = {"step": 0, "tier": Tier.ECONOMY, "budget": TimeBudget(None)}
            [(reading, numbers)] = known.measure(layers, lambda _: behind, **options)
    norms, errors = reading.read(numbers.double().numpy())[site]
    assert max(errors) <= READABLE_DECADES
    return norms


def quantities(seen: ForwardRecord) -> dict[str, float]:
    """Return the figures of the only normalizer: on the device and on the host they are the same."""
    [normalizer] = seen.normalizers.values()
    [there] = normalizers.measure([normalizer]).tolist()
    names = [name for name in ("variance", "gamma", "running_variance") if getattr(normalizer, name) is not None]
    sent = dataclasses.replace(normalizer, **{name: getattr(normalizer, name).double().numpy() for name in names})
    here = normalizers.measure_all([sent, sent])[1].tolist()
    assert here == pytest.approx(there, abs=1e-5, nan_ok=True)
    return dict(zip((one.name for one in normalizers.Normalizers.quantities), here))


def dense_norm(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """Return log10 of the largest singular value of a layer without bias, on one sample (or one token)."""
    shape = shape[-1:] if isinstance(layer, nn.Linear) else shape
    x = torch.zeros(1, *shape)
    matrix = torch.autograd.functional.jacobian(lambda v: layer(v).flatten(), x).flatten(1)
    return math.log10(float(torch.linalg.svdvals(matrix)[0]))


class TestNormalizers:
    def test_batch_norm(self) -> None:
        layer = nn.BatchNorm2d(5)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]))
            layer.running_var.copy_(torch.rand(5) + 0.5)
        x = torch.randn(4, 5, 3, 3) * torch.tensor([1.0, 1e-2, 3.0, 1.0, 0.0]).reshape(1, -1, 1, 1)
        running = layer.running_var.double().clone()
        found = quantities(heard(layer, x))
        variance = x.double().var(dim=(0, 2, 3), correction=0)
        deviation = (variance + layer.eps).sqrt()
        assert found["log10_variance_min"] == -math.inf
        assert found["log10_variance_max"] == pytest.approx(float(variance.max().log10()), abs=1e-5)
        assert found["log10_constant"] == pytest.approx(float((1 / deviation).max().log10()), abs=1e-5)
        gains = layer.weight.detach().double().abs() / deviation
        assert found["log10_gain"] == pytest.approx(float(gains.max().log10()), abs=1e-5)
        assert found["dominated"] == pytest.approx(0.4)
        assert found["constant"] == pytest.approx(0.2)
        assert found["dead"] == pytest.approx(0.2)
        ratio = ((variance + layer.eps) / (running + layer.eps)).log10()
        assert found["log10_running"] == pytest.approx(float(ratio.mean()), abs=1e-5)
        assert found["running_spread"] == pytest.approx(float(ratio.std(correction=0)), abs=1e-5)

    @pytest.mark.parametrize("width", [2, 3, 7])
    def test_layer_norm_constants_are_jacobian_norms(self, width: int) -> None:
        x = torch.randn(3, 4, width)
        found = quantities(heard(nn.LayerNorm(width), x))
        norms = [torch.linalg.matrix_norm(layer_norm_jacobian(row, None, 1e-5), ord=2) for row in x.reshape(-1, width)]
        assert found["log10_constant"] == pytest.approx(math.log10(max(map(float, norms))), abs=1e-3)
        assert math.isnan(found["log10_running"])

    def test_rms_norm(self) -> None:
        x = torch.randn(6, 5)
        layer = nn.RMSNorm(5, eps=1e-3)
        found = quantities(heard(layer, x))
        norms = [torch.linalg.matrix_norm(torch.autograd.functional.jacobian(layer, row), ord=2) for row in x]
        assert found["log10_constant"] == pytest.approx(math.log10(max(map(float, norms))), abs=1e-4)
        assert found["log10_variance_max"] == pytest.approx(float(x.square().mean(1).max().log10()), abs=1e-5)

    def test_group_norm_takes_the_scales_of_its_groups(self) -> None:
        layer = nn.GroupNorm(2, 4)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([1.0, 5.0, 0.1, 0.2]))
        x = torch.randn(3, 4, 5) * torch.tensor([1.0, 1.0, 1e-2, 1e-2]).reshape(1, -1, 1)
        found = quantities(heard(layer, x))
        variance = x.double().reshape(3, 2, -1).var(dim=2, correction=0)
        gains = torch.tensor([5.0, 0.2], dtype=torch.float64) / (variance + layer.eps).sqrt()
        assert found["log10_gain"] == pytest.approx(float(gains.max().log10()), abs=1e-5)

    def test_values_that_are_not_finite_are_seen(self) -> None:
        x = torch.randn(4, 3)
        x[0, 0] = math.inf
        assert math.isnan(quantities(heard(nn.BatchNorm1d(3), x))["log10_variance"])


class TestWeights:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        ("layer", "shape"),
        [
            (nn.Linear(7, 5), (3, 7)),
            (nn.Linear(7, 5), (2, 4, 7)),
            (nn.Conv2d(3, 4, 3, padding=1, stride=2), (2, 3, 9, 8)),
            (nn.Conv1d(4, 6, 3, padding="same", groups=2), (2, 4, 9)),
            (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 2, 6, 6)),
            (nn.ConvTranspose2d(3, 2, 3, stride=2, output_padding=1), (2, 3, 4, 4)),
        ],
        ids=["linear", "tokens", "strided", "grouped", "circular", "transposed"],
    )
    def test_the_norm_settles_on_the_operator_norm(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        seen = heard(layer, torch.randn(shape))
        [weight] = seen.weights.values()
        [found] = norm(layer, seen)
        model = layer
        inside = shape[1:]
        if getattr(layer, "padding_mode", "zeros") == "circular":  # which comes before, as an operator of its own
            layer, inside = nn.Conv2d(2, 3, 3), (2, 8, 8)
            layer.weight = model.weight
        exact = dense_norm(layer, inside)
        assert found <= exact + 1e-5
        assert found == pytest.approx(exact, abs=5e-3)
        assert weight.parameters == ("weight", "bias")

    def test_folded_with_a_batch_norm_it_does_not_see_the_gauge(self) -> None:
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, eps=1e-12))
        with torch.no_grad():
            model[1].weight.copy_(torch.rand(5) + 0.5)
        x = torch.randn(20, 6)
        before = norm(model, heard(model, x))
        deviation = model[0](x).detach().double().var(dim=0, correction=0).sqrt()
        scale = model[1].weight.detach() / deviation
        exact = torch.linalg.matrix_norm(scale[:, None] * model[0].weight.detach().double(), ord=2)
        assert before[1] == pytest.approx(math.log10(float(exact)), abs=1e-4)
        with torch.no_grad():
            model[0].weight.mul_(torch.tensor([1e-3, 10.0, 7.0, 0.5, 1.0])[:, None])
            model[0].bias.zero_()
        after = norm(model, heard(model, x))
        assert after[1] == pytest.approx(before[1], abs=1e-4)
        assert abs(after[0] - before[0]) > 0.3

    def test_folded_with_a_layer_norm_it_takes_the_least_deviation(self) -> None:
        model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))
        x = torch.randn(20, 6)
        _, folded = norm(model, heard(model, x))
        least = model[0](x).detach().double().var(dim=1, correction=0).min()
        exact = torch.linalg.matrix_norm(model[0].weight.detach().double(), ord=2) / (least + 1e-5).sqrt()
        assert folded == pytest.approx(math.log10(float(exact)), abs=1e-4)

    def test_a_weight_that_a_parametrization_makes_is_measured_as_applied(self) -> None:
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
        [found] = norm(layer, heard(layer, torch.randn(3, 6)))
        exact = torch.linalg.svdvals(layer.weight.detach())[0]
        assert found == pytest.approx(math.log10(float(exact)), abs=1e-4)


class TestUpdates:
    def found(self, before: Tensor, after: Tensor, power: int | None = 2) -> dict[str, float]:
        [(norms, products)] = turning.StepRows({"weight": before}).split({"weight": after})
        numbers = torch.cat([norms[:, 0], products]).double().numpy()
        found = turning.measure_all([numbers, numbers], lr=[1.0, 0.1], powers=[power, power])[1]
        return dict(zip((one.name for one in turning.Turning.quantities), found.tolist()))

    def test_a_turn(self) -> None:
        before = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
        angle = 0.1
        turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        found = self.found(before, before @ turn)
        assert found["rotation"] == pytest.approx(angle, rel=1e-4)
        assert found["log10_effective_lr"] == pytest.approx(math.log10(0.1) - math.log10(9 * 4) / 2, abs=1e-5)
        assert found["radial"] == pytest.approx(math.cos(angle) - 1, rel=1e-2)

    def test_a_step_along_itself_does_not_turn(self) -> None:
        before = torch.tensor([[3.0, 4.0]])
        found = self.found(before, 1.5 * before, power=1)
        assert found["rotation"] == pytest.approx(0.0, abs=1e-6)
        assert found["radial"] == pytest.approx(0.5)
        assert found["log10_effective_lr"] == pytest.approx(math.log10(0.1 / 5.0), abs=1e-5)

    def test_groups_that_are_zero_are_counted_and_left_out(self) -> None:
        before = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        found = self.found(before, before, power=None)
        assert found["zero"] == 0.5
        assert found["log10_group"] == pytest.approx(math.log10(5.0))
        assert math.isnan(found["log10_effective_lr"])

    def test_rows_of_transposed_convolutions_and_biases(self) -> None:
        weight, bias = torch.arange(12.0).reshape(2, 3, 2), torch.tensor([10.0, 20.0, 30.0])
        rows = turning.group_rows([weight, bias], 3, 1)
        assert rows[1].tolist() == [2.0, 3.0, 8.0, 9.0, 20.0]


def histograms(run: Watch, what: str) -> Any:
    return run.records[-1].histograms[what]


def test_the_full_tier_has_histograms_of_weights_and_gradients(tmp_path: Path) -> None:
    model = tiny_network()
    optimizer = sgd(model)
    with watch(model, optimizer, every={"economy": 1, "full": 2}, log=tmp_path) as run:
        for _ in range(3):
            take_step(model, optimizer)
            held = [model[0].weight.grad.clone(), model[3].weight.grad.clone()]
    assert [bool(record.histograms) for record in run.records] == [True, False, True]
    for gradient, row in zip(held, histograms(run, "gradient"), strict=True):
        size, *shares = row
        assert size == pytest.approx(float(gradient.square().mean().sqrt()), rel=1e-4)
        assert sum(shares) == pytest.approx(1.0)
        middle = float(((gradient / size).abs() < 4 / 33).double().mean())
        assert shares[16] == pytest.approx(middle, abs=1e-6)
    read = Run(tmp_path).records[-1].histograms
    assert read["weight"][0] == pytest.approx(histograms(run, "weight")[0], rel=1e-5)


def test_histograms_look_at_all_of_a_large_tensor_and_put_entries_where_they_belong() -> None:
    large = torch.cat(
        [torch.zeros(HISTOGRAM_MAX_ENTRIES), torch.ones(HISTOGRAM_MAX_ENTRIES)]
    )  # every second entry is looked at
    size, *shares = histogram(large).tolist()
    assert size == pytest.approx(math.sqrt(0.5), rel=1e-3)
    assert shares[HISTOGRAM_BINS // 2] == pytest.approx(0.5, abs=1e-3)
    width = 2 * HISTOGRAM_SPAN / HISTOGRAM_BINS
    entries = torch.tensor([-9.0, -0.9, -0.1, 0.1, 0.5, 1.0, 9.0])
    relative = entries / entries.square().mean().sqrt()
    expected = [0.0] * HISTOGRAM_BINS
    for value in relative.tolist():
        expected[min(max(int((value + HISTOGRAM_SPAN) // width), 0), HISTOGRAM_BINS - 1)] += 1 / 7
    assert histogram(entries)[1:].tolist() == pytest.approx(expected, abs=1e-6)
    assert histogram(torch.zeros(5)).tolist()[0] == 0.0
