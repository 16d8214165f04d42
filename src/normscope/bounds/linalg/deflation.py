"""Certificates for zero-padded convolutions of which a torus gives too large a bound, at any tolerance.

Let T be the convolution, C the one on the torus, E the projection from the torus onto the entries that exist. Then
T T^* is at most E C C^* E^*, and few eigenvalues of C C^* exceed a number t that bounds T T^* itself. Deflate them:
frequency by frequency, Cholesky factorisations prove C C^* <= t - m + W W^*, with one column of W for each eigenvector
above t - m. With B = E W this gives M = t - T T^* + B B^* >= m > 0, and t - T T^* = M - B B^* is positive semidefinite
if and only if K = B^* M^{-1} B is at most 1 (a Schur complement). For any X, also one from a few steps of conjugate
gradients in float32, the residual R = B - M X bounds K:

    K = B^* X + X^* R + R^* M^{-1} R <= B^* X + X^* R + R^* R/m.

K has one row for each deflated eigenvector, and the residual enters squared: a tenth of B is small enough.
Where T^* T has the smaller blocks, the same is done with T^*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import check_time, count
from ...core.rounding import UNIT, gamma
from .certify import below
from .convolution_map import Convolution
from .dense_form import cost
from .torus import Symbol

_MAX_CONJUGATE_GRADIENT_STEPS = 96
"""Steps of conjugate gradients at most."""
_OPERATIONS = 2e11
"""The most operations for the eigenvectors, and for the steps of conjugate gradients: some seconds of one core."""
_EXPECTED_STEPS = 15
"""About how many steps conjugate gradients take."""


def affordable(plain: Convolution, excess: float) -> bool:
    """Whether deflation promises to take seconds, where the torus exceeds the squared norm by a share `excess` of it.

    The eigenvalues of random kernels thin out toward the largest one, as the power 3/2 of the distance from it.
    """
    expected_rows = 0.4 * min(plain.in_size, plain.out_size) * excess**1.5
    return expected_rows <= 2.0 * _most_rows(plain)


def _most_rows(plain: Convolution) -> float:
    """Return how many vectors conjugate gradients may be run on."""
    return _OPERATIONS / (4.0 * _EXPECTED_STEPS * cost(plain))


@dataclass(frozen=True, slots=True)
class Deflation:
    """Whether a bound on the squared norm is proven, and a vector of the Gram matrices' side that is stretched most."""

    proven: bool
    vector: Tensor | None = None


def bound_deflated(
    plain: Convolution, symbol: Symbol, bound: float, *, margin: float, residual: float
) -> Deflation | None:
    """Try to prove that the squared norm of a plain convolution with zero padding is at most `bound`.

    Args:
        plain: the convolution in float64, with weights of about 1.
        symbol: its symbol on a torus that bounds it, all of whose axes have frequencies.
        bound: the bound t to prove.
        margin: how far below it eigenvalues of the torus are deflated (m).
        residual: the size of R^* R/m at which the steps of conjugate gradients end.

    Returns:
        The outcome; None where that would take too long.
    """
    columns = _deflate(plain, symbol, bound - margin)
    if columns is None:
        return None
    # the waves in the columns are rounded: 16 (axes + 1) u for a phase, a few u for products and roots
    off = 64.0 * (len(symbol.kernel.axes) + 2.0) * UNIT
    margin -= 3.0 * off * float(columns.square().sum()) + 8.0 * UNIT * bound
    if margin <= 0.0 or not len(columns):
        return Deflation(margin > 0.0)
    solution = _solve(plain, symbol.kernel.inputs, bound, columns.float(), residual * margin).double()
    rest = columns - _apply_shifted(plain, symbol.kernel.inputs, bound, columns, solution)
    rounding = _rounding_error(plain, bound, columns)
    size_b, size_x, size_r = (float(part.norm()) * (1.0 + 1e-9) for part in (columns, solution, rest))
    small = columns @ solution.T + solution @ rest.T
    small = 0.5 * (small + small.T) + rest @ rest.T / margin
    off = rounding * size_x
    error = off * (size_x + (2.0 * size_r + off) / margin)
    error += gamma(columns.shape[1] + 64.0) * (size_b * size_x + size_x * size_r + size_r**2 / margin)
    proven = math.isfinite(error) and error < 1.0 and bool(below(small.clone()[None], 1.0 - error)[0])
    vector = None if proven else torch.linalg.eigh(small).eigenvectors[:, -1] @ solution
    return Deflation(proven, vector)


