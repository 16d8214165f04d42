"""Cancelling networks, extreme scales, rounding of values: no figure may be false; planted bugs must be seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.evaluation import CARRIED, Confirmer
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.log10 import norm

from .extremes import (
    CANCELLING,
    OPERATORS,
    POWERS,
    ROWS,
    SCALES,
    Cancelling,
    cancelling_case,
    drawn,
    scaled_case,
)
from .networks import Function

Patch = pytest.MonkeyPatch


def summed(factor: float, last: tuple[float, ...] = (1.0, 2.0, -3.0)) -> nn.Sequential:
    """Return Linear(1, 3) with weights 1 and biases 5, ReLU, Linear(3, 1) with weights `factor * last`."""
    first, second = nn.Linear(1, 3), nn.Linear(3, 1)
    with torch.no_grad():
        first.weight.fill_(1.0), first.bias.fill_(5.0), second.bias.zero_()
        second.weight.copy_(factor * torch.tensor([last]))
    return nn.Sequential(first, nn.ReLU(), second).eval()


class TestCancelling:
    @pytest.mark.slow
    @pytest.mark.parametrize("factor", [1.0, 3.0, 1e2, 300.0, 1e3, 1e8])
    def test_the_zero_function_has_no_lower_side(self, factor: float) -> None:
        model = summed(factor)
        assert ns.lipschitz(model, torch.ones(2, 1), max_seconds=1.0).log10_lower == -math.inf
        over = ns.lipschitz(model, torch.ones(2, 1), scope="ball", radius=0.1, max_seconds=1.0)
        assert over.log10_lower == -math.inf

    def test_nor_at_a_point(self) -> None:
        found = ns.lipschitz(summed(1e8), torch.ones(1, 1), scope="ball", radius=0.0)
        assert found.log10_lower == -math.inf

    @pytest.mark.parametrize("name", ["linear, relu", "attention"])
    def test_other_networks(self, name: str) -> None:
        case = cancelling_case(name, 7, "ball")
        assert case.wrong is None, case

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("factor", [1.0, 1e4, 1e8])
    def test_what_is_left_is_found(self, factor: float) -> None:
        """Weights 1, 2 and -3 + 2^-10: the constant is 2^-10 times the factor."""
        model = Cancelling(CANCELLING["linear, relu"], factor, (1.0, 2.0, -3.0 + 2.0**-10)).eval()
        found = ns.lipschitz(model, drawn(1, 4), max_seconds=2.0)
        truth = math.log10(2.0**-10 * factor * float(ROWS[0].norm()))
        assert truth - 0.05 < found.log10_lower <= truth + 1e-9

    def test_weights_of_a_layer_before_the_cancellation(self) -> None:
        last = 1e8 * torch.tensor([[1.0, 2.0, -3.0]])
        model = nn.Sequential(nn.Linear(1, 1), Function(lambda x: F.linear(x.expand(-1, 3) + 0.1, last)))
        for row in ns.weight_sensitivity(model.eval(), torch.ones(1, 1), max_seconds=3.0).rows[:1]:
            assert row.bracket_h.log10_lower == -math.inf

    @pytest.mark.slow
    @pytest.mark.parametrize("scope", ["fast", "ball", "tight"])
    @pytest.mark.parametrize("power", POWERS)
    @pytest.mark.parametrize("name", list(CANCELLING))
    def test_all(self, name: str, power: int, scope: str) -> None:
        case = cancelling_case(name, power, scope)
        assert case.wrong is None, case


class TestErrors:
    """The error bound holds against exact rational arithmetic."""

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("how", CARRIED)
    @pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
    def test_two_layers_in_fractions(self, scale: float, how: str) -> None:
        weights = [drawn(6, 4, seed=1), drawn(3, 6, seed=2) * scale]
        biases = [1e9 * drawn(6, seed=3), drawn(3, seed=4) * scale]
        model = Function(lambda x: F.linear(F.linear(x, weights[0], biases[0]).relu(), weights[1], biases[1])).eval()
        x = drawn(1, 4, seed=5)
        found = TracedNetwork.of(model, x).certain.at(x, how=how)
        hidden = [max(value, Fraction(0)) for value in _affine(weights[0], biases[0], x[0].tolist())]
        exact = _affine(weights[1], biases[1], hidden)
        off = [
            abs(Fraction(value) - want) for value, want in zip(found.value[0].reshape(-1).tolist(), exact, strict=True)
        ]
        assert all(one <= Fraction(error) for one, error in zip(off, found.error[0].reshape(-1).tolist(), strict=True))
        assert float(found.error.max()) < 1e-3 * scale

    @pytest.mark.parametrize("how", CARRIED)
    def test_terms_that_cancel_in_fractions(self, how: str) -> None:
        """No bias is there whose own rounding would have room for that of the layers."""
        weights = [drawn(6, 4, seed=1), drawn(3, 6, seed=2)]
        weights[0][:, 1] = -weights[0][:, 0]
        model = Function(lambda x: F.linear(F.linear(x, weights[0]).relu(), weights[1])).eval()
        x = drawn(1, 4, seed=5)
        x[0, :2] = 1e12 * x[0, 0]
        found = TracedNetwork.of(model, x).certain.at(x, how=how)
        hidden = [max(value, Fraction(0)) for value in _affine(weights[0], torch.zeros(6), x[0].tolist())]
        exact = _affine(weights[1], torch.zeros(3), hidden)
        for value, error, want in zip(
            *(part.reshape(-1).tolist() for part in (found.value, found.error)), exact, strict=True
        ):
            assert abs(Fraction(value) - want) <= Fraction(error)

    def test_activations_in_thirty_digits(self) -> None:
        x = drawn(1, 40)
        exact = {torch.tanh: mpmath.tanh, F.gelu: lambda t: t * mpmath.ncdf(t)}
        for function, known in exact.items():
            found = TracedNetwork.of(Function(function).eval(), x).certain.at(x)
            with mpmath.workdps(30):
                for given, value, error in zip(
                    *(part[0].tolist() for part in (x, found.value[:, 0], found.error[:, 0]))
                ):
                    assert abs(known(mpmath.mpf(given)) - value) <= error

    def test_a_constant_of_a_batch_norm_that_cancels(self) -> None:
        """bias - mean * scale is zero as computed: its rounding counts before that."""
        mean, one = torch.full((2,), 1e8 / 3, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        model = Function(lambda x: F.batch_norm(x, mean, 3 * one, one, mean / math.sqrt(3.0 + 1e-5))).eval()
        found = TracedNetwork.of(model, torch.zeros(1, 2, dtype=torch.float64)).certain.at(
            torch.zeros(1, 2, dtype=torch.float64)
        )
        assert float(found.error.min()) > 1e-9

    def test_deep_networks_keep_a_useful_lower_side(self) -> None:
        layers: list[nn.Module] = []
        generator = torch.Generator().manual_seed(0)
        for _ in range(12):
            layer = nn.Linear(48, 48)
            with torch.no_grad():
                layer.weight.copy_(torch.randn(48, 48, generator=generator) * math.sqrt(2 / 48))
                layer.bias.copy_(0.1 * torch.randn(48, generator=generator))
            layers += [layer, nn.ReLU()]
        model = nn.Sequential(*layers, nn.LayerNorm(48), nn.Linear(48, 3)).eval()
        x = torch.randn(1, 48, generator=generator)
        values = TracedNetwork.of(model, x).certain
        u = x[0].double()
        v = u + 1e-3 * drawn(48)
        plain = values.plain(torch.stack([u, v])).value
        computed = math.log10(float((plain[0] - plain[1]).norm() / (u - v).norm()))
        assert computed - 0.005 < Confirmer(values).secant(u, v).log10 <= computed


def _affine(weight: torch.Tensor, bias: torch.Tensor, x: list[float] | list[Fraction]) -> list[Fraction]:
    rows = zip(weight.tolist(), bias.tolist(), strict=True)
    return [sum((Fraction(w) * Fraction(v) for w, v in zip(row, x, strict=True)), Fraction(b)) for row, b in rows]


class TestScales:
    @pytest.mark.one_in(1000)
    @pytest.mark.parametrize("s", [1e-200, 1e-150, 1e150])
    @pytest.mark.parametrize("name", ["linear", "layer norm", "l2 norm", "square", "matrix product", "attention"])
    def test_some(self, name: str, s: float) -> None:
        for scope in ("global", "ball"):
            case = scaled_case(name, s, scope)
            assert case.wrong is None, case

    def test_a_factor_that_vanishes_as_a_float(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            tiny = (1000 + 1e-3 * torch.tanh(x[:, :1])) * 1e-200 * 1e-200
            return (tiny * torch.tanh(x[:, 1:])) * 1e200 * 1e200

        found = ns.lipschitz(Function(function).eval(), torch.zeros(2, 2, dtype=torch.float64), max_seconds=1.0)
        assert found.log10_upper >= 3.0

    @pytest.mark.parametrize("bent", [torch.relu, lambda x: x], ids=["relu", "linear"])
    def test_values_that_fall_below_all_floats_are_not_bounded_over_balls(self, bent: Callable) -> None:
        def there_and_back(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([0 * x + 1.0, bent(x * 1e-200) * 1e-200 / 1e-200 / 1e-200], 1)

        batch = torch.tensor([[0.5], [0.9]], dtype=torch.float64)
        assert ns.lipschitz(Function(there_and_back).eval(), batch, scope="ball", radius=0.1).upper >= 1.0

    @pytest.mark.slow
    @pytest.mark.parametrize("scope", ["global", "ball"])
    @pytest.mark.parametrize("s", SCALES)
    @pytest.mark.parametrize("name", list(OPERATORS))
    def test_all(self, name: str, s: float, scope: str) -> None:
        case = scaled_case(name, s, scope)
        assert case.wrong is None, case


class TestRadii:
    @pytest.mark.one_in(2)  # not in 3: that would always be the same bias
    @pytest.mark.parametrize("bias", [1e3, 1e8, 1e12])
    @pytest.mark.parametrize("value", [7.2e-4, 1e-2, 1.0])
    def test_a_radius_is_that_of_the_exact_function(self, value: float, bias: float) -> None:
        """Out = (x + bias) - bias against 0: the true radius is x, whatever float64 makes of it."""
        first, second = nn.Linear(1, 2).double(), nn.Linear(2, 2).double()
        with torch.no_grad():
            first.weight.copy_(torch.tensor([[1.0], [0.0]])), first.bias.fill_(bias)
            second.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]])), second.bias.zero_()
        model = nn.Sequential(first, nn.ReLU(), second).eval()
        x = torch.tensor([[value]], dtype=torch.float64)
        found = ns.certified_radius(model, x, labels=torch.tensor([0]), attack=False)
        assert found.radius[0] <= value
        assert any("exact" in note for note in found.notes)


class TestNumbers:
    @pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e200, 1e307])
    def test_norms_of_any_scale(self, scale: float) -> None:
        x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64) * scale
        found = norm(x, 1)
        assert float(found[0]) == pytest.approx(5 * scale, rel=1e-3 if scale < 1e-300 else 1e-14)
        assert float(found[1]) == 0.0
