"""Certified norms of matrices and convolutions from the Gram matrices of their symbols."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.bracket import Evidence
from ..core.errors import InputError
from ..core.rounding import UNIT, ZERO, Upper, gamma, smallest, total
from .certify import Certificate, certify
from .convolution import Convolution
from .linear_map import Matrix
from .symbol import Ring, Symbol, rings
from .waves import plane_wave

_SIDE_LIMIT = 16384
"""Matrices wider than this on the short side are bounded by cheap norms only."""


def matrix_bound(linear: Matrix, *, rtol: float, deadline: float | None) -> tuple[Upper, Tensor | None]:
    """Return a certified bound on the norm of a matrix, and its leading right singular vector."""
    conv = Convolution(linear.weight[:, :, None], (1,))
    bound, start = convolution_bound(conv, rtol=min(rtol, 1e-6), deadline=deadline)
    if start is None:
        return bound, None
    full = torch.zeros(linear.in_shape, dtype=torch.float64, device=linear.device)
    full.reshape(-1, linear.in_shape[-1])[0] = start.reshape(-1)
    return bound.named(bound.method.replace("torus", "matrix")), full


def convolution_bound(conv: Convolution, *, rtol: float, deadline: float | None) -> tuple[Upper, Tensor | None]:
    """Return a certified bound on the norm of a convolution, and a vector that comes close to attaining it.

    Reference: torus bound for zero padding, theory section 2a; certificate by Cholesky, Rump 2006.
    """
    plain, exponent = _normalized(conv)
    if plain is None:
        return ZERO, None
    options = [rings(axis, conv.padding_mode) for axis in conv.axes]
    if not all(options):
        return ZERO, None
    torus = [ring[0] for ring in options]
    cheap = _cheap(plain)
    late = deadline is not None and time.monotonic() > deadline
    symbol = Symbol(plain, torus)
    if not symbol.exact and _writes_out_fast(conv):
        written, start = matrix_bound(Matrix(plain.dense()), rtol=rtol, deadline=deadline)
        # sums of taps that circular or replicate padding brings together are rounded
        rounding = gamma(plain.weight[0, 0].numel() + 4.0) * symbol.tap_sum * math.sqrt(symbol.groups) * plain.copies()
        written = total([written, Upper.of(rounding, Evidence.PROVEN)]).named("written out + Cholesky")
        if start is not None:
            start = start.reshape(1, *plain.in_shape)
            start = (plain.apply(start) if conv.transposed else start)[0]
        return _rescaled(written, exponent), start
    if late or symbol.size > _SIDE_LIMIT:
        return _rescaled(cheap, exponent), None
    found, certificate, grid = _on_torus(symbol, rtol)
    twisted = [_twist(symbol, grid, a, ring) for a, ring in enumerate(torus)]
    if twisted != torus:
        other = Symbol(plain, twisted)
        again, second, grid2 = _on_torus(other, rtol)
        if again.log10 < found.log10:
            found, certificate, grid, symbol = again, second, grid2, other
    start = plane_wave(plain, symbol, certificate, grid)
    if symbol.inputs == conv.transposed:
        start = plain.apply(start) if conv.transposed else plain.adjoint(start)
    return _rescaled(smallest([found, cheap]), exponent), start[0]


def _writes_out_fast(conv: Convolution) -> bool:
    """Whether the matrix of a convolution is certified faster than it takes to think about a torus."""
    short, long = sorted((conv.in_size, conv.out_size))
    return short <= 1024 and short * short * long <= 2e9


def _normalized(conv: Convolution) -> tuple[Convolution | None, int]:
    """Return the plain convolution in float64 with its largest weight in [1/2, 1), and the exponent taken out."""
    weight = conv.weight.double()
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    if not math.isfinite(largest):
        raise InputError("a weight is NaN or infinite: the map has no norm")
    if largest == 0.0:
        return None, 0
    _, exponent = math.frexp(largest)
    half = -exponent // 2
    weight = weight * 2.0**half * 2.0 ** (-exponent - half)
    plain = Convolution.__new__(Convolution)
    plain._set(weight, conv.axes, conv.groups, conv.padding_mode, False)
    return plain, exponent


def _rescaled(bound: Upper, exponent: int) -> Upper:
    log10 = bound.log10 + exponent * math.log10(2.0)
    return Upper(log10 + 8.0 * UNIT * max(1.0, abs(log10), abs(bound.log10)), bound.evidence, bound.method)


def _cheap(conv: Convolution) -> Upper:
    """Return sqrt(largest row sum * largest column sum) of absolute weights, times the padding's copies."""
    size = conv.weight.abs()
    rows = float(size.flatten(1).sum(dim=1).max())
    columns = size.reshape(conv.groups, -1, *size.shape[1:]).sum(dim=1).flatten(2).sum(dim=2)
    value = math.sqrt(rows * float(columns.max())) * conv.copies()
    return Upper.of(value, Evidence.PROVEN, "row and column sums", allowance=gamma(size.numel() + 16.0))


def _on_torus(symbol: Symbol, rtol: float) -> tuple[Upper, Certificate, Tensor]:
    """Return the certified bound of a symbol, and the frequency that has the largest singular value."""
    delta = 1e-9 if symbol.frequencies == 1 else min(1e-6, rtol / 20.0)
    starts: list[Tensor] = []

    def blocks() -> Iterator[Tensor]:
        for grid, gram in symbol.chunks():
            starts.append(grid)
            yield gram.flatten(0, 1)

    certificate = certify(blocks(), delta=delta)
    value = symbol.factor * math.sqrt(certificate.bound + symbol.error)
    method = "torus" if symbol.axes else "Gram matrix"
    bound = Upper.of(value, Evidence.PROVEN, f"{method} + Cholesky", allowance=16.0 * UNIT)
    assert certificate.label is not None
    chunk, index = certificate.label
    return bound, certificate, starts[chunk][index // symbol.groups]


def _twist(symbol: Symbol, grid: Tensor, axis: int, ring: Ring) -> Ring:
    """Twist an untwisted ring whose largest frequency is at rest (0 or the fastest): the grid then straddles it."""
    if axis not in symbol.axes or ring.exact or ring.factor != 1.0 or ring.twisted:
        return ring
    turn = int(grid[symbol.axes.index(axis)])
    period = 2 * ring.size // ring.stride
    if turn % period not in (0, period // 2):
        return ring
    return Ring(ring.size, ring.stride, True, ring.factor)
