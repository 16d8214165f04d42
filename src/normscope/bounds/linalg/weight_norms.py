"""Norms of stored tensors: matrices of any size in bounded memory, kernels whose convolution nobody knows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.bracket import Bracket, Evidence
from ...core.budget import GPU, Budget
from ...core.errors import InputError
from ...core.rounding import ZERO, Upper, gamma, gram_allowance, inward, smallest, total
from ...core.threads import full_precision
from ...products.lanczos import Krylov, largest_ritz_values
from .certify import certify, gram_of_rows
from .linear_map import Matrix
from .operator_norms import BOUNDING, bracket, upper
from .singular_vector import largest_singular_vector

KERNEL_NOTE = (
    "the file does not say how a kernel is run: the bracket holds for every zero-padded convolution with it, plain or "
    "transposed, whatever its stride, dilation, groups and size; its lower side as long as one window lies wholly "
    "inside the input (the output of a transposed one)"
)

_WHOLE_ENTRIES = 1 << 20
"""Matrices with more entries than this are read in pieces."""
_PIECE_ENTRIES = 1 << 20
"""How many entries a piece has, in float64; on a GPU `GPU` times as many."""
_CACHED_ENTRIES = 1 << 16
"""How many entries a piece has for a product with one vector on a CPU: it stays in the cache."""
_MAX_GRAM_MULTIPLICATIONS = 6e11
"""Multiplications for a Gram matrix: some ten seconds on two cores, and `GPU` times as many on a GPU. Above it only
cheap upper sides are taken."""
_LANCZOS_STEPS = 60
"""The most steps of the search for a vector that shows the lower side."""
_SAMPLED_ENTRIES = 1 << 18
"""Matrices with more entries than this may have a sampled upper side: for smaller ones a proof takes a moment."""
_STARTS, _SAMPLED_STEPS = 16, 24
"""Random starts of a sampled norm, and the most steps from them; 16 vectors cost a CPU what three cost one by one."""
_FIRST_TEST = 8
"""Steps before the first test of how close a sampled norm is: random matrices come within 5 % by then."""
_UNSCALED = 2.0**10
"""Matrices whose largest entry lies between one over this and this stay as they are: the squares of their steps, up to
the fourth power of an entry times the square of their number, stay within float32."""


def matrix_norm(weight: Tensor, *, rtol: float = 1e-2, missed: float = 0.0, budget: Budget | None = None) -> Bracket:
    """Return the spectral norm of a matrix as a bracket, in memory that stays near the matrix itself.

    Large matrices are read in pieces: G = sum of P^T P over pieces P, and a Cholesky factorization of t I - G proves
    norm <= sqrt(t), with the rounding of G on top. Matrices that would take longer than some ten seconds get the
    smaller of the Frobenius norm and sqrt(largest row sum * largest column sum) as upper side. With `missed` large
    matrices get a sampled upper side instead (`_sampled`), in a small part of the time.

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
    return matrix_norms([weight], rtol=rtol, missed=missed, budget=budget)[0]


def matrix_norms(
    weights: Sequence[Tensor], *, rtol: float = 1e-2, missed: float = 0.0, budget: Budget | None = None
) -> list[Bracket]:
    """Return the spectral norms of matrices as `matrix_norm` does; sampled ones take their steps together.

    Args:
        weights: matrices of one shape and on one device, or transposes of such.
        rtol: as in `matrix_norm`.
        missed: as in `matrix_norm`, for each matrix by itself.
        budget: as in `matrix_norm`.
    """
    weights = [_working(weight) for weight in weights]
    forms = (budget or Budget()).closed_forms(BOUNDING)
    if not may_be_sampled(weights[0], missed):
        return [_certified_norm(weight, rtol, budget, forms) for weight in weights]
    brackets = []
    for weight, (bound, lower) in zip(
        weights, _sampled([_Large(weight, forms) for weight in weights], rtol, missed, forms)
    ):
        notes = (f"the upper side is too small with a probability of at most {missed:.2g}, over random starts",)
        advice = forms.advice() or f"the search ended after {_SAMPLED_STEPS} steps: a certified norm is closer"
        shape, sampled = (weight.shape[1],), bound.evidence is Evidence.SAMPLED
        brackets.append(_closed(bound, lower, rtol, advice, input_shape=shape, notes=notes if sampled else ()))
    return brackets


