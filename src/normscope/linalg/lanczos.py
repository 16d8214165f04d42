"""Lanczos iteration: many small Hermitian matrices at once, or one large linear map with its transpose."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.budget import Budget
from ..core.cost import count
from .linear_map import LinearMap

_DIRECT = 128
"""Matrices of up to this order are diagonalized directly on a CPU; a GPU takes longer for that than for Lanczos."""
_CHUNK = 32
"""Vectors of a basis that restarts, for which memory is taken at a time."""
_ROOM = 4
"""How many vectors of a basis get memory at a time, and how many steps lie between two tests of convergence."""
MISSED = 1e-3
"""The probability that a random start has a smaller share of the top eigenvector than `above` assumes."""


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


def top_eigenpairs(
    matrices: Tensor, *, steps: int = 48, rtol: float = 1e-6, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue `[b]` and its eigenvector `[b, m]` of Hermitian matrices `[b, m, m]`."""
    count, size, _ = matrices.shape
    if size <= _DIRECT and not matrices.is_cuda:
        values, vectors = torch.linalg.eigh(matrices)
        return values[:, -1], vectors[:, :, -1]
    generator = generator or torch.Generator().manual_seed(0)
    start = torch.randn(count, size, dtype=torch.float64, generator=generator).to(matrices)
    found = lanczos(lambda x: (matrices @ x[:, :, None])[:, :, 0], start, steps=steps, rtol=rtol)
    return found.values, found.vectors


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
        if step == steps or step % _ROOM == 0 or late:
            values, coordinates, errors, above = krylov.ritz(MISSED if sure else None)
            gaps = torch.maximum(errors, above / values.clamp(min=1e-300) - 1) if sure else errors
            if late or float(gaps.max()) <= rtol:
                break
    vectors = (coordinates.to(start)[:, None, :] @ krylov.basis[:, :step])[:, 0]
    vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-300)
    values, errors, above = (found.to(start.device, krylov.alpha.dtype) for found in (values, errors, above))
    return Ritz(values, vectors, errors, above, step)


