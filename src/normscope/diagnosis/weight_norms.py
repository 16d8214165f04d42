"""Norms of stored tensors: matrices of any size in bounded memory, kernels whose convolution nobody knows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.bracket import Bracket, Evidence
from ..core.budget import Budget
from ..core.errors import InputError
from ..core.rounding import ZERO, Upper, gamma, gram_allowance, inward, smallest, total
from ..linalg.certify import certify, gram_of_rows
from ..linalg.lanczos import largest_singular_vector
from ..linalg.linear_map import Matrix
from ..linalg.operator_norms import BOUNDING, bracket, upper

KERNEL_NOTE = (
    "the file does not say how a kernel is run: the bracket holds for every zero-padded convolution with it, plain or "
    "transposed, whatever its stride, dilation, groups and size; its lower side as long as one window lies wholly "
    "inside the input (the output of a transposed one)"
)

_SMALL = 1 << 20
"""Matrices with more entries than this are read in pieces."""
_PIECE = 1 << 20
"""How many entries a piece has, in float64."""
_AFFORDABLE = 6e11
"""Multiplications for a Gram matrix: some ten seconds on two cores. Above it only cheap upper sides are taken."""
_STEPS = 60


def matrix_norm(weight: Tensor, *, rtol: float = 1e-2, budget: Budget | None = None) -> Bracket:
    """Return the spectral norm of a matrix as a bracket, in memory that stays near the matrix itself.

    Large matrices are read in pieces: G = sum of P^T P over pieces P, and a Cholesky factorization of t I - G proves
    norm <= sqrt(t), with the rounding of G on top. Matrices that would take longer than some ten seconds get the
    smaller of the Frobenius norm and sqrt(largest row sum * largest column sum) as upper side.

    Args:
        weight: a real floating-point matrix; float16, bfloat16 and float8 are converted exactly.
        rtol: close the bracket to `upper/lower - 1 <= rtol` where that is affordable.
        budget: once it is over only cheap upper sides are taken, but for closed forms that take a moment.

    Returns:
        The bracket, PROVEN; `converged` and `advice` say if it is loose.

    Raises:
        InputError: a value is NaN or infinite.

    Example:
        >>> round(matrix_norm(torch.diag(torch.tensor([3.0, 4.0]))).upper, 9)
        4.0
    """
    weight = _working(weight)
    if weight.numel() <= _SMALL or weight.dtype == torch.float64:
        return bracket(Matrix(weight), rtol=rtol, budget=budget)
    own = (budget or Budget()).closed_forms(BOUNDING)
    large = _Large(weight, own)
    bound, vector = large.certified(rtol)
    lower = large.attained(vector if vector is not None else large.searched(rtol, own))
    advice = own.advice() or "too large for a Gram matrix: the upper side is a cheap one"
    return _closed(bound, lower, rtol, advice, input_shape=(weight.shape[1],))


def kernel_norm(kernel: Tensor, *, rtol: float = 1e-2, budget: Budget | None = None) -> Bracket:
    """Bracket the norm of every convolution that a stored kernel may belong to.

    The kernel W is `[out, in/groups, *taps]`, or `[in, out/groups, *taps]` of a transposed convolution, which is the
    transpose of the former and has its norm. For every zero-padded convolution with it (any stride, dilation, groups
    and input size):

    - norm <= sum over taps t of norm(W_t): each tap copies every input at most once, and the block of a group is a
      part of the rows of W_t;
    - norm <= sqrt(taps) min(norm(R), norm(C)), R = `[out, in/groups * taps]` (an input occurs in at most as many
      windows as there are taps) and C = `[out * taps, in/groups]` (an output adds at most that many terms);
    - norm >= the norm of any row of R, if one window lies wholly inside the input: that window's output is the row's
      inner product with it.

    Args:
        kernel: a real floating-point tensor of 3 to 5 dimensions.
        rtol: the relative tolerance of the norms of the matrices.
        budget: once it is over only cheap upper sides are taken, but for closed forms that take a moment.

    Returns:
        The bracket, PROVEN; never closed, since the convolutions it speaks of have different norms.

    Raises:
        InputError: a value is NaN or infinite.

    Example:
        >>> found = kernel_norm(torch.ones(1, 1, 3))  # 3 on a long signal, sqrt(3) on one of length 3 without padding
        >>> round(found.lower**2, 9), round(found.upper, 9)
        (3.0, 3.0)
    """
    taps = _working(kernel).flatten(2)
    out, _, count = taps.shape
    rows = taps.reshape(out, -1)
    longest = rows[torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).argmax()]
    root = Upper.of(math.sqrt(count), Evidence.PROVEN, allowance=2.0**-52)
    own = (budget or Budget()).closed_forms(BOUNDING)
    bounds = [
        total([_upper(taps[:, :, tap], rtol, own) for tap in range(count)]).named("sum over taps"),
        root.times(_upper(rows, rtol, own)).named("windows"),
        root.times(_upper(taps.transpose(1, 2).reshape(out * count, -1), rtol, own)).named("terms of an output"),
    ]
    lower = bracket(Matrix(longest[None])).log10_lower
    advice = "audit the model itself: with stride, padding, groups and input size known the bracket closes"
    return _closed(smallest(bounds), lower, rtol, advice, notes=(KERNEL_NOTE,))


def _closed(bound: Upper, log10_lower: float, rtol: float, advice: str, **more: Any) -> Bracket:
    """Return a bracket that says whether it closed, and if not what stands in the way."""
    closed = bound.log10 == log10_lower or bound.log10 - log10_lower <= math.log10(1.0 + rtol)
    return Bracket(
        log10_lower=log10_lower,
        log10_upper=bound.log10,
        evidence=bound.evidence,
        method=bound.method,
        converged=closed,
        advice=None if closed else advice,
        **more,
    )


def _working(weight: Tensor) -> Tensor:
    weight = weight.detach()
    return weight if weight.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) else weight.float()


def _upper(matrix: Tensor, rtol: float, budget: Budget) -> Upper:
    if matrix.numel() <= _SMALL or matrix.dtype == torch.float64:
        return upper(Matrix(matrix), rtol=rtol, budget=budget)
    return _Large(matrix, budget).certified(rtol)[0]


class _Large:
    """A matrix of float32 or less, long side first, that is only ever converted in pieces.

    Squares of such numbers stay far from the ends of float64's range, so that nothing needs scaling.
    """

    def __init__(self, weight: Tensor, budget: Budget) -> None:
        self.tall = weight if weight.shape[0] >= weight.shape[1] else weight.T
        self.rows, self.columns = self.tall.shape
        cost = float(self.rows) * self.columns * self.columns
        self.affordable = cost <= _AFFORDABLE and not budget.over
        self._read()

    def pieces(self) -> Iterator[Tensor]:
        """Yield some rows at a time in float64."""
        step = max(1, _PIECE // self.columns)
        for first in range(0, self.rows, step):
            yield self.tall[first : first + step].double()

    def _read(self) -> None:
        """Take the Frobenius norm and the row and column sums in one pass."""
        squares, longest = 0.0, 0.0
        columns = torch.zeros(self.columns, dtype=torch.float64, device=self.tall.device)
        for piece in self.pieces():
            squares += float(torch.linalg.vector_norm(piece)) ** 2
            piece.abs_()
            longest = max(longest, float(piece.sum(dim=1).max()))
            columns += piece.sum(dim=0)
        if not math.isfinite(squares):
            raise InputError("a weight is NaN or infinite: the map has no norm")
        self.slack = gamma(float(self.rows) * self.columns + 32.0)
        self.frobenius = math.sqrt(squares) * (1.0 + self.slack)
        self.schur = math.sqrt(longest * float(columns.max())) * (1.0 + self.slack)

    def certified(self, rtol: float) -> tuple[Upper, Tensor | None]:
        """Return a proven upper bound, and the vector that nearly attains it if there is a Gram matrix."""
        if self.frobenius == 0.0:
            return ZERO, None
        cheap = [
            Upper.of(self.frobenius, Evidence.PROVEN, "Frobenius norm", allowance=4.0 * self.slack),
            Upper.of(self.schur, Evidence.PROVEN, "row and column sums", allowance=4.0 * self.slack),
        ]
        if not self.affordable:
            return smallest(cheap), None
        square, vector = self._largest_eigenvalue(rtol)
        sharp = Upper.of(math.sqrt(square), Evidence.PROVEN, "Gram matrix + Cholesky", allowance=2.0**-48)
        return smallest([sharp, *cheap]), vector

    def _largest_eigenvalue(self, rtol: float) -> tuple[float, Tensor | None]:
        """Return a bound on the largest eigenvalue of the Gram matrix, and its vector."""
        size = min(self.frobenius, self.schur) ** 2  # bounds the norm of the Gram matrix of absolute values
        certificate = certify([self._gram()[None]], delta=rtol / 50.0)
        return certificate.bound + gram_allowance(self.rows, 1, 0) * size, certificate.vector

    def _gram(self) -> Tensor:
        """Return the Gram matrix in float64."""
        if self.tall.device.type == "cpu":
            return gram_of_rows(self.pieces(), self.columns)
        gram = torch.zeros(self.columns, self.columns, dtype=torch.float64, device=self.tall.device)
        for piece in self.pieces():
            gram.addmm_(piece.T, piece)
        return gram

    def searched(self, rtol: float, budget: Budget) -> Tensor:
        """Return a vector that is stretched much, found by Lanczos in float32."""
        if self.frobenius == 0.0:
            return torch.zeros(self.columns, dtype=torch.float64, device=self.tall.device)
        noise = torch.randn(self.columns, generator=torch.Generator().manual_seed(0)).to(self.tall.device)
        search = largest_singular_vector(
            Matrix(self.tall.float()), noise, rtol=rtol / 20.0, steps=_STEPS, budget=budget, scale=self.frobenius
        )
        return search.vector.double()

    def attained(self, vector: Tensor) -> float:
        """Return log10 of the gain of a vector, rounded inward."""
        length = float(vector.norm())
        if length == 0.0 or self.frobenius == 0.0:
            return -math.inf
        image = math.sqrt(sum(float((piece @ vector).square().sum()) for piece in self.pieces()))
        if image == 0.0:
            return -math.inf
        wrong = gamma(2.0 * self.columns + 16.0) * self.frobenius * length
        return inward(image / length, wrong / image + gamma(2.0 * (self.rows + self.columns) + 64.0))