def _deflate(plain: Convolution, symbol: Symbol, threshold: float) -> Tensor | None:
    """Return real columns B, as rows, such that the Gram matrix is at most `threshold` + B B^* up to the rounding of B.

    The result is None where there are too many of them, or a factorisation fails.
    """
    groups, size = symbol.kernel.groups, symbol.kernel.size
    rows: list[Tensor] = []
    matrices = 0
    for grid, gram in symbol.chunks():
        above = torch.nonzero(~below(gram.clone(), threshold - symbol.error))[:, 0]
        matrices += len(above)
        if 100.0 * matrices * float(size) ** 3 > _OPERATIONS:
            return None
        if not len(above):
            continue
        check_time()
        chosen = gram[above]
        values, vectors = torch.linalg.eigh(chosen)
        # eigenvectors of values below the threshold get the weight zero
        weights = (values - threshold * (1.0 - 1e-6)).clamp(min=0.0)
        scaled = vectors * weights.sqrt()[:, None, :]
        deflated = chosen - scaled @ scaled.mH
        rounding = gamma(4.0 * size + 16.0) * scaled.abs().square().sum(dim=(1, 2))
        rounding = rounding + 8.0 * UNIT * chosen.abs().square().sum(dim=(1, 2)).sqrt()
        allowed = threshold - symbol.error - float(rounding.max()) * (1.0 + 1e-9)
        if not bool(below(deflated, allowed).all()):
            return None
        for place, index in enumerate(above.tolist()):
            used = scaled[place][:, weights[place] > 0.0].T
            rows.append(_waves(plain, symbol, grid[index // groups], index % groups, used))
        if sum(map(len, rows)) > _most_rows(plain):
            return None
    return torch.cat(rows) if rows else torch.zeros(0, 1, dtype=torch.float64, device=plain.device)


def _waves(plain: Convolution, symbol: Symbol, frequency: Tensor, group: int, vectors: Tensor) -> Tensor:
    """Return the waves of vectors `[r, m]` at a frequency on the entries that exist, as real rows `[2r, entries]`.

    The sum of their squares is that of the complex wave and, unless the frequency is its own conjugate, of the
    conjugate one.
    """
    kernel = symbol.kernel
    entries, codes, exist = [], [], []
    for axis, ring in zip(plain.axes, symbol.torus, strict=True):
        place = torch.arange(axis.size if kernel.inputs else axis.outputs)
        covered = place + axis.left if kernel.inputs else place * ring.stride
        entries.append(covered.div(ring.stride, rounding_mode="floor"))
        codes.append(covered % ring.stride)
        reads = axis.reads_transposed(place.device) if kernel.inputs else axis.reads("zeros", place.device)
        exist.append((reads >= 0).any(dim=0))  # windows and inputs that meet nothing are not on the torus
    mesh = torch.cartesian_prod(*entries).reshape(-1, len(entries))
    angle = symbol._angles(frequency[None], mesh)[0]
    present = torch.cartesian_prod(*exist).reshape(-1, len(exist)).all(dim=1).to(kernel.device)
    wave = torch.complex(angle.cos(), angle.sin()) * present / math.sqrt(float(symbol.sizes.prod()))
    phased = vectors.to(torch.complex128)[:, :, None] * wave
    if kernel.inputs:  # the channels of a phase live on the entries of that phase
        phase = torch.cartesian_prod(*codes).reshape(-1, len(codes))
        here = (phase[None] == kernel.phases[:, None]).all(dim=2).to(kernel.device)
        phased = (phased.reshape(len(vectors), len(kernel.phases), -1, len(wave)) * here[:, None]).sum(dim=1)
    shape = plain.in_shape if kernel.inputs else plain.out_shape
    each = shape[0] // kernel.groups
    whole = torch.zeros(len(vectors), shape[0], len(wave), dtype=torch.complex128, device=kernel.device)
    whole[:, group * each : (group + 1) * each] = phased
    if not bool((2 * frequency % (2 * symbol.sizes) == 0).all()):
        whole = whole * math.sqrt(2.0)
    flat = whole.flatten(1)
    rows = torch.cat([flat.real, flat.imag])
    return rows[rows.abs().amax(dim=1) > 0.0]


def _apply_shifted(plain: Convolution, inputs: bool, bound: float, columns: Tensor, vectors: Tensor) -> Tensor:
    """Return M X for rows X."""
    shape = plain.in_shape if inputs else plain.out_shape
    batch = vectors.reshape(-1, *shape)
    there = plain.apply(batch) if inputs else plain.adjoint(batch)
    back = (plain.adjoint(there) if inputs else plain.apply(there)).flatten(1)
    return bound * vectors - back + (vectors @ columns.T) @ columns


def _rounding_error(plain: Convolution, bound: float, columns: Tensor) -> float:
    """Return a bound on the rounding error of `_apply_shifted` for vectors of norm 1 in float64."""
    taps, size_b = plain.tap_norms(), float(columns.double().square().sum()) * (1.0 + 1e-9)
    once = gamma(2.0 * plain.weight[0, 0].numel() * max(plain.weight.shape[:2]) + 64.0) * taps
    rounding = 3.0 * once * (taps + once) + 2.0 * gamma(sum(columns.shape) + 64.0) * size_b
    return rounding + 16.0 * UNIT * (bound + taps**2 + size_b)


def _solve(plain: Convolution, inputs: bool, bound: float, columns: Tensor, square_enough: float) -> Tensor:
    """Return X with M X near B, by conjugate gradients in the precision of the columns."""
    single = plain._with_weight(plain.weight.to(columns.dtype), 0.0)
    solution, residual = torch.zeros_like(columns), columns.clone()
    direction, square = residual.clone(), residual.square().sum(dim=1)
    for _ in range(_MAX_CONJUGATE_GRADIENT_STEPS):
        check_time()
        count("products", 2 * len(columns))
        image = _apply_shifted(single, inputs, bound, columns, direction)
        length = square / (direction * image).sum(dim=1).clamp(min=1e-30)
        solution += length[:, None] * direction
        residual -= length[:, None] * image
        before, square = square, residual.square().sum(dim=1)
        if not float(square.sum()) > square_enough:
            break
        direction = residual + (square / before.clamp(min=1e-30))[:, None] * direction
    return solution
