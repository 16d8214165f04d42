"""Linear maps and rearrangements that operators of several families are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph.ir import Node, Ref
from ..linalg.folding import compose
from ..linalg.linear_map import Coded, Diagonal, LinearMap, Reindex

Mover = Callable[[Tensor], Tensor]


def in_operand(node: Node, position: int) -> Mover:
    """Return an operator that is linear in one operand as a function of it: the others are zero, and no constant."""
    zeros = [torch.zeros(ref.shape, dtype=torch.float64, device=node.device) for ref in node.operands]
    offset = node.evaluate(zeros)

    def single(x: Tensor) -> Tensor:
        values = [x.to(torch.float64) if place == position else zero for place, zero in enumerate(zeros)]
        return (node.evaluate(values) - offset).to(x.dtype)  # in the precision of the constants of the node

    return single


def coded(node: Node, position: int, kind: type[Coded] = Coded) -> LinearMap:
    """Return an operator that is linear in one operand as a map given by its own code."""
    single = in_operand(node, position)
    return kind(
        lambda batch: torch.stack([single(x) for x in batch]), node.operands[position].shape, node.shape, node.device
    )


def spread(ref: Ref, shape: Sequence[int], scale: Any, device: torch.device) -> LinearMap:
    """Broadcast an operand to `shape` and multiply it by `scale` (a number or a tensor that broadcasts)."""
    wide = Reindex.of(lambda x: x.expand(tuple(shape)), ref.shape, device)
    if isinstance(scale, int | float) and scale == 1:
        return wide
    factor = scale if isinstance(scale, Tensor) else torch.tensor(float(scale), dtype=torch.float64, device=device)
    return compose(Diagonal(factor.to(torch.float64), tuple(shape)), wide)


def as_sets(shape: Sequence[int], dims: Sequence[int]) -> tuple[Mover, Mover, tuple[int, int]]:
    """Return how to bring dimensions together as the last one of `[sets, n]`, how to go back, and both sizes."""
    order = [d for d in range(len(shape)) if d not in dims] + list(dims)
    inverse = [order.index(d) for d in range(len(shape))]
    moved = [shape[d] for d in order]
    entries = math.prod(shape[d] for d in dims)
    sets = math.prod(shape) // entries

    def there(x: Tensor) -> Tensor:
        return x.permute(order).reshape(sets, entries)

    def back(x: Tensor) -> Tensor:
        return x.reshape(moved).permute(inverse).reshape(tuple(shape))

    return there, back, (sets, entries)
