"""Krylov spaces: top eigenvalues of many matrices or one large map, both ends of a spectrum, and its density."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...core.budget import Budget, count
from .linear_map import LinearMap

_DIRECT = 128
"""Matrices of up to this order are diagonalized directly on a CPU; a GPU takes longer for that than for Lanczos."""
_DIRECT_SINGLE = 512
"""One real matrix of up to this order has its top eigenvector taken directly."""
_CHUNK = 32
"""Vectors of a basis that restarts, for which memory is taken at a time."""
_ROOM = 4
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
        if step == steps or step % _ROOM == 0 or late:
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
            room = self.basis.new_zeros(len(self.basis), min(_ROOM, self.size - self.steps), self.size)
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
        return _tridiagonal(alpha, beta), beta

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


def _tridiagonal(alpha: Tensor, beta: Tensor) -> Tensor:
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
    values = torch.linalg.eigvalsh(_tridiagonal(alpha, beta))
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
        spanned = self.basis[: self.filled + 1]
        inner = spanned @ image
        image = image - spanned.T @ inner
        again = spanned @ image
        image = image - spanned.T @ again
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


Operator = Callable[[Tensor], Tensor]
SPARE = 8
"""How many vectors a restart keeps beyond those asked for."""
BEYOND = 2
"""How many vectors beyond those asked for there must be before values count: gaps between few values say little."""
CLUSTER = 6
"""At most this many values that lie close together are judged together."""
AFRESH = 8
"""How many products a search makes with a fresh vector, after its space was invariant, before its values count."""
EMPTY = 1e-12
"""A space is invariant if the part of an image outside it is at most this share of the operator's size, in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Eigenpairs at the ends of a spectrum: from the largest down, then from the smallest up.

    Attributes:
        top: the largest eigenvalues, falling.
        bottom: the smallest, rising.
        residuals: norm(A v - value v) of each unit vector, first of the top, then of the bottom.
        errors: an estimate of how far each value is off: the residual, or its square over the distance to other
            values, with values that lie close together taken as one.
        converged: for each value whether its error is within the tolerance.
        vectors: `[top + bottom, n]`, orthonormal.
        products: applications of the operator.
        whole: whether the space was exhausted, so that there are no other eigenvalues.
    """

    top: tuple[float, ...]
    bottom: tuple[float, ...]
    residuals: tuple[float, ...]
    errors: tuple[float, ...]
    converged: tuple[bool, ...]
    vectors: Tensor
    products: int
    whole: bool


def extreme_eigenpairs(
    operator: Operator,
    start: Tensor,
    *,
    top: int,
    bottom: int = 0,
    rtol: float = 1e-3,
    budget: Budget,
    room: int = 256,
    project: Operator | None = None,
    generator: torch.Generator | None = None,
) -> Ends:
    """Find the largest and the smallest eigenvalues of a symmetric operator.

    Each step takes one product, a step of the budget, and one transfer of a few numbers from the device. A value counts
    as converged once its estimated error is at most `rtol` of its size, or the size of rounding errors. At most `room`
    vectors are held; the search then goes on with the best of them. With `project` the operator is searched inside a
    subspace.
    """
    size, wanted = start.numel(), top + bottom
    if not wanted:
        none = start.new_zeros(0, size)
        return Ends(top=(), bottom=(), residuals=(), errors=(), converged=(), vectors=none, products=0, whole=False)
    project = project or (lambda vector: vector)
    generator = generator or torch.Generator().manual_seed(0)
    unit = torch.finfo(start.dtype).eps
    space = RestartedSpace(start, room=min(max(room, 2 * wanted + 2 * SPARE), size))
    vector = project(start)
    vector = vector / vector.norm()
    whole, since_fresh = False, 0
    pairs = _WantedValues.none(wanted)
    while budget.spend():
        image = project(operator(vector))
        if not bool(image.isfinite().all()):
            break
        if space.full:  # not before: the values of the last step may stay the last, and need the vectors of its space
            space.restart(top + SPARE, bottom + SPARE if bottom else 0)
        extended = space.extend(vector, image)
        if extended is None:
            break
        image, rest = extended
        invariant = rest <= max(EMPTY, 4 * unit) * space.scale
        pairs = _WantedValues.of(space.operator, 0.0 if invariant else rest, top, bottom, rtol, 8 * unit)
        since_fresh += invariant or since_fresh > 0
        whole = space.filled == size
        if invariant and not whole:  # an eigenvector that the start has no part of is not in this space
            fresh = _fresh(space.known, project, generator)
            whole = fresh is None
            image = image if fresh is None else fresh
        # values count once the space is large enough, also after a fresh start (0: there was none)
        enough = space.filled >= wanted + BEYOND and (since_fresh == 0 or since_fresh > AFRESH)
        if whole or (pairs.settled and enough):
            break
        vector = image / image.norm()
    return Ends(
        top=pairs.values[:top],
        bottom=pairs.values[top:],
        residuals=pairs.residuals,
        errors=pairs.errors,
        converged=pairs.converged,
        vectors=pairs.coordinates.to(start).T @ space.basis[: len(pairs.coordinates)],
        products=int(budget.spent),
        whole=whole,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WantedValues:
    """The wanted eigenvalues as a Krylov space shows them."""

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    errors: tuple[float, ...]
    converged: tuple[bool, ...]
    coordinates: Tensor
    wanted: int

    @property
    def settled(self) -> bool:
        """Whether every value that is wanted is there and converged."""
        return len(self.values) == self.wanted and all(self.converged)

    @classmethod
    def none(cls, wanted: int) -> _WantedValues:
        """Return the state before the first step, in which nothing is known."""
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return cls(values=(), residuals=(), errors=(), converged=(), coordinates=empty, wanted=wanted)

    @classmethod
    def of(cls, small: Tensor, rest: float, top: int, bottom: int, rtol: float, unit: float) -> _WantedValues:
        """Read the values off the operator in the Krylov space and the length of the image's part outside it."""
        values, vectors = torch.linalg.eigh(small)
        count = len(values)
        chosen = list(range(count - 1, max(count - 1 - top, -1), -1))
        chosen += [index for index in range(min(bottom, count)) if index not in chosen]
        residuals = (rest * vectors[-1]).abs()
        errors = _errors(values, residuals)
        allowed = torch.maximum(rtol * values.abs(), unit * values.abs().max())
        shares = (errors / allowed.clamp(min=1e-300))[chosen]
        return cls(
            values=tuple(values[chosen].tolist()),
            residuals=tuple(residuals[chosen].tolist()),
            errors=tuple(errors[chosen].tolist()),
            converged=tuple((shares <= 1.0).tolist()),
            coordinates=vectors[:, chosen],
            wanted=top + bottom,
        )


