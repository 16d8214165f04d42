"""Functions written out by hand are recognised; near misses are not."""

import math

import pytest
import torch
import torch.nn.functional as F

from normscope.core.bracket import Evidence
from normscope.theory.activations import ACTIVATIONS
from normscope.theory.recognition import recognise

ROOT = math.sqrt(2.0 / math.pi)


def float32(value):
    return float(torch.tensor(value, dtype=torch.float32))


def tanh_gelu(x, root=ROOT, cubic=0.044715):
    return 0.5 * x * (1.0 + torch.tanh(root * (x + cubic * torch.pow(x, 3.0))))


WRITTEN_OUT = {
    "gpt2": (tanh_gelu, "gelu_tanh"),
    "gpt2, float32 constants": (lambda x: tanh_gelu(x, float32(ROOT), float32(0.044715)), "gelu_tanh"),
    "gelu_fast": (lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))), "gelu_tanh"),
    "gelu_tanh in float32": (lambda x: tanh_gelu(x.float()).double(), "gelu_tanh"),
    "gelu by erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
    "gelu by erf, float32": (lambda x: x * 0.5 * (1.0 + torch.erf(x * float32(math.sqrt(0.5)))), "gelu"),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), "quick_gelu"),
    "quick gelu, float32": (lambda x: x * torch.sigmoid(float32(1.702) * x), "quick_gelu"),
    "silu": (lambda x: x * torch.sigmoid(x), "silu"),
    "silu by exp": (lambda x: x / (1.0 + torch.exp(-x)), "silu"),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), "mish"),
    "mish, naive": (lambda x: x * torch.tanh(torch.log(1.0 + torch.exp(x))), "mish"),
    "softplus, naive": (lambda x: torch.log(1.0 + torch.exp(x)), "softplus(1)"),
    "softplus(3)": (lambda x: F.softplus(x, 3.0), "softplus(3)"),
    "relu by clamp": (lambda x: x.clamp(min=0), "relu"),
    "relu by abs": (lambda x: (x + x.abs()) / 2, "relu"),
    "relu in place": (lambda x: x.relu_(), "relu"),
    "relu6 by clamp": (lambda x: x.clamp(0, 6), "relu6"),
    "clamp": (lambda x: torch.minimum(x, torch.tensor(7.0)).clamp(min=-2.5), "clamp(-2.5, 7)"),
    "leaky": (lambda x: torch.where(x > 0, x, 0.3 * x), "leaky_relu(0.3)"),
    "elu(2.5)": (lambda x: torch.where(x > 0, x, 2.5 * torch.expm1(x)), "elu(2.5)"),
    "tanh": (lambda x: 2.0 * torch.sigmoid(2.0 * x) - 1.0, "tanh"),
    "hardswish": (lambda x: x * F.relu6(x + 3.0) / 6.0, "hardswish"),
    "identity": (lambda x: x, "identity"),
    "exp": (lambda x: torch.exp(x), "exp"),
}


@pytest.mark.parametrize(("function", "name"), WRITTEN_OUT.values(), ids=WRITTEN_OUT.keys())
def test_recognises(function, name):
    found = recognise(function)
    assert found is not None
    assert found.name == name
    assert found.evidence is Evidence.NUMERICAL
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float64, requires_grad=True)
    slopes = torch.autograd.grad(function(x * 1.0).sum(), x)[0]
    assert slopes.min() >= found.slope[0]
    assert slopes.max() <= found.slope[1]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_recognises_its_own_table(name):
    known = ACTIVATIONS[name]
    found = recognise(known.function)
    assert found is not None
    assert found.slope[0] <= known.slope[0]
    assert found.slope[1] >= known.slope[1]
    assert found.slope == pytest.approx(known.slope, abs=1.1e-5)
    assert found.bounded == pytest.approx(known.bounded, abs=1e-4)


MISSES = {
    "gelu, 0.8": lambda x: tanh_gelu(x, 0.8),
    "gelu, 0.044": lambda x: tanh_gelu(x, ROOT, 0.044),
    "gelu, 0.0447": lambda x: tanh_gelu(x, ROOT, 0.0447),
    "quick gelu, 1.7": lambda x: x * torch.sigmoid(1.7 * x),
    "silu, scaled": lambda x: 1.0001 * x * torch.sigmoid(x),
    "relu squared": lambda x: F.relu(x) ** 2,
    "square": lambda x: x * x,
    "half": lambda x: 0.5 * x,
    "relu, shifted": lambda x: F.relu(x - 0.01),
    "relu, rippled": lambda x: F.relu(x) + 1e-4 * torch.sin(x),
    "relu, steep far out": lambda x: F.relu(x) + F.relu(x - 1e4),
    "tanh, 1.0001": lambda x: torch.tanh(1.0001 * x),
    "constant": lambda x: torch.ones_like(x),
    "detached": lambda x: F.relu(x).detach(),
    "softmax": lambda x: x.softmax(0),
    "another shape": lambda x: x.sum(),
}


@pytest.mark.parametrize("function", MISSES.values(), ids=MISSES.keys())
def test_refuses(function):
    assert recognise(function) is None


def test_works_without_grad_mode():
    with torch.no_grad():
        assert recognise(tanh_gelu).name == "gelu_tanh"
    with torch.inference_mode():
        assert recognise(tanh_gelu).name == "gelu_tanh"
