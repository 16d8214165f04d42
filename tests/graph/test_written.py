"""Activations written out in several operators are known by their formula; near misses are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.graph.ir import Unit
from normscope.core.bracket import Evidence
from normscope.theory import templates
from normscope.theory.piecewise import PiecewiseLinear, Unreadable
from normscope.theory.templates import Polynomial

from ..soundness.networks import Function

ROOT = math.sqrt(2.0 / math.pi)
Written = Callable[[Tensor], Tensor]


def known(function: Written, x: Tensor | None = None):
    """Return the activation a function of one operator after capture is, or None."""
    graph = ns.capture(Function(function).eval(), torch.linspace(-2, 2, 6).reshape(2, 3) if x is None else x)
    if len(graph) != 1 or not isinstance(graph.nodes[0].op, Unit) or graph.nodes[0].op.name != "activation":
        return None
    return graph.nodes[0].op.data["activation"]


def upper(function: Written) -> float:
    """Bound the function over all inputs."""
    batch = torch.linspace(-2, 2, 6).reshape(2, 3)
    return ns.lipschitz(Function(function).eval(), batch, max_seconds=0.2, on_missing="inf").upper


def float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def tanh_gelu(x: Tensor, root: float = ROOT, cubic: float = 0.044715) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(root * (x + cubic * torch.pow(x, 3.0))))


KNOWN: dict[str, tuple[Written, str]] = {
    "gpt2": (tanh_gelu, "gelu_tanh"),
    "gelu by erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), "quick_gelu"),
    "swish(3)": (lambda x: torch.sigmoid(x * 3) * x, "silu"),
    "silu, scaled": (lambda x: 1.5 * x * torch.sigmoid(x), "silu"),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), "mish"),
    "mish, naive": (lambda x: x * torch.tanh(torch.log(1.0 + torch.exp(x))), "mish"),
    "softplus, naive": (lambda x: torch.log(1.0 + torch.exp(x)), "softplus(1)"),
    "hardswish": (lambda x: x * F.relu6(x + 3.0) / 6.0, "hardswish"),
    "softsign": (lambda x: x / (1 + x.abs()), "softsign"),
    "tanhshrink": (lambda x: x - torch.tanh(x), "tanhshrink"),
    "relu": (lambda x: torch.where(x > 0, x, torch.zeros_like(x)), "relu"),
    "leaky": (lambda x: torch.where(x > 0, x, 0.25 * x), "leaky_relu(0.25)"),
    "softshrink": (F.softshrink, "softshrink(0.5)"),
    "elu(2.5)": (lambda x: torch.where(x > 0, x, 2.5 * torch.expm1(x)), "elu(2.5)"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("function", "name"), KNOWN.values(), ids=KNOWN.keys())
def test_a_formula_is_known_and_its_slopes_hold(function: Written, name: str) -> None:
    graph = ns.capture(Function(function).eval(), torch.linspace(-2, 2, 6).reshape(2, 3).double())
    unit = next(node for node in graph if isinstance(node.op, Unit))
    assert len([node for node in graph if node.operator not in ("_to_copy", "mul", "div")]) == 1
    found = unit.op.data["activation"]
    assert found.name == name
    assert found.evidence is Evidence.NUMERICAL
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float64)[:, None].repeat(1, 3).requires_grad_(True)
    values = unit.evaluate([x])
    slopes = torch.autograd.grad(values.sum(), x)[0]
    reach = found.slope[1] - found.slope[0]
    assert found.slope[0] <= slopes.min() + 1e-12
    assert slopes.max() - 1e-12 <= found.slope[1]
    assert slopes.min() <= found.slope[0] + 1e-2 * reach + 1e-5
    assert slopes.max() >= found.slope[1] - 1e-2 * reach - 1e-5
    assert found.bounded[0] <= values.min()
    assert values.max() <= found.bounded[1]
    assert torch.allclose(values, found.function(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", [name if name == "swish(3)" else pytest.param(name, marks=pytest.mark.slow) for name in KNOWN]
)
def test_a_unit_has_the_turns_of_its_own_constants(name: str) -> None:
    """Over small balls everywhere, the constant is never below the largest slope in the ball."""
    function, _ = KNOWN[name]
    batch = torch.linspace(-4, 4, 33, dtype=torch.float64)[:, None] + 0.01
    bracket = ns.lipschitz(Function(function).eval(), batch, scope="ball", radius=0.3)
    for point, one in zip(batch[:, 0], bracket.per_sample, strict=True):
        x = torch.linspace(float(point) - 0.3, float(point) + 0.3, 2001, dtype=torch.float64)
        values = function(x)
        assert float((values.diff() / x.diff()).abs().max()) <= one.upper * (1 + 1e-9) + 1e-9


ATTACKS: dict[str, Written] = {
    "silu and a cubic": lambda x: x * torch.sigmoid(x) + 1e-20 * x**3,
    "almost x": lambda x: x / (1 + 1e-16 * x),
    "a jump far out": lambda x: torch.where(x > 99, x + 9e-4, x),
    "silu and a spike": lambda x: x * torch.sigmoid(x) + 3e-14 / ((x - 11.0037) ** 2 + 1e-12),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("function", ATTACKS.values(), ids=ATTACKS.keys())
def test_what_was_once_taken_for_an_activation_is_not(function: Written) -> None:
    assert known(function) is None
    x = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    bracket = ns.lipschitz(Function(function).eval(), x, max_seconds=0.2)
    assert bracket.upper == math.inf
    assert bracket.reason


@pytest.mark.slow
def test_a_radius_stops_before_a_spike() -> None:
    """Two classes; the spike at 11.0037 turns the first below the second at a distance of 0.0037."""

    class Spiked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * torch.sigmoid(x) - 3e-14 / ((x - 11.0037) ** 2 + 1e-12)
            return torch.cat([y, torch.full_like(y, 10.98)], 1)

    radii = ns.certified_radius(Spiked().eval(), torch.tensor([[11.0]], dtype=torch.float64), labels=torch.tensor([0]))
    assert radii.radius[0] < 0.0037


NEAR: dict[str, Written] = {
    "gelu_tanh, 0.0447": lambda x: tanh_gelu(x, ROOT, 0.0447),
    "gelu_tanh, a square": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**2))),
    "gelu_tanh and a ripple": lambda x: tanh_gelu(x) + 1e-9 * torch.tanh(1e12 * x),
    "gelu, shifted": lambda x: x * 0.5 * (1.0 + torch.erf((x - 1e-6) / math.sqrt(2.0))),
    "silu, shifted gate": lambda x: x * torch.sigmoid(x + 1e-7),
    "silu, bent": lambda x: x * torch.sigmoid(x + 1e-12 * x**3),
    "silu by exp, not one": lambda x: x / (1.001 + torch.exp(-x)),
    "silu by exp, two rates": lambda x: x / (1 + torch.exp(-x) + 1e-12 * torch.exp(-9 * x)),
    "mish, not softplus": lambda x: x * torch.tanh(torch.log(1.0 + torch.exp(x)) * 1.01),
    "mish, jumping": lambda x: x * torch.tanh(F.softplus(x, threshold=1.0)),
    "hardswish, off centre": lambda x: x * F.relu6(x + 2.999) / 6.0,
    "softsign, a pole": lambda x: x / (1 - x.abs()),
    "softsign, a square": lambda x: x / (1 + 1e-20 * x * x * x + x.abs()),
    "softplus, not one": lambda x: torch.log(0.5 + torch.exp(x)),
    "leaky, a jump": lambda x: torch.where(x > 0, x + 1e-30, 0.1 * x),
    "leaky, a hole": lambda x: torch.where(x == 0, 1e-9, torch.where(x > 0, x, 0.1 * x)),
    "elu, a jump": lambda x: torch.where(x > 0, x, torch.exp(x) - 0.999999),
    "elu, falling": lambda x: torch.where(x > 0, x, torch.exp(-x) - 1),
    "an entry's own constant": lambda x: x * torch.sigmoid(x + torch.tensor([0.0, 1e-6, 0.0])),
    "cancelled digits": lambda x: x * torch.sigmoid(x) + 1e20 * x - 1e20 * x,
}  # fmt: skip


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("function", NEAR.values(), ids=NEAR.keys())
def test_a_near_miss_is_bounded_operator_by_operator(function: Written) -> None:
    graph = ns.capture(Function(function).eval(), torch.linspace(-2, 2, 6).reshape(2, 3))
    last = graph.node(graph.output)
    assert not (isinstance(last.op, Unit) and last.op.name == "activation" and last.refs == (graph.inputs[0].name,))
    top = upper(function)
    x = torch.cat([torch.linspace(-9, 9, 20_001), torch.logspace(-9, 0, 99), -torch.logspace(-9, 0, 99)]).double()
    x = x.sort().values
    steepest = (function(x[:, None].expand(-1, 3))[:, 0].diff() / x.diff()).abs().nan_to_num(0.0)[x.diff() > 1e-7].max()
    assert top >= float(steepest) * (1 - 1e-6)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "name", ["gelu_new", "gelu_fast", "gelu_python", "gelu_accurate", "quick_gelu", "gelu_pytorch_tanh", "mish", "silu"]
)
def test_the_activations_of_transformers_are_known(name: str) -> None:
    activations = pytest.importorskip("transformers.activations")
    bracket = ns.lipschitz(activations.ACT2FN[name].eval(), torch.randn(2, 3), max_seconds=0.2)
    assert 1.0 < bracket.upper < 1.13


def test_a_mask_of_booleans_that_is_added_is_no_attention_mask() -> None:
    mask = torch.eye(3, dtype=torch.bool)
    graph = ns.capture(Function(lambda x: (x @ x.transpose(1, 2) + mask).softmax(-1) @ x).eval(), torch.randn(2, 3, 4))
    assert not any("attention" in str(node.op) for node in graph)


@pytest.mark.slow
def test_plus_and_minus_zero_are_two_constants() -> None:
    x = torch.randn(2, 3)

    def function(x: Tensor) -> Tensor:
        return torch.copysign(x, torch.tensor(0.0)) + 3 * torch.copysign(x, torch.tensor(-0.0))

    def with_numbers(x: Tensor) -> Tensor:
        return torch.copysign(x, 0.0) + 3 * torch.copysign(x, -0.0)

    for one in (function, with_numbers):
        assert torch.allclose(ns.capture(Function(one).eval(), x).run(x[:1]), one(x[:1]))


class TestTheory:
    def test_the_widening_of_the_tanh_form_covers_its_constants(self) -> None:
        x = torch.linspace(-9, 9, 200_001, dtype=torch.float64)

        def slope(off: float) -> Tensor:
            leaf = x.clone().requires_grad_(True)
            return torch.autograd.grad(tanh_gelu(leaf, ROOT, 0.044715 * (1 + off)).sum(), leaf)[0]

        for off in (1e-2, -1e-2, 1e-4):
            moved = float((slope(off) - slope(0.0)).abs().max())
            assert 0 < moved <= templates.GELU_WIDENING * abs(off)

    def test_lines_are_exact(self) -> None:
        x, tiny = PiecewiseLinear.identity(), Fraction(1, 10**300)
        jump = x.compared("gt", PiecewiseLinear.constant(Fraction(0))).chosen(x + PiecewiseLinear.constant(tiny), x)
        assert not jump.simplified().continuous
        double = x.called("sign") * x.called("sign")  # 1 everywhere but at 0
        assert double(Fraction(0)) == 0
        assert not double.simplified().continuous
        assert x.called("abs")(Fraction(-3)) == 3
        with pytest.raises(Unreadable):
            _ = x * x

    def test_polynomials_do_not_forget(self) -> None:
        x = Polynomial.identity()
        tiny = x.powered(3) * Polynomial.constant(Fraction(1, 10**400))
        assert x + tiny != x
        with pytest.raises(Unreadable):
            _ = (x + tiny) + x * Polynomial.constant(Fraction(-1))
