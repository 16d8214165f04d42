"""Symbols of convolutions on tori, and their Gram matrices.

The symbol of a convolution has one small matrix per frequency of a torus.

A zero-padded convolution T of n inputs (padding left, right; stride s) is a restriction of a convolution on any torus
of N >= n + max(left, right) entries, N a multiple of s, also when every turn around the torus multiplies by -1
(a *twisted* torus: its frequencies are the half-integers). So norm(T) is at most the largest singular value over the
torus' frequencies. Stride: the s inputs between two outputs become s channels (phases), which leaves a convolution of
stride 1 on N/s entries; phases that no tap reads are dropped, and so is an axis whose taps all fall on one entry.

Taps wrap around a torus smaller than the kernel by themselves: the transform is an explicit sum over taps, not an FFT
(which would crop them). Only one of each pair of conjugate frequencies is kept.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.rounding import gram_allowance
from .certify import gram_matrix
from .convolution_map import Axis, Convolution


class Kernel:
    """A convolution as one of stride 1 on phased channels, arranged so that its Gram matrices are small.

    The `s` inputs between two outputs become `s` channels (phases); phases that no tap reads are dropped, and so are
    axes along which all taps fall on one entry.

    Attributes:
        parts: tap positions `[t, axes]` and matrices `[t, groups, m, inner]`; the Gram matrix is the sum over parts.
        axes: the axes that frequencies live on.
        inputs: whether the Gram matrices act on the (phased) input channels, not on the output channels.
        size: order m of the Gram matrices.
        square: the sum over parts of S^2, where S is the sum over the part's taps of a norm of the tap's absolute
            weights; the largest over groups. The rounding error of a Gram matrix is proportional to it.
        phases: the phases that taps read, `[p, all axes]`.
        origin: the least entry that taps read, for each axis.
    """

    def __init__(self, conv: Convolution, strides: Sequence[int]) -> None:
        self.groups, self.device = conv.groups, conv.weight.device
        weight = conv.weight.double()
        rows, inner = weight.shape[0] // conv.groups, weight.shape[1]
        taps = weight.reshape(conv.groups, rows, inner, -1).permute(3, 0, 1, 2).contiguous()
        offsets = itertools.product(*(range(0, axis.extent, axis.dilation) for axis in conv.axes))
        position = torch.tensor(list(offsets), dtype=torch.int64)
        whole, phase = position // torch.tensor(strides), position % torch.tensor(strides)
        self.phases, phase_id = torch.unique(phase, dim=0, return_inverse=True)
        self.axes = [a for a in range(len(strides)) if len(torch.unique(whole[:, a])) > 1]
        self.origin = whole.amin(dim=0)
        self.taps = len(position)
        self.inputs = rows > len(self.phases) * inner
        if self.inputs:
            entries, entry_id = torch.unique(whole, dim=0, return_inverse=True)
            full = taps.new_zeros(len(entries), len(self.phases), *taps.shape[1:])
            full[entry_id.to(self.device), phase_id.to(self.device)] = taps
            full = full.permute(0, 2, 1, 4, 3).reshape(len(entries), conv.groups, -1, rows)
            self.parts = [(-entries[:, self.axes].flip(0), full.flip(0) if len(full) > 1 else full)]
        else:
            chosen = [torch.nonzero(phase_id == index)[:, 0] for index in range(len(self.phases))]
            self.parts = _merge((whole[c][:, self.axes], taps[c.to(self.device)]) for c in chosen)
        self.size = self.parts[0][1].shape[2]
        self.inner = sum(part.shape[3] for _, part in self.parts)
        squares = torch.stack([_sizes(part).sum(dim=0).square() for _, part in self.parts])
        self.square = float(squares.sum(dim=0).max()) * (1.0 + 1e-9)
        self._lags: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def lag_count(self) -> int:
        """About how many different lags the taps have."""
        count = 1
        for a in range(len(self.axes)):
            count *= 2 * len(torch.unique(torch.cat([position[:, a] for position, _ in self.parts])))
        return count

    def correlations(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return lags `[l, axes]` (zero first, one of each opposite pair) and the two sides of their correlations.

        With C the sum of W_a W_b^T over taps at that lag: C + C^T (C itself at lag zero) and C - C^T, flattened to
        `[l, groups m m]`. Taps come in lexicographic order, so that only non-negative lags occur.
        """
        if self._lags is not None:
            return self._lags
        index: dict[tuple[int, ...], int] = {(0,) * len(self.axes): 0}
        sums: list[Tensor] = [self.parts[0][1].new_zeros(self.groups, self.size, self.size)]
        for position, part in self.parts:
            taps = [tuple(row) for row in position.tolist()]
            columns = part.permute(1, 3, 0, 2).flatten(2)
            for a, tap in enumerate(taps):  # the products of a tap with the transposes of all taps up to itself
                check_time()
                product = part[a] @ columns[:, :, : (a + 1) * self.size]
                for b, block in enumerate(product.split(self.size, dim=2)):
                    lag = tuple(x - y for x, y in zip(tap, taps[b], strict=True))
                    if lag not in index:
                        index[lag] = len(sums)
                        sums.append(block)
                    else:
                        sums[index[lag]] += block
        correlation = torch.stack(sums)
        even, odd = (correlation + correlation.mT).flatten(1), (correlation - correlation.mT).flatten(1)
        even[0] *= 0.5
        self._lags = torch.tensor(list(index), dtype=torch.int64).reshape(len(sums), -1), even, odd
        return self._lags


