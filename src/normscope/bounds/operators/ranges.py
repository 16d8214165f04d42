"""How large a node's value can get, from its operands' sizes, and nodes of which no more is known near a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.log10 import ceiling10
from ...core.log10 import norm as l2
from ...core.log10 import product_above as above
from ..graph.ir import Node
from ..linalg.convolution_map import Convolution
from ..linalg.linear_map import (
    Averaging,
    Bounded,
    Centering,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
)
from ..linalg.operator_norms import upper
from .effects import UNKNOWN, Effect, Elementwise, Linear, Norm, Range, Unbounded
from .local.local import Enclosure, LocalForm, OperandShare, Primitive, times, wide
from .registry import effect_of

SLACK = 1 + 1e-12
"""Room for float64 rounding in these short computations; whatever is built on a range is NUMERICAL, never PROVEN."""


def after(effect: Effect, node: Node, operands: Sequence[Range], norm: Norm = upper) -> Range:
    """Return the range of a node's value; `norm` bounds the norm of a matrix."""
    width = node.shape[-1] if node.shape else 1
    if isinstance(effect, Elementwise):
        low, high = effect.range
        limit = max(abs(low), abs(high))
        largest = Range.of(limit, width)
        if math.isinf(operands[0].entry):
            return largest
        entry, row = _size(node)
        slope = max(abs(effect.slope[0]), abs(effect.slope[1])) * SLACK
        reached = Range.of(entry + above(slope, operands[0].entry), width, row + above(slope, operands[0].row))
        return Range.of(min(largest.entry, reached.entry), width, min(largest.row, reached.row))
    if isinstance(effect, Linear):
        if any(math.isinf(operand.entry) for operand in operands):
            return UNKNOWN
        entry, row = _size(node)
        for linear, operand in zip(effect.maps, operands, strict=True):
            moved = through(linear, operand, norm)
            entry, row = entry + moved.entry, row + moved.row
        return Range.of(entry * SLACK, width, row * SLACK)
    return effect.range or UNKNOWN


def _size(node: Node) -> tuple[float, float]:
    """Largest entry and row of the value where every operand is zero."""
    with torch.no_grad():
        value = node.evaluate(
            [torch.zeros(ref.shape, dtype=torch.float64, device=node.device) for ref in node.operands]
        )
    value = value.double().reshape(-1, value.shape[-1] if value.ndim else 1)
    return float(value.abs().amax()), float(l2(value, -1).amax())


def through(linear: LinearMap, operand: Range, norm: Norm = upper) -> Range:
    """Return the range of `linear` applied to values of the size of an operand."""
    width_in = linear.in_shape[-1] if linear.in_shape else 1
    width = linear.out_shape[-1] if linear.out_shape else 1
    match linear:
        case Composite():
            for part in linear.parts:
                operand = through(part, operand, norm)
            return operand
        case Repeated():
            return through(linear.inner, operand, norm)
        case Sum():
            parts = [through(term, operand, norm) for term in linear.terms]
            return Range.of(sum(p.entry for p in parts), width, sum(p.row for p in parts))
        case Identity():
            if width_in % width == 0:
                return Range.of(operand.entry, width, operand.row)
            rows = math.ceil(width / width_in) + (0 if width % width_in == 0 else 1)
            return Range.of(operand.entry, width, operand.row * math.sqrt(rows))
        case Reindex():
            return Range.of(operand.entry, width, operand.row * math.sqrt(_rows_met(linear, width_in, width)))
        case Diagonal():
            top = float(linear.scale.abs().amax())
            return Range.of(above(operand.entry, top), width, above(operand.row, top))
        case Matrix():
            weight = linear.weight.double()
            by_row = above(float(l2(weight, 1).amax()), operand.row)
            entry = min(by_row, above(float(weight.abs().sum(1).amax()), operand.entry))
            return Range.of(entry * SLACK, width, above(ceiling10(norm(linear).log10), operand.row) * SLACK)
        case Centering():
            return Range.of(2 * operand.entry, width, operand.row if linear.dims == 1 else math.inf)
        case Bounded() if linear.in_shape == linear.out_shape:  # a rotation of every row
            size = above(linear.norm, operand.row) * SLACK
            return Range.of(size, width, size)
        case Averaging():
            ones = torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device)
            return Range.of(above(operand.entry, float(linear.apply(ones).amax())) * SLACK, width)
        case Convolution():
            weight = linear.weight.double().abs()
            sums = weight.sum(dim=(0, *range(2, weight.ndim)) if linear.transposed else tuple(range(1, weight.ndim)))
            # a transposed kernel of several groups lists all inputs first: their sum over all groups is an upper bound
            return Range.of(above(operand.entry, float(sums.amax())) * SLACK, width)
    return UNKNOWN


