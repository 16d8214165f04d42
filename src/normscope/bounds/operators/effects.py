"""What an operator does: an effect is what a rule returns, and folding, certificates and balls all read it.

Every effect answers `constant(norm, operand)`: an upper bound on the Lipschitz constant of the whole operator in one of
its operands, the maps around a nonlinear core included, whatever the kind of effect. Below the effects stand the linear
maps and rearrangements that operators of several families are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...core.rounding import Upper, smallest
from ..graph.ir import Node, Ref
from ..linalg.folding import compose
from ..linalg.linear_map import Coded, Diagonal, LinearMap, Reindex

Mover = Callable[[Tensor], Tensor]
Norm = Callable[[LinearMap], Upper]
"""What bounds the norm of one linear map from above."""


@dataclass(frozen=True, slots=True)
class Range:
    """How large a value can get over the inputs in question.

    Attributes:
        entry: bound on the absolute value of every entry.
        row: bound on the l2 norm of every row (the last dimension).
    """

    entry: float = math.inf
    row: float = math.inf

    @classmethod
    def of(cls, entry: float, width: int, row: float = math.inf) -> Range:
        """Return a range for rows of `width` entries, each side tightened by the other."""
        return cls(min(entry, row), min(row, math.sqrt(width) * entry))


UNKNOWN = Range()


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """The operator is affine: the value is the sum of `maps[j]` applied to operand j, plus a constant.

    `disjoint` says that the maps write to different entries (concatenation): changes combine as a root sum of squares.
    """

    maps: tuple[LinearMap, ...]
    disjoint: bool = False

    def constant(self, norm: Norm, operand: int = 0) -> Upper:
        """Return the norm of the operand's map."""
        return norm(self.maps[operand])


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise:
    """One operand, entry by entry, with every secant slope in `slope`; values lie in `range` (lowest, highest)."""

    slope: tuple[float, float]
    range: tuple[float, float] = (-math.inf, math.inf)
    evidence: Evidence = Evidence.NUMERICAL

    @property
    def gain(self) -> Upper:
        """The Lipschitz constant, max(abs(a), abs(b))."""
        return Upper.of(max(abs(self.slope[0]), abs(self.slope[1])), self.evidence, "slope")

    @property
    def moderate(self) -> bool:
        """Whether squares of the slopes, times those of weights, are within the range of floats."""
        top = max(abs(self.slope[0]), abs(self.slope[1]))
        return top == 0.0 or 1e-70 <= top <= 1e70

    def constant(self, norm: Norm, operand: int = 0) -> Upper:
        """Return the largest absolute slope."""
        return self.gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A nonlinear operator with one Lipschitz constant per operand.

    Attributes:
        gains: one upper bound per operand.
        joint: False: the changes add up, sum of gain_j * change_j. True: they are orthogonal or each entry takes one
            of them (`maximum`), root of the sum of squares.
        before, after: linear maps around the nonlinear core (one operand only), so that a LayerNorm's centring and
            scale fold into their neighbours; `gains` then speak of the core alone.
        whole: the constant of the whole operator, `before` and `after` included, where it is known to be smaller than
            the product of the parts (one operand only).
        range: how large the value can get, if the rule knows.
    """

    gains: tuple[Upper, ...]
    joint: bool = False
    before: LinearMap | None = None
    after: LinearMap | None = None
    whole: Upper | None = None
    range: Range | None = None

    def constant(self, norm: Norm, operand: int = 0) -> Upper:
        """Return the gain of the core times the norms of the maps around it, or `whole` where that is smaller."""
        around = [norm(linear) for linear in (self.before, self.after) if linear is not None]
        parts = self.gains[operand].times(*around)
        return parts if self.whole is None else smallest([parts, self.whole])


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """No finite constant exists over the inputs in question, and why."""

    reason: str
    range: Range | None = None

    def constant(self, norm: Norm, operand: int = 0) -> Upper:
        """Return +inf with the reason."""
        return Upper.infinite(self.reason)


Effect = Linear | Elementwise | Gain | Unbounded


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
