"""Krylov spaces by Lanczos: the largest eigenvalues of many symmetric matrices or operators at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.budget import Budget

_DIRECT = 128
"""Matrices of up to this order are diagonalized directly on a CPU; a GPU takes longer for that than for Lanczos."""
_DIRECT_SINGLE = 512
"""One real matrix of up to this order has its top eigenvector taken directly."""
STEPS_BETWEEN_TESTS = 4
"""How many vectors of a basis get memory at a time, and how many steps lie between two tests of convergence."""
MISSED = 1e-3
"""The probability that a random start has a smaller share of the top eigenvector than `above` assumes."""


@functools.cache
def _lapack() -> Any:
    """Return SciPy's LAPACK, which loads when it is first needed."""
    from scipy.linalg import lapack

    return lapack


class Ritz(NamedTuple):
    """The largest eigenvalue of each operator, as Lanczos found it.

    Attributes:
        values: the largest Ritz value `[b]`, which its vector attains.
        vectors: its unit vector `[b, n]`.
        errors: its estimated relative error (not a bound).
        above: an upper bound on the eigenvalue that fails with a probability of `MISSED` at most; infinite if it was
            not computed.
        steps: the number of applications of the operator.
    """

    values: Tensor
    vectors: Tensor
    errors: Tensor
    above: Tensor
    steps: int


