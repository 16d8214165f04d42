"""Linear maps that operators of several families are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph.ir import Node, Ref
from ..linalg.folding import compose
from ..linalg.linear_map import Coded, Diagonal, LinearMap, Reindex


def coded(node: Node, position: int, kind: type[Coded] = Coded) -> LinearMap:
    """Return an operator that is linear in one operand as a map given by its own code."""
    shapes = [ref.shape for ref in node.operands]
    zeros = [torch.zeros(shape, dtype=torch.float64, device=node.device) for shape in shapes]
    offset = node.evaluate(zeros)

    def single(x: Tensor) -> Tensor:
        return node.evaluate([x if i == position else zero.to(x.dtype) for i, zero in enumerate(zeros)]) - offset.to(
            x.dtype
        )

    def function(batch: Tensor) -> Tensor:
        return torch.stack([single(x) for x in batch])

    return kind(function, shapes[position], node.shape, node.device)


def spread(ref: Ref, shape: Sequence[int], scale: Any, device: torch.device) -> LinearMap:
    """Broadcast an operand to `shape` and multiply it by `scale` (a number or a tensor that broadcasts)."""
    wide = Reindex.of(lambda x: x.expand(tuple(shape)), ref.shape, device)
    if isinstance(scale, int | float) and scale == 1:
        return wide
    factor = scale if isinstance(scale, Tensor) else torch.tensor(float(scale), dtype=torch.float64, device=device)
    return compose(Diagonal(factor.to(torch.float64), tuple(shape)), wide)
