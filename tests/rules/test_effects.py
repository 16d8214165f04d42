"""Effects answer for their own constant, and nodes for what their operator is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.graph.ir import Node
from normscope.bounds.ladder import layer_constants
from normscope.bounds.linalg.linear_map import Diagonal, LinearMap
from normscope.bounds.linalg.operator_norms import upper
from normscope.bounds.operators.effects import Effect, Elementwise, Gain, Linear, Unbounded
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.bracket import Evidence
from normscope.core.rounding import Upper

from ..soundness.networks import Function


def diagonal(*scale: float) -> LinearMap:
    return Diagonal(torch.tensor(scale, dtype=torch.float64), (len(scale),))


def sure(value: float) -> Upper:
    return Upper.of(value, Evidence.PROVEN)


def value(effect: Effect, operand: int = 0) -> float:
    return 10 ** effect.constant(upper, operand).log10


AROUND = Gain(gains=(sure(0.5),), before=diagonal(3.0, 1.0), after=diagonal(1.0, 4.0))


@pytest.mark.parametrize(
    ("effect", "constants"),
    [
        (Linear(maps=(diagonal(2.0, -3.0), diagonal(0.5))), (3.0, 0.5)),
        (Elementwise(slope=(-2.0, 1.0)), (2.0,)),
        (Gain(gains=(sure(2.0), sure(5.0))), (2.0, 5.0)),
        (Gain(gains=(sure(2.0), sure(5.0)), joint=True), (2.0, 5.0)),
        (AROUND, (6.0,)),
        (Gain(gains=AROUND.gains, before=AROUND.before, after=AROUND.after, whole=sure(1.5)), (1.5,)),
        (Gain(gains=AROUND.gains, before=AROUND.before, after=AROUND.after, whole=sure(60.0)), (6.0,)),
        (Unbounded(reason="it jumps"), (math.inf, math.inf)),
    ],
    ids=["linear", "entrywise", "two gains", "two joint gains", "maps around", "whole", "loose whole", "unbounded"],
)
def test_an_effect_gives_its_constant_in_every_operand(effect: Effect, constants: tuple[float, ...]) -> None:
    for operand, constant in enumerate(constants):
        assert value(effect, operand) == pytest.approx(constant, rel=1e-12)
        assert value(effect, operand) >= constant * (1 - 1e-15)


def uneven() -> nn.LayerNorm:
    """A LayerNorm whose constant, sqrt(2/3) of its scale, is smaller than the product of its parts."""
    layer = nn.LayerNorm(3, eps=1e-2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([3.0, 0.0, 0.0]))
    return layer


def test_every_reader_takes_the_smaller_constant_of_a_whole_normalizer() -> None:
    """The layer's row, the printed product and the bound over the graph all give norm(diag(gamma) P)/sqrt(eps)."""
    work = TracedNetwork.of(uneven(), torch.randn(1, 3))
    expected = math.log10(math.sqrt(6.0) / 0.1)
    [node] = work.graph
    assert work.segments.effects[node.name].constant(upper).log10 == pytest.approx(expected, abs=1e-12)
    assert layer_constants(work)[0].log10_upper == pytest.approx(expected, abs=1e-12)
    printed = ns.ladder(uneven(), torch.randn(1, 3))["printed-exact"]
    assert printed.log10_upper == pytest.approx(expected, abs=1e-12)


def layer_nodes(layer: nn.Module, shape: tuple[int, ...]) -> list[Node]:
    return list(ns.capture(layer, torch.randn(shape)))


@pytest.mark.slow
def test_batch_norms_say_which_statistics_they_use() -> None:
    for layer, used in ((nn.BatchNorm1d(3).train(), True), (nn.BatchNorm1d(3).eval(), False)):
        [node] = [node for node in layer_nodes(layer, (4, 3)) if node.is_batch_norm]
        assert node.uses_batch_statistics is used
    bare = nn.BatchNorm1d(3, track_running_stats=False).eval()
    assert [node.uses_batch_statistics for node in layer_nodes(bare, (4, 3)) if node.is_batch_norm] == [True]
    assert not any(node.is_batch_norm for node in layer_nodes(nn.InstanceNorm1d(3), (2, 3, 4)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("function", "operator", "largest"),
    [
        (lambda x: x + (x > 0), "gt", 1.0),
        (lambda x: x + torch.sign(x), "sign", 1.0),
        (lambda x: x + ~(x > 0), "bitwise_not", 1.0),
        (lambda x: x + ~x.argmax(), "bitwise_not", math.inf),
        (lambda x: x + (x.argmax() & x.argmin()), "__and__", math.inf),
        (lambda x: x + torch.floor(x), "floor", math.inf),
        (lambda x: x + x.argmax(), "argmax", math.inf),
    ],
)
def test_only_truth_values_signs_and_fractions_lie_within_one(function, operator: str, largest: float) -> None:
    """Of integers `~` and `&` give more: only where the value is a truth value is it 0 or 1."""
    work = TracedNetwork.of(Function(function), torch.randn(1, 4))
    [node] = [node for node in work.double if node.operator == operator]
    effect = work.segments.effects[node.name]
    assert isinstance(effect, Unbounded)
    assert effect.range is not None
    assert effect.range.entry == largest
