"""Certified norms of matrices and convolutions from the Gram matrices of their symbols."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..core.bracket import Evidence
from ..core.budget import Budget
from ..core.errors import InputError
from ..core.rounding import UNIT, ZERO, Upper, gamma, smallest, total
from .certify import NARROW_RTOL, EigenvalueCertificate, certify
from .convolution_map import Axis, Convolution
from .lanczos import lanczos
from .linear_map import Matrix
from .symbol import Kernel, Ring, Symbol, rings

_SIDE_LIMIT = 16384
"""Matrices wider than this on the short side are bounded by cheap norms only."""
_FAST, _AFFORDABLE = 2e9, 1e11
"""The largest number of multiplications to write a convolution out: at once, and after a torus has left a gap."""

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
        self._kernel = self._taps(torus, narrow=rtol >= NARROW_RTOL)
        symbol = Symbol(self._kernel, torus)
        if not symbol.exact and self._cost <= _FAST:
            self._write_out()
            return
        self._on_torus(symbol, cheap)

    def _taps(self, torus: Sequence[Ring], *, narrow: bool) -> Kernel:
        return Kernel(self._plain, [ring.stride for ring in torus], narrow=narrow)

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
        given = plain._with_weight(self.conv.weight.double(), 0.0)
        blocks = Convolution(given.blocks()[:, :, None], (1,), groups=plain.groups)
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
        found, certificate, peak = _certified(symbol, self.rtol)
        if (
            symbol.narrow and symbol.error > self.rtol * certificate.bound
        ):  # rounding takes more than half the tolerance of the norm
            self._kernel = self._taps(symbol.torus, narrow=False)
            symbol = Symbol(self._kernel, symbol.torus)
            found, certificate, peak = _certified(symbol, self.rtol)
        twisted = [_twist(symbol, peak, a, ring) for a, ring in enumerate(symbol.torus)]
        if twisted != list(symbol.torus) and not self.budget.over:
            other = Symbol(self._kernel, twisted)
            promised = _promised(other, symbol.turns_of(peak[None]), certificate)
            if promised < found.log10 - math.log10(1.0 + 0.5 * self.rtol):
                again, second, its_peak = _certified(other, self.rtol)
                if again.log10 < found.log10:
                    found, certificate, peak, symbol = again, second, its_peak, other
        self._inexact = not symbol.exact
        start = plane_wave(self._plain, symbol, certificate, peak)
        if self._kernel.inputs == self.conv.transposed:
            start = self._plain.apply(start) if self.conv.transposed else self._plain.adjoint(start)
        self.upper, self.start = self._rescaled(smallest([found, cheap])), start[0]

    def tighten(self) -> tuple[Upper, Tensor | None]:
        """Return a closer bound, from the matrices themselves where they are small enough, and its vector."""
        if self._inexact and self._cost <= _AFFORDABLE and not self.budget.over:
            self._write_out()
        return self.upper, self.start


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

    delta = rtol / 50.0 if symbol.frequencies > 1 else rtol / 5.0 if symbol.narrow else 1e-9
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
    found = lanczos(lambda x: (gram @ x[:, :, None])[:, :, 0], start, steps=_LOOK)
    return math.log10(other.factor * math.sqrt(max(float(found.values.max()), 0.0) + other.error))


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
    weights = _phase_weights(symbol)
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


def _phase_weights(symbol: Symbol) -> list[int]:
    """Return one factor per axis, by which the phases of all axes are numbered in one integer."""
    weights, value = [], 1
    for ring in reversed(symbol.torus):
        weights.append(value)
        value *= ring.stride
    return weights[::-1]


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
