"""Complex values inside a model: the operators that meet them become units whose operands and values are real.

A map that is linear over the complex numbers is not linear over the real numbers that a user passes and reads, and no
rule says what an operator does to real and imaginary parts. Bounds and searches therefore read a graph in which every
value is real. Such a unit runs its operators as they are, so its values are right; it has no bound, and nobody knows
what rounding does inside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph.ir import Graph, Node, Ref, Unit, map_leaves
from .effects import Effect, Range, Unbounded
from .registry import rule

COMPLEX = "complex"
"""The name of such a unit."""


def with_real_values(graph: Graph) -> Graph:
    """Return the same function with the operators that meet complex values inside units of real values."""
    complex_nodes = {node.name: node for node in graph if node.dtype.is_complex}
    nodes = []
    for node in graph:
        if node.name not in complex_nodes:
            nodes.append(node if complex_nodes.keys().isdisjoint(node.refs) else _unit(node, complex_nodes))
    return dataclasses.replace(graph, nodes=tuple(nodes)) if len(nodes) < len(graph) else graph


def _unit(last: Node, complex_nodes: dict[str, Node]) -> Node:
    """Return one node for an operator with a real value and all operators before it that have complex ones."""
    inside = _before(last, complex_nodes)
    operands = [ref for node in inside for ref in node.operands if ref.name not in complex_nodes]
    arguments: dict[str, Any] = {ref.name: ref for ref in operands}

    def argument(leaf: Any) -> Any:
        """Make a constant an argument of the unit, so that whoever widens or lists constants meets it there."""
        if not isinstance(leaf, Tensor | torch.dtype):
            return leaf
        name = f"constant {len(arguments)}"
        arguments[name] = leaf
        return Ref(name)

    steps = []
    for node in inside:
        args, kwargs = map_leaves((node.args, node.kwargs), argument)
        steps.append(dataclasses.replace(node, args=args, kwargs=kwargs))
    names = tuple(arguments)

    def run(*values: Any) -> Tensor:
        known = dict(zip(names, values, strict=True))
        for step in steps:
            known[step.name] = step.evaluate([known[name] for name in step.refs])
        return known[last.name]

    unit = Unit(COMPLEX, run, {"where": inside[0].where})
    return dataclasses.replace(last, op=unit, args=tuple(arguments.values()), kwargs={}, index=None)


def _before(last: Node, complex_nodes: dict[str, Node]) -> list[Node]:
    """Return the operators with complex values that a node is made of, in the order of the graph, and the node."""
    needed: set[str] = set()
    waiting = [last]
    while waiting:
        read = [complex_nodes[name] for name in waiting.pop().refs if name in complex_nodes and name not in needed]
        needed.update(node.name for node in read)
        waiting += read
    return [*(node for name, node in complex_nodes.items() if name in needed), last]


@rule(
    COMPLEX,
    examples=[
        (lambda x: (x * (3.0 + 0.0j) + 1000.0j).abs(), (3,)),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x) * (1.0 - 2.0j), n=5), (2, 5)),
    ],
)
def complex_effect(node: Node, operands: Sequence[Range]) -> Effect:
    """Operators on complex values: no bound."""
    return Unbounded(
        reason=f"complex values in {node.op.data['where']}, which no rule bounds (known= takes the constant of a "
        "module that holds them)"
    )
