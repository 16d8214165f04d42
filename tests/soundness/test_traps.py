"""Traps that once led to a false figure, each as it was found: what the front door says of them now."""

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import CaptureError

from .networks import Function


class MovedMean(nn.Module):
    """Reads the running mean that its own BatchNorm has just moved."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(1, momentum=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x) + 1e4 * self.bn.running_mean


class MovedInEval(nn.Module):
    """Moves statistics with training=True inside eval mode, and reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rm", torch.zeros(1))
        self.register_buffer("rv", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y = F.batch_norm(x, self.rm, self.rv, training=True, momentum=1.0)
        return y * 0.0 + 1e3 * self.rm


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("model", "mode", "truth"), [(MovedMean(), "train", 5000.0), (MovedInEval(), "eval", 500.0)])
def test_moved_statistics_are_part_of_the_function(model: nn.Module, mode: str, truth: float) -> None:
    batch = torch.tensor([[0.3], [-0.7], [1.1], [0.4]])
    try:
        bracket = ns.lipschitz(model.train(mode == "train"), batch)
    except CaptureError:
        return  # a refusal with the reason is as good
    assert bracket.upper >= truth


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "near", "slope"),
    [
        (lambda x: x * torch.sigmoid(x) + 1e-20 * x**3, 1e12, 1e4),
        (lambda x: x / (1 + 1e-16 * x), -1e16 + 1e14, 5e3),
        (lambda x: torch.where(x > 99, x + 9e-4, x), 99.0, 100.0),
        (lambda x: x * torch.sigmoid(x) + 3e-14 / ((x - 11.0037) ** 2 + 1e-12), 11.0037 + 5e-7, 1e4),
    ],
    ids=["cubic", "pole", "jump", "spike"],
)
def test_what_comes_close_to_an_activation_is_not_taken_for_it(function, near: float, slope: float) -> None:
    step = 1e-6 * max(abs(near), 1.0) if near > 1e3 or near < -1e3 else 1e-8
    x = torch.tensor([near - step, near + step], dtype=torch.float64)
    y = function(x)
    attained = float((y[1] - y[0]) / (x[1] - x[0]))
    assert abs(attained) > slope
    assert ns.lipschitz(Function(function).double().eval(), torch.zeros(1, 1).double()).upper >= abs(attained) * 0.99


def test_strides_are_those_of_memory() -> None:
    weight = torch.tensor([[1.0, 100.0], [1.0, 100.0]])
    model = Function(lambda x: (x * weight).t().as_strided((1, 2), (2, 1), 0) * torch.tensor([0.0, 1.0])).eval()
    x = torch.randn(1, 2)
    try:
        ball = ns.lipschitz(model, x, scope="ball", radius=0.1)
    except CaptureError:
        return
    with torch.no_grad():
        seen = float((model(x + 0.05) - model(x - 0.05)).norm() / (torch.full_like(x, 0.1)).norm())
    assert ball.upper >= seen * 0.999


def test_samples_that_meet_a_little_are_measured_together() -> None:
    model = Function(lambda x: x + 1e-5 * torch.sin(1e9 * (x - x.mean(0)))).double().eval()
    graph = ns.capture(model, torch.randn(4, 2).double())
    assert not graph.per_sample


def test_rounding_to_a_narrower_float_is_not_proven() -> None:
    bracket = ns.lipschitz(Function(lambda x: x.bfloat16().float() * 2).eval(), torch.randn(2, 3))
    assert bracket.evidence < ns.Evidence.PROVEN
    assert any("narrow" in note or "bfloat16" in note for note in bracket.notes)


def test_products_of_ranges_do_not_vanish() -> None:
    def product(x: Tensor) -> Tensor:
        small = (1000 + 1e-3 * torch.tanh(x[:, :1])) * 1e-200 * 1e-200
        return small * torch.tanh(x[:, 1:]) * 1e200 * 1e200

    assert ns.lipschitz(Function(product).double().eval(), torch.zeros(1, 2).double()).upper >= 1000.0


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("scale", [1e-200, 1e-100])
@pytest.mark.parametrize("bent", [torch.relu, lambda x: x], ids=["relu", "linear"])
def test_values_that_fall_below_all_floats_are_not_bounded_over_balls(scale: float, bent) -> None:
    def there_and_back(x: Tensor) -> Tensor:
        return torch.cat([0 * x + 1.0, bent(x * scale) * scale / scale / scale], 1)

    batch = torch.tensor([[0.5], [0.9]], dtype=torch.float64)
    assert ns.lipschitz(Function(there_and_back).eval(), batch, scope="ball", radius=0.1).upper >= 1.0


@pytest.mark.slow
def test_radii_count_the_rounding_of_large_biases() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64))
        model[0].bias.copy_(torch.tensor([1e12, 1e12, -1e12, -1e12]))
        model[2].bias.copy_(-(model[2].weight @ torch.relu(model[0].bias)) + torch.tensor([1e-3, 0.0]))
    x = torch.zeros(1, 2, dtype=torch.float64)
    radius = float(ns.certified_radius(model, x).radius[0])
    slope = (model[2].weight[0] - model[2].weight[1])[:2] @ model[0].weight[:2]
    exact = [
        sum((Fraction(float(w)) * Fraction(float(b)) for w, b in zip(row[:2], model[0].bias[:2])), Fraction(float(c)))
        for row, c in zip(model[2].weight, model[2].bias)
    ]
    assert radius <= abs(float(exact[0] - exact[1])) / float(slope.norm()) * (1 + 1e-9)


class Lying(torch.autograd.Function):
    """100 x, with a backward that says 1."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return 100 * x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


class Reversing(torch.autograd.Function):
    """x, with a backward that is reversed and scaled."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return -0.1 * grad


def hooked(x: Tensor) -> Tensor:
    y = 3 * x
    if y.requires_grad:
        y.register_hook(lambda grad: 0.01 * grad)
    return y


@pytest.mark.parametrize(
    ("function", "truth"),
    [(Lying.apply, 100.0), (Reversing.apply, 1.0), (hooked, 3.0)],
    ids=["lying", "reversing", "hook"],
)
def test_points_have_the_derivative_of_the_forward(function, truth: float) -> None:
    model = nn.Sequential(Function(function), nn.Identity()).eval()
    assert ns.lipschitz(model, torch.randn(3, 4), scope="point").upper == pytest.approx(truth, rel=1e-4)
    assert ns.lipschitz(model, torch.randn(3, 4)).upper >= truth * (1 - 1e-9)


def test_a_straight_through_rounding_jumps() -> None:
    model = Function(lambda x: x + (torch.round(x) - x).detach()).eval()
    bracket = ns.lipschitz(model, torch.full((1, 2), 0.3), scope="point")
    assert bracket.upper == pytest.approx(0.0, abs=1e-12)
    assert any("jump" in note for note in bracket.notes)
    assert ns.lipschitz(model, torch.full((1, 2), 0.3)).upper == math.inf


@pytest.mark.parametrize("scale", [300.0, 1e8, *(pytest.param(s, marks=pytest.mark.slow) for s in (1.0, 3.0, 1e3))])
def test_terms_that_cancel_have_no_lower_side(scale: float) -> None:
    model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(5.0)
        model[2].weight.copy_(scale * torch.tensor([[1.0, 2.0, -3.0]]))
    assert ns.lipschitz(model, torch.randn(2, 1)).lower == 0.0
    assert ns.lipschitz(model, torch.randn(2, 1), scope="ball", radius=0.1).lower == 0.0