def top_eigenpairs(matrices: Tensor, *, steps: int, rtol: float) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue `[b]` and its eigenvector `[b, m]` of Hermitian matrices `[b, m, m]`."""
    count, size, _ = matrices.shape
    if count == 1 and size <= _DIRECT_SINGLE and not matrices.is_cuda and not matrices.is_complex():
        values, vectors, *_ = _lapack().dsyevr(matrices[0].numpy(), range="I", il=size, iu=size)
        return torch.from_numpy(values[:1]), torch.from_numpy(vectors.T)
    if size <= _DIRECT and not matrices.is_cuda:
        values, vectors = torch.linalg.eigh(matrices)
        return values[:, -1], vectors[:, :, -1]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(count, size, dtype=torch.float64, generator=generator).to(matrices)
    ritz = lanczos(lambda x: (matrices @ x[:, :, None])[:, :, 0], start, steps=steps, rtol=rtol)
    return ritz.values, ritz.vectors


def lanczos(
    operator: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    steps: int = 60,
    rtol: float = 1e-6,
    sure: bool = False,
    budget: Budget | None = None,
) -> Ritz:
    """Search for the largest eigenvalues of a batch of Hermitian positive semidefinite operators, rows `[b, n]`.

    With `sure` the search also computes `above`, for which the start must be drawn from a normal distribution, and
    stops only once it is within `rtol` as well. All steps are fully reorthogonalized.

    Reference: M. Hochstenbach, Probabilistic upper bounds for the matrix two-norm (2013), for `above`.
    """
    krylov = Krylov(start)
    steps = min(steps, krylov.size)
    for step in range(1, steps + 1):
        krylov.extend(operator)
        late = budget is not None and budget.late
        if step == steps or step % STEPS_BETWEEN_TESTS == 0 or late:
            values, coordinates, errors, above = krylov.ritz(MISSED if sure else None)
            gaps = torch.maximum(errors, above / values.clamp(min=1e-300) - 1) if sure else errors
            if late or float(gaps.max()) <= rtol:
                break
    vectors = (coordinates.to(start)[:, None, :] @ krylov.basis[:, :step])[:, 0]
    vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-300)
    values, errors, above = (tensor.to(start.device, krylov.alpha.dtype) for tensor in (values, errors, above))
    return Ritz(values, vectors, errors, above, step)


class Krylov:
    """Krylov spaces of a batch of Hermitian operators, with orthonormal bases that grow step by step.

    Args:
        start: the first vector of each, `[b, n]`.
        invariant_rtol: a space counts as invariant once a step leaves it by no more than this, relative to its
            operator: what is left is rounding.

    Attributes:
        steps: the number of steps so far.
        size: the order of the operators.
        basis: the bases `[b, steps, n]`, perhaps with zeros behind them.
        alpha, beta: the diagonals `[b, steps]` of the tridiagonal matrices.
    """

    def __init__(self, start: Tensor, *, invariant_rtol: float = 1e-14) -> None:
        count, self.size = start.shape
        self._invariant_rtol = invariant_rtol
        self.steps = 0
        self.basis = start.new_zeros(count, 0, self.size)
        real = start.real.dtype if start.is_complex() else start.dtype
        self.alpha = torch.zeros(count, 0, dtype=real, device=start.device)
        self.beta = torch.zeros_like(self.alpha)
        self._vector = start / start.norm(dim=1, keepdim=True).clamp(min=1e-300)
        self._least = torch.zeros(count, dtype=real, device=start.device)

    def extend(self, operator: Callable[[Tensor], Tensor]) -> None:
        """Take one step, with full reorthogonalization."""
        if self.steps == self.basis.shape[1]:
            room = self.basis.new_zeros(len(self.basis), min(STEPS_BETWEEN_TESTS, self.size - self.steps), self.size)
            self.basis = torch.cat([self.basis, room], dim=1)
        self.basis[:, self.steps] = self._vector
        image = operator(self._vector)
        spanned = self.basis[:, : self.steps + 1]
        inner = spanned.conj() @ image[:, :, None]
        alpha = inner[:, -1, 0].real
        image = image - (spanned.mT @ inner)[:, :, 0]
        image = image - (spanned.mT @ (spanned.conj() @ image[:, :, None]))[:, :, 0]
        rest = image.norm(dim=1)
        self._least = torch.maximum(self._least, self._invariant_rtol * alpha.abs())
        ended = rest <= self._least  # the space is invariant, and the next vectors are zero
        self.alpha = torch.cat([self.alpha, alpha[:, None]], dim=1)
        self.beta = torch.cat([self.beta, rest.masked_fill(ended, 0.0)[:, None]], dim=1)
        self._vector = image / rest.masked_fill(ended, math.inf)[:, None]
        self.steps += 1

    def tridiagonal(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the operators in the coordinates of their spaces, and the diagonals beside, in float64 on the CPU."""
        alpha, beta = self.alpha.double().cpu(), self.beta.double().cpu()
        if rows is not None:
            alpha, beta = alpha[rows.cpu()], beta[rows.cpu()]
        return tridiagonal_matrices(alpha, beta), beta

    def ritz(self, missed: float | None, rows: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the largest Ritz values, their coordinates, estimated relative errors and `above`, on the CPU.

        `above` bounds the eigenvalue except with a probability of `missed` over random starts, and is infinite without
        it; `rows` selects some of the operators.
        """
        tri, beta = self.tridiagonal(rows)
        values, vectors = torch.linalg.eigh(tri)
        top = values[:, -1]
        residual = (beta[:, -1] * vectors[:, -1, -1]).abs()
        gap = top - values[:, -2] if self.steps > 1 else top
        error = torch.minimum(residual, residual.square() / gap.clamp(min=1e-300))
        above = torch.full_like(top, math.inf) if missed is None else _above(values, beta, self.size, missed)
        return top, vectors[:, :, -1], error / top.clamp(min=1e-300), above


def tridiagonal_matrices(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the operators in the coordinates of their spaces, `[b, steps, steps]`."""
    beside = torch.diag_embed(beta[:, : alpha.shape[1] - 1], offset=1) if alpha.shape[1] > 1 else 0.0
    return torch.diag_embed(alpha) + beside + (beside.mT if isinstance(beside, Tensor) else 0.0)


def largest_ritz_values(alpha: Tensor, beta: Tensor, size: int, *, missed: float) -> tuple[Tensor, Tensor]:
    """Return the largest Ritz values of Krylov spaces, and `above`, from their diagonals on the CPU.

    Args:
        alpha: the diagonals of a `Krylov`, in float64.
        beta: those beside them.
        size: the order of the operators.
        missed: the probability that `above` fails, over random starts.
    """
    values = torch.linalg.eigvalsh(tridiagonal_matrices(alpha, beta))
    return values[:, -1], _above(values, beta, size, missed, bisections=14)  # a bound at any number of them


def _above(values: Tensor, beta: Tensor, size: int, missed: float, bisections: int = 60) -> Tensor:
    """Return an upper bound on the largest eigenvalue that fails with a small probability.

    After k steps the next basis vector is p(A) times the start, with p(t) = prod (t - values) / prod beta, and its
    length is 1: so |p(eigenvalue)| is at most one over the share of the eigenvector in the start. That share is less
    than missed sqrt(pi/2n) with probability `missed` at most. Beyond the top Ritz value p grows, and bisection finds
    where it reaches that limit. A step of length zero ends in an invariant subspace, whose top Ritz value is the bound.
    """
    wanted = -math.log(missed * math.sqrt(math.pi / (2 * size)))
    lengths = beta.clamp(min=1e-300).log().sum(dim=1)
    low = torch.zeros_like(values[:, -1])
    high = ((wanted + lengths) / beta.shape[1]).exp()  # no factor is below t - top
    for _ in range(bisections):
        middle = (low + high) / 2
        grown = (middle[:, None] + (values[:, -1:] - values)).log().sum(dim=1) - lengths
        low, high = torch.where(grown < wanted, middle, low), torch.where(grown < wanted, high, middle)
    return values[:, -1] + torch.where((beta == 0).any(dim=1), 0.0, high)
