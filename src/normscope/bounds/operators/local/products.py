"""Products of two variable values near a point: entrywise, gated, divided, and matrix products.

a b - a' b' = (b + b')/2 (a - a') + (a + a')/2 (b - b'): in each factor the slope is the other factor, somewhere in its
enclosure. The same holds for matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ....core.log10 import norm as l2
from .local import (
    ROUNDING,
    Builder,
    CentredValue,
    Enclosure,
    Lines,
    LocalForm,
    OperandShare,
    Primitive,
    diagonal_part,
    times,
    wide,
)


class Multiply(Primitive):
    """The entrywise product of two values of one shape."""

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Multiply."""
        return values[0] * values[1]

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Each factor is the other's slope."""
        a, b = operands
        corners = torch.stack([times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)])
        low, high = corners.amin(0), corners.amax(0)
        parts = diagonal_part(b.low, b.high, a), diagonal_part(a.low, a.high, b)
        return LocalForm(low, high, parts, cache(lambda: _plane(a, b)))


def _plane(a: Enclosure, b: Enclosure) -> Lines:
    """Return the plane a_m b + b_m a - a_m b_m of both middles, off by (a - a_m)(b - b_m) at most."""
    middles, halves = [(x.low + x.high) / 2 for x in (a, b)], [(x.high - x.low) / 2 for x in (a, b)]
    rest = times(halves[0], halves[1]) + ROUNDING * times(a.size, b.size)
    bad = ~(rest.isfinite() & middles[0].isfinite() & middles[1].isfinite())
    slopes = torch.where(bad, 0.0, middles[1]), torch.where(bad, 0.0, middles[0])
    offset = -middles[0] * middles[1]
    return Lines(
        slopes,
        torch.where(bad, -torch.inf, offset - rest),
        slopes,
        torch.where(bad, torch.inf, offset + rest),
    )


@dataclass(frozen=True, slots=True)
class MatrixProduct(Primitive):
    """`A @ B` for `[B, *leading, n, k]` and `[B, *leading, k, m]`."""

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Multiply the last two dimensions."""
        return values[0] @ values[1]

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Each factor is the other's map; its distance from the centre is the uncertainty."""
        a, b = operands
        middles, halves = [(x.low + x.high) / 2 for x in (a, b)], [(x.high - x.low) / 2 for x in (a, b)]
        value = middles[0] @ middles[1]
        reach = middles[0].abs() @ halves[1] + halves[0] @ middles[1].abs() + halves[0] @ halves[1]
        reach = reach + ROUNDING * (a.size @ b.size)
        first, second = _centre_map(a), _centre_map(b)
        out = torch.zeros_like(value)
        # dA moves row i of the product by dA_i B: every entry by a column of B, or by the entries of dA one by one
        columns = torch.minimum(l2(b.size, -2, keepdim=True), l2(b.centre, -2, keepdim=True) + second.reach)
        rows = torch.minimum(l2(a.size, -1, keepdim=True), l2(a.centre, -1, keepdim=True) + first.reach)
        from_a = torch.minimum(times(wide(a.constant, out), columns).expand_as(out), a.entries @ b.size)
        from_b = torch.minimum(times(wide(b.constant, out), rows).expand_as(out), a.size @ b.entries)
        parts = (
            OperandShare(
                lambda rows: rows @ second.matrix[:, None].mT,
                second.radius.expand_as(out),
                second.gain,
                from_a,
                blocks=value.ndim - 3,
            ),
            OperandShare(
                lambda rows: first.matrix[:, None].mT @ rows,
                first.radius.expand_as(out),
                first.gain,
                from_b,
                blocks=value.ndim - 3,
            ),
        )
        return LocalForm(value - reach, value + reach, parts, around=cache(lambda: _around(a, b)))


def _around(a: Enclosure, b: Enclosure) -> CentredValue:
    """Return the maps of both middles: A B = A_m B + A B_m - A_m B_m + (A - A_m)(B - B_m), relative to the centre."""
    middles, halves = [(x.low + x.high) / 2 for x in (a, b)], [(x.high - x.low) / 2 for x in (a, b)]
    good = [m.isfinite() & h.isfinite() for m, h in zip(middles, halves, strict=True)]
    first, second = (torch.where(g, m, x.centre) for g, m, x in zip(good, middles, (a, b), strict=True))
    rest = halves[0] @ halves[1] + ROUNDING * (a.size @ b.size)
    rest = rest.nan_to_num(nan=torch.inf)
    shift = (a.centre - first) @ (b.centre - second)
    return CentredValue(
        (lambda rows: rows @ second[:, None].mT, lambda rows: first[:, None].mT @ rows),
        -rest - shift,
        rest - shift,
    )


@dataclass(frozen=True, slots=True)
class _CentreMap:
    """A matrix, how far the true one can be from it (per matrix), and how large the true one can get."""

    matrix: Tensor
    radius: Tensor
    reach: Tensor
    gain: Tensor


def _spectral(matrix: Tensor) -> Tensor:
    """Return the spectral norm of matrices, rescaled by their largest entry so that no square vanishes."""
    top = matrix.abs().amax((-2, -1), keepdim=True)
    scale = torch.where((top > 0) & top.isfinite(), top, 1.0)
    return torch.linalg.matrix_norm(matrix / scale, ord=2) * scale[..., 0, 0]


def _centre_map(x: Enclosure) -> _CentreMap:
    middle = (x.low + x.high) / 2
    half = l2((x.high - x.low) / 2, (-2, -1)).nan_to_num(nan=torch.inf, posinf=torch.inf)
    distance = x.distance(2)
    nearer = wide(half < distance, x.centre)
    matrix = torch.where(nearer, torch.where(middle.isfinite(), middle, 0.0), x.centre)
    radius = torch.minimum(half, distance) * (1 + 1e-12)
    size = x.size
    gain = (
        torch.stack(
            [
                _spectral(matrix) * (1 + 1e-12) + radius,
                l2(size, (-2, -1)),
                size.sum(-1).amax(-1).sqrt() * size.sum(-2).amax(-1).sqrt(),
            ]
        )
        .nan_to_num(nan=torch.inf, posinf=torch.inf)
        .amin(0)
    )
    whole = gain.flatten(1).amax(1) if gain.ndim > 1 else gain
    return _CentreMap(matrix, wide(radius, x.centre), wide(distance, x.centre), whole)


def product_of(build: Builder, left: str, right: str) -> str:
    """Add a matrix product of two values, their leading dimensions broadcast."""
    a, b = build.shapes[left], build.shapes[right]
    leading = tuple(torch.broadcast_shapes(a[:-2], b[:-2]))
    left = build.move_entries(left, lambda x: x.expand(*leading, *a[-2:]))
    right = build.move_entries(right, lambda x: x.expand(*leading, *b[-2:]))
    return build.apply(MatrixProduct(), left, right, shape=(*leading, a[-2], b[-1]))
