"""Both ends of the spectrum of a large symmetric operator: thick-restart Lanczos with full reorthogonalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.budget import Budget
from .lanczos import RestartedSpace

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
    on_step: Callable[[float], None] | None = None,
) -> Ends:
    """Find the largest and the smallest eigenvalues of a symmetric operator.

    Each step takes one product, a step of the budget, and one transfer of a few numbers from the device. A value counts
    as converged once its estimated error is at most `rtol` of its size, or the size of rounding errors. At most `room`
    vectors are held; the search then goes on with the best of them. With `project` the operator is searched inside a
    subspace. `on_step` gets the largest remaining error over its tolerance.
    """
    size, wanted = start.numel(), top + bottom
    project = project or (lambda vector: vector)
    generator = generator or torch.Generator().manual_seed(0)
    unit = torch.finfo(start.dtype).eps
    space = RestartedSpace(start, room=min(max(room, 2 * wanted + 2 * SPARE), size))
    vector = project(start)
    vector = vector / vector.norm()
    whole, since_fresh = False, 0
    found = _Found.none(wanted)
    while budget.spend():
        extended = space.extend(vector, project(operator(vector)))
        if extended is None:
            break
        image, rest = extended
        invariant = rest <= max(EMPTY, 4 * unit) * space.scale
        found = _Found.of(space.operator, 0.0 if invariant else rest, top, bottom, rtol, 8 * unit)
        if on_step is not None:
            on_step(found.open)
        since_fresh += invariant or since_fresh > 0
        whole = space.filled == size
        if invariant and not whole:  # an eigenvector that the start has no part of is not in this space
            fresh = _fresh(space.known, project, generator)
            whole = fresh is None
            image = image if fresh is None else fresh
        # values count once the space is large enough, also after a fresh start (0: there was none)
        enough = space.filled >= wanted + BEYOND and (since_fresh == 0 or since_fresh > AFRESH)
        if whole or (found.settled and enough):
            break
        if space.full:
            space.restart(top + SPARE, bottom + SPARE if bottom else 0)
        vector = image / image.norm()
    return Ends(
        top=found.values[:top],
        bottom=found.values[top:],
        residuals=found.residuals,
        errors=found.errors,
        converged=found.converged,
        vectors=found.coordinates.to(start).T @ space.basis[: len(found.coordinates)],
        products=int(budget.spent),
        whole=whole,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The wanted eigenvalues as a Krylov space shows them."""

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    errors: tuple[float, ...]
    converged: tuple[bool, ...]
    coordinates: Tensor
    open: float
    wanted: int

    @property
    def settled(self) -> bool:
        """Whether every value that is wanted is there and converged."""
        return len(self.values) == self.wanted and all(self.converged)

    @classmethod
    def none(cls, wanted: int) -> _Found:
        """Return the state before the first step, in which nothing is known."""
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return cls(
            values=(), residuals=(), errors=(), converged=(), coordinates=empty, open=float("inf"), wanted=wanted
        )

    @classmethod
    def of(cls, small: Tensor, rest: float, top: int, bottom: int, rtol: float, unit: float) -> _Found:
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
            open=float(shares.max()) if chosen else float("inf"),
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


def _fresh(known: Tensor, project: Operator, generator: torch.Generator) -> Tensor | None:
    """Return a random vector orthogonal to those known; None where no such direction is left."""
    drawn = torch.randn(known.shape[1], generator=generator, dtype=torch.float64).to(known)
    vector = project(drawn)
    for _ in range(3):
        vector = vector - known.T @ (known @ vector)
    return vector if float(vector.norm()) > 1e-3 * float(drawn.norm()) / known.shape[1] ** 0.5 else None