def _errors(values: Tensor, residuals: Tensor) -> Tensor:
    """Return an estimate of how far each value is off: its residual, or a smaller bound over a cluster around it.

    The values of a cluster are off by at most norm(R)^2/gap, where R holds the residuals of all its vectors and gap is
    the distance from the cluster to all other eigenvalues (here: to the other values that were found). Each value
    takes the smallest bound among the clusters around it, of up to `CLUSTER` values; a cluster of all values has no
    gap.
    """
    count = len(values)
    squares = torch.cat([residuals.new_zeros(1), residuals.square().cumsum(0)])
    edges = torch.cat([values[:1] - torch.inf, values, values[-1:] + torch.inf])
    best = residuals.clone()
    for size in range(1, min(CLUSTER, count - 1) + 1):
        starts = torch.arange(count - size + 1)
        below = edges[starts + 1] - edges[starts]
        above = edges[starts + size + 1] - edges[starts + size]
        bounds = (squares[starts + size] - squares[starts]) / torch.minimum(below, above).clamp(min=1e-300)
        for offset in range(size):
            best[starts + offset] = torch.minimum(best[starts + offset], bounds)
    return best


def _fresh(basis: Tensor, project: Operator, generator: torch.Generator) -> Tensor | None:
    """Return a random vector orthogonal to those known; None where no such direction is left."""
    drawn = torch.randn(basis.shape[1], generator=generator, dtype=torch.float64).to(basis)
    vector = project(drawn)
    for _ in range(3):
        vector = vector - basis.T @ (basis @ vector)
    return vector if float(vector.norm()) > 1e-3 * float(drawn.norm()) / basis.shape[1] ** 0.5 else None


