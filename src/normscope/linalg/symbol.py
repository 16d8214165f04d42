"""The symbol of a convolution: one small matrix per frequency of a torus, and their Gram matrices.

A zero-padded convolution T of n inputs (padding left, right; stride s) is a restriction of a convolution on any torus
of N >= n + max(left, right) entries, N a multiple of s, also when every turn around the torus multiplies by -1
(a *twisted* torus: its frequencies are the half-integers). So norm(T) is at most the largest singular value over the
torus' frequencies. Stride: the s inputs between two outputs become s channels (phases), which leaves a convolution of
stride 1 on N/s entries; phases that no tap reads are dropped, and so is an axis whose taps all fall on one entry.

Taps wrap around a torus smaller than the kernel by themselves: the transform is an explicit sum over taps, not an FFT
(which would crop them). Only one of each pair of conjugate frequencies is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.rounding import gram_allowance
from .convolution import Axis, Convolution


@dataclass(frozen=True, slots=True)
class Ring:
    """A torus for one axis: its size, the stride of its outputs, its twist and the factor lost by using it.

    Attributes:
        size: entries N, a multiple of `stride`.
        stride: step between outputs on the torus.
        twisted: whether a turn multiplies by -1.
        factor: norm(T) <= factor * (largest singular value on the torus).
        exact: whether the torus is the map itself.
    """

    size: int
    stride: int
    twisted: bool = False
    factor: float = 1.0
    exact: bool = False


def rings(axis: Axis, mode: str, extra: int = 0) -> list[Ring]:
    """Return the tori that bound one axis, the least first; an empty list means that no window meets the input.

    Args:
        axis: the geometry of the axis.
        mode: the padding mode.
        extra: how many larger tori to add.
    """
    if mode == "zeros" or (axis.left == 0 and axis.right <= 0):
        return _zero_rings(axis, extra)
    source = axis.source(mode, torch.device("cpu"))
    valid = Axis(axis.padded, axis.outputs, axis.kernel, axis.stride, axis.dilation, 0, 0)
    copies = math.sqrt(int(torch.bincount(source).max())) * (1.0 + 2.0**-50)
    found = [Ring(ring.size, ring.stride, ring.twisted, copies) for ring in _zero_rings(valid, extra)]
    if mode != "circular":
        return found
    stride = math.gcd(axis.stride, axis.size)
    places = torch.bincount((torch.arange(axis.outputs) * axis.stride - axis.left) % axis.size)
    most = int(places.max())
    exact = stride == axis.stride and most == 1 and axis.outputs == axis.size // stride
    wrapped = Ring(axis.size, stride, False, 1.0 if most == 1 else math.sqrt(most) * (1.0 + 2.0**-50), exact)
    return [wrapped] if exact else [wrapped, *found]


def _zero_rings(axis: Axis, extra: int) -> list[Ring]:
    """Tori for zero padding: windows that lie wholly in the padding are left out first."""
    first = max(0, -((axis.extent - 1 - axis.left) // axis.stride))
    last = min(axis.outputs - 1, (axis.size - 1 + axis.left) // axis.stride)
    if first > last:
        return []
    left = axis.left - axis.stride * first
    span = (last - first) * axis.stride
    right = span - left + axis.extent - axis.size
    read = axis.size + min(0, right) + min(0, left)
    least = max(read + max(left, right, 0), span + 1)
    least += -least % axis.stride
    sizes = [least + step * axis.stride for step in range(extra + 1)]
    return [Ring(size, axis.stride, twisted) for size in sizes for twisted in (False, True)]


def _merge(parts: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Put phases whose taps sit on the same entries side by side."""
    found: dict[tuple[tuple[int, ...], ...], tuple[Tensor, list[Tensor]]] = {}
    for position, part in parts:
        key = tuple(tuple(row) for row in position.tolist())
        found.setdefault(key, (position, []))[1].append(part)
    return [(position, torch.cat(same, dim=3)) for position, same in found.values()]


