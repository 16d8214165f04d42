"""Certificates of largest eigenvalues: Gram matrices with their rounding, and Cholesky factorisations in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.rounding import UNIT, cholesky_allowance, gamma, residual_allowance
from ...products.lanczos import top_eigenpairs

_WIDE = 2048
"""How many products float64 adds at a time."""


@functools.cache
def _blas() -> Any:
    """Return SciPy's BLAS, which loads when it is first needed."""
    from scipy.linalg import blas

    return blas


def gram_matrix(matrix: Tensor) -> Tensor:
    """Return A A^T of a real matrix `[m, terms]` in CPU memory as a full float64 matrix."""
    pieces = (matrix[:, first : first + _WIDE].T for first in range(0, matrix.shape[1], _WIDE))
    return gram_of_rows(pieces, matrix.shape[0])


def gram_of_rows(pieces: Iterable[Tensor], order: int) -> Tensor:
    """Return the sum of P^T P over pieces P `[rows, order]` in CPU memory as a full float64 matrix."""
    total = np.zeros((order, order), dtype=np.float64, order="F")
    for piece in pieces:
        check_time()
        rows = piece.double().contiguous().numpy()
        _blas().dsyrk(1.0, rows.T, beta=1.0, c=total, overwrite_c=1, lower=1)
    upper = torch.from_numpy(
        total.T
    ).triu_()  # BLAS stores by columns, and read by rows the lower triangle is the upper one
    return upper.add_(upper.triu(1).T)


_LOOKED_AT = 512
"""Lanczos runs on this many columns at a time: 8 matrices of order 64, 2 of order 256."""
_ROUNDS = 40
"""After this many thresholds the cheap bounds of the matrices that are left decide."""


@dataclass(slots=True)
class EigenvalueCertificate:
    """A bound on the largest eigenvalue of a family of Hermitian matrices, and the largest that was found.

    Attributes:
        bound: proven upper bound on every eigenvalue (of the matrices as given, without their own error).
        estimate: the largest eigenvalue found.
        label: the label (chunk, matrix) of the matrix that has it.
        vector: its eigenvector, or None for an empty family.
    """

    bound: float = 0.0
    estimate: float = 0.0
    label: tuple[int, int] | None = None
    vector: Tensor | None = None


def certify(chunks: Iterable[Tensor], *, delta: float) -> EigenvalueCertificate:
    """Return a proven bound on the largest eigenvalue of positive semidefinite Hermitian matrices.

    They come in batches `[b, m, m]`, float64 or complex128; a label is the number of a batch and of a matrix in it. The
    first threshold is set a share `delta` above the largest estimate.
    """
    certificate = EigenvalueCertificate()
    for number, gram in enumerate(chunks):
        if gram.shape[0] and gram.shape[-1]:
            _certify_chunk(certificate, number, gram, delta)
    return certificate


