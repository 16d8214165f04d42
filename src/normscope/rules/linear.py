"""Matrices: `linear`, products with a constant matrix, einsum and other contractions with constants."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.log10 import product_above as above
from ..core.rounding import numerical
from ..graph.ir import Node, Ref
from ..linalg.folding import compose
from ..linalg.linear_map import Coded, LinearMap, Matrix, Reindex
from .effects import Effect, Gain, Linear, Range, Unbounded
from .registry import rule

aten = torch.ops.aten


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


@rule(
    aten.linear.default,
    examples=[(nn.Linear(5, 3), (2, 5)), (nn.Linear(4, 6, bias=False), (2, 3, 4))],
)
def linear(node: Node, operands: Sequence[Range]) -> Effect:
    """A matrix on the last dimension."""
    arguments = node.bound()
    weight = arguments["weight"]
    if not isinstance(weight, Tensor) or not isinstance(arguments["input"], Ref):
        return Unbounded(reason=f"the weight of {node.where} depends on the input: a product of two unbounded values")
    return Linear(maps=(Matrix(weight, node.shape[:-1]),))


@rule(
    aten.mm.default, aten.matmul.default, aten.bmm.default, aten.mv.default, aten.dot.default,
    examples=[
        (lambda x: x @ torch.linspace(-1, 1, 12).reshape(4, 3), (2, 4)),
        (lambda x: torch.linspace(-1, 1, 6).reshape(2, 3) @ x, (3, 4)),
        (lambda x: torch.linspace(-1, 1, 24).reshape(2, 3, 4) @ x.tanh(), (2, 4, 2)),
        (lambda x: torch.matmul(x.sigmoid(), x.tanh().mT), (2, 3)), (lambda x: torch.mv(x, torch.ones(3)), (2, 3)),
        (lambda x: torch.bmm(x.softmax(-1), x.tanh()), (2, 3, 3)), (lambda x: torch.dot(x, torch.linspace(1, 2, 3)),
        (3,)),
        (lambda x: torch.mm(x, torch.linspace(-1, 1, 6).reshape(3, 2)), (2, 3)),
    ],
)  # fmt: skip
def product(node: Node, operands: Sequence[Range]) -> Effect:
    """A product with a constant matrix, or of two bounded values."""
    left, right = node.args[:2]
    if isinstance(left, Ref) and isinstance(right, Ref):
        return _bilinear(node, left, right, operands)
    if isinstance(left, Ref) and right.ndim == 2 and len(left.shape) >= 2:
        return Linear(maps=(Matrix(right.mT, left.shape[:-1]),))
    if isinstance(right, Ref) and left.ndim == 2 and len(right.shape) == 2:
        swap_in = Reindex.of(lambda x: x.mT, right.shape, node.device)
        turned = Matrix(left, (right.shape[-1],))
        return Linear(
            maps=(compose(Reindex.of(lambda x: x.mT, turned.out_shape, node.device), compose(turned, swap_in)),)
        )
    return Linear(maps=(coded(node, 0),))


def _bilinear(node: Node, left: Ref, right: Ref, operands: Sequence[Range]) -> Effect:
    """`A @ B` with both variable: Frobenius norms of the bounded factors are the gains."""
    if len(left.shape) < 2 or len(right.shape) < 2 or left.shape[:-2] != right.shape[:-2]:
        return Unbounded(
            reason=f"{node.op} of two variable operands of shapes {left.shape} and {right.shape} in {node.where}"
        )
    a, b = operands
    norms = (above(b.row, right.shape[-2] ** 0.5), above(a.row, left.shape[-2] ** 0.5))
    if not all(value < float("inf") for value in norms):
        return Unbounded(reason=f"a product of two unbounded values in {node.where}")
    gains = tuple(numerical(value, "bounded product") for value in norms)
    width = node.shape[-1]
    return Gain(gains=gains, range=Range.of(above(a.row, norms[0]), width, above(a.row, norms[0])))


@rule(
    aten.addmm.default, aten.baddbmm.default, aten.addmv.default,
    examples=[
        (lambda x: torch.addmm(torch.ones(3), x, torch.linspace(-1, 1, 12).reshape(4, 3)), (2, 4)),
        (lambda x: torch.addmm(x, x.relu(), torch.linspace(-1, 1, 9).reshape(3, 3), beta=2, alpha=3), (2, 3)),
        (lambda x: torch.baddbmm(torch.ones(2, 3, 4), x, torch.linspace(-1, 1, 24).reshape(2, 3, 4)), (2, 3, 3)),
        (lambda x: torch.addmv(torch.ones(2), x, torch.linspace(1, 2, 3)), (2, 3)),
    ],
)  # fmt: skip
def addmm(node: Node, operands: Sequence[Range]) -> Effect:
    """A bias plus a product with a constant matrix."""
    bias, left, right = node.args[:3]
    scale = node.bound().get("alpha", 1)
    plain = isinstance(left, Ref) and isinstance(right, Tensor) and right.ndim == 2 and not isinstance(bias, Ref)
    if plain:
        return Linear(maps=(Matrix(right.mT * scale, left.shape[:-1]),))
    if isinstance(left, Ref) and isinstance(right, Ref):
        return Unbounded(reason=f"a product of two variable values in {node.where}")
    return Linear(maps=tuple(coded(node, position) for position in range(len(node.operands))))
