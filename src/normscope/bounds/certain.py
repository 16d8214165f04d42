"""What rounding does in one operation: values that are certain up to an error, and the error behind a primitive.

Used by `evaluation.py`, whose head says what is assumed of torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.rounding import UNIT, gamma
from ..core.sizes import norm as l2
from ..graph.ir import Node
from ..rules.local.entry_sets import LogSoftmax, LogSumExp, Norm, Normalize, Softmax, WindowMaximum
from ..rules.local.local import Enclosure, Primitive, flat, times, wide
from ..rules.local.products import MatrixProduct, Multiply
from ..rules.local.scalar import Scalar
from ..rules.ranges import Opaque
from ..rules.units import COMPLEX

aten = torch.ops.aten
ULPS = 8.0
"""Units in the last place by which one operator of torch (erf, tanh, exp, a root) may be off."""
SAFETY = 2.0**14
"""Errors that are estimated and not bounded are multiplied by this margin."""
RECURRENT = ("lstm", "gru", "rnn")
"""Operators that run many steps, whose roundings travel through the later ones: they are given the margin too."""
TINY = 2.0**-1022
"""A number that is flushed to zero is off by at most this much."""
UP = 1 + 2.0**-40
"""Room for the rounding of the error bounds themselves."""
WIDE = 2**18
"""Factors of a matrix product with more entries than this are bounded by their Frobenius norm."""
BILINEAR = {
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv_transpose1d.default,
    aten.conv_transpose2d.input, aten.conv_transpose3d.input, aten.convolution.default, aten.linear.default,
    aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default,
}  # fmt: skip
"""Operators whose value is a sum of products of two factors, plus a bias."""


@dataclass(frozen=True, slots=True)
class Certain:
    """Values `[B, *shape]`, and how far the exact ones can be: entry by entry, and in the l2 norm `[B]`."""

    value: Tensor
    error: Tensor
    distance: Tensor

    def enclosure(self) -> Enclosure:
        """Return the box of the exact value, as local rules read it: the error as a constant over a radius of 1."""
        reach = torch.where(self.error > 0, self.error * UP + 2 * UNIT * self.value.abs() + TINY, 0.0)
        reach = torch.where(self.value.isinf() & (self.error == 0), 0.0, reach)
        low, high = self.value - reach, self.value + reach
        return Enclosure(self.value, low, high, self.distance, self.error, torch.ones_like(self.distance))


def behind(
    primitive: Primitive, operands: Sequence[Certain], value: Tensor, norms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a primitive makes of the error of its operands, its own rounding, and the l2 norm of the first."""
    if isinstance(primitive, MatrixProduct):
        return _product(operands[0], operands[1], norms)
    if isinstance(primitive, Opaque) and primitive.node.op in BILINEAR and len(operands) <= 2:
        return _bilinear(primitive.node, operands)
    own = _own(primitive, [operand.value for operand in operands], value)
    if all(not bool(operand.error.any()) for operand in operands):
        return torch.zeros_like(value), own, torch.zeros_like(operands[0].distance)
    boxes = [operand.enclosure() for operand in operands]
    local = primitive.local(boxes)
    moved = sum((part.entries for part in local.parts[1:]), local.parts[0].entries)
    distance = sum(
        (times(part.gain, x.distance) for part, x in zip(local.parts, operands, strict=True)),
        torch.zeros_like(operands[0].distance),
    )
    if isinstance(primitive, Scalar) and primitive.wobble:  # a jump small enough to be tolerated, within the box
        jump = (primitive.function(boxes[0].high) - primitive.function(boxes[0].low)).abs()
        own = own + torch.where(operands[0].error > 0, jump, 0.0)
    return moved, own, distance


