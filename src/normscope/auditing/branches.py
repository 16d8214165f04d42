"""Which layers stand in branches: the order of a graph among a few of its nodes, and lines through rows for charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bounds.graph.ir import Graph, Node
from .audit_result import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPosition:
    """Where one of several chosen nodes stands among the others.

    Attributes:
        follows: the positions of those directly before it, without detours: one that is reached through another one is
            no longer directly before. Ascending; empty for what reads the input alone.
        bypassed: whether a way from the input to the output leads around it: it stands in a branch.
        begins: whether its branch leaves the main line right before it: every way to it is still on the main line.
    """

    follows: tuple[int, ...]
    bypassed: bool
    begins: bool


def standings(graph: Graph, nodes: Sequence[Node]) -> list[BranchPosition]:
    """Return where some nodes of a graph stand, as if the graph had no others.

    Args:
        graph: what was captured.
        nodes: some of its nodes, in its order.
    """
    number = {node.name: index for index, node in enumerate(nodes)}
    last: dict[str, frozenset[int]] = {}  # by any node: the chosen ones it was reached by, without detours
    always: dict[str, int] = {}  # by any node, as bits: the chosen ones on every way to it
    behind: list[int] = []  # by chosen node, as bits: all chosen ones before it
    found: list[tuple[tuple[int, ...], int]] = []
    for node in graph:
        reached = frozenset[int]().union(*(last.get(ref, frozenset()) for ref in node.refs))
        through, gates = 0, -1 if node.refs else 0
        for ref in node.refs:
            gates &= always.get(ref, 0)
        for index in reached:
            through |= behind[index]
        last[node.name] = frozenset(index for index in reached if not through >> index & 1)
        always[node.name] = gates
        if node.name in number:
            direct = tuple(sorted(last[node.name]))
            found.append((direct, gates))
            behind.append(through | sum(1 << index for index in direct))
            last[node.name] = frozenset((number[node.name],))
            always[node.name] |= 1 << number[node.name]
    trunk = always.get(graph.output, 0)
    return [
        BranchPosition(
            follows=direct,
            bypassed=not trunk >> index & 1,
            begins=not trunk >> index & 1 and not gates & ~trunk,
        )
        for index, (direct, gates) in enumerate(found)
    ]


def main_line(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the positions at which the main line of a network has a value: rows on it, and where branches leave it."""
    return tuple(index for index, row in enumerate(rows) if not row.bypassed or begins_branch(row))


def branch_lines(rows: Sequence[Row]) -> tuple[tuple[int, ...], ...]:
    """Return the branches of a network as lines through positions of rows; a row alone in its branch is a line too."""
    inside = {index for index, row in enumerate(rows) if row.bypassed}
    left = {
        (at, index)
        for index in inside
        if not begins_branch(rows[index])
        for at in rows[index].follows or ()
        if at in inside
    }
    found: list[tuple[int, ...]] = []
    drawn: set[int] = set()
    for start in sorted(inside):
        while True:
            line = [start]
            while after := [index for at, index in left if at == line[-1]]:
                left.remove((line[-1], min(after)))
                line.append(min(after))
                if line[-1] in drawn:
                    break
                drawn.add(line[-1])
            if len(line) == 1 and start in drawn:
                break
            found.append(tuple(line))
            drawn.add(start)
    return tuple(found)


def begins_branch(row: Row) -> bool:
    """Whether a branch leaves the main line right before a row."""
    return row.log10_trunk_cumulative is not None or row.log10_trunk_observed is not None
