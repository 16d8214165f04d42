"""Modules of a known constant and operators on complex values: each becomes one node that runs the operators inside.

A map that is linear over the complex numbers is not linear over the real numbers that a user passes and reads, and no
rule says what an operator does to real and imaginary parts. Bounds and searches therefore read a graph in which every
value is real. Such a unit runs its operators as they are, so its values are right; it has no bound, and nobody knows
what rounding does inside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...core.errors import InputError
from ...core.rounding import Upper
from ..graph import samples
from ..graph.ir import Graph, Node, Ref, Unit, map_leaves
from ..graph.traits import describe
from .effects import Effect, Gain, Range, Unbounded
from .registry import Operator, enter, rule

COMPLEX = "complex"
"""The name of a unit of operators on complex values."""


def collapse(inside: Sequence[Node], name: str, data: dict[str, Any]) -> Node:
    """Return one node that runs several operators in order and has the value of the last.

    Constants become arguments of the unit, so that whoever widens or lists constants meets them there.
    """
    own = {node.name for node in inside}
    arguments: dict[str, Any] = {ref.name: ref for node in inside for ref in node.operands if ref.name not in own}

    def argument(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor | torch.dtype):
            return leaf
        place = f"constant {len(arguments)}"
        arguments[place] = leaf
        return Ref(place)

    steps = []
    for node in inside:
        args, kwargs = map_leaves((node.args, node.kwargs), argument)
        steps.append(dataclasses.replace(node, args=args, kwargs=kwargs))
    names = tuple(arguments)

    def run(*values: Any) -> Tensor:
        reached = dict(zip(names, values, strict=True))
        for step in steps:
            reached[step.name] = step.evaluate([reached[ref] for ref in step.refs])
        return reached[steps[-1].name]

    unit = Unit(name, run, data)
    return dataclasses.replace(inside[-1], op=unit, args=tuple(arguments.values()), kwargs={}, index=None)


def fill(graph: Graph, known: Mapping[str, float]) -> Graph:
    """Replace each module of `known` by one node with the given constant."""
    for path, constant in known.items():
        if not constant >= 0:
            raise InputError(f"known[{path!r}] is {constant}: a Lipschitz constant is a number >= 0")
        inside, last = _module(graph, path)
        names = {node.name for node in inside}
        rest = [node for node in inside if node is not last]
        merged = dataclasses.replace(collapse([*rest, last], "known", {"constant": float(constant)}), path=path)
        nodes = [merged if node is last else node for node in graph if node.name not in names or node is last]
        note = f"constant {float(constant):g} of module {path!r} taken as given"
        graph = dataclasses.replace(graph, nodes=tuple(nodes), notes=(*graph.notes, note))
    return graph


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


def with_real_values(graph: Graph) -> Graph:
    """Return the same function with the operators that meet complex values inside units of real values."""
    complex_nodes = {node.name: node for node in graph if node.dtype.is_complex}
    nodes = []
    for node in graph:
        if node.name not in complex_nodes:
            nodes.append(node if complex_nodes.keys().isdisjoint(node.refs) else _real_unit(node, complex_nodes))
    return dataclasses.replace(graph, nodes=tuple(nodes)) if len(nodes) < len(graph) else graph


def _real_unit(last: Node, complex_nodes: dict[str, Node]) -> Node:
    """Return one node for an operator with a real value and all operators before it that have complex ones."""
    needed: set[str] = set()
    waiting = [last]
    while waiting:
        read = [complex_nodes[name] for name in waiting.pop().refs if name in complex_nodes and name not in needed]
        needed.update(node.name for node in read)
        waiting += read
    inside = [*(node for name, node in complex_nodes.items() if name in needed), last]
    return collapse(inside, COMPLEX, {"where": inside[0].where})


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


describe(
    "real.default imag.default complex.default polar.default _conj.default conj.default resolve_conj.default",
    samples=samples.entrywise,
)
describe("view_as_complex.default", samples=samples.trailing(1))
describe("view_as_real.default", samples=samples.looked_up)
describe(
    "fft_fft.default fft_ifft.default fft_rfft.default fft_irfft.default fft_hfft.default fft_ihfft.default "
    "fft_fft2.default fft_ifft2.default fft_rfft2.default fft_irfft2.default _fft_r2c.default _fft_c2c.default "
    "_fft_c2r.default",
    samples=samples.along_dim,
)
