"""What an operator does near a point, for bounds over balls.

A node is unrolled into *steps*: affine maps and a few primitive nonlinearities. A primitive meets an `Enclosure` of
each operand (where its value can be over the ball, and how fast it can move) and answers with a `LocalForm`: where its
own value can be, and a centre map with an uncertainty per operand. Everything is batched over centres, in float64.

For two inputs of one ball let dv be the change of an operand and du that of the value. Then du = sum over operands of
M dv + dw with norm(dw/weight) <= norm(dv): the centre map M is fixed per centre, the `weight` says how much the
derivative can differ from it, entry by entry, over the ball.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....core.log10 import SMALLEST
from ....core.log10 import norm as l2
from ...graph.ir import Node, Ref
from ...linalg.linear_map import LinearMap, Reindex

Shape = tuple[int, ...]
ROUNDING = 2.0**-44
"""Relative rounding allowance of one step in float64."""


@dataclass(frozen=True, slots=True)
class Enclosure:
    """One value over the ball around each of B centres.

    Attributes:
        centre: `[B, *shape]`, the value at the centre.
        low, high: entrywise limits of the value over the ball; they hold the centre.
        constant: `[B]`, l2 Lipschitz constant of the value as a function of the input, over the ball.
        entries: `[B, *shape]`, Lipschitz constant of every entry.
        radius: `[B]`, of the balls.
        sets: for values `[B, sets, n]` the constant of every set, `[B, sets]`, where it is known.
        apart: for values `[B, sets, n]` how far (l2) every set can be from its centre, `[B, sets]`, where it is known.
        ahead: for values `[B, sets, n]` limits of how far every set can move along its centre, `[B, sets]` each, where
            they are known; see `along`.
    """

    centre: Tensor
    low: Tensor
    high: Tensor
    constant: Tensor
    entries: Tensor
    radius: Tensor
    sets: Tensor | None = None
    apart: Tensor | None = None
    ahead: tuple[Tensor, Tensor] | None = None

    @property
    def deviation(self) -> Tensor:
        """How far every entry can be from the centre."""
        above = torch.where(self.high == self.centre, 0.0, self.high - self.centre)
        below = torch.where(self.low == self.centre, 0.0, self.centre - self.low)
        return torch.maximum(above, below)

    @property
    def size(self) -> Tensor:
        """How large every entry can get, in absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def along(self) -> tuple[Tensor, Tensor]:
        """Limit <v - centre, centre>/norm(centre) for every set v of the last dimension, `[B, sets]` each."""
        far = self.distance(1)
        if self.ahead is None or self.ahead[0].shape != far.shape:
            return -far, far
        return torch.maximum(self.ahead[0], -far), torch.minimum(self.ahead[1], far)

    def distance(self, dims: int) -> Tensor:
        """How far (l2) each set of the last `dims` dimensions can be from its centre, the other dimensions kept."""
        deviation = self.deviation
        apart = l2(flat(deviation, deviation.ndim - dims), -1)
        if self.apart is not None and self.apart.shape == apart.shape:
            apart = torch.minimum(apart, self.apart)
        if self.sets is not None and self.sets.shape == apart.shape:
            return torch.minimum(apart, times(self.sets, self.radius[:, None]))
        return torch.minimum(apart, wide(times(self.constant, self.radius), apart))


