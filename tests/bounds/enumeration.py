"""The exact constant of a tiny piecewise linear graph, by brute force: every cell that has an interior.

Independent of rules, forms and certificates: nodes are run as torch runs them, an activation with its slopes fixed is a
product, so that every value is affine in the input and is read off at the origin and at the unit vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog

from normscope.graph.ir import Graph, Node

INTERIOR = 1e-7
"""A cell counts if a ball of this radius, relative to its distance from the origin, fits into it."""


@dataclass(frozen=True)
class Cell:
    """A pattern that occurs: the sign of every unit by node, a point inside, and the norm of the map there."""

    signs: dict[str, np.ndarray]
    point: np.ndarray
    norm: float


def slopes(node: Node) -> tuple[float, float] | None:
    """The slopes below and above zero, or None for a node that is no such activation."""
    name = node.op.overloadpacket.__name__
    if name == "leaky_relu":
        return float(node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)), 1.0
    return {"relu": (0.0, 1.0), "abs": (-1.0, 1.0)}.get(name)


def constant(graph: Graph) -> float:
    """The Lipschitz constant."""
    return max(cell.norm for cell in cells(graph))


def unrestricted(graph: Graph) -> float:
    """The largest norm over all patterns, whether they occur or not."""
    return max(cell.norm for cell in cells(graph, all_patterns=True))


def cells(graph: Graph, *, all_patterns: bool = False) -> Iterator[Cell]:
    """Yield every pattern with an interior (or every pattern at all), layer by layer."""
    names = [node.name for node in graph if slopes(node) is not None]
    yield from _grow(graph, names, {}, [], [], all_patterns=all_patterns)


def _grow(
    graph: Graph, names: Sequence[str], signs: dict[str, np.ndarray], rows: list, sides: list, *, all_patterns: bool
) -> Iterator[Cell]:
    if len(signs) == len(names):
        point = np.zeros(_size(graph)) if all_patterns else _inside(rows, sides)
        assert point is not None
        matrix, _ = _affine(graph, signs, graph.output)
        yield Cell(dict(signs), point, float(np.linalg.norm(matrix, 2)))
        return
    name = names[len(signs)]
    matrix, offset = _affine(graph, signs, graph.node(name).refs[0])
    for pattern, more, which in _patterns(matrix, offset, rows, sides, all_patterns=all_patterns):
        yield from _grow(graph, names, signs | {name: pattern}, more, which, all_patterns=all_patterns)


def _patterns(
    matrix: np.ndarray, offset: np.ndarray, rows: list, sides: list, *, all_patterns: bool
) -> Iterator[tuple[np.ndarray, list, list]]:
    """Yield the patterns of one layer inside a cell, unit by unit."""
    found = [(np.zeros(0), rows, sides)]
    scale = max(np.abs(matrix).max(initial=0.0), np.abs(offset).max(initial=0.0), 1e-300)
    for row, shift in zip(matrix, offset):
        grown = []
        for pattern, before, after in found:
            if np.linalg.norm(row) <= 1e-12 * scale:  # constant in this cell: one sign, or none that matters
                side = -1.0 if shift < 0 else 1.0
                grown.append((np.append(pattern, side), before, after))
                continue
            for side in (-1.0, 1.0):
                more, which = [*before, (row, shift)], [*after, side]
                if all_patterns or _inside(more, which) is not None:
                    grown.append((np.append(pattern, side), more, which))
        found = grown
    yield from found


def _inside(rows: list, sides: list) -> np.ndarray | None:
    """Return a point well inside the intersection of half spaces, or None."""
    if not rows:
        return None if sides else np.zeros(0)
    matrix, offset = np.stack([row for row, _ in rows]), np.array([shift for _, shift in rows])
    length, side = np.linalg.norm(matrix, axis=1), np.array(sides)
    matrix, offset = matrix / length[:, None], offset / length
    unit = max(float(np.abs(offset).max()), 1e-300)  # in this unit of length all hyperplanes are near the origin
    solved = linprog(
        np.append(np.zeros(matrix.shape[1]), -1.0),
        A_ub=np.hstack([-side[:, None] * matrix, np.ones((len(matrix), 1))]),
        b_ub=side * offset / unit,
        bounds=[(None, None)] * matrix.shape[1] + [(0.0, 1.0)],
        method="highs",
    )
    if solved.status != 0 or solved.x[-1] <= INTERIOR:
        return None
    return solved.x[:-1] * unit


def _size(graph: Graph) -> int:
    return sum(item.value.numel() for item in graph.inputs)


def _affine(graph: Graph, signs: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """A value as matrix and offset, with the activations before it fixed."""
    size = _size(graph)
    points = torch.cat([torch.zeros(1, size, dtype=torch.float64), torch.eye(size, dtype=torch.float64)])
    values = np.stack([_run(graph, signs, point, name) for point in points])
    return (values[1:] - values[0]).T, values[0]


def _run(graph: Graph, signs: dict[str, np.ndarray], point: torch.Tensor, name: str) -> np.ndarray:
    values = dict(zip((item.name for item in graph.inputs), graph.split(point)))
    for node in graph:
        if name in values:
            break
        read = [values[ref] for ref in node.refs]
        pair = slopes(node)
        if pair is None:
            values[node.name] = node.evaluate(read)
        else:
            slope = np.where(signs[node.name] < 0, *pair)
            values[node.name] = read[0] * torch.from_numpy(slope).reshape(read[0].shape)
    return values[name].reshape(-1).numpy()
