"""A node without steps near a point: its effect at the sizes that the ball allows, and no centre map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.log10 import ceiling10
from ...core.log10 import norm as l2
from ...graph.ir import Node
from ...linalg.operator_norms import upper
from ..effects import Elementwise, Linear, Range, Unbounded
from ..registry import effect_of
from .local import Enclosure, LocalForm, OperandShare, Primitive, times, wide


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
