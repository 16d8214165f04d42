"""The gain of a part of a network at a point: the norm of its Jacobian, from above.

A block is the part of a network between two values that everything passes through and at which a module ends, with at
least one nonlinear operator in it. The Jacobian of the network is the product of those of its blocks, so the product of
their largest norms bounds it.

The k-th Lanczos step leaves a Ritz value below the largest eigenvalue of J^T J, and an upper limit of the eigenvalue
that fails only for unlucky starts (Hochstenbach 2013; `products/lanczos.py`). A point is done once the two are close;
the others go on, and take no more than their own products. Few outputs are differentiated one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...core.errors import JacobianError
from ...core.rounding import Upper, numerical
from ...products.lanczos import Krylov
from ..derivative import Products
from ..graph.ir import Graph, Node
from ..operators.effects import Effect, Linear
from ..operators.local.local import UnrolledStep
from ..segments import GraphSteps, evaluate
from .conditions import DomainCondition, LargestQuantity

Function = Callable[[Tensor], Tensor]
VANISHED = 1e-12
"""Added to a gain: derivatives of saturated units (1 - tanh^2, p - p^2) are lost in float64 below about this."""
STEPS = 48
"""Lanczos steps for the gain of a block, at most."""
FEW_OUTPUTS = 32
BLOCK = "block"
ENTRIES = 2**24
"""Entries of the Lanczos bases of several samples that are held at once."""
RISK = 1e-6
"""The probability, over the random start, with which one norm may be missed."""
LOOK = 2
"""Lanczos steps between two looks at how far the points have come."""
CLOSE = 1e-3
"""An upper side this near its lower side, as a share of it, is near enough."""
SHRUNK = 2 / 3
"""The function is taken anew at the points that are left once they are at most this share."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class LocalGain(LargestQuantity):
    """The norm of the Jacobian of some steps in the values that they read, or in one of those alone.

    Attributes:
        steps: what is differentiated, up to the value of `node`.
        name: what a reader calls it.
        varied: the value that moves; all of them if it is None.
        iterations: Lanczos steps.
    """

    steps: tuple[UnrolledStep, ...]
    name: str
    varied: str | None = None
    iterations: int = STEPS

    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Bound the norm at every sample from above."""
        shapes = [values[name].shape[1:] for name in self.reads]
        rows = torch.cat([values[name].detach().flatten(1) for name in self.reads], 1)
        group = max(1, ENTRIES // (self.iterations * max(rows.shape[1], 1)))
        return torch.cat([self._norms(part, shapes)[:, None] + VANISHED for part in rows.split(group)])

    def describe(self, index: int) -> str:
        """Name the quantity."""
        return self.name

    def _norms(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        function = partial(self._run, shapes=shapes)
        with torch.enable_grad():
            if math.prod(self.node.shape) <= FEW_OUTPUTS:
                return norms_by_rows(function, rows)
            try:
                return norms_above(function, rows, self.iterations)
            except (RuntimeError, NotImplementedError):  # an operator that autograd differentiates only once
                return norms_by_rows(function, rows)

    def _run(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        parts = rows.split([shape.numel() for shape in shapes], dim=1)
        values: dict[str, Tensor] = {}
        for name, part, shape in zip(self.reads, parts, shapes, strict=True):
            moves = self.varied is None or name == self.varied
            values[name] = (part if moves else part.detach()).reshape(len(rows), *shape)
        for step in self.steps:
            values[step.name] = evaluate(step, [values[name] for name in step.operands], len(rows))
        return values[self.node.name].reshape(len(rows), -1)


def blocks(graph: Graph, effects: Mapping[str, Effect]) -> list[list[int]]:
    """Cut a graph into blocks: lists of places of nodes, in order."""
    last = {ref: i for i, node in enumerate(graph) for ref in node.refs}
    last[graph.output] = len(graph)
    live = {item.name for item in graph.inputs if item.name in last}
    groups: list[list[int]] = [[]]
    for i, node in enumerate(graph):
        live = {name for name in live | {node.name} if last.get(name, -1) > i}
        groups[-1].append(i)
        bends = any(not isinstance(effects[graph.nodes[j].name], Linear) for j in groups[-1])
        if live == {node.name} and bends and i + 1 < len(graph) and _ends(node, graph.nodes[i + 1]):
            groups.append([])
    if len(groups) > 1 and all(isinstance(effects[graph.nodes[j].name], Linear) for j in groups[-1]):
        tail = groups.pop()
        groups[-1] += tail
    return groups


def _ends(node: Node, following: Node) -> bool:
    """Say whether the module that ran a node has ended before the next one; code of the model itself has no end."""
    return not node.path or not (following.path == node.path or following.path.startswith(f"{node.path}."))


def block_gains(steps: GraphSteps) -> tuple[LocalGain, ...]:
    """Return the conditions on the gains of a network's blocks."""
    graph, by_node = steps.graph, steps.by_node()
    entry = tuple(item.name for item in graph.inputs)
    conditions = []
    for number, places in enumerate(blocks(graph, steps.effects), 1):
        inner = tuple(step for i in places for step in by_node.get(id(graph.nodes[i]), []))
        end = graph.nodes[places[-1]]
        name = f"the gain of block {number}, which ends there,"
        conditions.append(LocalGain(f"{BLOCK} {number}", end, entry[-1], entry, inner, name))
        entry = (end.name,)
    return tuple(conditions)