def _certify_chunk(certificate: EigenvalueCertificate, number: int, gram: Tensor, delta: float) -> None:
    size = gram.shape[-1]
    if size == 1:
        values = gram[:, 0, 0].real
        _record(certificate, number, int(values.argmax()), float(values.max()), torch.ones_like(gram[0, 0]), 4.0 * UNIT)
        return
    shift = _shift(gram)
    if len(gram) == 1 and certificate.vector is None:  # one matrix alone: nothing is to be chosen
        above = max(delta, 4.0 * shift)
        values, vectors = top_eigenpairs(gram, steps=48, rtol=above / 8.0)
        _record(certificate, number, 0, float(values[0]), vectors[0], above)
        if bool(below(gram.clone(), certificate.bound)[0]):
            return
    cheap = cheap_bounds(gram)
    left = torch.nonzero(~(cheap <= certificate.bound) | (certificate.vector is None))[
        :, 0
    ]  # a comparison with NaN is False, so that such a matrix stays in the list
    if certificate.bound > 0.0:
        left = left[~below(_chosen(gram, left), certificate.bound)]
    again = 0
    for _ in range(_ROUNDS):
        if left.numel() == 0:
            return
        check_time()
        above = max(delta, 4.0 * shift) * 4.0 ** max(0, again - 1)
        looked_at = left[torch.topk(cheap[left], min(max(2, _LOOKED_AT // size), left.numel())).indices]
        values, vectors = top_eigenpairs(gram[looked_at], steps=48 * 2**again, rtol=above / 8.0 / 100.0**again)
        best, before = int(values.argmax()), certificate.bound
        _record(certificate, number, int(looked_at[best]), float(values[best]), vectors[best], above)
        if certificate.bound == before:
            certificate.bound *= 1.0 + above
        left = left[~(cheap[left] <= certificate.bound)]
        left = left[~below(_chosen(gram, left), certificate.bound)]
        again += int(torch.isin(looked_at, left).any())
    rest = float(cheap[left].max())
    certificate.bound = math.inf if math.isnan(rest) else max(certificate.bound, rest)


def cheap_bounds(gram: Tensor) -> Tensor:
    """Return for each positive semidefinite matrix a bound on its largest eigenvalue from trace and Frobenius norm.

    With mean eigenvalue mu and variance s^2, no eigenvalue exceeds mu + s sqrt(m - 1) (Wolkowicz and Styan 1980).
    """
    size = gram.shape[-1]
    flat = torch.view_as_real(gram) if gram.is_complex() else gram
    square = torch.linalg.vector_norm(flat.flatten(1), dim=1).square()
    trace = gram.diagonal(dim1=-2, dim2=-1).real.sum(dim=-1)
    spread = (square - trace.square() / size).clamp(min=0.0) + square * gamma(8.0 * size * size + 16.0)
    return (trace / size + (spread * (1.0 - 1.0 / size)).sqrt()) * (1.0 + gamma(size + 32.0))


def _record(
    certificate: EigenvalueCertificate, number: int, index: int, value: float, vector: Tensor, above: float
) -> None:
    if value > certificate.estimate or certificate.vector is None:
        certificate.estimate, certificate.label, certificate.vector = value, (number, index), vector
    certificate.bound = max(certificate.bound, value * (1.0 + above))


def _shift(gram: Tensor) -> float:
    """Return the share of the threshold that rounding may take (the trace of t I - G is at most m t)."""
    size = gram.shape[-1]
    allowance = cholesky_allowance(size, float(size), is_complex=gram.is_complex())
    return 8.0 * UNIT + (3.0 if gram.is_cuda else 1.0) * allowance


def _chosen(gram: Tensor, index: Tensor) -> Tensor:
    """Return a copy of the chosen matrices."""
    return gram.clone() if index.numel() == gram.shape[0] else gram[index]


def below(gram: Tensor, bound: float) -> Tensor:
    """Say for each positive semidefinite matrix whether its eigenvalues are proven to be at most `bound`.

    The matrices are overwritten.
    """
    shift = _shift(gram)
    if gram.shape[0] == 0:
        return torch.ones(0, dtype=torch.bool, device=gram.device)
    rest = gram.neg_()
    rest.diagonal(dim1=-2, dim2=-1).add_(bound * (1.0 - shift))
    factor, info = torch.linalg.cholesky_ex(rest)
    done = (info == 0) & factor.diagonal(dim1=-2, dim2=-1).abs().sum(
        -1
    ).isfinite()  # LAPACK does not report NaN as a failure
    if gram.is_cuda:  # GPU solvers invert diagonal blocks, which the theorem does not cover: check the residual
        factor = factor.tril()
        squares = factor.abs().square().sum(dim=(1, 2))
        residual = torch.baddbmm(rest, factor, factor.mH, alpha=-1.0).abs().square().sum(dim=(1, 2)).sqrt()
        rounding = residual_allowance(gram.shape[-1], is_complex=gram.is_complex()) * squares
        allowed = bound * (shift - 8.0 * UNIT) - rounding
        done &= residual * (1.0 + 1e-6) <= allowed
    return done