def _own(primitive: Primitive, values: Sequence[Tensor], value: Tensor) -> Tensor:
    """Return a bound on the rounding of a primitive itself at given operands, `[B, *shape]`."""
    x, few = values[0], ULPS * UNIT * 2
    count = float(x.shape[-1]) if x.ndim > 1 else 1.0
    match primitive:
        case WindowMaximum():
            return torch.zeros_like(value)
        case Multiply():
            return UNIT * 2 * value.abs() + TINY
        case Scalar() if primitive.margin == 0.0:  # straight pieces: a product at most
            return UNIT * 2 * value.abs() + TINY
        case Scalar():  # formulas like x - tanh(x) and x (1 + erf(x)) add up terms of the size of x
            limit = 64.0 * max(abs(end) for end in primitive.bounded)
            return few * (value.abs() + 2 * x.abs().clamp(max=limit)) + TINY
        case Normalize():
            return torch.where(value.isfinite(), gamma(count + 64.0) * value.abs() + TINY, torch.inf)
        case Norm():
            return torch.where(value.isfinite(), gamma(count + 64.0) * value.abs() + TINY, torch.inf)
        case Softmax():
            apart = _apart(x, value)
            return value * (gamma(count + 16.0) + few * (apart[0] + apart[1])) + TINY
        case LogSoftmax():
            apart = _apart(x, value.exp())
            terms = value.abs() + x.amax(-1, keepdim=True).abs() + apart[0]
            own = gamma(count + 16.0) + few * (torch.where(terms.isfinite(), terms, 0.0) + apart[1])
            return torch.where(value.isinf() & x.isinf(), 0.0, own)
        case LogSumExp():
            apart = _apart(x, x.softmax(-1))
            return gamma(count + 16.0) + few * (value.abs() + x.amax(-1).abs() + apart[1][..., 0])
    if isinstance(primitive, Opaque) and primitive.node.operator == COMPLEX:
        return torch.full_like(value, torch.inf)
    # known by its gains alone: as if all its operands were added up in every entry
    size = sum((flat(operand).abs().sum(1) for operand in values), torch.zeros_like(flat(value)[:, 0]))
    entries = float(sum(flat(operand).shape[1] for operand in values))
    many = SAFETY if isinstance(primitive, Opaque) and primitive.node.operator.startswith(RECURRENT) else 1.0
    return many * gamma(64.0 * (entries + 64.0)) * (value.abs() + wide(size, value)) + TINY


def _apart(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far logits are below the largest one (0 where masked), and the mean of that over the weights."""
    below = x.amax(-1, keepdim=True) - x
    below = torch.where(below.isfinite(), below, 0.0)
    return below, (weights * below).sum(-1, keepdim=True)


def _product(a: Certain, b: Certain, norms: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the error of a matrix product: |A| e_B + e_A (|B| + e_B), and its own rounding."""
    count = float(a.value.shape[-1])
    left, right = a.value.abs(), b.value.abs()
    own = gamma(count + 8.0) * (left @ right) + count * TINY
    moved = left @ b.error + a.error @ (right + b.error)
    sizes = [l2(flat(x.value), 1) for x in (a, b)]
    if norms and max(a.value[0].numel(), b.value[0].numel()) <= WIDE:
        sizes = [torch.linalg.matrix_norm(_scaled(x.value)[0], ord=2) * _scaled(x.value)[1] * UP for x in (a, b)]
        sizes = [size.flatten(1).amax(1) if size.ndim > 1 else size for size in sizes]
    distance = times(sizes[0], b.distance) + times(sizes[1] + b.distance, a.distance)
    return moved, own, distance


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrices divided by their largest entry, and that entry."""
    top = x.abs().amax((-2, -1), keepdim=True)
    top = torch.where((top > 0) & top.isfinite(), top, 1.0)
    return (x / top).nan_to_num(0.0), top[..., 0, 0]


def _bilinear(node: Node, operands: Sequence[Certain]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the error of a sum of products of factors (one of them may be a constant), entry by entry."""
    bare = dataclasses.replace(
        node,
        args=tuple(a if i < 2 or not isinstance(a, Tensor) else None for i, a in enumerate(_absolute(node.args))),
        kwargs={key: None if key == "bias" else value for key, value in node.kwargs.items()},
    )

    def run(*factors: Tensor) -> Tensor:
        return torch.stack([bare.evaluate([x[i] for x in factors]) for i in range(len(factors[0]))])

    sizes = [operand.value.abs() for operand in operands]
    reached = [size + operand.error for size, operand in zip(sizes, operands, strict=True)]
    if len(operands) == 1:
        moved = run(operands[0].error)
    else:
        moved = run(operands[0].error, reached[1]) + run(sizes[0], operands[1].error)
    bias = next((a for a in (*node.args[2:], node.kwargs.get("bias")) if isinstance(a, Tensor)), None)
    count = float(max(operand.value[0].numel() for operand in operands))
    own = gamma(count + 16.0) * run(*reached) + count * TINY
    if bias is not None:
        channels = node.operator not in ("linear", "matmul", "mm", "bmm", "mv", "dot")
        own = own + 4 * UNIT * bias.double().abs().reshape(-1, *(1,) * (len(node.shape) - 2 if channels else 0))
    return moved, own, l2(flat(moved), 1)


def _absolute(arguments: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(a.double().abs() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments)
