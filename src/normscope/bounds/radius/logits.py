"""`Logits`: a captured classifier as a function of many flat inputs at once, with gradients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...core.threads import math_attention
from ..graph.ir import Graph, Unit

aten = torch.ops.aten

ENTRIES = 2e7
"""Intermediate values held at once; more rows than that are run in parts."""

Objective = Callable[[Tensor, slice], Tensor]
"""Turns logits `[m, K]` of the given rows into one number per row."""


class Logits:
    """The map of one sample to its K logits, applied to rows `[m, n]`: all at once where torch can, else one by one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = _batchable(graph)
        self.dtype = graph.flat().dtype
        held = graph.flat().numel() + sum(math.prod(node.shape) for node in graph)
        self.most = max(1, int(ENTRIES // max(held, 1)))
        self._batched: bool | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the logits `[m, K]`, in the graph's precision."""
        with torch.no_grad(), math_attention():
            return torch.cat([self._mapped(self._one, rows[part].to(self.dtype)) for part in self._parts(len(rows))])

    def gradient(self, rows: Tensor, objective: Objective) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the objective of every row, and its gradient in the row (zero where autograd has none)."""
        logits, values, grads = [], [], []
        with torch.enable_grad(), math_attention():
            for part in self._parts(len(rows)):
                x = rows[part].detach().to(self.dtype).requires_grad_(True)
                outputs = self._mapped(self._one, x)
                value = objective(outputs, part)
                (grad,) = torch.autograd.grad(value.sum(), x, allow_unused=True) if value.requires_grad else (None,)
                logits.append(outputs.detach())
                values.append(value.detach())
                grads.append(torch.zeros_like(x) if grad is None else grad.detach().nan_to_num(0.0, 0.0, 0.0))
        return torch.cat(logits), torch.cat(values), torch.cat(grads)

    def _mapped(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Apply a function of one row to all, in one pass if every operator has a batching rule."""
        if self._batched is not False:
            try:
                outputs: Tensor = torch.func.vmap(function)(rows)
                self._batched = True
                return outputs
            except (RuntimeError, NotImplementedError, ValueError):
                if self._batched:
                    raise
                self._batched = False
        return torch.stack([function(row) for row in rows])

    def _one(self, row: Tensor) -> Tensor:
        return self.graph.run(*self.graph.split(row)).reshape(-1)

    def _parts(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self.most):
            yield slice(start, min(start + self.most, count))


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how far the label's logit lies above the largest other one, `[m]`; negative where another class wins."""
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf)
    return own - others.amax(1)


def _batchable(graph: Graph) -> Graph:
    """Return the same function without the operators that torch can only run sample by sample."""
    units = {op: Unit(str(op), function) for op, function in BATCHABLE.items()}
    nodes = [
        dataclasses.replace(node, op=units[node.op], index=None)
        if node.op in units and node.index in (None, 0)
        else node
        for node in graph
    ]
    return dataclasses.replace(graph, nodes=tuple(nodes))


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> Tensor:
    normalized: Tensor = aten.batch_norm.default(x, weight, bias, mean, var, False, momentum, eps, False)
    return normalized


BATCHABLE: dict[Any, Callable[..., Tensor]] = {
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
}
"""What takes the place of the operators without a batching rule, in eval mode."""
