"""Maps between fields that do the same everywhere: convolutions, factors per channel, slices, shifts and mean pooling.

A field has channels on a grid and is thought of as part of a torus, zero or anything else outside the grid. On the
torus such a map is block diagonal in the Fourier basis: one small matrix per frequency, its `Stencil.at`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...graph.ir import Node
from ...linalg.convolution_map import Convolution
from ...linalg.linear_map import Averaging, Diagonal, Identity, LinearMap, Reindex, Repeated
from ...linalg.slices import slice_map

Grid = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stencil:
    """Output o of every channel is a sum over taps of the inputs at `o stride + offset`.

    Attributes:
        weight: `[taps, C_out, C_in/groups]`, float64.
        offsets: one tuple per tap, relative to the first input of the window `o stride`.
        stride: per axis.
        size, outputs: the grids on both sides.
        groups: of channels.
        wraps: positions outside the input's grid are taken modulo its size; otherwise they hold zeros.
    """

    weight: Tensor
    offsets: tuple[Grid, ...]
    stride: Grid
    size: Grid
    outputs: Grid
    groups: int = 1
    wraps: bool = False

    @property
    def channels(self) -> tuple[int, int]:
        """Channels of the output and of the input."""
        return self.weight.shape[1], self.weight.shape[2] * self.groups

    @property
    def still(self) -> bool:
        """Whether every output reads the entry at `o stride` alone."""
        return not any(map(any, self.offsets))

    @property
    def reach(self) -> Grid:
        """How far windows of outputs go beyond the input's grid, the larger side of every axis."""
        result = []
        for axis, (size, outputs, stride) in enumerate(zip(self.size, self.outputs, self.stride, strict=True)):
            places = [offset[axis] for offset in self.offsets]
            result.append(max(0, -min(places), (outputs - 1) * stride + max(places) - (size - 1)))
        return tuple(result)

    @property
    def covers(self) -> bool:
        """Whether an input that is zero outside its grid makes such an output: no other window meets the grid."""
        for axis, (size, outputs, stride) in enumerate(zip(self.size, self.outputs, self.stride, strict=True)):
            places = [offset[axis] for offset in self.offsets]
            if max(places) >= stride or outputs * stride + min(places) < size:
                return False
        return True

    def at(self, turns: Tensor) -> Tensor:
        """Return the matrices `[p, C_out, C_in]` at frequencies `[p, axes]`, in turns per entry of the input.

        On unitary transforms of the two tori; of the aliases that a stride folds onto one output frequency this is
        the part of one. Without offsets all frequencies are alike and p is 1.
        """
        taps = self.weight.flatten(1)
        if self.still:
            flat = taps.sum(0, keepdim=True).to(torch.complex128)
        else:
            places = torch.tensor(self.offsets, dtype=torch.float64, device=turns.device)
            angle = turns @ places.T
            angle = 2.0 * math.pi * (angle - angle.round())
            flat = torch.complex(angle.cos() @ taps, angle.sin() @ taps)
        rows, columns = self.channels
        value = flat.reshape(-1, rows, columns // self.groups) / math.sqrt(math.prod(self.stride))
        if self.groups == 1:
            return value
        row = torch.arange(rows, device=turns.device)[:, None]
        column = row // (rows // self.groups) * (columns // self.groups)
        column = column + torch.arange(columns // self.groups, device=turns.device)
        spread = value.new_zeros(value.shape[0], rows, columns)
        spread[:, row, column] = value
        return spread


def grid_of(shape: Sequence[int], axes: int, leading: Grid = ()) -> Grid | None:
    """Return `(channels, *sizes)` of a value with nothing but `leading` (and ones) in front of them, or None."""
    inner = tuple(shape[len(leading) :])
    cut = len(inner) - axes - 1
    fits = tuple(shape[: len(leading)]) == leading and cut >= 0 and math.prod(inner[:cut]) == 1
    return inner[cut:] if fits else None


def stencil_of(linear: LinearMap, node: Node, axes: int, leading: Grid = ()) -> Stencil | None:
    """Return a map between fields with `axes` spatial axes as a stencil, or None if it is not one.

    Args:
        linear: the map.
        node: the operator it is of, whose arguments tell about pooling.
        axes: number of spatial axes.
        leading: dimensions in front, over which it must act slice by slice.
    """
    before, after = grid_of(linear.in_shape, axes, leading), grid_of(linear.out_shape, axes, leading)
    if before is None or after is None:
        return None
    if isinstance(linear, Averaging):
        return _pooling(node, before, after)
    inner = slice_map(linear, leading)
    inner = inner.inner if isinstance(inner, Repeated) and math.prod(inner.leading) == 1 else inner
    match inner:
        case Convolution(transposed=False) if len(inner.axes) == axes:
            return _convolution(inner)
        case Identity() if before == after:
            return _factors(torch.ones(before[0], dtype=torch.float64, device=node.device), before[1:])
        case Diagonal():
            channels = inner.channels(-axes - 1)
            return None if channels is None else _factors(channels.double(), before[1:])
        case Reindex():
            return _moves(inner, before, after)
    return None


def sum_of(linear: LinearMap, axes: int, leading: Grid = ()) -> float | None:
    """Return the factor f of a map that gives, for every channel of a field, f times the sum over its grid; or None."""
    before = grid_of(linear.in_shape, axes, leading)
    if not isinstance(linear, Averaging) or before is None:
        return None
    slices = math.prod(leading)
    if linear.out_size != slices * before[0] or math.prod(before[1:]) == 0:
        return None
    generator = torch.Generator().manual_seed(0)
    rows = (1.0 + torch.rand(slices * before[0], dtype=torch.float64, generator=generator)).to(linear.device)
    spread = linear.adjoint(rows.reshape(1, *linear.out_shape)).reshape(slices * before[0], -1)
    factor = float(spread[0, 0] / rows[0])
    return factor if torch.allclose(spread, factor * rows[:, None].expand_as(spread), rtol=1e-12, atol=0.0) else None


def _convolution(conv: Convolution) -> Stencil | None:
    wraps = conv.padding_mode == "circular"
    if any(axis.left > 0 or axis.right > 0 for axis in conv.axes):
        if conv.padding_mode not in ("zeros", "circular"):
            return None
        if wraps and any(axis.outputs * axis.stride != axis.size for axis in conv.axes):
            return None  # the output is not a torus of its own
    else:
        wraps = False
    taps = torch.cartesian_prod(*(torch.arange(axis.kernel) for axis in conv.axes)).reshape(-1, len(conv.axes))
    offsets = tuple(
        tuple(int(t) * axis.dilation - axis.left for t, axis in zip(tap, conv.axes, strict=True)) for tap in taps
    )
    return Stencil(
        conv.weight.double().flatten(2).movedim(2, 0).contiguous(),
        offsets,
        tuple(axis.stride for axis in conv.axes),
        tuple(axis.size for axis in conv.axes),
        tuple(axis.outputs for axis in conv.axes),
        conv.groups,
        wraps,
    )


def _factors(channels: Tensor, grid: Grid) -> Stencil:
    """One factor per channel."""
    here = (0,) * len(grid)
    return Stencil(channels.reshape(1, -1, 1), (here,), (1,) * len(grid), grid, grid, groups=channels.numel())


def _moves(linear: Reindex, before: Grid, after: Grid) -> Stencil | None:
    """Channels chosen or set to zero, together with one slice, stride or zero padding of the grid."""
    area = math.prod(before[1:])
    index = linear.index.cpu().reshape(after[0], -1)
    kept = index >= 0
    if not bool(kept.any()):
        return None
    source = torch.where(kept, index // area, -1).amax(dim=1)
    places = torch.unravel_index(torch.where(kept, index % area, 0), before[1:])
    outputs = torch.unravel_index(torch.arange(index.shape[1]), after[1:])
    where, expected = torch.zeros(index.shape[1], dtype=torch.int64), torch.ones(index.shape[1], dtype=torch.bool)
    stride, offset = [], []
    for size, place, output in zip(before[1:], places, outputs, strict=True):
        at, to = place[kept], output.expand_as(index)[kept]
        low, high = int(to.argmin()), int(to.argmax())
        span = int(to[high] - to[low])
        step = int(at[high] - at[low]) // span if span else 1
        if step < 1:
            return None
        stride.append(step)
        offset.append(int(at[low]) - step * int(to[low]))
        read = output * step + offset[-1]
        expected &= (read >= 0) & (read < size)
        where = where * size + read
    found = torch.where(expected & (source >= 0)[:, None], source[:, None] * area + where, -1)
    if not torch.equal(found, index):
        return None
    weight = torch.zeros(1, after[0], before[0], dtype=torch.float64)
    used = source >= 0
    weight[0, torch.arange(after[0])[used], source[used]] = 1.0
    return Stencil(weight.to(linear.device), (tuple(offset),), tuple(stride), before[1:], after[1:])


def _pooling(node: Node, before: Grid, after: Grid) -> Stencil | None:
    """Means over windows that all have the same size, padded with zeros."""
    size, outputs = before[1:], after[1:]
    axes = len(size)
    if before[0] != after[0] or max(outputs) == 1:  # one output: no field, part of the dense head
        return None
    windows = _windows(node, size, outputs)
    if windows is None:
        return None
    taps = torch.cartesian_prod(*(torch.arange(k) for k in windows.kernel)).reshape(-1, axes)
    offsets = tuple(tuple(int(t) - p for t, p in zip(tap, windows.padding, strict=True)) for tap in taps)
    weight = torch.full((len(offsets), before[0], 1), 1.0 / windows.divisor, dtype=torch.float64, device=node.device)
    return Stencil(weight, offsets, windows.stride, size, outputs, groups=before[0])


@dataclass(frozen=True, slots=True)
class _PoolingWindows:
    """The windows of a mean, and what their sums are divided by."""

    kernel: Grid
    stride: Grid
    padding: Grid
    divisor: int


def _windows(node: Node, size: Grid, outputs: Grid) -> _PoolingWindows | None:
    """Return the windows of a pooling operator; None where they are not all of the same size."""
    axes = len(size)
    if node.operator == f"adaptive_avg_pool{axes}d":
        if any(n % m for n, m in zip(size, outputs, strict=True)):
            return None
        kernel = tuple(n // m for n, m in zip(size, outputs, strict=True))
        return _PoolingWindows(kernel, kernel, (0,) * axes, math.prod(kernel))
    if node.operator != f"avg_pool{axes}d":
        return None
    arguments = node.bound()
    kernel = _each(arguments["kernel_size"], axes)
    stride = _each(arguments.get("stride") or kernel, axes)
    padding = _each(arguments.get("padding", 0), axes)
    if any(padding) and not arguments.get("count_include_pad", True):
        return None
    ends = zip(size, outputs, kernel, stride, padding, strict=True)
    if any((m - 1) * s + k > n + 2 * p for n, m, k, s, p in ends):
        return None  # ceil_mode: the last window is cut off
    return _PoolingWindows(kernel, stride, padding, int(arguments.get("divisor_override") or math.prod(kernel)))


def _each(value: Any, axes: int) -> Grid:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * axes if len(values) == 1 else values