def product(conditions: Sequence[DomainCondition], limits: Mapping[str, Tensor]) -> Upper | None:
    """Return the product of the blocks' largest gains, or None where none were recorded."""
    gains = [numerical(float(limits[c.key][0])) for c in conditions if c.key.startswith(BLOCK)]
    if not gains:
        return None
    return gains[0].times(*gains[1:]).named("gains")


def norms_above(function: Function, points: Tensor, steps: int) -> Tensor:
    """Bound the norm of the Jacobian of a map of rows at every point `[B, n]` from above; it may be infinite.

    An operator that autograd differentiates only once raises RuntimeError or NotImplementedError.
    """
    size, most = points.shape[1], min(steps, points.shape[1])
    low, high = points.new_zeros(len(points)), points.new_full((len(points),), torch.inf)
    start = torch.randn(1, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(points)
    krylov, normal = Krylov(start.expand_as(points).contiguous()), _normal(function, points)
    places = left = torch.arange(len(points), device=points.device)  # of the rows of `krylov`, and those not yet done
    while krylov.steps < most and len(left):
        for _ in range(min(LOOK, most - krylov.steps)):
            krylov.extend(normal)
        rows = torch.isin(places, left) & (krylov.alpha.isfinite() & krylov.beta.isfinite()).all(1)
        low[left] = torch.inf  # but for those with a finite derivative
        left = places[rows]
        values, _, _, above = (part.to(points).clamp(min=0.0) for part in krylov.ritz(RISK, rows))
        low[left] = values.sqrt()
        high[left] = (values if krylov.steps == size else above).sqrt() * (1 + ROUNDING)
        left = left[high[left] > low[left] * (1 + CLOSE)]
        if 0 < len(left) <= SHRUNK * len(places):
            kept = torch.isin(places, left)
            places, krylov, normal = left, krylov.only(kept), _normal(function, points[left])
    return high


def norms_by_rows(function: Function, points: Tensor) -> Tensor:
    """Return the norm of the Jacobian at every point, which is taken row by row."""
    try:
        jacobians = Products(function, points).rows()
    except JacobianError:  # the function does not move
        return points.detach().new_zeros(len(points))
    finite = jacobians.isfinite().all(2).all(1)
    norms = torch.linalg.matrix_norm(torch.where(finite[:, None, None], jacobians, 0.0), ord=2) * (1 + ROUNDING)
    return torch.where(finite, norms, torch.inf)


def _normal(function: Function, points: Tensor) -> Function:
    """Return the products with J^T J, all points at once."""
    try:
        products = Products(function, points)
        _ = products.tangents
    except JacobianError:  # the function does not move
        return torch.zeros_like
    return lambda rows: products.pull(products.push(rows))
