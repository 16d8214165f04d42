"""Interpolations, products in sums, cross products, deviations, losses, bilinear forms: exact, or above attacks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns

from ..soundness.networks import Function, noise

SHAPES = [(3,), (4,), (1, 3), (3, 3), (5, 3), (4, 1, 1), (4, 3, 3)]
CONSTANTS = {shape: noise(*shape, seed=7).double() for shape in SHAPES}


def drawn(*shape: int) -> Tensor:
    return CONSTANTS[shape]


FORM = drawn(4, 3, 3)
LINEAR = {
    "broadcast": lambda x: sum(torch.broadcast_tensors(x, 2 * x[:1], drawn(4, 1, 1))),
    "lerp": lambda x: torch.lerp(x, -2 * x.flip(0), 0.3),
    "lerp by a tensor": lambda x: torch.lerp(x, x.flip(1), drawn(3)),
    "lerp far": lambda x: torch.lerp(x[:1], x, -4.0),
    "lerp in its weight": lambda x: torch.lerp(drawn(5, 3), drawn(3), x),
    "addcmul": lambda x: torch.addcmul(x, x.flip(0), drawn(3), value=-3),
    "addcmul, the other way": lambda x: torch.addcmul(x[:1], drawn(5, 3), x.flip(0), value=0.5),
    "addcmul of constants": lambda x: torch.addcmul(3 * x, drawn(5, 3), drawn(3)),
    "addcdiv": lambda x: torch.addcdiv(x, x.flip(0), drawn(3).abs() + 0.1, value=2),
    "cross": lambda x: torch.cross(x, drawn(5, 3), dim=1),
    "cross, the other way": lambda x: torch.linalg.cross(drawn(1, 3), x),
    "cross along another axis": lambda x: torch.linalg.cross(x[:3], drawn(3, 3), dim=0),
    "bilinear": lambda x: F.bilinear(x, drawn(5, 3), FORM, drawn(4)),
    "bilinear, the other way": lambda x: F.bilinear(drawn(5, 3), x, FORM),
    "bilinear in its bias": lambda x: F.bilinear(drawn(5, 3), drawn(5, 3), FORM[:1], x[0, :1]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LINEAR)
def test_the_bound_of_a_linear_case_is_the_norm_of_its_matrix(name: str) -> None:
    model, x = Function(LINEAR[name]), noise(5, 3).double()
    matrix = torch.autograd.functional.jacobian(model, x).reshape(-1, 15)
    found = ns.lipschitz(model, x, mode="train")
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert exact * (1 - 1e-12) <= found.upper <= exact * 1.002


TIGHT = {
    "std": (lambda x: x.std(), 1 / math.sqrt(14)),
    "std without correction": (lambda x: x.std((0, 1), correction=0), 1 / math.sqrt(15)),
    "std of rows": (lambda x: x.std(1), 1 / math.sqrt(2)),
    "l1": (lambda x: F.l1_loss(x, drawn(5, 3)), 1 / math.sqrt(15)),
    "l1, added up": (lambda x: F.l1_loss(x, drawn(5, 3), reduction="sum"), math.sqrt(15)),
    "l1 of one value against many": (lambda x: torch.ops.aten.l1_loss(x[0, :1], drawn(5, 3)), 1.0),
    "smooth l1": (lambda x: F.smooth_l1_loss(x, drawn(5, 3), beta=0.1), 1 / math.sqrt(15)),
    "huber": (lambda x: F.huber_loss(x, drawn(5, 3), delta=2.5), 2.5 / math.sqrt(15)),
    "huber, entry by entry": (lambda x: F.huber_loss(x, drawn(5, 3), delta=2.5, reduction="none"), 2.5),
    "clip": (lambda x: torch.clip(3 * x, -0.5, 0.25), 3.0),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TIGHT)
def test_the_bound_is_the_known_constant(name: str) -> None:
    function, exact = TIGHT[name]
    bracket = ns.lipschitz(Function(function), noise(5, 3).double(), mode="train")
    assert exact * (1 - 1e-12) <= bracket.upper <= exact * (1 + 1e-9)
    assert bracket.lower >= 0.3 * exact


BENT = {
    "lerp": lambda x: torch.lerp(x.tanh(), 2 * x[:1].sin(), 3 * x.sigmoid() - 1),
    "lerp of a constant": lambda x: torch.lerp(drawn(5, 3), x.tanh(), x.flip(0).sin()),
    "addcmul": lambda x: torch.addcmul(x[:1], 2 * x.tanh(), x.flip(0).sin(), value=-1.5),
    "addcmul of a constant": lambda x: torch.addcmul(drawn(3), x.sin(), x.flip(1).sin(), value=2),
    "cross": lambda x: torch.linalg.cross(2 * x.sin(), x.flip(0)[:1].tanh()),
    "cross along another axis": lambda x: torch.cross(x[:3].sin(), x[1:4].tanh(), dim=0),
    "variance": lambda x: x.sin().var(1),
    "variance of all": lambda x: (3 * x.tanh()).var(),
    "deviation and mean": lambda x: sum(torch.std_mean(x, 0, correction=0)),
    "variance and mean": lambda x: sum(torch.var_mean(x.tanh(), 1)),
    "l1 of two": lambda x: F.l1_loss(x, 3 * x.flip(0).sin()),
    "smooth l1 of two": lambda x: F.smooth_l1_loss(x, 2 * x.flip(0), beta=0.3, reduction="none"),
    "huber of two": lambda x: F.huber_loss(2 * x, x.flip(1).tanh(), delta=0.7, reduction="sum"),
    "squared error": lambda x: F.mse_loss(2 * x.tanh(), drawn(5, 3)),
    "squared error of two": lambda x: F.mse_loss(x.sin(), x.flip(0).sin(), reduction="none"),
    "bilinear": lambda x: F.bilinear(x.sin(), x.flip(0).tanh(), FORM, drawn(4)),
    "bilinear with a bias": lambda x: F.bilinear(x.sin(), x.flip(0).tanh(), FORM[:1], x[0, :1]),
}
STEEP = {
    "lerp": lambda x: torch.lerp(x, drawn(3), x.sin()),
    "addcmul": lambda x: torch.addcmul(x, x, x.sin()),
    "addcdiv": lambda x: torch.addcdiv(x, drawn(3), 3 + x.square()),
    "cross": lambda x: torch.linalg.cross(x, x.flip(0)),
    "variance": lambda x: x.var(1),
    "squared error": lambda x: F.mse_loss(x, drawn(5, 3)),
    "bilinear": lambda x: F.bilinear(x, x.flip(0), FORM),
}
SAMPLES = 100


def largest_secant(function, x: Tensor, sizes: tuple[float, ...], seed: int) -> float:
    """The steepest of pairs of inputs, whose distance is of any size, and of Jacobians."""
    generator, best = torch.Generator().manual_seed(seed), 0.0
    for number in range(SAMPLES):
        size = sizes[number % len(sizes)]
        a, b = (x + size * _inside(x, generator) for _ in range(2))
        if number % 2:
            b = a + 1e-4 * (b - a)
        best = max(best, float((function(a) - function(b)).norm() / (a - b).norm()))
    return best


def _inside(x: Tensor, generator: torch.Generator) -> Tensor:
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return direction / direction.norm() * torch.rand((), generator=generator)


@pytest.mark.one_in(25)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BENT)
def test_no_sampled_pair_is_above_the_bound_over_all_inputs(name: str, seed: int) -> None:
    x = noise(5, 3, seed=seed).double()
    bracket = ns.lipschitz(Function(BENT[name]), x, mode="train", seed=seed)
    assert largest_secant(BENT[name], x, (1e-3, 1.0, 10.0, 100.0), seed) <= bracket.upper < math.inf
    assert bracket.lower >= 0.05 * bracket.upper


@pytest.mark.one_in(54)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("radius", [1e-3, 0.2, 2.0])
@pytest.mark.parametrize("name", [*BENT, *(f"steep {name}" for name in STEEP)])
def test_no_sampled_pair_is_above_the_bound_over_a_ball(name: str, radius: float, seed: int) -> None:
    function = STEEP[name[6:]] if name.startswith("steep ") else BENT[name]
    x = noise(5, 3, seed=seed).double()
    bracket = ns.lipschitz(Function(function), x, scope="ball", radius=radius, mode="train", seed=seed)
    assert largest_secant(function, x, (radius,), seed) <= bracket.upper < math.inf
    if radius < 0.01 and name not in ("l1 of two", "smooth l1 of two", "huber of two"):  # a kink may be near
        jacobian = torch.autograd.functional.jacobian(function, x).reshape(-1, 15)
        assert bracket.upper <= 1.1 * float(torch.linalg.matrix_norm(jacobian, 2))


@pytest.mark.parametrize("name", STEEP)
def test_what_grows_without_limit_says_why(name: str) -> None:
    bracket = ns.lipschitz(Function(STEEP[name]), noise(5, 3).double(), mode="train", sides="upper")
    assert bracket.upper == math.inf
    words = "division by a value" if name == "addcdiv" else "product of two" if name in PRODUCTS else "not bounded"
    assert words in bracket.reason


PRODUCTS = ("lerp", "addcmul", "cross", "bilinear")


@pytest.mark.filterwarnings("ignore")  # torch calls the missing axis deprecated
def test_a_cross_product_without_an_axis_is_along_the_first_of_three() -> None:
    """Three by three: the first axis, while `linalg.cross` takes the last."""
    model, x = Function(lambda x: torch.cross(x.sin(), x.flip(0).sin())), noise(3, 3).double()
    bracket = ns.lipschitz(model, x, scope="ball", radius=1e-3, mode="train")
    jacobian = torch.autograd.functional.jacobian(model, x).reshape(-1, 9)
    assert bracket.upper == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=0.02)


def test_a_layer_that_is_bilinear_is_measured_beside_others() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.form, self.last = nn.Bilinear(3, 3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.form(x.tanh(), x.sigmoid()).relu())

    model, x = Gate().eval(), noise(5, 3)
    bracket = ns.lipschitz(model, x)
    assert 0 < bracket.lower <= bracket.upper < math.inf
