"""Which layers follow which: the graph of a model with nothing left in it but the rows of an audit."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.ir import Graph, Node


def followed(graph: Graph, nodes: Sequence[Node]) -> list[tuple[int, ...]]:
    """Return, for each of some nodes, the positions of those directly before it, without detours.

    A node that is reached through another one is no longer directly before: the skip of a residual block adds nothing,
    and only branches that hold layers of their own run side by side.

    Args:
        graph: what was captured.
        nodes: some of its nodes, in its order.

    Returns:
        Ascending positions among `nodes`, one tuple per node; empty for what reads the input alone.
    """
    number = {node.name: index for index, node in enumerate(nodes)}
    last: dict[str, frozenset[int]] = {}  # by any node: the chosen ones it was reached by, without detours
    behind: list[int] = []  # by chosen node, as bits: all chosen ones before it
    found = []
    for node in graph:
        reached = frozenset[int]().union(*(last.get(ref, frozenset()) for ref in node.refs))
        through = 0
        for index in reached:
            through |= behind[index]
        direct = frozenset(index for index in reached if not through >> index & 1)
        last[node.name] = direct
        if node.name in number:
            for index in direct:
                through |= 1 << index
            behind.append(through)
            found.append(tuple(sorted(direct)))
            last[node.name] = frozenset((number[node.name],))
    return found