SPANNED_ROUNDING_ERRORS = 32.0
"""A vector counts as spanned by others if it is at most this many rounding errors, of the operator's size, away."""
NODE_DISTANCE = 1e-5
"""An end of an interval is moved at least this far from the nodes, as a share of the largest: else rounding decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadrature:
    """The estimate of a spectrum from one random unit vector v.

    Attributes:
        nodes: rising.
        weights: of the nodes; they sum to 1.
        first, last: the first and the last entries of the eigenvectors of the tridiagonal matrix, one for each node.
        beta: the length of the last image outside the space: with 0 the nodes are all that v has a part of.
    """

    nodes: Tensor
    first: Tensor
    last: Tensor
    beta: float

    @property
    def weights(self) -> Tensor:
        """The weights of the nodes, which sum to 1."""
        return self.first.square()

    def share(self, limit: float, rounding: float = 0.0) -> tuple[float, float, float]:
        """Return the share of the spectrum that v has within a limit of zero: lower side, estimate, upper side.

        The spectral measure m of v has the weight (u^T v)^2 at the eigenvalue of each unit eigenvector u. Its share in
        [-limit, limit] is m(-inf, limit] - m(-inf, -limit), and `_below` encloses both terms. The estimate has each in
        the middle of its sides: the weight of the nodes inside would be 0 for every interval between two nodes. With
        nodes that may be off by `rounding`, the sides are those of an interval smaller or larger by this.
        """
        scale = max(float(self.nodes.abs().max()), self.beta)
        if scale == 0.0:
            return 1.0, 1.0, 1.0
        inner, outer = max(limit - rounding, 0.0), limit + rounding
        lower = self._below(inner, -scale)[0] - self._below(-inner, scale)[1]
        upper = self._below(outer, scale)[1] - self._below(-outer, -scale)[0]
        sides = torch.tensor([lower, (lower + upper) / 2, upper], dtype=torch.float64).clamp(0.0, 1.0)
        lower, middle, upper = sides.sort().values.tolist()  # where the sides meet, rounding may let them cross
        return lower, middle, upper

    def _below(self, place: float, toward: float) -> tuple[float, float]:
        """Enclose the weight of the spectrum below a place: without the place itself, and with it.

        Lanczos gives the tridiagonal matrix T of n steps and the next off-diagonal entry beta. Whatever corner c is
        added, the n + 1 nodes of [[T, beta e], [beta e^T, c]] integrate polynomials of degree 2n exactly. With
        c = x + beta^2 e^T (T - x)^{-1} e one of these nodes is x. There is a polynomial of degree 2n that is 1 at the
        nodes up to x and 0 at those behind it and touches both lines at every node but x: it is nowhere below the step
        from 1 to 0 behind x, so that m(-inf, x] is at most the weight of the nodes up to x. In the same way m(-inf, x)
        is at least the weight of the nodes before x (Chebyshev, Markov and Stieltjes). No other bounds on these weights
        from the same products are closer. The k-th eigenvalue of T lies between nodes k and k + 1, which says which
        node x is. The place x is moved away from the eigenvalues of T, where c is infinite, to the side of `toward`.
        """
        distance = NODE_DISTANCE * abs(toward)
        for node in self.nodes.tolist() if toward > 0 else self.nodes.flip(0).tolist():
            if abs(place - node) < distance:
                place = node + math.copysign(distance, toward)
        coupling = self.beta * self.last
        arrow = torch.diag(torch.cat([self.nodes, self.nodes.new_zeros(1)]))
        arrow[-1, :-1] = arrow[:-1, -1] = coupling
        arrow[-1, -1] = place + float((coupling.square() / (self.nodes - place)).sum())
        weights = (self.first @ torch.linalg.eigh(arrow).eigenvectors[:-1]).square()
        rank = int((self.nodes < place).sum())
        return float(weights[:rank].sum()), float(weights[: rank + 1].sum())


def quadratures(
    operator: Operator, start: Tensor, *, steps: int, budget: Budget | None = None
) -> tuple[list[Quadrature], Tensor, float]:
    """Return a quadrature for each of several unit vectors, a basis of their Krylov spaces, and the trace on these.

    The operator takes and gives rows. Of a random vector the mean weight of every eigenvalue is 1 over the dimension.
    Gauss quadrature with n nodes is exact for polynomials of degree 2n - 1. All vectors share one space, which holds
    that of each: Lanczos from each of them then runs in its coordinates. A deadline leaves out steps.

    Reference: Ubaru, Chen and Saad 2017; Golub and Meurant 2010 (nodes that are given, blocks).
    """
    basis, matrix, coordinates, taken = _block_krylov(operator, start, steps, budget)
    trace = float(matrix.diagonal()[: len(basis)].sum())
    krylov = Krylov(coordinates)
    for _ in range(taken):
        krylov.extend(lambda rows: rows @ matrix)
    rules = []
    for alpha, beta in zip(krylov.alpha, krylov.beta):
        ended = (beta <= 1e-6 * alpha.abs().cummax(0).values).nonzero()
        length = int(ended[0]) + 1 if len(ended) else len(beta)
        nodes, vectors = torch.linalg.eigh(_tridiagonal(alpha[None, :length], beta[None, :length])[0])
        rules.append(Quadrature(nodes=nodes, first=vectors[0], last=vectors[-1], beta=float(beta[length - 1])))
    return rules, basis, trace


def _block_krylov(
    operator: Operator, start: Tensor, steps: int, budget: Budget | None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the joint Krylov space of rows: its basis, the operator in it, the rows' coordinates, and the steps.

    The operator is that in the coordinates of the basis and, behind it, of what the last images add; zeros stand for
    the unknown images of these last vectors.
    """
    count, size = start.shape
    basis = start.new_zeros(min((steps + 1) * count, size), size)
    matrix = torch.zeros(len(basis), len(basis), dtype=torch.float64)
    rounding, scale, filled = SPANNED_ROUNDING_ERRORS * torch.finfo(start.dtype).eps, 0.0, 0
    block = _orthonormal(start, basis[:0], rounding)
    coordinates = (start @ block.T).double().cpu()
    taken = 0
    while taken < steps and len(block) and not (taken and budget is not None and budget.late):
        taken += 1
        places = slice(filled, filled + len(block))
        filled = places.stop
        basis[places] = block
        images = operator(block)
        scale = max(scale, float(images.norm(dim=1).max()))
        block = _orthonormal(images, basis[:filled], rounding * scale)
        reached = torch.cat([basis[:filled], block])
        inner = (reached @ images.T).double().cpu()
        matrix[: len(reached), places] = inner
        matrix[places, : len(reached)] = inner.T
    known = filled + len(block)
    matrix = (matrix + matrix.T)[:known, :known] / 2
    return basis[:filled], matrix, nn.functional.pad(coordinates, (0, known - coordinates.shape[1])), taken


def _orthonormal(rows: Tensor, known: Tensor, least: float) -> Tensor:
    """Return orthonormal rows for what some rows add to known ones; those of at most this length are left out."""
    for shortest in (least, 0.5):  # what the first pass leaves of a short direction may lie in the known space
        rows = rows - (rows @ known.T) @ known
        vectors, small = torch.linalg.qr(rows.T)
        mixed, lengths, _ = torch.linalg.svd(small.double().cpu())
        rows = mixed[:, : len(lengths)][:, lengths > shortest].T.to(rows) @ vectors.T
    return rows


def random_units(count: int, size: int, *, project: Operator, generator: torch.Generator, like: Tensor) -> Tensor:
    """Return vectors that are uniform on the unit sphere of a subspace, whatever that is, as rows.

    The mean of v^T A v is the trace over the dimension. (A projected vector of signs does not have this property, and
    two of them may agree on a wrong trace.)
    """
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64).to(like) for _ in range(count)]
    vectors = project(torch.stack(drawn))
    vectors = project(vectors / vectors.norm(dim=1, keepdim=True))  # of a small part the first leaves rounding errors
    return vectors / vectors.norm(dim=1, keepdim=True)