class Krylov:
    """Krylov spaces of a batch of Hermitian operators, with orthonormal bases that grow step by step.

    Attributes:
        steps: the number of steps so far.
        size: the order of the operators.
        basis: the bases `[b, steps, n]`, perhaps with zeros behind them.
        alpha, beta: the diagonals `[b, steps]` of the tridiagonal matrices.
    """

    def __init__(self, start: Tensor) -> None:
        count, self.size = start.shape
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
            room = self.basis.new_zeros(len(self.basis), min(_ROOM, self.size - self.steps), self.size)
            self.basis = torch.cat([self.basis, room], dim=1)
        self.basis[:, self.steps] = self._vector
        image = operator(self._vector)
        known = self.basis[:, : self.steps + 1]
        inner = known.conj() @ image[:, :, None]
        alpha = inner[:, -1, 0].real
        image = image - (known.mT @ inner)[:, :, 0]
        image = image - (known.mT @ (known.conj() @ image[:, :, None]))[:, :, 0]
        rest = image.norm(dim=1)
        self._least = torch.maximum(self._least, 1e-14 * alpha.abs())
        ended = rest <= self._least  # the space is invariant, and the next vectors are zero
        self.alpha = torch.cat([self.alpha, alpha[:, None]], dim=1)
        self.beta = torch.cat([self.beta, rest.masked_fill(ended, 0.0)[:, None]], dim=1)
        self._vector = image / rest.masked_fill(ended, math.inf)[:, None]
        self.steps += 1

    def ritz(self, missed: float | None, rows: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the largest Ritz values, their coordinates, estimated relative errors and `above`, on the CPU.

        `above` bounds the eigenvalue except with a probability of `missed` over random starts; `rows` selects some of
        the operators.
        """
        alpha, beta = self.alpha.double().cpu(), self.beta.double().cpu()
        if rows is not None:
            alpha, beta = alpha[rows.cpu()], beta[rows.cpu()]
        return _ritz(alpha, beta, None if missed is None else (self.size, missed))

    def only(self, rows: Tensor) -> Krylov:
        """Return the spaces of some of the operators."""
        other = copy.copy(self)
        other.basis, other.alpha, other.beta = self.basis[rows], self.alpha[rows], self.beta[rows]
        other._vector, other._least = self._vector[rows], self._least[rows]
        return other


def _ritz(alpha: Tensor, beta: Tensor, sure: tuple[int, float] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the top Ritz values of tridiagonal matrices, their coordinates, estimated relative errors, and `above`.

    `sure` holds the order of the operators and the probability with which `above` may fail; without it `above` is
    infinite.
    """
    tri = torch.diag_embed(alpha)
    if alpha.shape[1] > 1:
        tri = tri + torch.diag_embed(beta[:, :-1], offset=1) + torch.diag_embed(beta[:, :-1], offset=-1)
    values, vectors = torch.linalg.eigh(tri)
    top = values[:, -1]
    residual = (beta[:, -1] * vectors[:, -1, -1]).abs()
    gap = top - values[:, -2] if alpha.shape[1] > 1 else top
    error = torch.minimum(residual, residual.square() / gap.clamp(min=1e-300))
    above = torch.full_like(top, math.inf) if sure is None else _above(values, beta, *sure)
    return top, vectors[:, :, -1], error / top.clamp(min=1e-300), above


def _above(values: Tensor, beta: Tensor, size: int, missed: float) -> Tensor:
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
    for _ in range(60):
        middle = (low + high) / 2
        grown = (middle[:, None] + (values[:, -1:] - values)).log().sum(dim=1) - lengths
        low, high = torch.where(grown < wanted, middle, low), torch.where(grown < wanted, high, middle)
    return values[:, -1] + torch.where((beta == 0).any(dim=1), 0.0, high)


@dataclass(slots=True)
class SingularSearch:
    """The outcome of a search for the largest singular value: its vector, and how many steps it took.

    Attributes:
        vector: the best vector found, `[*in_shape]`.
        value: its gain, as computed in the working dtype (an estimate).
        steps: the number of steps, each one application of the map and of its transpose.
        settled: whether the value has converged; False where the map overflows, and the vector is the start then.
    """

    vector: Tensor
    value: float
    steps: int
    settled: bool


def largest_singular_vector(
    linear: LinearMap,
    start: Tensor,
    *,
    rtol: float = 1e-4,
    steps: int = 200,
    enough: float = math.inf,
    budget: Budget | None = None,
    memory: float = 4e8,
    scale: float = 1.0,
) -> SingularSearch:
    """Search for the unit vector that a map stretches most: thick-restart Lanczos on the transpose times the map.

    It works in the dtype of `start`, ends once the gain reaches `enough`, and restarts when the basis takes `memory`
    bytes. The map is divided by `scale`, about its gain, so that its square neither overflows nor vanishes.
    """
    size = linear.in_size
    room = int(max(8, min(64, steps + 1, size, memory // (start.element_size() * max(size, 1)))))
    vector = start.reshape(-1)
    norm = float(vector.norm())
    if norm == 0.0 or size == 0:
        return SingularSearch(start, 0.0, 0, True)
    vector = vector / norm
    space = RestartedSpace(start.reshape(-1), room)
    taken = 0
    while True:
        count("products", 2)
        image = linear.adjoint(linear.apply(vector.reshape(1, *linear.in_shape)) / scale).reshape(-1) / scale
        extended = space.extend(vector, image)
        if extended is None:  # the map overflows, and no vector of this search can be trusted
            return SingularSearch(start, 0.0, taken, False)
        image, rest = extended
        taken += 1
        exhausted = rest <= 1e-7 * space.scale or space.filled >= size  # invariant, as far as float32 can tell
        late = budget is not None and not budget.spend()
        last = late or taken >= steps
        if last or exhausted or space.full or taken % _ROOM == 0:
            top, coordinates, error = space.largest(rest)
            gain, settled = math.sqrt(top) * scale, error <= rtol or exhausted
            if settled or last or gain >= enough:
                best = (coordinates.to(space.known) @ space.known).reshape(linear.in_shape)
                return SingularSearch(best / best.norm(), gain, taken, settled)
            if space.full:
                space.restart(top=max(2, room // 4))
        vector = image / rest


class RestartedSpace:
    """A Krylov space that grows by a vector a step, and a symmetric operator in its coordinates.

    Attributes:
        filled: the number of vectors so far.
        scale: the largest entry of the operator's diagonal and of its last column, in absolute value.
    """

    def __init__(self, like: Tensor, room: int) -> None:
        self.room = room
        self.basis = like.new_zeros(min(room, _CHUNK), like.numel())
        self.small = torch.zeros(room, room, dtype=torch.float64)
        self.filled = 0
        self.scale = 0.0

    @property
    def full(self) -> bool:
        """Whether the next vector needs a restart first."""
        return self.filled == self.room

    @property
    def known(self) -> Tensor:
        """The orthonormal vectors so far, `[filled, n]`."""
        return self.basis[: self.filled]

    @property
    def operator(self) -> Tensor:
        """The operator in the coordinates of the space, `[filled, filled]`."""
        return self.small[: self.filled, : self.filled]

    def extend(self, vector: Tensor, image: Tensor) -> tuple[Tensor, float] | None:
        """Take in a unit vector; return the part of its image outside the space and that part's length.

        The result is None where the image is not finite.
        """
        if self.filled == len(self.basis):
            more = self.basis.new_zeros(min(_CHUNK, self.room - self.filled), len(vector))
            self.basis = torch.cat([self.basis, more])
        self.basis[self.filled] = vector
        known = self.basis[: self.filled + 1]
        inner = known @ image
        image = image - known.T @ inner
        again = known @ image
        image = image - known.T @ again
        column = torch.cat([inner + again, image.norm()[None]]).double().cpu()
        if not bool(column.isfinite().all()):
            return None
        last = self.filled
        self.filled += 1
        self.small[: self.filled, last] = self.small[last, : self.filled] = column[:-1]
        self.scale = float(self.operator.diagonal().abs().max().clamp(min=column[:-1].abs().max()))
        return image, float(column[-1])

    def largest(self, rest: float) -> tuple[float, Tensor, float]:
        """Return the largest Ritz value, the coordinates of its vector, and the estimated relative error of its root.

        `rest` is the length of the part of the last image outside the space.
        """
        values, vectors = torch.linalg.eigh(self.operator)
        top = max(float(values[-1]), 0.0)
        residual = rest * abs(float(vectors[-1, -1]))
        gap = top - float(values[-2]) if self.filled > 1 else top
        error = min(residual, residual**2 / gap if gap > 0 else residual) / (2.0 * top) if top > 0 else 0.0
        return top, vectors[:, -1], error

    def restart(self, top: int, bottom: int = 0) -> None:
        """Keep the Ritz vectors at both ends alone; the next image couples to each of them."""
        values, vectors = torch.linalg.eigh(self.operator)
        count = len(values)
        kept = [*range(min(bottom, count // 3)), *range(count - min(top, count // 3), count)]
        self.basis[: len(kept)] = vectors[:, kept].to(self.basis).T @ self.known
        self.small.zero_()
        self.small[range(len(kept)), range(len(kept))] = values[kept]
        self.filled = len(kept)
