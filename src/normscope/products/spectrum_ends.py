"""Both ends of the spectrum of one large symmetric operator, by Lanczos with restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.budget import Budget

_CHUNK = 32
"""Vectors of a basis that restarts, for which memory is taken at a time."""


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
SPARE_VECTORS = 2
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
        enough = space.filled >= wanted + SPARE_VECTORS and (since_fresh == 0 or since_fresh > AFRESH)
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
