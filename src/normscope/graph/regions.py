"""Read a graph for units: look past copies, grow regions of operators, and run a region by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .ir import Graph, Node, Ref, map_leaves

aten = torch.ops.aten

SAME = {aten.alias.default, aten.clone.default, aten._to_copy.default, aten.contiguous.default, aten.to.dtype}
LARGEST_REGION = 16
"""The largest number of operators in a region."""


class Reader:
    """Looks up nodes by name, and past operators that change nothing."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.name: node for node in graph}

    def same(self, node: Node) -> bool:
        """Whether a node changes nothing: a copy, or a cast between floats (not one from or to integers)."""
        source = self.nodes.get(node.refs[0]) if node.refs else None
        return node.op in SAME and node.dtype.is_floating_point and (source is None or source.dtype.is_floating_point)

    def find(self, argument: Any, *ops: Any) -> Node | None:
        """Return the node an argument refers to, past copies and casts, if it is one of `ops`."""
        node = self.nodes.get(argument.name) if isinstance(argument, Ref) else None
        while node is not None and self.same(node) and node.op not in ops:
            node = self.nodes.get(node.refs[0])
        return node if node is not None and node.op in ops else None

    def origin(self, argument: Any) -> Ref | None:
        """Return the value behind copies and casts."""
        if not isinstance(argument, Ref):
            return None
        node = self.nodes.get(argument.name)
        while node is not None and self.same(node):
            argument = node.operands[0]
            node = self.nodes.get(argument.name)
        return argument


def merged(graph: Graph) -> Graph:
    """Merge operators that compute the same thing from the same values."""
    first: dict[Any, str] = {}
    renamed: dict[str, str] = {}
    nodes = []

    def key(leaf: Any) -> Any:
        if isinstance(leaf, list | tuple):
            return tuple(key(item) for item in leaf)
        if isinstance(leaf, float):
            return float, repr(leaf)  # 0.0 must differ from -0.0
        return (id(leaf),) if isinstance(leaf, Tensor) else (type(leaf), leaf)

    for node in graph:
        current = dataclasses.replace(
            node, args=with_names(node.args, renamed), kwargs=with_names(node.kwargs, renamed)
        )
        identity = (node.op, node.index, key(current.args), key(tuple(current.kwargs.items())))
        if identity in first:
            renamed[node.name] = first[identity]
        else:
            first[identity] = node.name
            nodes.append(current)
    reads = tuple(dataclasses.replace(read, node=renamed.get(read.node, read.node)) for read in graph.reads)
    return dataclasses.replace(graph, nodes=tuple(nodes), output=renamed.get(graph.output, graph.output), reads=reads)


def with_names(tree: Any, names: dict[str, str]) -> Any:
    """Return arguments with their references renamed."""
    return map_leaves(
        tree, lambda leaf: Ref(names.get(leaf.name, leaf.name), leaf.shape) if isinstance(leaf, Ref) else leaf
    )


def regions(reader: Reader, node: Node, allowed: Iterable[Any]) -> Iterable[tuple[list[Node], Ref]]:
    """Yield growing regions of allowed operators that end at `node` and read a single value."""
    order = {name: position for position, name in enumerate(reader.nodes)}
    region = [node]
    while len(region) <= LARGEST_REGION:
        names = {member.name for member in region}
        frontier = {ref.name: ref for member in region for ref in member.operands if ref.name not in names}
        if len(frontier) == 1:
            yield sorted(region, key=lambda member: order[member.name]), next(iter(frontier.values()))
        last = max(frontier, key=lambda name: order.get(name, -1))
        if last not in reader.nodes or reader.nodes[last].op not in allowed or reader.nodes[last].index is not None:
            return
        if reader.nodes[last].op in SAME and not reader.same(reader.nodes[last]):
            return
        region.append(reader.nodes[last])


def runner(region: list[Node], source: Ref, output: str) -> Callable[[Tensor], Tensor]:
    """Return the region as a function of its source, in the dtype of its argument."""
    return lambda x: evaluated(region, {source.name: x}, x.dtype)[output]


def evaluated(nodes: list[Node], values: dict[str, Tensor], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Run nodes on given values with float constants in one dtype; casts are taken as exact."""
    values = dict(values)
    for node in nodes:
        operands = [values[name] for name in node.refs]
        values[node.name] = operands[0] if node.op in SAME else in_dtype(node, dtype).evaluate(operands)
    return values


def in_dtype(node: Node, dtype: torch.dtype) -> Node:
    """Return a node with its float constants in one dtype."""
    args = tuple(a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in node.args)
    return dataclasses.replace(node, args=args)


def constants(node: Node) -> list[Any]:
    """Return a node's arguments that are not other nodes' values."""
    return [leaf for leaf in (*node.args, *node.kwargs.values()) if not isinstance(leaf, Ref | list)]


def scalars(node: Node) -> list[Any]:
    """Return a node's numbers."""
    return [c for c in constants(node) if isinstance(c, float | int) and not isinstance(c, bool)]


def pruned(graph: Graph) -> Graph:
    """Drop operators that nothing reads any more."""
    needed, kept = {graph.output}, []
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.refs)
            kept.append(node)
    return dataclasses.replace(graph, nodes=tuple(reversed(kept)))