class Symbol:
    """Gram matrices of a convolution on a torus (short side first), by frequency and group.

    Args:
        conv: the convolution.
        torus: one ring per axis.

    Attributes:
        size: order m of the Gram matrices.
        frequencies: number of frequencies kept (one of each conjugate pair).
        groups: number of channel groups.
        inputs: whether the Gram matrices act on the (phased) input channels, not the output channels.
        error: bound on the norm of the rounding error of a Gram matrix.
        factor: product of the rings' factors.
    """

    def __init__(self, conv: Convolution, torus: Sequence[Ring]) -> None:
        self.torus = tuple(torus)
        self.groups = conv.groups
        self.factor = math.prod(ring.factor for ring in torus)
        weight = conv.weight.double()
        self.device = weight.device
        rows, inner = weight.shape[0] // conv.groups, weight.shape[1]
        taps = weight.reshape(conv.groups, rows, inner, -1).permute(3, 0, 1, 2).contiguous()
        position = torch.tensor(
            list(itertools.product(*(range(0, axis.extent, axis.dilation) for axis in conv.axes))), dtype=torch.int64
        )
        strides = torch.tensor([ring.stride for ring in torus])
        whole, phase = position // strides, position % strides
        phases, phase_id = torch.unique(phase, dim=0, return_inverse=True)
        self.phases = phases
        self.axes = [a for a in range(len(torus)) if len(torch.unique(whole[:, a])) > 1]
        self.origin = whole.amin(dim=0)
        self.inputs = rows > len(phases) * inner
        tap_norms = taps.flatten(2).norm(dim=2)
        self.tap_sum = float(tap_norms.sum(dim=0).max()) * (1.0 + 1e-9) if taps.numel() else 0.0
        if self.inputs:
            places, place_id = torch.unique(whole, dim=0, return_inverse=True)
            full = taps.new_zeros(len(places), len(phases), *taps.shape[1:])
            full[place_id.to(self.device), phase_id.to(self.device)] = taps
            full = full.permute(0, 2, 1, 4, 3).reshape(len(places), conv.groups, -1, rows)
            self.parts = [(-places[:, self.axes], full)]
        else:
            self.parts = _merge(
                (whole[phase_id == index][:, self.axes], taps[(phase_id == index).to(self.device)])
                for index in range(len(phases))
            )
        self.size = self.parts[0][1].shape[2]
        self.inner = sum(part.shape[3] for _, part in self.parts)
        self.error = gram_allowance(self.inner, len(position), len(self.axes)) * self.tap_sum**2
        self.grid = self._half_grid()
        self.frequencies = self.grid.shape[0]
        self.real = not self.axes
        self._lags: tuple[Tensor, Tensor] | None = None

    @property
    def exact(self) -> bool:
        """Whether the largest singular value on the torus is the norm of the map itself, not just a bound."""
        return all((ring.exact or a not in self.axes) and ring.factor == 1.0 for a, ring in enumerate(self.torus))

    def _half_grid(self) -> Tensor:
        """Return twice the frequency `[f, axes]` in units of 1/N, one of each conjugate pair."""
        if not self.axes:
            return torch.zeros(1, 0, dtype=torch.int64)
        used = [self.torus[a] for a in self.axes]
        self.sizes = torch.tensor([ring.size // ring.stride for ring in used])
        twist = torch.tensor([int(ring.twisted) for ring in used])
        grid = torch.cartesian_prod(*(torch.arange(int(n)) for n in self.sizes)).reshape(-1, len(used))
        mirrored = (-grid - twist) % self.sizes
        weights = torch.cumprod(torch.cat([torch.ones(1, dtype=torch.int64), self.sizes.flip(0)[:-1]]), 0).flip(0)
        keep = (grid * weights).sum(1) <= (mirrored * weights).sum(1)
        return (2 * grid + twist)[keep]

    def turns(self, grid: Tensor, position: Tensor) -> Tensor:
        """Return the fraction of a turn `[f, p]` of each frequency at each position, reduced in integers."""
        total = torch.zeros(grid.shape[0], position.shape[0], dtype=torch.float64)
        for a in range(len(self.axes)):
            period = 2 * int(self.sizes[a])
            total += ((grid[:, a : a + 1] * position[:, a][None]) % period).double() / period
        return total - total.round()

    def gram(self, grid: Tensor) -> Tensor:
        """Return the Gram matrices `[f, groups, m, m]` at the given frequencies, complex128 (float64 when real)."""
        if self._lags_pay():
            return self._gram_from_lags(grid)
        out: Tensor | None = None
        for position, part in self.parts:
            block = self._matrix(grid, position, part)
            product = block @ block.mH
            out = product if out is None else out + product
        assert out is not None
        return out

    def _matrix(self, grid: Tensor, position: Tensor, part: Tensor) -> Tensor:
        """Return the symbol of one part `[f, groups, m, inner]`."""
        if not self.axes:
            return part
        angle = (2.0 * math.pi * self.turns(grid, position)).to(self.device)
        flat = part.flatten(1)
        block = torch.complex(angle.cos() @ flat, angle.sin() @ flat)
        return block.reshape(grid.shape[0], *part.shape[1:])

    def _lags_pay(self) -> bool:
        """Whether correlating taps first costs less than a product per frequency."""
        if not self.axes:
            return False
        m = self.size
        lags = math.prod(
            2 * len(torch.unique(torch.cat([p[:, a] for p, _ in self.parts]))) for a in range(len(self.axes))
        )
        pairs = sum(part.shape[0] ** 2 * part.shape[3] for _, part in self.parts) * m
        each = sum((8 * m + 4 * part.shape[0]) * part.shape[3] for _, part in self.parts)
        return m > 1 and pairs + self.frequencies * 2 * lags * m < self.frequencies * each

    def _gram_from_lags(self, grid: Tensor) -> Tensor:
        """Sum the correlations of taps over their lags: G(nu) = C_0 + sum over lags of C e^(i lag nu) + transpose."""
        if self._lags is None:
            self._lags = self._correlate()
        lags, correlation = self._lags
        angle = (2.0 * math.pi * self.turns(grid, lags)).to(self.device)
        groups, m = correlation.shape[1], self.size
        even = (correlation + correlation.mT).flatten(1)
        even[0] *= 0.5
        odd = (correlation - correlation.mT).flatten(1)
        shape = (grid.shape[0], groups, m, m)
        return torch.complex((angle.cos() @ even).reshape(shape), (angle.sin() @ odd).reshape(shape))

    def _correlate(self) -> tuple[Tensor, Tensor]:
        """Return lags `[l, axes]` (zero first, one of each opposite pair) and correlations `[l, groups, m, m]`."""
        index: dict[tuple[int, ...], int] = {(0,) * len(self.axes): 0}
        sums: list[Tensor] = [self.parts[0][1].new_zeros(self.groups, self.size, self.size)]
        for position, part in self.parts:
            places = [tuple(row) for row in position.tolist()]
            columns = part.permute(1, 3, 0, 2)
            for a, place in enumerate(places):
                others = [b for b, other in enumerate(places) if other <= place]
                wide = columns[:, :, others].flatten(2)
                product = (part[a] @ wide).reshape(self.groups, self.size, len(others), self.size)
                for column, b in enumerate(others):
                    lag = tuple(x - y for x, y in zip(place, places[b], strict=True))
                    if lag not in index:
                        index[lag] = len(sums)
                        sums.append(torch.zeros_like(sums[0]))
                    sums[index[lag]] += product[:, :, column]
        return torch.tensor(list(index), dtype=torch.int64).reshape(len(sums), -1), torch.stack(sums)

    def chunks(self, byte_limit: float = 1.5e8) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield frequencies and their Gram matrices in pieces of bounded memory."""
        each = self.groups * self.size * max(self.size, self.inner) * 16.0
        step = max(1, int(byte_limit / each))
        for start in range(0, self.frequencies, step):
            grid = self.grid[start : start + step]
            yield grid, self.gram(grid)
