"""Entry by entry: the map with absolute entries (for intervals), and the l2 norm of every row (for single outputs)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.log10 import SMALLEST, ceiling10, product_above
from ..core.log10 import norm as l2
from .convolution_map import Convolution
from .linear_map import (
    Averaging,
    Centering,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
    kept,
)
from .operator_norms import upper
from .writing import absolute_entries, in_range, lost, of_each, writable, write_out

WRITTEN = 4_000_000
"""Folded maps with at most this many matrix entries are written out, so that entries that cancel do so."""
_SLACK = 1 + 1e-12


@kept
@torch.no_grad()
def absolute(linear: LinearMap) -> LinearMap | None:
    """Return the map whose matrix has the absolute values of the entries, or one with larger entries.

    If every input entry moves by at most d_j, every output entry moves by at most `absolute(linear)` applied to d. The
    result is None for code that is too large to be written out.
    """
    entries = absolute_entries(linear)
    if entries is not None:
        return entries
    if isinstance(linear, Repeated):
        inner = absolute(linear.inner)
        return None if inner is None else Repeated(inner, linear.leading)
    if small(linear):
        there, back = Identity(linear.in_shape, (linear.in_size,)), Identity((linear.out_size,), linear.out_shape)
        return Composite((there, Matrix(_written_entries(linear)), back))
    return of_each(linear, absolute) if isinstance(linear, Composite | Sum) and in_range(linear) else None


@kept
@torch.no_grad()
def row_norms(linear: LinearMap) -> Tensor | None:
    """Return an upper bound on the l2 norm of every row of the map's matrix, in the shape of the output (float64).

    Exact up to rounding for single maps with zero padding and for whatever is small enough to be written out; None for
    code that is too large for that.
    """
    norms = _row_norms(linear)
    return None if norms is None else _positive(norms, norms * _SLACK + linear.slack)


@kept
@torch.no_grad()
def absolute_norm(linear: LinearMap) -> float:
    """Return a bound on the norm of the map with absolute entries, by the Schur test; rounding adds a share of it."""
    if isinstance(linear, Composite):  # what cancels in the product is rounded all the same
        return product_above(*(absolute_norm(part) for part in linear.parts))
    if isinstance(linear, Sum):
        return sum(absolute_norm(term) for term in linear.terms)
    if isinstance(linear, Identity):
        return 1.0
    spread = absolute(linear)
    if spread is None:
        return ceiling10(upper(linear).log10) * math.sqrt(min(linear.in_size, linear.out_size))
    rows = spread.apply(torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device))
    columns = spread.adjoint(torch.ones(1, *linear.out_shape, dtype=torch.float64, device=linear.device))
    return math.sqrt(float(rows.max())) * math.sqrt(float(columns.max())) * _SLACK


def applied(spread: LinearMap, x: Tensor) -> Tensor:
    """Apply a map without negative entries to what may be infinite."""
    if bool(x.isfinite().all()):
        result = spread.apply(x)
        if result.numel() and bool((x > 0).any()) and float(result.amin()) < 1e-280:
            # products may vanish: each loses less than that
            return torch.where(spread.apply((x > 0).to(x)) > 0, result + SMALLEST * spread.in_size, result)
        return result
    result = spread.apply(torch.where(x.isfinite(), x, 0.0))
    return torch.where(spread.apply(torch.where(x.isfinite(), 0.0, 1.0)) > 0, torch.inf, result)


def small(linear: LinearMap) -> bool:
    """Say whether a map is written out here without being asked; one that lives on no device is not."""
    parts = linear.parts if isinstance(linear, Composite) else linear.terms if isinstance(linear, Sum) else (linear,)
    placed = any(not isinstance(part, Identity | Centering) for part in parts)
    return placed and linear.in_size * linear.out_size <= WRITTEN and writable(linear)


def _written_entries(linear: LinearMap) -> Tensor:
    """Return the absolute entries of a map that is written out, and what they may lack where parts cancel."""
    return write_out(linear).abs() + ceiling10(lost(linear, upper).log10)


def _row_norms(linear: LinearMap) -> Tensor | None:
    ones = torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device)
    match linear:
        case Identity():
            return ones[0].reshape(linear.out_shape)
        case Reindex():
            return linear.apply(ones)[0]
        case Diagonal():
            return linear.scale.double().abs().expand(linear.in_shape)
        case Matrix():
            return l2(linear.weight.double(), 1).expand(linear.out_shape)
        case Convolution():
            # an input that the padding copies meets several taps: their sum is at most the padding's norm times theirs
            sizes = linear.weight.double().abs()
            top = float(sizes.amax()) if sizes.numel() else 0.0
            scale = top if 0.0 < top < math.inf else 1.0
            squares = linear._with_weight((sizes / scale).square(), 0.0).apply(ones)[0]
            plain = linear._with_weight(sizes, 0.0).apply(ones)[0]  # where squares may vanish: the sum is no smaller
            return torch.where(squares > 1e-200, squares.sqrt() * scale, plain) * linear.copies()
        case Centering():
            entries = math.prod(linear.in_shape[-linear.dims :])
            return ones[0] * math.sqrt(max(0.0, 1.0 - 1.0 / entries))
        case Repeated():
            inner = row_norms(linear.inner)
            return None if inner is None else inner.expand(linear.out_shape)
    if small(linear):
        return l2(_written_entries(linear), 1).reshape(linear.out_shape)
    if isinstance(linear, Averaging):
        return linear.apply(ones)[0]  # no negative entry: the l2 norm of a row is at most its sum
    if isinstance(linear, Composite):
        return _composite_rows(linear)
    if isinstance(linear, Sum):
        terms = [row_norms(term) for term in linear.terms]
        return None if any(term is None for term in terms) else torch.stack([t for t in terms if t is not None]).sum(0)
    return None


def _composite_rows(linear: Composite) -> Tensor | None:
    """Row norms of the last part that mixes entries, times the norms before it, moved by the parts that do not mix."""
    first, last = linear.parts[:-1], linear.parts[-1]
    if isinstance(last, Identity | Reindex | Diagonal):
        before = row_norms(Composite(first) if len(first) > 1 else first[0])
        moved = absolute(last)
        if before is None or moved is None:
            return None
        result = moved.apply(before[None])[0]
        if not isinstance(last, Diagonal):
            return result
        met = last.scale.expand(last.in_shape) != 0
        return _positive(met & (before > 0), torch.where(met, result, 0.0))  # zero times an overflow is zero
    rows = row_norms(last)
    if rows is None:
        return None
    size = product_above(*(ceiling10(upper(part).log10) for part in first))
    scaled = torch.where(rows > 0, rows * size, 0.0)
    return _positive(rows, scaled) if size > 0.0 else scaled


def _positive(reached: Tensor, values: Tensor) -> Tensor:
    """Return bounds on entries; one that is reached is never below the smallest normal number."""
    return torch.where(reached > 0, values.clamp(min=SMALLEST), values)
