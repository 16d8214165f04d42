"""The gain of a part of a network at a point: the norm of its Jacobian, from above.

A block is the part of a network between two values that everything passes through and at which a module ends, with at
least one nonlinear operator in it. The Jacobian of the network is the product of those of its blocks, so the product of
their largest norms bounds it.

Norms come from Lanczos steps (`jacobians.py`), as closely as somebody asks: a sample that cannot raise the largest gain
seen so far, or is surely inside, needs few of them. Few outputs are differentiated one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...core.rounding import Upper, numerical
from ...graph.ir import Graph, Node
from ...rules.effects import Effect, Linear
from ...rules.local.local import UnrolledStep
from ..unrolled import GraphSteps, evaluate
from .conditions import DomainCondition, LargestQuantity
from .jacobians import Enough, norms_above, norms_by_rows

VANISHED = 1e-12
"""Added to a gain: derivatives of saturated units (1 - tanh^2, p - p^2) are lost in float64 below about this."""
STEPS = 48
"""Lanczos steps for the gain of a block, at most."""
FEW_OUTPUTS = 32
BLOCK = "block"
ENTRIES = 2**24
"""Entries of the Lanczos bases of several samples that are held at once."""


@dataclass(frozen=True, slots=True)
class LocalGain(LargestQuantity):
    """The norm of the Jacobian of some steps, from the values that are read.

    Attributes:
        steps: what is differentiated.
        output: the value it ends with.
        name: what a reader calls it.
        iterations: Lanczos steps.
    """

    steps: tuple[UnrolledStep, ...]
    output: str
    name: str
    iterations: int = STEPS

    def figures(self, values: Mapping[str, Tensor], enough: Enough | None = None) -> Tensor:
        """Bound the norm at every sample from above."""
        shapes = [values[name].shape[1:] for name in self.reads]
        rows = torch.cat([values[name].detach().flatten(1) for name in self.reads], 1)
        group = max(1, ENTRIES // (self.iterations * max(rows.shape[1], 1)))
        found = rows.new_zeros(0, 1)
        for part in rows.split(group):
            asked = None if enough is None else partial(_beside, enough, found)
            found = torch.cat([found, self._norms(part, shapes, asked)[:, None] + VANISHED])
        return found

    def said(self, index: int) -> str:
        """Name the quantity."""
        return self.name

    def _norms(self, rows: Tensor, shapes: Sequence[torch.Size], enough: Enough | None) -> Tensor:
        function = partial(self._run, shapes=shapes)
        with torch.enable_grad():
            if math.prod(self.steps[-1].shape) <= FEW_OUTPUTS:
                return norms_by_rows(function, rows)
            try:
                return norms_above(function, rows, self.iterations, enough)
            except (RuntimeError, NotImplementedError):  # an operator that autograd differentiates only once
                return norms_by_rows(function, rows)

    def _run(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        parts = rows.split([shape.numel() for shape in shapes], dim=1)
        named = zip(self.reads, parts, shapes, strict=True)
        known = {name: part.reshape(len(rows), *shape) for name, part, shape in named}
        for step in self.steps:
            known[step.name] = evaluate(step, [known[name] for name in step.operands], len(rows))
        return known[self.output].reshape(len(rows), -1)


def _beside(enough: Enough, earlier: Tensor, least: Tensor) -> Tensor:
    """Ask what is enough for the norms of some samples where the figures of earlier ones are known."""
    return enough(torch.cat([earlier, least])) - VANISHED


def blocks(graph: Graph, effects: Mapping[str, Effect]) -> list[list[int]]:
    """Cut a graph into blocks: lists of places of nodes, in order."""
    last = {ref: i for i, node in enumerate(graph) for ref in node.refs}
    last[graph.output] = len(graph)
    live = {item.name for item in graph.inputs if item.name in last}
    found: list[list[int]] = [[]]
    for i, node in enumerate(graph):
        live = {name for name in live | {node.name} if last.get(name, -1) > i}
        found[-1].append(i)
        bends = any(not isinstance(effects[graph.nodes[j].name], Linear) for j in found[-1])
        if live == {node.name} and bends and i + 1 < len(graph) and _ends(node, graph.nodes[i + 1]):
            found.append([])
    if len(found) > 1 and all(isinstance(effects[graph.nodes[j].name], Linear) for j in found[-1]):
        tail = found.pop()
        found[-1] += tail
    return found


def _ends(node: Node, following: Node) -> bool:
    """Say whether the module that ran a node has ended before the next one; code of the model itself has no end."""
    return not node.path or not (following.path == node.path or following.path.startswith(f"{node.path}."))


def block_gains(steps: GraphSteps) -> tuple[LocalGain, ...]:
    """Return the conditions on the gains of a network's blocks."""
    graph, by_node = steps.graph, steps.by_node()
    entry = tuple(item.name for item in graph.inputs)
    found = []
    for number, places in enumerate(blocks(graph, steps.effects), 1):
        inner = tuple(step for i in places for step in by_node.get(id(graph.nodes[i]), []))
        end = graph.nodes[places[-1]]
        said = f"the gain of block {number}, which ends there,"
        found.append(LocalGain(f"{BLOCK} {number}", end, entry[-1], entry, inner, end.name, said))
        entry = (end.name,)
    return tuple(found)


def product(conditions: Sequence[DomainCondition], limits: Mapping[str, Tensor]) -> Upper | None:
    """Return the product of the blocks' largest gains, or None where none were recorded."""
    gains = [numerical(float(limits[c.key][0])) for c in conditions if c.key.startswith(BLOCK)]
    if not gains:
        return None
    return gains[0].times(*gains[1:]).named("gains")