@dataclass(frozen=True, slots=True)
class OperandShare:
    """The share of one operand in the change of a value.

    Attributes:
        pull: the transpose of the centre map, `[B, K, *out]` to `[B, K, *in]`.
        weight: `[B, *out]`: norm(dw/weight) <= norm(dv), and dw is 0 where the weight is.
        gain: `[B]`: norm of this share <= gain * norm(dv).
        entries: `[B, *out]`: every entry of this share moves by at most that much per unit of the input.
        slopes: for entrywise operators the interval of slopes, `[B, *out]` each.
        operand: `[B, *out]`, where the primitive acts on sets: the constant of the set behind every entry.
        blocks: how many dimensions behind the batch number independent blocks: norm(dw/weight) <= norm(dv) holds for
            each of them alone.
    """

    pull: Callable[[Tensor], Tensor]
    weight: Tensor
    gain: Tensor
    entries: Tensor
    slopes: tuple[Tensor, Tensor] | None = None
    operand: Tensor | None = None
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class CentredValue:
    """The value is that at the centre, plus maps of the operands' changes, plus a rest in [low, high], entry by entry.

    `pulls` are the transposes of the maps, `[B, K, *out]` to `[B, K, *in]`. With a `weight` (and one operand, in sets)
    the rest of every set has an l2 norm of at most the weight times the set's distance from its centre, too. With
    `multiple` the rest of every set in [low, high] stands beside a multiple of the set's centre, with a factor in these
    limits, `[B, sets]` each. If it is `balanced`, the rest of every set sums to zero.
    """

    pulls: tuple[Callable[[Tensor], Tensor], ...]
    low: Tensor
    high: Tensor
    weight: Tensor | None = None
    multiple: tuple[Tensor, Tensor] | None = None
    balanced: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Two affine functions of the operands, entry by entry, that enclose the value: low <= value <= high."""

    low_slopes: tuple[Tensor, ...]
    low_offset: Tensor
    high_slopes: tuple[Tensor, ...]
    high_offset: Tensor


@dataclass(frozen=True, slots=True)
class LocalForm:
    """What a primitive does over the ball.

    Attributes:
        low, high: limits of its value.
        parts: one per operand.
        lines: gives lines around the value, for primitives that know some; the others stay with their centre map.
        reason: why there is no finite gain, if there is none.
        around: gives maps with an entrywise rest, for primitives that know some.
    """

    low: Tensor
    high: Tensor
    parts: tuple[OperandShare, ...]
    lines: Callable[[], Lines] | None = None
    reason: str | None = None
    around: Callable[[], CentredValue] | None = None


class Primitive(ABC):
    """A nonlinear step, batched: `[B, *in]` for every operand to `[B, *out]`."""

    @abstractmethod
    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Return the value at each centre."""

    @abstractmethod
    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Return what the primitive does over the enclosures."""


@dataclass(frozen=True, slots=True)
class Affine:
    """The value is the sum of maps of earlier steps, plus a constant."""

    maps: tuple[LinearMap, ...]
    constant: Tensor | None = None
    disjoint: bool = False


@dataclass(frozen=True, slots=True)
class UnrolledStep:
    """One step of an unrolled graph: an affine map of earlier values, or a primitive."""

    name: str
    shape: Shape
    operation: Affine | Primitive
    operands: tuple[str, ...]


class Builder:
    """Collects the steps of one node."""

    def __init__(self, node: Node, shapes: dict[str, Shape]) -> None:
        self.node, self.shapes, self.steps = node, shapes, list[UnrolledStep]()

    def operand(self, argument: Any) -> str:
        """Return the name of an argument's value; constants become steps of their own."""
        if isinstance(argument, Ref):
            return argument.name
        value = torch.as_tensor(argument, dtype=torch.float64, device=self.node.device)
        return self._add(Affine((), value), (), tuple(value.shape))

    def affine(self, terms: Sequence[tuple[str, LinearMap]], constant: Tensor | None = None) -> str:
        """Add a sum of maps of values, plus a constant."""
        shape = terms[0][1].out_shape
        return self._add(Affine(tuple(m for _, m in terms), constant), tuple(name for name, _ in terms), shape)

    def move_entries(self, name: str, function: Callable[[Tensor], Tensor]) -> str:
        """Add a step that only moves or copies entries; none where they stay as they are."""
        linear = Reindex.of(function, self.shapes[name], self.node.device)
        if linear.in_shape == linear.out_shape and not isinstance(linear, Reindex):
            return name
        return self.affine([(name, linear)])

    def apply(self, primitive: Primitive, *operands: str, shape: Sequence[int]) -> str:
        """Add a primitive of values; `shape` is that of its value."""
        return self._add(primitive, operands, tuple(shape))

    def _add(self, operation: Affine | Primitive, operands: tuple[str, ...], shape: Shape) -> str:
        name = f"{self.node.name}:{len(self.steps)}"
        self.steps.append(UnrolledStep(name, shape, operation, operands))
        self.shapes[name] = shape
        return name


def times(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of bounds; zero times infinity is zero: what cannot move cannot be moved far.

    What is not zero does not vanish: a product below the range of floats is rounded away from zero.
    """
    product = a * b
    product = torch.where(product == 0, torch.copysign(torch.full_like(product, SMALLEST), product), product)
    return torch.where((a == 0) | (b == 0), 0.0, product)


def wide(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value per centre (or per leading dimensions) so that it broadcasts against `like`."""
    return values.reshape(*values.shape, *(1,) * (like.ndim - values.ndim))


def flat(x: Tensor, kept: int = 1) -> Tensor:
    """Return the entries behind the first `kept` dimensions in one."""
    return x.reshape(*x.shape[:kept], -1)


def diagonal_part(low: Tensor, high: Tensor, operand: Enclosure) -> OperandShare:
    """Return the part of an entrywise operand with slopes in [low, high]."""
    middle, half = (low + high) / 2, (high - low) / 2
    middle = torch.where(half.isfinite(), middle, 0.0)
    half = torch.where(half.isfinite(), half, torch.inf)
    steepest = torch.maximum(low.abs(), high.abs())
    return OperandShare(
        pull=lambda rows: rows * middle[:, None],
        weight=half,
        gain=flat(steepest).amax(1),
        entries=times(steepest, operand.entries),
        slopes=(low, high),
        blocks=low.ndim - 1,
    )
