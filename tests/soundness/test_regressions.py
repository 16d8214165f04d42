"""Models that once fooled the engine: every upper side must stay above the known truth, or the model be refused."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.errors import InputError, RandomOperatorError

from .networks import Function, noise


class OfTwo(Function):
    """A function of two inputs: that they have names says that none of them holds labels."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


def scaling(factor: float, dtype: torch.dtype = torch.float64) -> nn.Linear:
    layer = nn.Linear(2, 2, bias=False, dtype=dtype)
    layer.weight.data = factor * torch.eye(2, dtype=dtype)
    return layer


def chain(*factors: float, dtype: torch.dtype = torch.float64) -> nn.Module:
    return nn.Sequential(*(scaling(factor, dtype) for factor in factors))


def nearly_linear(slope: float) -> nn.Module:
    layers = [layer for _ in range(6) for layer in (scaling(1.0), nn.LeakyReLU(slope))]
    return nn.Sequential(*layers, scaling(1.0))


class RainDrop(nn.Module):
    """Not a dropout, whatever its name."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, torch.zeros(3), torch.full((3,), 1e4), training=self.training, eps=0.01)


COS, SIN, SHIFT = torch.tensor([10.0, 1.0]), torch.tensor([1e-3, 1e-3]), torch.tensor([-5e3, 0.0])
GROWING = torch.tensor([[1.0, 1.0], [10.0, 10.0]])
DOUBLE = torch.float64
TRUTHS = {
    "samples coupled by a mean, constant batch": (
        Function(lambda x: x - x.mean(0, keepdim=True)),
        torch.zeros(4, 3),
        1,
    ),
    "samples coupled far from the data": (
        Function(lambda x: x + 50 * F.relu(x.flip(0) - 10) * (len(x) > 1)),
        noise(4, 3),
        50,
    ),
    "causal samples": (Function(lambda x: x.cumsum(0)), noise(5, 3), 3.5),
    "float32 weights that underflow": (chain(*[1e-30] * 11, *[1e30] * 11, dtype=torch.float32), noise(2, 2), 1),
    "diagonals that underflow": (
        Function(lambda x: x * 1e-200 * 1e-200 * 1e200 * 1e200),
        noise(2, 2, dtype=DOUBLE),
        1,
    ),
    "float64 weights that underflow": (chain(1e-170, 1e-170, 1e170, 1e170), noise(2, 2, dtype=DOUBLE), 1),
    "silu of integers": (Function(lambda x: x * torch.sigmoid(x.int().to(x.dtype))), noise(2, 3), math.inf),
    "rms of integers": (
        Function(lambda x: x * torch.rsqrt(x.int().to(x.dtype).pow(2).mean(-1, keepdim=True) + 1.0)),
        noise(2, 3),
        math.inf,
    ),
    "rms with a scaled eps": (
        Function(lambda x: x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), 1.0, alpha=1e-4))),
        noise(2, 4),
        99.9,
    ),
    "complex constants": (Function(lambda x: (x * torch.tensor([1 + 100j] * 3)).abs()), noise(2, 3), 100),
    "an affine rotary": (
        Function(lambda x: x * COS + (torch.cat([-x[..., 1:], x[..., :1]], -1) + SHIFT) * SIN),
        noise(3, 2),
        10,
    ),
    "a rotary whose rows grow unlike one another": (
        Function(lambda x: x * GROWING + torch.cat([-x[..., 1:], x[..., :1]], -1) * SIN),
        noise(3, 2, 2),
        10,
    ),
    "negative circular padding": (
        Function(lambda x: F.conv1d(F.pad(x, (2, -1), mode="circular"), torch.ones(1, 2, 3))),
        noise(1, 2, 5),
        4.24,
    ),
    "slopes nearly equal": (nearly_linear(1 - 2e-9), noise(2, 2, dtype=DOUBLE), 1 - 1e-9),
    "slopes almost equal": (nearly_linear(0.999999), noise(2, 2, dtype=DOUBLE), 1 - 1e-9),
    "a bend off the grid": (Function(lambda x: F.relu(x) + 5 * F.relu(x - 2e6)), noise(2, 3), 6),
    "a bump between grid points": (
        Function(lambda x: x * torch.sigmoid(x) + torch.exp(-((1e4 * (x - 0.00373456)) ** 2))),
        noise(2, 3),
        8e3,
    ),
    "two inputs, one twice": (OfTwo(lambda x, y: (x + x) + 1e-3 * y), (noise(2, 3), noise(2, 3)), 2),
    "an unused input": (OfTwo(lambda x, y: 2 * x), (noise(4, 3), noise(4, 2)), 2),
    "limits larger than the operand": (Function(lambda x: x.clamp(min=torch.full((4, 3), -9.0))), noise(1, 3), 2),
    "crossed limits": (
        Function(lambda x: torch.clamp(x, torch.ones(2), torch.tensor([-5.0, 0.0])) * x.tanh()),
        noise(2, 2),
        4.9,
    ),
    "two factors that move together": (Function(lambda x: F.hardtanh(x) * F.hardtanh(x, -1.0, 1.5)), noise(2, 3), 2),
    "a negative divisor": (nn.AvgPool2d(2, divisor_override=-1), noise(1, 1, 4, 4), 2),
    "a shape taken from the input": (Function(lambda x: x + torch.zeros_like(x)), noise(2, 3), 1),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_no_method_is_below_the_truth(name: str) -> None:
    """The upper sides alone, which take no search."""
    model, batch, truth = TRUTHS[name]
    for method, bracket in upper_sides(TracedNetwork.of(model.eval(), batch), proofs=False).items():
        assert not bracket.holds or bracket.upper >= truth * (1 - 1e-12), method


@pytest.mark.one_in(11)
@pytest.mark.parametrize("name", TRUTHS)
def test_no_upper_side_below_the_truth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.bounds.lower.ATTACK_STEPS", 30)  # the truth is known
    model, batch, truth = TRUTHS[name]
    ladder = ns.ladder(model.eval(), batch)
    for rung, bracket in ladder.items():
        if bracket.holds and rung != "observed":
            assert bracket.upper >= truth * (1 - 1e-12), rung


def test_a_module_is_not_a_dropout_because_of_its_name() -> None:
    assert ns.lipschitz(RainDrop(), noise(4, 3), mode="train").upper >= 9.99


def test_rounding_does_not_pass_for_a_lower_side() -> None:
    bracket = ns.lipschitz(Function(lambda x: (x + 1e16) - 1e16).eval(), noise(2, 3, dtype=DOUBLE))
    assert bracket.lower <= 1 <= bracket.upper


def test_a_module_that_runs_twice_has_no_single_known_constant() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = scaling(2.0, torch.float32)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    with pytest.raises(InputError, match="runs 2 times"):
        ns.lipschitz(Twice().eval(), noise(2, 2), known={"layer": 2.0})


def test_randomness_from_python_is_refused() -> None:
    with pytest.raises(RandomOperatorError, match="draws random numbers from Python"):
        ns.lipschitz(Function(lambda x: x * random.random()).eval(), noise(2, 3))


@pytest.mark.parametrize("function", [lambda x: (x - 100).log(), lambda x: x / 0.0, lambda x: x[:, :0]])
def test_outputs_that_are_no_numbers_are_refused(function) -> None:
    with pytest.raises(InputError, match="returns NaN, infinite values or nothing"):
        ns.lipschitz(Function(function).eval(), noise(2, 3))


def test_a_float_input_named_mask_is_held_constant_and_said_so() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, masked_image: Tensor, mask: Tensor) -> Tensor:
            return x + 100 * masked_image + 1e4 * mask

    bracket = ns.lipschitz(Masked().eval(), {name: noise(2, 3) for name in ("x", "masked_image", "mask")})
    assert any("the float input 'mask' is held constant" in note for note in bracket.notes)
    assert bracket.lower <= math.hypot(1, 100) * (1 + 1e-6)
    assert bracket.upper >= math.hypot(1, 100) * (1 - 1e-6)  # an image with a mask on it is an input like others
