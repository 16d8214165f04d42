"""Modules whose Lipschitz constant the user gives: each becomes one node with that constant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.bracket import Evidence
from ..core.errors import InputError
from ..core.rounding import Upper
from ..graph.ir import Graph, Node, Ref, Unit
from .effects import Effect, Gain, Range
from .registry import Operator, enter


def fill(graph: Graph, known: Mapping[str, float]) -> Graph:
    """Replace each module of `known` by one node with the given constant."""
    for path, constant in known.items():
        graph = _collapsed(graph, path, float(constant))
    return graph


def _collapsed(graph: Graph, path: str, constant: float) -> Graph:
    """Return the graph with one node in the place of a module."""
    if not constant >= 0:
        raise InputError(f"known[{path!r}] is {constant}: a Lipschitz constant is a number >= 0")
    inside, last = _module(graph, path)
    names = {node.name for node in inside}
    entries = list(dict.fromkeys(ref for node in inside for ref in node.refs if ref not in names))

    def run(*values: Any) -> Any:
        found = dict(zip(entries, values, strict=True))
        for node in inside:
            found[node.name] = node.evaluate([found[ref] for ref in node.refs])
        return found[last.name]

    unit = Unit("known", run, {"constant": constant})
    merged = dataclasses.replace(
        last, op=unit, args=tuple(Ref(name) for name in entries), kwargs={}, index=None, path=path
    )
    nodes = [merged if node is last else node for node in graph if node.name not in names or node is last]
    note = f"constant {constant:g} of module {path!r} taken as given"
    return dataclasses.replace(graph, nodes=tuple(nodes), notes=(*graph.notes, note))


def _module(graph: Graph, path: str) -> tuple[list[Node], Node]:
    """Return the nodes of a module that runs once, and the one whose value the rest of the model reads."""
    inside = [node for node in graph if node.path == path or node.path.startswith(path + ".")]
    if not inside:
        modules = ", ".join(list(dict.fromkeys(node.path for node in graph if node.path))[:12])
        raise InputError(f"known names module {path!r}, which runs no operator; modules: {modules}")
    calls = list(dict.fromkeys(node.call for node in inside if node.path == path))
    if len(calls) > 1:
        raise InputError(f"module {path!r} runs {len(calls)} times: known needs a module that runs once")
    names = {node.name for node in inside}
    read = {ref for node in graph if node.name not in names for ref in node.refs} | {graph.output}
    exits = [node for node in inside if node.name in read]
    if len(exits) != 1:
        raise InputError(f"module {path!r} hands {len(exits)} values to the rest of the model: known needs exactly one")
    return inside, exits[0]


def known_effect(node: Node, operands: Sequence[Range]) -> Effect:
    """A module whose constant the user gave."""
    gain = Upper.of(node.op.data["constant"], Evidence.NUMERICAL, "given by the user")
    return Gain(gains=(gain,) * len(operands), joint=True)


enter(  # no function has this unit: what it stands for is the user's, so there is no example to try
    Operator(op="known", effect=known_effect, family="known", summary="A constant given by the user", examples=())
)
