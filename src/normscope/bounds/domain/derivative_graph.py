"""The derivative of a network over a domain, as a graph whose effects hold at every input inside."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from torch import Tensor

from ...core.errors import NormscopeError
from ...graph.ir import Node, Ref, Unit
from ...rules.effects import Effect
from ..segments import Segments, folded
from ..unrolled import GraphSteps
from .pieces import DerivativeValue, Limits
from .treatments import treatments


def derivative(steps: GraphSteps, limits: Limits) -> Segments:
    """Return the segments of a network's derivative: linear operators as they are, the others as their pieces."""
    graph, effects = steps.graph, dict[str, Effect]()
    treated, read = treatments(steps)
    shapes = {item.name: item.shape for item in graph.inputs}
    nodes: list[Node] = []
    for node in graph:
        shapes[node.name] = node.shape
        if node.name not in read:
            continue
        if node.name not in treated:
            nodes.append(node)
            effects[node.name] = steps.effects[node.name]
            continue
        for piece in treated[node.name].pieces(limits):
            shapes[piece.name] = piece.shape
            nodes.append(_standing(node, piece, [Ref(name, shapes[name]) for name in piece.refs]))
            effects[piece.name] = piece.effect
    return folded(replace(graph, nodes=tuple(nodes)), effects)


def _standing(node: Node, piece: DerivativeValue, refs: list[Ref]) -> Node:
    """Return a node that stands for a piece: known by its effect, without a value of its own."""
    return replace(node, name=piece.name, op=_PIECE, args=tuple(refs), kwargs={}, index=None, shape=piece.shape)


def _no_value(*_: Tensor) -> NoReturn:
    raise NormscopeError("a piece of a derivative has no value")


_PIECE = Unit("derivative", _no_value)