def _rows_met(linear: Reindex, width_in: int, width: int) -> int:
    """Largest number of input rows (with repetitions of an entry) that one output row gathers from."""
    index: Tensor = linear.index.reshape(-1, width)
    count, size = index.shape[0], linear.in_size
    row = torch.arange(count, device=index.device)[:, None].expand_as(index)
    kept = index >= 0
    if not bool(kept.any()):
        return 0
    entries, repeats = torch.unique(row[kept] * size + index[kept], return_counts=True)
    sources = torch.unique((entries // size) * size + (entries % size) // width_in)
    distinct = torch.bincount(sources // size, minlength=count)
    return int(distinct.amax()) * int(repeats.amax())


@dataclass(frozen=True, slots=True)
class Opaque(Primitive):
    """An operator known by its gains alone: the centre map is 0, the uncertainty the whole gain.

    Attributes:
        node: the operator.
        dtypes: of its operands; truth values are kept as 0 and 1 elsewhere.
    """

    node: Node
    dtypes: tuple[torch.dtype, ...]

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Run the operator on one centre after the other."""
        typed = [value.to(dtype) for value, dtype in zip(values, self.dtypes, strict=True)]
        return torch.stack([self.node.evaluate([value[i] for value in typed]).double() for i in range(len(typed[0]))])

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Ask the global rule, with how large the operands can get."""
        value = self.evaluate([operand.centre for operand in operands])
        batch = len(value)
        gains = torch.full((batch, len(operands)), torch.inf, dtype=torch.float64)
        limits = torch.full((batch,), torch.inf, dtype=torch.float64)
        reason = None
        for i in range(batch):
            effect = effect_of(self.node, [_range(operand, i) for operand in operands])
            if isinstance(effect, Unbounded):
                reason = effect.reason
            else:
                logs = [effect.constant(upper, j).log10 for j in range(len(operands))]
                gains[i] = torch.tensor([ceiling10(log) * (1 + 1e-12) for log in logs], dtype=torch.float64)
            if not isinstance(effect, Linear | Elementwise) and effect.range is not None:
                limits[i] = effect.range.entry
        gains, limits = gains.to(value.device), limits.to(value.device)
        parts = []
        for gain, operand in zip(gains.unbind(1), operands, strict=True):
            weight, moved = (wide(v, value).expand_as(value) for v in (gain, times(gain, operand.constant)))

            def nothing(rows: Tensor, shape: Sequence[int] = operand.centre.shape[1:]) -> Tensor:
                return rows.new_zeros(*rows.shape[:2], *shape)  # the transpose of the zero map

            parts.append(OperandShare(nothing, weight, gain, moved))
        limit = wide(limits, value).expand_as(value)
        return LocalForm(-limit, limit, tuple(parts), reason=reason)


def _range(operand: Enclosure, i: int) -> Range:
    """Return how large one centre's operand can get."""
    size = operand.size[i]
    rows = l2(size.reshape(-1, size.shape[-1] if size.ndim else 1), -1)
    row = float(rows.amax()) if rows.numel() else 0.0
    return Range(float(size.amax()) if size.numel() else 0.0, row)
