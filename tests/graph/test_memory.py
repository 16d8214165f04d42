"""Operators that speak of memory read the entries that the model reads, or are refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import CaptureError, NormscopeError

from ..soundness.networks import Function
from .attacked import bounded


def weighted(x: Tensor) -> Tensor:
    """Another weight for every entry, so that a wrong entry is seen."""
    return x * 10.0 ** torch.arange(x.numel()).reshape(x.shape)


STRIDED = {
    "turned, other strides": lambda x: weighted(x.t().as_strided((3, 2), (1, 3))),
    "after an operator": lambda x: weighted((2 * x.t()).as_strided((2, 2), (2, 1))),
    "expanded": lambda x: weighted(x[:, :1].clone().expand(2, 3).as_strided((2,), (1,))),
    "channels last": lambda x: weighted(
        x.reshape(1, 2, 3, 1).contiguous(memory_format=torch.channels_last).as_strided((4,), (1,))
    ),
    "of a product": lambda x: weighted(torch.mm(x.t(), x).t().as_strided((2, 2), (1, 1))),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("scope", ["global", "ball"])
@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_reads_what_the_model_reads(name, scope):
    model, batch = Function(STRIDED[name]).train(), torch.randn(2, 3)
    graph = ns.capture(model, batch)
    other = torch.randn(2, 3)
    assert torch.allclose(graph.run(other), model(other), rtol=1e-4)
    assert torch.allclose(graph.double().run(other.t().contiguous().t().double()).float(), model(other), rtol=1e-4)
    if scope == "global":
        bounded(model, batch)
    elif name != "of a product":
        bracket = ns.lipschitz(model, batch, scope="ball", radius=0.1, max_seconds=0.2)
        assert bracket.upper >= ns.lipschitz(model, batch, scope="point").lower * (1 - 1e-6)


def test_operands_that_are_not_contiguous():
    weights = torch.tensor([[1.0, 1.0, 100.0], [1.0, 1.0, 1.0]])
    model = Function(lambda x: (x * weights).t().as_strided((2, 2), (1, 1))).eval()
    bracket = bounded(model, torch.randn(2, 3))
    assert bracket.upper == pytest.approx(100)
    ball = ns.lipschitz(model, torch.randn(2, 3), scope="ball", radius=0.5, max_seconds=0.2)
    assert ball.upper == pytest.approx(100)


REFUSED = {
    "outside its operand": lambda x: x[:, 1:].as_strided((2, 2), (1, 1), 0),
    "beside a slice": lambda x: x[:1].as_strided((2, 3), (3, 1)),
    "bits as integers, then a sum": lambda x: x + x.view(torch.int32).float(),
    "another storage": lambda x: torch.empty(0).set_(x.untyped_storage(), 0, (2, 2), (1, 1)),
    "scattered": lambda x: x.as_strided_scatter(x[:, :2].clone(), (2, 2), (1, 2)),
    "an alias of the memory": lambda x: torch.ops.aten._reshape_alias(x.t(), [2, 3], [1, 2]),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", REFUSED)
def test_other_memory_operators_are_refused_or_have_no_bound(name):
    with suppress(NormscopeError):
        bracket = ns.lipschitz(Function(REFUSED[name]).train(), torch.randn(2, 3), max_seconds=0.2)
        assert bracket.upper == float("inf")
        assert bracket.reason


def test_memory_outside_the_operand_is_named():
    with pytest.raises(CaptureError, match="outside its operand"):
        ns.capture(Function(REFUSED["beside a slice"]).train(), torch.randn(2, 3))


class Strided(nn.Module):
    """A convolution's output, whose strides torch chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 1).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x.contiguous(memory_format=torch.channels_last))
        return weighted(y.as_strided((1, 4), (1, 3)))


@pytest.mark.slow
def test_strides_that_an_operator_chooses_are_those_of_a_real_run():
    model, batch = Strided().train(), torch.randn(1, 2, 2, 2)
    graph = ns.capture(model, batch)
    other = torch.randn(1, 2, 2, 2)
    assert torch.allclose(graph.run(other), model(other), rtol=1e-4)
    bounded(model, batch)