def _sizes(taps: Tensor) -> Tensor:
    """Return, for every tap and group, a bound on the spectral norm of its absolute weights, up to rounding.

    The bound is the smaller of the Frobenius norm and the root of the largest row sum times the largest column sum.
    """
    absolute = taps.abs()
    sums = absolute.sum(dim=3).amax(dim=2) * absolute.sum(dim=2).amax(dim=2)
    return torch.minimum(taps.flatten(2).norm(dim=2), sums.sqrt())


def _merge(parts: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Concatenate the phases whose taps lie on the same entries."""
    merged: dict[tuple[tuple[int, ...], ...], tuple[Tensor, list[Tensor]]] = {}
    for position, part in parts:
        key = tuple(tuple(row) for row in position.tolist())
        merged.setdefault(key, (position, []))[1].append(part)
    return [(position, torch.cat(same, dim=3)) for position, same in merged.values()]


@dataclass(frozen=True, slots=True)
class Ring:
    """A torus for one axis: its size, the stride of its outputs, its twist and the factor that it costs.

    Attributes:
        size: entries N, a multiple of `stride`.
        stride: step between outputs on the torus.
        twisted: whether a turn multiplies by -1.
        factor: norm(T) <= factor * (largest singular value on the torus).
        exact: whether the torus is the map itself.
        reached: whether some window lies wholly inside the input (then an axis without frequencies is exact).
        rigid: whether the ring is that of circular padding, which may neither be twisted nor resized.
    """

    size: int
    stride: int
    twisted: bool = False
    factor: float = 1.0
    exact: bool = False
    reached: bool = False
    rigid: bool = False


def rings(axis: Axis, mode: str) -> list[Ring]:
    """Return the tori that bound one axis, the best first; an empty list means that no window meets the input."""
    if mode == "zeros" or (axis.left == 0 and axis.right <= 0):
        return _zero_rings(axis)
    source = axis.source(mode, torch.device("cpu"))
    valid = Axis(axis.padded, axis.outputs, axis.kernel, axis.stride, axis.dilation, 0, 0)
    copies = math.sqrt(int(torch.bincount(source).max())) * (1.0 + 2.0**-50)
    padded = [Ring(ring.size, ring.stride, ring.twisted, copies) for ring in _zero_rings(valid)]
    if mode != "circular":
        return padded
    stride = math.gcd(axis.stride, axis.size)
    hits = torch.bincount((torch.arange(axis.outputs) * axis.stride - axis.left) % axis.size)
    most = int(hits.max())
    exact = stride == axis.stride and most == 1 and axis.outputs == axis.size // stride
    factor = 1.0 if most == 1 else math.sqrt(most) * (1.0 + 2.0**-50)
    wrapped = Ring(axis.size, stride, False, factor, exact, rigid=True)
    return [wrapped] if exact else [wrapped, *padded]


def _zero_rings(axis: Axis) -> list[Ring]:
    """Return the tori for zero padding, without the windows that lie wholly in the padding."""
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
    reached = axis.inner_output is not None
    return [Ring(least, axis.stride, twisted, reached=reached) for twisted in (False, True)]


class Symbol:
    """Gram matrices of a convolution on a torus, by frequency and group.

    Attributes:
        error: a bound on the norm of the rounding error of a Gram matrix.
        factor: product of the rings' factors.
    """

    def __init__(self, kernel: Kernel, torus: Sequence[Ring]) -> None:
        self.kernel, self.torus = kernel, tuple(torus)
        self.factor = math.prod(ring.factor for ring in torus)
        used = [torus[a] for a in kernel.axes]
        self.sizes = torch.tensor([ring.size // ring.stride for ring in used], dtype=torch.int64)
        self.twist = torch.tensor([int(ring.twisted) for ring in used], dtype=torch.int64)
        self.error = gram_allowance(kernel.inner, kernel.taps, len(kernel.axes)) * kernel.square

    @functools.cached_property
    def grid(self) -> Tensor:
        """Twice the frequencies `[f, axes]`, in units of 1/N; one of each conjugate pair."""
        return self._canonical(_box(self.sizes.tolist()))

    @property
    def frequencies(self) -> int:
        """Number of frequencies kept."""
        return self.grid.shape[0]

    def _canonical(self, index: Tensor) -> Tensor:
        """Return twice the frequency, in units of 1/N, of integer grid points; one of each conjugate pair."""
        if not self.kernel.axes:
            return torch.zeros(1, 0, dtype=torch.int64)
        index = index % self.sizes
        mirrored = (-index - self.twist) % self.sizes
        digit = torch.ones_like(self.sizes)  # the value of one step along each axis in the number of a grid point
        digit[:-1] = self.sizes.flip(0).cumprod(0).flip(0)[1:]
        code = torch.minimum((index * digit).sum(dim=1), (mirrored * digit).sum(dim=1)).unique()
        return 2 * (code[:, None] // digit % self.sizes) + self.twist

    def near(self, turns: Tensor) -> Tensor:
        """Return the grid points of the cells that hold the given frequencies (`[h, axes]`, in turns)."""
        low = (turns * self.sizes - 0.5 * self.twist).floor().to(torch.int64)
        return self._canonical((low[:, None] + _box([2] * len(self.kernel.axes))).flatten(0, 1))

    def turns_of(self, grid: Tensor) -> Tensor:
        """Return frequencies in turns."""
        return grid.double() / (2.0 * self.sizes.double())

    def _angles(self, grid: Tensor, position: Tensor) -> Tensor:
        """Return the phase `[f, p]` of each frequency at each position; turns are reduced in integers first."""
        total = torch.zeros(grid.shape[0], position.shape[0], dtype=torch.float64)
        for a, size in enumerate(self.sizes.tolist()):
            total += ((grid[:, a : a + 1] * position[:, a][None]) % (2 * size)).double() / (2 * size)
        return (2.0 * math.pi * (total - total.round())).to(self.kernel.device)

    def gram(self, grid: Tensor) -> Tensor:
        """Return the Gram matrices `[f groups, m, m]` at the given frequencies, complex128 (float64 when real)."""
        kernel = self.kernel
        if self._lags_pay:
            lags, even, odd = kernel.correlations()
            angle = self._angles(grid, lags)
            return torch.complex(angle.cos() @ even, angle.sin() @ odd).reshape(-1, kernel.size, kernel.size)
        if not kernel.axes and kernel.groups == 1 and kernel.device.type == "cpu":
            return gram_matrix(kernel.parts[0][1][0, 0])[None]
        out: Tensor | None = None
        for position, part in kernel.parts:
            block = part
            if kernel.axes:
                angle, flat = self._angles(grid, position), part.flatten(1)
                block = torch.complex(angle.cos() @ flat, angle.sin() @ flat).reshape(-1, *part.shape[1:])
            product = block @ block.mH
            out = product if out is None else out + product
        assert out is not None
        return out.flatten(0, 1)

    @functools.cached_property
    def _lags_pay(self) -> bool:
        """Whether correlating taps first costs less than a product per frequency."""
        kernel, m = self.kernel, self.kernel.size
        if not kernel.axes or m == 1:
            return False
        pairs = sum(part.shape[0] ** 2 * part.shape[3] for _, part in kernel.parts) * m
        each = sum((8 * m + 4 * part.shape[0]) * part.shape[3] for _, part in kernel.parts)
        frequencies = int(self.sizes.prod()) // 2 + 1
        return pairs + frequencies * 2 * kernel.lag_count * m < frequencies * each

    @property
    def exact(self) -> bool:
        """Whether the largest singular value on the torus is the norm of the map itself, not just a bound."""
        return all(ring.exact or (a not in self.kernel.axes and ring.reached) for a, ring in enumerate(self.torus))

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield frequencies and their Gram matrices in pieces of bounded memory."""
        limit = 1e9 if self.kernel.device.type == "cuda" else 3e7
        each = self.kernel.groups * self.kernel.size * max(self.kernel.size, self.kernel.inner) * 16.0
        step = max(1, int(limit / each))
        for start in range(0, self.frequencies, step):
            piece = self.grid[start : start + step]
            check_time()
            yield piece, self.gram(piece)


def _box(sizes: Sequence[int]) -> Tensor:
    """Return the integer points `[p, axes]` of a box."""
    if not sizes:
        return torch.zeros(1, 0, dtype=torch.int64)
    return torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))
