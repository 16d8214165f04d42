"""Linear segments: between two nonlinearities the graph is one linear map per source, folded as it grows.

Every node's value is a sum of linear maps applied to *sources*: the graph's inputs and the outputs of nonlinear nodes.
Two paths from the same source are added before any norm is taken (x + A x is the map I + A).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..core.budget import in_time
from ..graph.ir import Graph, Node
from ..linalg.folding import add, compose
from ..linalg.linear_map import Centering, Identity, LinearMap
from ..linalg.operator_norms import upper
from ..rules import ranges
from ..rules.effects import UNKNOWN, Effect, Gain, Linear, Norm, Range
from ..rules.registry import effect_of

Form = dict[str, LinearMap]
SMALL = 4096
"""Entries of values whose range is taken whatever the clock says."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A nonlinear node: its effect and the forms of its operands (with the effect's `before` map applied)."""

    node: Node
    effect: Effect
    operands: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Segments:
    """The graph as sources and the linear forms between them.

    Attributes:
        graph: the float64 graph.
        effects: every node's effect by name.
        forms: every node's value as linear maps of sources.
        atoms: the nonlinear nodes, in order.
    """

    graph: Graph
    effects: dict[str, Effect]
    forms: dict[str, Form]
    atoms: dict[str, Atom]

    @property
    def output(self) -> Form:
        """The form of the graph's output."""
        return self.forms[self.graph.output]


def segment(graph: Graph, sizes: Mapping[str, Range] | None = None, *, norm: Norm = upper) -> Segments:
    """Read the rules and fold the linear segments of a float64 graph whose inputs can get as large as `sizes`."""
    effects: dict[str, Effect] = {}
    sizes = {item.name: UNKNOWN for item in graph.inputs} | dict(sizes or {})
    for node in graph:
        operands = [sizes[name] for name in node.refs]
        effect = effects[node.name] = effect_of(node, operands)
        sizes[node.name] = ranges.after(effect, node, operands, norm) if _small(node) or in_time() else UNKNOWN
    return folded(graph, effects)


def _small(node: Node) -> bool:
    """Whether an operator takes no time to speak of."""
    return max(math.prod(shape) for shape in (node.shape, *(ref.shape for ref in node.operands))) <= SMALL


def folded(graph: Graph, effects: dict[str, Effect]) -> Segments:
    """Fold the linear segments of a float64 graph whose effects are known."""
    forms: dict[str, Form] = {item.name: {item.name: Identity(item.shape)} for item in graph.inputs}
    atoms: dict[str, Atom] = {}
    folder = _Folder()
    for node in graph:
        effect = effects[node.name]
        if isinstance(effect, Linear):
            form: Form = {}
            for linear, name in zip(effect.maps, node.refs, strict=True):
                for source, earlier in forms[name].items():
                    path = folder.compose(linear, earlier)
                    form[source] = add(form[source], path) if source in form else path
            forms[node.name] = form
            continue
        before = effect.before if isinstance(effect, Gain) else None
        read = tuple(
            {s: folder.compose(before, m) for s, m in forms[name].items()} if before is not None else forms[name]
            for name in node.refs
        )
        atoms[node.name] = Atom(node, effect, read)
        scale = effect.after if isinstance(effect, Gain) else None
        forms[node.name] = {node.name: scale if scale is not None else Identity(node.shape)}
    return Segments(graph, effects, forms, atoms)


class _Folder:
    """Composes each pair of maps once, so that equal segments share one object and its norm."""

    def __init__(self) -> None:
        self.done: dict[tuple[Hashable, Hashable], tuple[LinearMap, LinearMap, LinearMap]] = {}

    def compose(self, second: LinearMap, first: LinearMap) -> LinearMap:
        key = (_key(second), _key(first))
        if key not in self.done:
            self.done[key] = (second, first, compose(second, first))
        return self.done[key][2]


def _key(linear: LinearMap) -> Hashable:
    """Tell maps apart: those without weights by what they do, so that every LayerNorm shares one centering."""
    if isinstance(linear, Identity):
        return Identity, linear.in_shape, linear.out_shape
    return (Centering, linear.in_shape, linear.dims) if isinstance(linear, Centering) else id(linear)
