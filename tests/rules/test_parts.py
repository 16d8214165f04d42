"""What an operator's record holds is what its examples show: its map, its steps near a point, its word in a proof."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.graph.ir import Node, Ref, Unit
from normscope.bounds.operators import registry
from normscope.bounds.operators.effects import Elementwise, Linear, coded
from normscope.bounds.operators.registry import Example, activation_of, operators
from normscope.bounds.operators.units import with_real_values
from normscope.bounds.proofs.network_script import scripted
from normscope.bounds.segments import GraphSteps, segment
from normscope.bounds.trial import shaken, try_example
from normscope.core.errors import NormscopeError
from normscope.core.npz import Archive

from ..soundness.networks import Function

FAMILIES = sorted({known.family for known in operators()})
QUICK = ("softmax",)
"""Families of a second each; the others are left to the slow tests."""


def key(node: Node) -> Any:
    return node.op.name if isinstance(node.op, Unit) else node.op


def shown(example: Example) -> list[tuple[Node, set[str]]]:
    """Return the nodes of an example, each with the parts of its record that balls and proofs used."""
    function, *shapes = example
    generator = torch.Generator().manual_seed(0)
    model = shaken(function, generator) if isinstance(function, nn.Module) else Function(function)
    batch = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    graph = with_real_values(ns.capture(model, batch).double())
    with torch.no_grad():
        effects = segment(graph).effects
    opaque = {node.name for node in GraphSteps(graph, effects).opaque}
    script = scripted(graph, effects, Archive())
    found = []
    for node in graph:
        used = {"linear"} if isinstance(effects[node.name], Linear) else set()
        if not used:
            used |= ({"local"} if node.name not in opaque else set()) | (
                {"word"} if node.name in script.cores else set()
            )
        found.append((node, used))
    return found


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FAMILIES]
)
def test_a_record_holds_what_its_examples_show(family: str) -> None:
    """Every part of every record is used by one of its examples, and no part is used that the record does not hold."""
    used: dict[Any, set[str]] = defaultdict(set)
    listed = [known for known in operators() if known.family == family]
    for examples in {known.examples: known for known in listed}:
        for example in examples:
            for node, parts in shown(example):
                used[key(node)] |= parts
    for known in listed:
        if known.examples:
            held = {part for part in ("linear", "local", "word") if getattr(known, part)}
            assert used[known.op] == held, known.name


def node_of(op: Any, *arguments: Any, shape: tuple[int, ...] = (2, 6)) -> Node:
    return Node(name="u", op=op, args=(Ref("x", shape), *arguments), shape=shape, dtype=torch.float64)


def test_an_activation_is_what_its_operator_computes() -> None:
    """The function that a record names gives what the operator gives."""
    x = torch.linspace(-4, 4, 12, dtype=torch.float64).reshape(2, 6)
    met = 0
    for known in operators():
        if known.family != "activation" or isinstance(known.op, str):
            continue
        limits = torch.tensor([-0.5, 0.7]).double() if known.op._overloadname == "Tensor" else (-0.5, 0.7)
        given = {"weight": torch.tensor([0.3]).double(), "value": 20.0, "min": limits[0], "max": limits[1]}
        given |= {"threshold": 20.0}  # of a softplus, too
        names = [argument.name for argument in known.op._schema.arguments[1:]]
        node = replace(node_of(known.op), kwargs={name: given[name] for name in names if name in given})
        activation = activation_of(node)
        assert activation is not None
        assert torch.allclose(activation.function(x), node.evaluate([x])), known.name
        met += 1
    assert met > 25


def over_a_ball(function: Any) -> ns.Bracket:
    return ns.lipschitz(Function(function).eval(), torch.randn(2, 3), scope="ball", radius=0.1)


@pytest.fixture
def asinh() -> Any:
    op = torch.ops.aten.asinh.default
    yield op
    registry._OPERATORS.pop(op, None)


def test_a_rule_near_a_point_that_raises_is_said_and_fails_its_trial(asinh) -> None:
    def broken(node, build):
        raise KeyError("planted")

    @ns.rule(asinh, examples=[(torch.asinh, (2, 3))], local=broken)
    def rule(node, operands):
        """Inverse hyperbolic sine."""
        return Elementwise(slope=(0.0, 1.0))

    assert any("failed near a point" in note and "planted" in note for note in over_a_ball(torch.asinh).notes)
    with pytest.raises(NormscopeError, match="planted"):
        try_example((torch.asinh, (2, 3)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("steps", [lambda node, build: node.refs[0], lambda node, build: "nothing"])
def test_steps_that_compute_something_else_are_not_taken(asinh, steps) -> None:
    """The operand itself, without a step, is no asinh; neither is a value that does not exist."""

    @ns.rule(asinh, examples=[(torch.asinh, (2, 3))], local=steps)
    def rule(node, operands):
        """Inverse hyperbolic sine."""
        return Elementwise(slope=(0.0, 1.0))

    assert any("gain alone" in note for note in over_a_ball(lambda x: torch.asinh(3 * x)).notes)


def test_a_map_in_one_operand_takes_single_precision_though_the_constants_are_double():
    factor, x = torch.randn(3, 4, 5), torch.randn(3, 5, 2)
    (node,) = ns.capture(Function(lambda x: torch.bmm(factor, x)), x, mode="train").double()
    made = coded(node, 0).apply(x[None])
    assert made.dtype == torch.float32
    assert torch.allclose(made[0], torch.bmm(factor, x), atol=1e-5)
