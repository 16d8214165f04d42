"""Certified norms of matrices and convolutions from the Gram matrices of their symbols.

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

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.bracket import Evidence
from ..core.budget import Budget, check_time
from ..core.errors import InputError
from ..core.log10 import power10
from ..core.rounding import UNIT, ZERO, Upper, gamma, gram_allowance, smallest, total
from .certify import EigenvalueCertificate, certify, gram_matrix
from .convolution_map import Axis, Convolution
from .deflation import affordable, bound_deflated
from .lanczos import lanczos, largest_singular_vector
from .linear_map import Matrix


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


_SIDE_LIMIT = 16384
"""Matrices wider than this on the short side are bounded by cheap norms only."""
_FAST, _AFFORDABLE = 2e9, 1e11
"""The largest number of multiplications to write a convolution out: at once, and after a torus has left a gap."""

_WRITTEN_SIDE = 700
"""Convolutions are written out at once up to this side; larger ones are searched, and certified by deflation."""
_DEFLATED_SHARE, _DEFLATED_RTOL = 0.15, 2e-3
"""Eigenvalues are deflated down to these shares of the torus' excess and of the bound, the larger one, below it."""
_LOOK = 8
"""How many Lanczos steps tell whether another torus promises a smaller bound."""


class ConvolutionNorm:
    """The certified norm of one convolution, which can be tightened.

    Attributes:
        upper: the bound so far.
        start: a vector that comes close to attaining it, or None.
    """

    def __init__(self, conv: Convolution, *, rtol: float, budget: Budget) -> None:
        self.conv, self.rtol, self.budget = conv, rtol, budget
        self.upper: Upper = ZERO
        self.start: Tensor | None = None
        self._inexact = False
        weight = conv.weight.double()
        largest = float(torch.stack(weight.aminmax()).abs().max()) if weight.numel() else 0.0
        if not math.isfinite(largest):
            raise InputError("a weight is NaN or infinite: the map has no norm")
        options = [rings(axis, conv.padding_mode) for axis in conv.axes]
        if largest == 0.0 or not all(options):
            return
        self._plain, self._exponent = _normalized(conv, weight, largest)
        cheap = _cheap(self._plain)
        self.upper = self._rescaled(cheap)
        if min(conv.weight.shape[0] // conv.groups, conv.weight.shape[1]) > _SIDE_LIMIT or self.budget.over:
            return
        torus = [ring[0] for ring in options]
        symbol = Symbol(Kernel(self._plain, [ring.stride for ring in torus]), torus)
        if not symbol.exact and self._cost <= _FAST:
            short = min(self.conv.in_size, self.conv.out_size) // conv.groups
            if short <= _WRITTEN_SIDE or not self._deflatable(symbol) or not self._search_and_deflate(symbol, cheap):
                self._write_out()
            return
        self._on_torus(symbol, cheap)

    @property
    def _cost(self) -> float:
        """About how many multiplications it takes to certify the matrices of all groups; infinite for large ones."""
        groups = self.conv.groups
        short, long = sorted((self.conv.in_size // groups, self.conv.out_size // groups))
        return math.inf if short > 2048 or groups * short * long > 3e7 else float(groups * short * short * long)

    def _rescaled(self, bound: Upper) -> Upper:
        log10 = bound.log10 + self._exponent * math.log10(2.0)
        return Upper(log10 + 8.0 * UNIT * max(1.0, abs(log10), abs(bound.log10)), bound.evidence, bound.method)

    def _write_out(self) -> None:
        """Certify the matrices of the convolution itself, one for each group."""
        plain = self._plain
        # The largest tap may read padding alone, so that the matrix is written out with the unscaled weights.
        unscaled = plain._with_weight(self.conv.weight.double(), 0.0)
        blocks = Convolution(unscaled.blocks()[:, :, None], (1,), groups=plain.groups)
        inner = ConvolutionNorm(blocks, rtol=self.rtol, budget=self.budget)
        written, start = inner.upper, inner.start
        if written.log10 == -math.inf:
            self.upper = written
            return
        if plain.padding_mode != "zeros":  # taps that read one input through the padding are added, and rounded
            rounding = Upper.of(gamma(plain.weight[0, 0].numel() + 4.0) * plain.tap_norms(), Evidence.PROVEN)
            written = total([written, self._rescaled(rounding)])
        self.upper = smallest([self.upper, written.named("written out + Cholesky")])
        if start is not None:
            start = start.reshape(1, *plain.in_shape)
            self.start = (plain.apply(start) if self.conv.transposed else start)[0]

    def _on_torus(self, symbol: Symbol, cheap: Upper) -> None:
        """Certify the convolution on the smallest torus, and on the twisted one where that promises a smaller bound."""
        bound, certificate, peak = _certified(symbol, self.rtol)
        twisted = [_twist(symbol, peak, a, ring) for a, ring in enumerate(symbol.torus)]
        if twisted != list(symbol.torus) and not self.budget.over:
            other = Symbol(symbol.kernel, twisted)
            promised = _promised(other, symbol.turns_of(peak[None]), certificate)
            if promised < bound.log10 - math.log10(1.0 + 0.5 * self.rtol):
                again, second, its_peak = _certified(other, self.rtol)
                if again.log10 < bound.log10:
                    bound, certificate, peak, symbol = again, second, its_peak, other
        self._inexact, self._symbol = not symbol.exact, symbol
        self.start = self._as_start(plane_wave(self._plain, symbol, certificate, peak), symbol)
        self.upper = self._rescaled(smallest([bound, cheap]))

    def _deflatable(self, symbol: Symbol) -> bool:
        """Whether the torus' excess can be deflated: for zero padding, with frequencies along every axis."""
        return self.conv.padding_mode == "zeros" and len(symbol.kernel.axes) == len(self.conv.axes)

    def _search_and_deflate(self, symbol: Symbol, cheap: Upper) -> bool:
        """Bound the convolution within the tolerance of a vector that a search finds; say whether that was done."""
        self._on_torus(symbol, cheap)
        if self.start is None or not 1e-100 < (scale := power10(self.upper.log10)) < 1e100:
            return False
        search = largest_singular_vector(self.conv, self.start, rtol=self.rtol / 20.0, budget=self.budget, scale=scale)
        self.start = search.vector
        return search.value > 0.0 and self._deflate(math.log10(search.value)) is None

    def tighten(self, log10_lower: float) -> tuple[Upper, Tensor | None]:
        """Return a bound within the tolerance of a lower side, where that is affordable, and a vector.

        The convolution is written out where it is small and cannot be deflated. A vector beyond the lower side shows
        that the norm is above what was asked for.
        """
        if not self._inexact or self.budget.over:
            return self.upper, self.start
        if self._deflatable(self._symbol) and log10_lower > -math.inf:
            vector = self._deflate(log10_lower)
            return self.upper, self.start if vector is None else vector
        if self._cost <= _AFFORDABLE:
            self._write_out()
        return self.upper, self.start

    def _deflate(self, log10_lower: float) -> Tensor | None:
        """Prove a bound within the tolerance of a lower side; return None, or a vector where that fails."""
        unit = self._exponent * math.log10(2.0)
        bound = 10.0 ** (2.0 * (log10_lower - unit)) * (1.0 + 0.95 * self.rtol) ** 2
        excess = 10.0 ** (2.0 * (self.upper.log10 - unit)) - bound
        if excess <= 0.0:
            return None
        if not affordable(self._plain, excess / bound):
            return self.start
        margin = max(_DEFLATED_SHARE * excess, _DEFLATED_RTOL * bound)
        room = min(self.rtol, 1.0) * bound  # about half of the distance from the squared norm to the bound
        residual = 0.5 * room / (room + excess + margin)  # K leaves about twice this to 1
        outcome = bound_deflated(self._plain, self._symbol, bound, margin=margin, residual=residual)
        if outcome is not None and outcome.proven:
            upper = Upper.of(math.sqrt(bound), Evidence.PROVEN, "torus + deflation", allowance=16.0 * UNIT)
            self.upper = smallest([self.upper, self._rescaled(upper)])
            return None
        if outcome is None or outcome.vector is None:
            return self.start
        return self._as_start(outcome.vector, self._symbol)

    def _as_start(self, vector: Tensor, symbol: Symbol) -> Tensor:
        """Return a vector of the side that the Gram matrices act on as an input of the map."""
        shape = self._plain.in_shape if symbol.kernel.inputs else self._plain.out_shape
        start = vector.reshape(1, *shape)
        if symbol.kernel.inputs == self.conv.transposed:
            start = self._plain.apply(start) if self.conv.transposed else self._plain.adjoint(start)
        return start[0]


def bounding_cost(linear: Matrix | Convolution) -> float:
    """Return the approximate number of multiplications of the certificate of a matrix or convolution."""
    weight = linear.weight
    if isinstance(linear, Matrix):
        return 2.0 / 3.0 * float(weight.numel()) * min(weight.shape)
    order = float(min(weight.shape[0] // linear.groups, weight.shape[1]))
    taps, frequencies = weight[0, 0].numel(), math.prod(axis.outputs for axis in linear.axes) / 2.0
    correlations = float(weight.numel()) * order * (taps + 1) / 2.0
    each = linear.groups * (4.0 / 3.0 * order + taps) * order * order
    return correlations + (frequencies * each if taps > 1 else each)


def matrix_bound(linear: Matrix, *, rtol: float, budget: Budget) -> tuple[Upper, Tensor | None]:
    """Return a certified bound on the norm of a matrix, and its leading right singular vector."""
    norm = ConvolutionNorm(Convolution(linear.weight[:, :, None], (1,)), rtol=rtol, budget=budget)
    if norm.start is None:
        return norm.upper, None
    full = torch.zeros(linear.in_shape, dtype=torch.float64, device=linear.device)
    full.reshape(-1, linear.in_shape[-1])[0] = norm.start.reshape(-1)
    return norm.upper, full


def _normalized(conv: Convolution, weight: Tensor, largest: float) -> tuple[Convolution, int]:
    """Return the plain convolution in float64 with its largest weight in [1/2, 1), and the exponent taken out."""
    _, exponent = math.frexp(largest)
    half = -exponent // 2
    plain = Convolution.__new__(Convolution)
    scaled = (weight * 2.0**half).mul_(2.0 ** (-exponent - half))
    plain._set(scaled, conv.axes, conv.groups, conv.padding_mode, False)
    return plain, exponent


def _cheap(conv: Convolution) -> Upper:
    """Return sqrt(largest row sum * largest column sum) of absolute weights, times the padding's copies."""
    size = conv.weight.abs()
    rows = float(size.flatten(1).sum(dim=1).max())
    columns = size.reshape(conv.groups, -1, *size.shape[1:]).sum(dim=1).flatten(2).sum(dim=2)
    value = math.sqrt(rows * float(columns.max())) * conv.copies()
    return Upper.of(value, Evidence.PROVEN, "row and column sums", allowance=gamma(size.numel() + 16.0))


def _certified(symbol: Symbol, rtol: float) -> tuple[Upper, EigenvalueCertificate, Tensor]:
    """Return the certified bound of a symbol, and the frequency that has the largest singular value."""
    grids: list[Tensor] = []

    def blocks() -> Iterator[Tensor]:
        for grid, gram in symbol.chunks():
            grids.append(grid)
            yield gram

    delta = rtol / 50.0 if symbol.frequencies > 1 else 1e-9
    certificate = certify(blocks(), delta=min(delta, 0.1))
    value = symbol.factor * math.sqrt(certificate.bound + symbol.error)
    method = "torus + Cholesky" if symbol.kernel.axes else "Gram matrix + Cholesky"
    assert certificate.label is not None
    chunk, index = certificate.label
    bound = Upper.of(value, Evidence.PROVEN, method, allowance=16.0 * UNIT)
    return bound, certificate, grids[chunk][index // symbol.kernel.groups]


def _promised(other: Symbol, turns: Tensor, certificate: EigenvalueCertificate) -> float:
    """Return log10 of a lower limit of another torus' bound, from a few Lanczos steps near a known peak."""
    assert certificate.vector is not None
    assert certificate.label is not None
    group = certificate.label[1] % other.kernel.groups
    gram = other.gram(other.near(turns))[group :: other.kernel.groups]
    start = certificate.vector.to(gram.dtype).expand(gram.shape[0], -1)
    ritz = lanczos(lambda x: (gram @ x[:, :, None])[:, :, 0], start, steps=_LOOK)
    return math.log10(other.factor * math.sqrt(max(float(ritz.values.max()), 0.0) + other.error))


def _twist(symbol: Symbol, peak: Tensor, axis: int, ring: Ring) -> Ring:
    """Twist an untwisted ring whose peak is at frequency 0 or the highest one, so that the grid straddles the peak."""
    if axis not in symbol.kernel.axes or ring.rigid or ring.twisted:
        return ring
    turn, period = int(peak[symbol.kernel.axes.index(axis)]), 2 * ring.size // ring.stride
    return ring if turn % period not in (0, period // 2) else dataclasses.replace(ring, twisted=True)


def plane_wave(conv: Convolution, symbol: Symbol, certificate: EigenvalueCertificate, grid: Tensor) -> Tensor:
    """Return the leading singular vector at a frequency of a plain (not transposed) convolution as a tapered wave.

    It is `[1, *in_shape]` when the symbol's Gram matrices act on inputs, else `[1, *out_shape]`, in float64.
    """
    assert certificate.vector is not None
    assert certificate.label is not None
    kernel = symbol.kernel
    group = certificate.label[1] % kernel.groups
    vector = certificate.vector.to(torch.complex128)
    pivot = vector.gather(0, vector.abs().argmax(dim=0, keepdim=True))  # this way nothing is read back from a GPU
    vector = vector * (pivot.conj() / pivot.abs().clamp(min=1e-300))
    wave = torch.ones((), dtype=torch.complex128)
    phase = torch.zeros((), dtype=torch.int64)
    strides = [ring.stride for ring in symbol.torus]
    weights = [math.prod(strides[a + 1 :]) for a in range(len(strides))]  # phases of all axes as one integer
    for a, (axis, ring) in enumerate(zip(conv.axes, symbol.torus, strict=True)):
        turn = 0.0
        if a in kernel.axes:
            turn = int(grid[kernel.axes.index(a)]) / (2.0 * (ring.size // ring.stride))
        line, remainder = _line(axis, ring, kernel.inputs, turn, int(kernel.origin[a]), moving=a in kernel.axes)
        wave = wave[..., None] * line
        phase = phase[..., None] + remainder * weights[a]
    wave = wave.to(kernel.device)
    if not kernel.inputs:
        out = torch.zeros(1, *conv.out_shape, dtype=torch.float64, device=kernel.device)
        each = conv.out_shape[0] // kernel.groups
        out[0, group * each : (group + 1) * each] = (vector.reshape(-1, *(1,) * wave.ndim) * wave).real
        return out
    each = conv.in_shape[0] // kernel.groups
    codes = (kernel.phases * torch.tensor(weights)).sum(dim=1)
    table = torch.zeros(int(max(codes.max(), phase.max())) + 1, each, dtype=torch.complex128, device=kernel.device)
    table[codes.to(kernel.device)] = vector.reshape(len(codes), each)
    out = torch.zeros(1, *conv.in_shape, dtype=torch.float64, device=kernel.device)
    out[0, group * each : (group + 1) * each] = (table[phase.to(kernel.device)].movedim(-1, 0) * wave).real
    return out


def _line(axis: Axis, ring: Ring, inputs: bool, turn: float, origin: int, *, moving: bool) -> tuple[Tensor, Tensor]:
    """Return the wave along one axis, and the phase of each entry (zero on the output side)."""
    middle = axis.outputs // 2 if axis.inner_output is None else axis.inner_output
    if inputs:
        covered = torch.arange(axis.size) + axis.left
        entry, phase = covered // ring.stride, covered % ring.stride
        still = entry == middle * axis.stride // ring.stride + origin
    else:
        entry = torch.arange(axis.outputs) * axis.stride // ring.stride
        phase = torch.zeros_like(entry)
        still = torch.arange(axis.outputs) == middle
    if not moving:
        return still.to(torch.complex128), phase
    count = len(entry)
    taper = torch.ones(count, dtype=torch.float64)
    if not ring.exact:
        taper = torch.sin(math.pi * (torch.arange(count, dtype=torch.float64) + 1.0) / (count + 1.0))
    angle = 2.0 * math.pi * turn * entry.double()
    return torch.complex(taper * angle.cos(), taper * angle.sin()), phase
