"""The gain of a part of a network at a point: the norm of its Jacobian, from above.

A block is the part of a network between two values that everything passes through and at which a module ends, with at
least one nonlinear operator in it. The Jacobian of the network is the product of those of its blocks, so the product of
their largest norms bounds it.

Norms come from k Lanczos steps from a random start: the largest Ritz value is at least (1 - e) times the largest
eigenvalue but for a probability of 1.648 sqrt(n) exp(-sqrt(e) (2 k - 1)) (Kuczynski and Wozniakowski 1992, theorem
4.2); with e for a probability of `RISK` the quotient is an upper side. Few outputs are differentiated one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.rounding import Upper, numerical
from ...graph.ir import Graph, Node
from ...linalg.lanczos import lanczos
from ...rules.effects import Effect, Linear
from ...rules.local.local import Step
from ..balls.unrolled import Steps, evaluate
from ..products import Tangents
from .conditions import Condition, Largest

VANISHED = 1e-12
"""Added to a gain: derivatives of saturated units (1 - tanh^2, p - p^2) are lost in float64 below about this."""
STEPS, RISK = 48, 1e-6
"""Lanczos steps for the gain of a block, and the probability with which one norm may be missed."""
FEW_OUTPUTS = 32
BLOCK = "block"
ENTRIES = 2**24
"""Entries of the Lanczos bases of several samples that are held at once."""


@dataclass(frozen=True, slots=True)
class LocalGain(Largest):
    """The norm of the Jacobian of some steps, from the values that are read.

    Attributes:
        steps: what is differentiated.
        output: the value it ends with.
        name: what a reader calls it.
        iterations: Lanczos steps.
    """

    steps: tuple[Step, ...]
    output: str
    name: str
    iterations: int = STEPS

    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Bound the norm at every sample from above."""
        entry = [values[name].detach() for name in self.reads]
        width = sum(value[0].numel() for value in entry)
        group = max(1, ENTRIES // (self.iterations * max(width, 1)))
        parts = [self._norms(part) for part in zip(*(value.split(group) for value in entry), strict=True)]
        return torch.cat(parts)[:, None] + VANISHED

    def said(self, index: int) -> str:
        """Name the quantity."""
        return self.name

    def _norms(self, entry: Sequence[Tensor]) -> Tensor:
        with torch.enable_grad():
            rows = torch.cat([value.reshape(len(value), -1) for value in entry], 1).requires_grad_(True)
            output = self._run(rows, entry)
            if not output.requires_grad:
                return torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
            if output.shape[1] <= FEW_OUTPUTS:
                return _exact(output, rows)
            try:
                return _iterated(output, rows, self.iterations)
            except (RuntimeError, NotImplementedError):  # an operator that autograd differentiates only once
                return _exact(output, rows)

    def _run(self, rows: Tensor, entry: Sequence[Tensor]) -> Tensor:
        parts = rows.split([value[0].numel() for value in entry], dim=1)
        known = {name: part.reshape(value.shape) for name, part, value in zip(self.reads, parts, entry, strict=True)}
        for step in self.steps:
            known[step.name] = evaluate(step, [known[name] for name in step.operands], len(rows))
        return known[self.output].reshape(len(rows), -1)


def _exact(output: Tensor, rows: Tensor) -> Tensor:
    """Take the Jacobian row by row."""
    grads = [torch.autograd.grad(output[:, i].sum(), rows, retain_graph=True)[0] for i in range(output.shape[1])]
    return torch.linalg.matrix_norm(torch.stack(grads, 1), ord=2) * (1 + 1e-9)


def _iterated(output: Tensor, rows: Tensor, most: int) -> Tensor:
    """Iterate on J^T J, all samples at once."""
    push = Tangents(output, rows)

    def normal(vectors: Tensor) -> Tensor:
        (back,) = torch.autograd.grad(output, rows, push(vectors), retain_graph=True)
        return back

    size = rows.shape[1]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, size, dtype=torch.float64, generator=generator).to(rows).expand_as(rows).contiguous()
    steps = min(most, size)
    values = lanczos(normal, start, steps=steps, rtol=0.0).values
    missed = 0.0 if steps == size else math.log(1.648 * math.sqrt(size) / RISK) / (2 * steps - 1)
    return (values.clamp(min=0.0) / (1.0 - min(missed, 0.99) ** 2)).sqrt() * (1 + 1e-9)


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


def block_gains(steps: Steps) -> tuple[LocalGain, ...]:
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


def product(conditions: Sequence[Condition], limits: Mapping[str, Tensor]) -> Upper | None:
    """Return the product of the blocks' largest gains, or None where none were recorded."""
    gains = [numerical(float(limits[c.key][0])) for c in conditions if c.key.startswith(BLOCK)]
    if not gains:
        return None
    return gains[0].times(*gains[1:]).named("gains")
