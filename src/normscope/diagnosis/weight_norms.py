"""Norms of stored tensors: matrices of any size in bounded memory, kernels whose convolution nobody knows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.bracket import Bracket, Evidence
from ..core.budget import GPU, Budget
from ..core.errors import InputError
from ..core.rounding import ZERO, Upper, gamma, gram_allowance, inward, smallest, total
from ..core.threads import full_precision
from ..linalg.certify import certify, gram_of_rows
from ..linalg.lanczos import Krylov, largest_singular_vector
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
"""How many entries a piece has, in float64; on a GPU `GPU` times as many."""
_CACHED = 1 << 16
"""How many entries a piece has for a product with one vector on a CPU: it stays in the cache."""
_AFFORDABLE = 6e11
"""Multiplications for a Gram matrix: some ten seconds on two cores, and `GPU` times as many on a GPU. Above it only
cheap upper sides are taken."""
_STEPS = 60
_SAMPLED = 1 << 18
"""Matrices with more entries than this may have a sampled upper side: of smaller ones a proof takes a moment."""
_STARTS, _SAMPLED_STEPS = 16, 24
"""Random starts of a sampled norm, and the most steps from them; 16 vectors cost a CPU what three cost one by one."""


def matrix_norm(weight: Tensor, *, rtol: float = 1e-2, missed: float = 0.0, budget: Budget | None = None) -> Bracket:
    """Return the spectral norm of a matrix as a bracket, in memory that stays near the matrix itself.

    Large matrices are read in pieces: G = sum of P^T P over pieces P, and a Cholesky factorization of t I - G proves
    norm <= sqrt(t), with the rounding of G on top. Matrices that would take longer than some ten seconds get the
    smaller of the Frobenius norm and sqrt(largest row sum * largest column sum) as upper side. With `missed` large
    matrices get a sampled upper side instead (`_Large.sampled`), in a small part of the time.

    Args:
        weight: a real floating-point matrix; float16, bfloat16 and float8 are converted exactly.
        rtol: close the bracket to `upper/lower - 1 <= rtol` where that is affordable.
        missed: the probability, over random starts, with which the upper side may be too small.
        budget: once it is over only cheap upper sides are taken, but for closed forms that take a moment.

    Returns:
        The bracket, PROVEN, with `missed` SAMPLED for large matrices; `converged` and `advice` say if it is loose.

    Raises:
        InputError: a value is NaN or infinite.

    Example:
        >>> round(matrix_norm(torch.diag(torch.tensor([3.0, 4.0]))).upper, 9)
        4.0
    """
    weight = _working(weight)
    if weight.numel() <= (_SAMPLED if missed else _SMALL) or weight.dtype == torch.float64:
        return bracket(Matrix(weight), rtol=rtol, budget=budget)
    own = (budget or Budget()).closed_forms(BOUNDING)
    large = _Large(weight, own)
    notes: tuple[str, ...] = ()
    if missed:
        bound, lower = large.sampled(rtol, missed, own)
        if bound.evidence is Evidence.SAMPLED:
            notes = (f"the upper side is too small with a probability of at most {missed:.2g}, over random starts",)
        advice = own.advice() or f"the search ended after {_SAMPLED_STEPS} steps: a certified norm is closer"
    else:
        bound, vector = large.certified(rtol)
        lower = large.attained(vector if vector is not None else large.searched(rtol, own))[0]
        advice = own.advice() or "too large for a Gram matrix: the upper side is a cheap one"
    return _closed(bound, lower, rtol, advice, input_shape=(weight.shape[1],), notes=notes)


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
        self.slack = gamma(float(self.rows) * self.columns + 32.0)
        self.gpu = self.tall.device.type == "cuda"
        cost = float(self.rows) * self.columns * self.columns
        self.affordable = cost <= _AFFORDABLE * (GPU if self.gpu else 1.0) and not budget.over

    def pieces(self, entries: int = 0) -> Iterator[Tensor]:
        """Yield some rows at a time in float64."""
        step = max(1, (int(_PIECE * GPU) if self.gpu else entries or _PIECE) // self.columns)
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
        self.frobenius = self._root(squares)
        self.schur = math.sqrt(longest * float(columns.max())) * (1.0 + self.slack)

    def _root(self, squares: float) -> float:
        """Return the Frobenius norm, rounded up."""
        if not math.isfinite(squares):
            raise InputError("a weight is NaN or infinite: the map has no norm")
        return math.sqrt(squares) * (1.0 + self.slack)

    @full_precision()
    def sampled(self, rtol: float, missed: float, budget: Budget) -> tuple[Upper, float]:
        """Return an upper side that fails with a probability of `missed`, and log10 of a gain that is attained.

        Lanczos on A^T A goes from several random starts side by side, in float32. For one of them let c_j be the inner
        product of the j-th vector and the top eigenvector, lambda > theta the top eigenvalue and the largest Ritz
        value, p the polynomial that takes the start to the last vector, and phi the length of what rounding adds to
        a step. The recurrence c (lambda I - T) = beta c_{k+1} e_k^T + (at most phi in each entry), solved for c_1, says

            |c_1| <= 1/p(lambda) + sqrt(k) phi / (lambda - theta).

        The start has |c_1| < q sqrt(pi/2n) with a probability of q at most. The upper side is where in every run the
        first term is below 3/4 of that and the second below 1/4: it fails if all starts are so unlucky, for which
        q = missed^(1/starts) is enough. As q is far from 0 few steps do, and float32. phi is eight times what the last
        product differs from the same in float64, and eight units of float32 for the rest of a step.

        Reference: M. Hochstenbach, Probabilistic upper bounds for the matrix two-norm (2013).
        """
        top = max(abs(float(end)) for end in self.tall.aminmax())
        if not math.isfinite(top):
            raise InputError("a weight is NaN or infinite: the map has no norm")
        if top == 0.0:
            return ZERO, -math.inf
        scale = 2.0 ** max(-120, min(120, math.frexp(top)[1]))
        single = self.tall.float() / scale

        def normal(rows: Tensor) -> Tensor:
            return rows @ single.T @ single

        starts = torch.randn(_STARTS, self.columns, generator=torch.Generator().manual_seed(0)).to(single)
        krylov, chance, last = Krylov(starts, invariant_rtol=5e-7), missed ** (1.0 / _STARTS), False
        while not last:
            krylov.extend(normal)
            last = krylov.steps == min(_SAMPLED_STEPS, self.columns) or budget.late
            if last or krylov.steps % 2 == 0:
                values, coordinates, _, above = krylov.ritz(0.75 * chance)
                last = last or float(above.max()) <= (1.0 + 0.9 * rtol) ** 2 * float(values.max())
        best, size = int(values.argmax()), float(values.max())
        vector = (coordinates[best].to(single) @ krylov.basis[best, : krylov.steps])[None]
        vector = vector / vector.norm()
        log10_lower, exact = self.attained(vector[0].double())
        error = float((normal(vector)[0] - exact / scale / scale).norm())
        phi = 8.0 * (error + torch.finfo(torch.float32).eps * size)
        limit = chance * math.sqrt(math.pi / (2.0 * self.columns))
        square = max(float(above.max()), size + 4.01 * math.sqrt(krylov.steps) * phi / limit)
        sides = [
            Upper.of(math.sqrt(square) * scale, Evidence.SAMPLED, "Lanczos from random starts", allowance=2.0**-40),
            Upper.of(self.frobenius, Evidence.PROVEN, "Frobenius norm", allowance=4.0 * self.slack),
        ]
        return smallest(sides), log10_lower

    def certified(self, rtol: float) -> tuple[Upper, Tensor | None]:
        """Return a proven upper bound, and the vector that nearly attains it if there is a Gram matrix."""
        self._read()
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

    def attained(self, vector: Tensor) -> tuple[float, Tensor]:
        """Return log10 of the gain of a vector v, rounded inward, and A^T A v; take the Frobenius norm on the way."""
        squares, gain, normal = 0.0, 0.0, torch.zeros_like(vector)
        for piece in self.pieces(_CACHED):
            image = piece @ vector
            normal.addmv_(piece.T, image)
            squares += float(torch.linalg.vector_norm(piece)) ** 2
            gain += float(image.square().sum())
        self.frobenius, length = self._root(squares), float(vector.norm())
        if length == 0.0 or gain == 0.0:
            return -math.inf, normal
        size = math.sqrt(gain)
        wrong = gamma(2.0 * self.columns + 16.0) * self.frobenius * length
        return inward(size / length, wrong / size + gamma(2.0 * (self.rows + self.columns) + 64.0)), normal