def may_be_sampled(weight: Tensor, missed: float) -> bool:
    """Whether a matrix is so large that its upper side is sampled, where that is asked for."""
    return missed > 0.0 and weight.numel() > _SAMPLED_ENTRIES and weight.dtype != torch.float64


def _certified_norm(weight: Tensor, rtol: float, budget: Budget | None, forms: Budget) -> Bracket:
    if weight.numel() <= _WHOLE_ENTRIES or weight.dtype == torch.float64:
        return bracket(Matrix(weight), rtol=rtol, budget=budget)
    large = _Large(weight, forms)
    bound, vector = large.certified(rtol)
    lower = large.attained(vector if vector is not None else large.search_vector(rtol, forms))[0]
    advice = forms.advice() or "too large for a Gram matrix: the upper side is a cheap one"
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
        The bracket, PROVEN; never closed, since the convolutions it covers have different norms.

    Raises:
        InputError: a value is NaN or infinite.

    Example:
        >>> bracket = kernel_norm(torch.ones(1, 1, 3))  # 3 on a long signal, sqrt(3) on one of 3 without padding
        >>> round(bracket.lower**2, 9), round(bracket.upper, 9)
        (3.0, 3.0)
    """
    taps = _working(kernel).flatten(2)
    out, _, count = taps.shape
    rows = taps.reshape(out, -1)
    longest = rows[torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).argmax()]
    root = Upper.of(math.sqrt(count), Evidence.PROVEN, allowance=2.0**-52)
    forms = (budget or Budget()).closed_forms(BOUNDING)
    bounds = [
        total([_upper(taps[:, :, tap], rtol, forms) for tap in range(count)]).named("sum over taps"),
        root.times(_upper(rows, rtol, forms)).named("windows"),
        root.times(_upper(taps.transpose(1, 2).reshape(out * count, -1), rtol, forms)).named("terms of an output"),
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
    if matrix.numel() <= _WHOLE_ENTRIES or matrix.dtype == torch.float64:
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
        self.affordable = cost <= _MAX_GRAM_MULTIPLICATIONS * (GPU if self.gpu else 1.0) and not budget.over

    def pieces(self, entries: int = 0) -> Iterator[Tensor]:
        """Yield some rows at a time in float64."""
        step = max(1, (int(_PIECE_ENTRIES * GPU) if self.gpu else entries or _PIECE_ENTRIES) // self.columns)
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

    def single(self) -> tuple[Tensor, float]:
        """Return the matrix in float32 over a power of two, and that power; 0 for a matrix of zeros."""
        top = max(abs(float(end)) for end in self.tall.aminmax())
        if not math.isfinite(top):
            raise InputError("a weight is NaN or infinite: the map has no norm")
        if top == 0.0:
            return self.tall, 0.0
        if 1.0 / _UNSCALED <= top <= _UNSCALED:
            return self.tall.float(), 1.0
        scale = 2.0 ** max(-120, min(120, math.frexp(top)[1]))
        return self.tall.to(torch.float32, copy=True).div_(scale), scale

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

    def search_vector(self, rtol: float, budget: Budget) -> Tensor:
        """Return a vector that is stretched much, found by Lanczos in float32."""
        if self.frobenius == 0.0:
            return torch.zeros(self.columns, dtype=torch.float64, device=self.tall.device)
        noise = torch.randn(self.columns, generator=torch.Generator().manual_seed(0)).to(self.tall.device)
        search = largest_singular_vector(
            Matrix(self.tall.float()),
            noise,
            rtol=rtol / 20.0,
            steps=_LANCZOS_STEPS,
            budget=budget,
            scale=self.frobenius,
        )
        return search.vector.double()

    def attained(self, vector: Tensor) -> tuple[float, Tensor]:
        """Return log10 of the gain of a vector v, rounded inward, and A^T A v; take the Frobenius norm on the way."""
        normal, sums = torch.zeros_like(vector), vector.new_zeros(2)
        for piece in self.pieces(_CACHED_ENTRIES):
            image = piece @ vector
            normal.addmv_(piece.T, image)
            sums += torch.stack([torch.linalg.vector_norm(piece).square(), image.square().sum()])
        squares, gain = sums.tolist()
        self.frobenius, length = self._root(squares), float(vector.norm())
        if length == 0.0 or gain == 0.0:
            return -math.inf, normal
        size = math.sqrt(gain)
        wrong = gamma(2.0 * self.columns + 16.0) * self.frobenius * length
        return inward(size / length, wrong / size + gamma(2.0 * (self.rows + self.columns) + 64.0)), normal


@full_precision()
def _sampled(larges: Sequence[_Large], rtol: float, missed: float, budget: Budget) -> list[tuple[Upper, float]]:
    """Return for matrices of one shape upper sides that fail with a probability of `missed` each, and log10 of gains.

    Lanczos on A^T A goes from several random starts side by side, in float32. For one of them let c_j be the inner
    product of the j-th vector and the top eigenvector, lambda > theta the top eigenvalue and the largest Ritz value, p
    the polynomial that takes the start to the last vector, and phi the length of what rounding adds to a step. The
    recurrence c (lambda I - T) = beta c_{k+1} e_k^T + (at most phi in each entry), solved for c_1, says

        |c_1| <= 1/p(lambda) + sqrt(k) phi / (lambda - theta).

    The start has |c_1| < q sqrt(pi/2n) with a probability of q at most. The upper side is where in every run the first
    term is below 3/4 of that and the second below 1/4: it fails if all starts are so unlucky, for which
    q = missed^(1/starts) is enough. As q is far from 0 few steps do, and float32. phi is eight times what the last
    product differs from the same in float64, and eight units of float32 for the rest of a step. All matrices begin at
    the same starts; the probability that one of several fails is at most the sum over them.

    Reference: M. Hochstenbach, Probabilistic upper bounds for the matrix two-norm (2013).
    """
    columns, device = larges[0].columns, larges[0].tall.device
    sides: dict[int, tuple[Upper, float]] = {}
    kept = {place: pair for place, pair in enumerate(large.single() for large in larges) if pair[1] > 0.0}
    singles = [single for single, _ in kept.values()]

    def normal(rows: Tensor) -> Tensor:
        """Apply A^T A to rows, as many for each matrix; this way round takes a CPU a fifth less time."""
        parts = rows.reshape(len(singles), -1, columns)
        return torch.cat([(single @ part.T).T @ single for single, part in zip(singles, parts)])

    if kept:
        starts = torch.randn(_STARTS, columns, generator=torch.Generator().manual_seed(0)).to(device)
        krylov = Krylov(starts.repeat(len(kept), 1), invariant_rtol=5e-7)
        chance, last = missed ** (1.0 / _STARTS), False
        while not last:
            krylov.extend(normal)
            last = krylov.steps == min(_SAMPLED_STEPS, columns) or budget.late
            if last or (krylov.steps >= _FIRST_TEST and krylov.steps % 2 == 0):
                alpha, beta = krylov.alpha.double().cpu(), krylov.beta.double().cpu()
                values, above = largest_ritz_values(alpha, beta, columns, missed=0.75 * chance)
                sizes, ends = (ends.reshape(-1, _STARTS).amax(dim=1) for ends in (values, above))
                last = last or bool((ends <= (1.0 + 0.9 * rtol) ** 2 * sizes).all())
        best = values.reshape(-1, _STARTS).argmax(dim=1) + _STARTS * torch.arange(len(kept))
        coordinates = krylov.ritz(None, best)[1].to(starts)[:, None, :]
        vectors = (coordinates @ krylov.basis[best.to(device), : krylov.steps])[:, 0]
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
        limit = chance * math.sqrt(math.pi / (2.0 * columns))
        rows = zip(kept.items(), vectors.double(), normal(vectors), sizes.tolist(), ends.tolist())
        for (place, (_, scale)), vector, image, size, end in rows:
            large = larges[place]
            log10_lower, exact = large.attained(vector)
            phi = 8.0 * (float((image - exact / scale / scale).norm()) + torch.finfo(torch.float32).eps * size)
            square = max(end, size + 4.01 * math.sqrt(krylov.steps) * phi / limit)
            searched = "Lanczos from random starts"
            bounds = [
                Upper.of(math.sqrt(square) * scale, Evidence.SAMPLED, searched, allowance=2.0**-40),
                Upper.of(large.frobenius, Evidence.PROVEN, "Frobenius norm", allowance=4.0 * large.slack),
            ]
            sides[place] = smallest(bounds), log10_lower
    return [sides.get(place, (ZERO, -math.inf)) for place in range(len(larges))]
