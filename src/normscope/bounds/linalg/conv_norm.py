"""Certified norms of matrices and convolutions, from the Gram matrices of their symbols (`torus.py`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...core.budget import Budget
from ...core.effort import Effort
from ...core.errors import InputError
from ...core.log10 import power10
from ...core.rounding import UNIT, ZERO, Upper, gamma, gram_allowance, smallest, total
from ...products.lanczos import lanczos
from .certify import EigenvalueCertificate, certify, gram_matrix
from .convolution_map import Axis, Convolution
from .deflation import affordable, bound_deflated
from .elimination import is_below, plan_elimination
from .linear_map import Matrix
from .singular_vector import largest_singular_vector
from .torus import Kernel, Ring, Symbol, rings

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
        largest = _largest_entry(weight)
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
        return _times_power_of_two(bound, self._exponent)

    def _write_out(self) -> None:
        """Certify the matrices of the convolution itself, one for each group."""
        plain = self._plain
        # The largest tap may read padding alone, so that the matrix is written out with the unscaled weights.
        unscaled = plain._with_weight(self.conv.weight.double(), 0.0)
        written, start = bound_matrices(unscaled.blocks().unflatten(0, (plain.groups, -1)), self.budget)
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

    def tighten(self, log10_lower: float, effort: Effort) -> tuple[Upper, Tensor | None]:
        """Return a bound within the tolerance of a lower side, where that is affordable, and a vector.

        The convolution is written out where it is small and cannot be deflated; THOROUGH allows a factorisation of
        seconds where too many eigenvalues would be deflated. A vector beyond the lower side shows that the norm is
        above what was asked for.
        """
        if not self._inexact or self.budget.over:
            return self.upper, self.start
        if self._deflatable(self._symbol) and log10_lower > -math.inf:
            vector = self._deflate(log10_lower, effort)
            return self.upper, self.start if vector is None else vector
        if self._cost <= _AFFORDABLE:
            self._write_out()
        return self.upper, self.start

    def _deflate(self, log10_lower: float, effort: Effort = Effort.TIGHT) -> Tensor | None:
        """Prove a bound within the tolerance of a lower side; return None, or a vector where that fails."""
        unit = self._exponent * math.log10(2.0)
        bound = 10.0 ** (2.0 * (log10_lower - unit)) * (1.0 + 0.95 * self.rtol) ** 2
        excess = 10.0 ** (2.0 * (self.upper.log10 - unit)) - bound
        if excess <= 0.0:
            return None
        if not affordable(self._plain, excess / bound):
            return None if effort == Effort.THOROUGH and self._eliminate(bound) else self.start
        margin = max(_DEFLATED_SHARE * excess, _DEFLATED_RTOL * bound)
        room = min(self.rtol, 1.0) * bound  # about half of the distance from the squared norm to the bound
        residual = 0.5 * room / (room + excess + margin)  # K leaves about twice this to 1
        outcome = bound_deflated(self._plain, self._symbol, bound, margin=margin, residual=residual)
        if outcome is not None and outcome.proven:
            self._keep_proven(bound, "torus + deflation")
            return None
        if outcome is None:
            return None if effort == Effort.THOROUGH and self._eliminate(bound) else self.start
        return self.start if outcome.vector is None else self._as_start(outcome.vector, self._symbol)

    def _eliminate(self, bound: float) -> bool:
        """Prove a bound on the squared norm by a factorisation, where that is affordable; return whether."""
        elimination = plan_elimination(self._plain) if self._plain.device.type == "cpu" else None
        if elimination is None or not elimination.affordable or not is_below(self._plain, elimination, bound):
            return False
        self._keep_proven(bound, "Cholesky, entry by entry")
        return True

    def _keep_proven(self, bound: float, method: str) -> None:
        """Keep the root of a proven bound on the squared norm, where it is smaller than the bound so far."""
        upper = Upper.of(math.sqrt(bound), Evidence.PROVEN, method, allowance=16.0 * UNIT)
        self.upper = smallest([self.upper, self._rescaled(upper)])

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


def bound_matrices(matrices: Tensor, budget: Budget) -> tuple[Upper, Tensor | None]:
    """Return a certified bound on the norms of some matrices `[groups, m, n]`, and the flat input that comes closest.

    The matrices stand along the diagonal of one map, of which the vector `[groups n]` is an input.
    """
    largest = _largest_entry(matrices)
    if largest == 0.0:
        return ZERO, None
    scaled, exponent = _scaled_to_one(matrices.double(), largest)
    size = scaled.abs()
    rows, columns = size.sum(dim=2).amax(dim=1), size.sum(dim=1).amax(dim=1)
    cheap = Upper.of(
        math.sqrt(float(rows.max()) * float(columns.max())),
        Evidence.PROVEN,
        "row and column sums",
        allowance=gamma(size.numel() + 16.0),
    )
    short, long = sorted(scaled.shape[1:])
    if short > _SIDE_LIMIT or budget.over:
        return _times_power_of_two(cheap, exponent), None
    wide = scaled if scaled.shape[1] == short else scaled.mT
    gram = gram_matrix(wide[0])[None] if len(wide) == 1 and not wide.is_cuda else wide @ wide.mT
    certificate = certify([gram], delta=1e-9)
    assert certificate.label is not None
    assert certificate.vector is not None
    square = float(torch.minimum(scaled.square().sum(dim=(1, 2)), rows * columns).max()) * (1.0 + 1e-9)
    value = math.sqrt(certificate.bound + gram_allowance(long, 1, 0) * square)
    bound = Upper.of(value, Evidence.PROVEN, "Gram matrix + Cholesky", allowance=16.0 * UNIT)
    group, vector = certificate.label[1], certificate.vector
    vector = vector * vector.gather(0, vector.abs().argmax(dim=0, keepdim=True)).sgn()  # the same on every machine
    start = scaled.new_zeros(len(scaled), scaled.shape[2])
    start[group] = vector if wide is not scaled else vector @ scaled[group]
    return _times_power_of_two(smallest([bound, cheap]), exponent), start.reshape(-1)


def matrix_bound(linear: Matrix, budget: Budget) -> tuple[Upper, Tensor | None]:
    """Return a certified bound on the norm of a matrix, and its leading right singular vector."""
    upper, start = bound_matrices(linear.weight[None], budget)
    if start is None:
        return upper, None
    full = start.new_zeros(linear.in_shape)
    full.reshape(-1, linear.in_shape[-1])[0] = start
    return upper, full


def _largest_entry(weight: Tensor) -> float:
    """Return the largest absolute entry; refuse NaN and infinity."""
    largest = float(torch.stack(weight.aminmax()).abs().max()) if weight.numel() else 0.0
    if not math.isfinite(largest):
        raise InputError("a weight is NaN or infinite: the map has no norm")
    return largest


def _scaled_to_one(weight: Tensor, largest: float) -> tuple[Tensor, int]:
    """Return weights in float64 with the largest in [1/2, 1), and the exponent taken out."""
    _, exponent = math.frexp(largest)
    half = -exponent // 2
    return (weight * 2.0**half).mul_(2.0 ** (-exponent - half)), exponent


def _times_power_of_two(bound: Upper, exponent: int) -> Upper:
    """Return a bound times a power of two."""
    log10 = bound.log10 + exponent * math.log10(2.0)
    return Upper(log10 + 8.0 * UNIT * max(1.0, abs(log10), abs(bound.log10)), bound.evidence, bound.method)


def _normalized(conv: Convolution, weight: Tensor, largest: float) -> tuple[Convolution, int]:
    """Return the plain convolution in float64 with its largest weight in [1/2, 1), and the exponent taken out."""
    scaled, exponent = _scaled_to_one(weight, largest)
    plain = Convolution.__new__(Convolution)
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
