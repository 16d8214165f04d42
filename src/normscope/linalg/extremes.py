"""Both ends of the spectrum of a large symmetric operator: thick-restart Lanczos with full reorthogonalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.budget import Budget

Operator = Callable[[Tensor], Tensor]
SPARE = 8
"""Vectors beyond those asked for that a restart keeps."""
BEYOND = 2
"""Vectors beyond those asked for that there must be before a value counts: gaps between few values say little."""
CLUSTER = 6
"""Values that lie close together and are judged together, at most."""
AFRESH = 8
"""Products that are made after a space was exhausted, from a fresh vector, before its values count."""
EMPTY = 1e-12
"""A rest of this share of the operator's size is that of an invariant subspace, in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Eigenpairs at the ends of a spectrum: from the largest down, then from the smallest up.

    Attributes:
        top: the largest eigenvalues, falling.
        bottom: the smallest, rising.
        residuals: norm(A v - value v) of each unit vector, first of the top, then of the bottom.
        errors: how far each value is off, estimated: the residual, or its square over the distance to other values,
            with values that lie close together taken as one.
        converged: for each whether that is within the tolerance.
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

    One product a step, and one transfer of a few numbers from the device. A value counts as converged once its
    estimated error is within `rtol` of its size, or of rounding.

    Args:
        operator: takes and gives vectors `[n]`.
        start: `[n]`; what it has of the wanted eigenvectors saves steps, and it must not be zero.
        top: how many of the largest.
        bottom: how many of the smallest.
        rtol: of each value.
        budget: one step of it is one product.
        room: vectors that are kept at most; then the best are kept and the search goes on.
        project: onto the subspace that is searched; the operator is taken there.
        generator: of a new start, on the CPU, where the space of the first is exhausted.
        on_step: told the largest error that is left, relative to the tolerance.
    """
    size, wanted = start.numel(), top + bottom
    project = project or (lambda vector: vector)
    room = min(max(room, 2 * wanted + 2 * SPARE), size)
    basis = start.new_zeros(min(room, 32), size)
    small = torch.zeros(room, room, dtype=torch.float64)
    unit = torch.finfo(start.dtype).eps
    empty = max(EMPTY, 4 * unit)
    vector = project(start)
    vector = vector / vector.norm()
    generator = generator or torch.Generator().manual_seed(0)
    filled, whole, afresh = 0, False, 0
    found = _Found.none(wanted)
    while budget.spend():
        if filled == len(basis):
            basis = torch.cat([basis, basis.new_zeros(min(32, room - filled), size)])
        basis[filled] = vector
        known = basis[: filled + 1]
        image = project(operator(vector))
        inner = known @ image
        image = image - known.T @ inner
        again = known @ image
        image = image - known.T @ again
        column = torch.cat([inner + again, image.norm()[None]]).double().cpu()
        if not bool(column.isfinite().all()):
            break
        small[: filled + 1, filled] = small[filled, : filled + 1] = column[:-1]
        filled += 1
        rest = float(column[-1])
        scale = float(small[:filled, :filled].diagonal().abs().max().clamp(min=column[:-1].abs().max()))
        ended = rest <= empty * scale
        found = _Found.of(small[:filled, :filled], 0.0 if ended else rest, top, bottom, rtol, 8 * unit)
        if on_step is not None:
            on_step(found.open)
        afresh += ended or afresh > 0
        if ended and filled < size:  # what the start has no part of may be an eigenvector as well
            other = _fresh(known, project, generator)
            whole = other is None
            image = image if other is None else other
        if filled == size or whole or (found.settled and filled >= wanted + BEYOND and (not afresh or afresh > AFRESH)):
            whole = whole or filled == size
            break
        if filled == room:
            filled = _restarted(basis, small, top + SPARE, bottom + SPARE if bottom else 0)
        vector = image / image.norm()
    vectors = found.coordinates.to(start).T @ basis[: len(found.coordinates)]
    return Ends(
        top=found.values[:top],
        bottom=found.values[top:],
        residuals=found.residuals,
        errors=found.errors,
        converged=found.converged,
        vectors=vectors,
        products=int(budget.spent),
        whole=whole,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a Krylov space says of the wanted eigenvalues."""

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
        """Nothing is known."""
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return cls(
            values=(), residuals=(), errors=(), converged=(), coordinates=empty, open=float("inf"), wanted=wanted
        )

    @classmethod
    def of(cls, small: Tensor, rest: float, top: int, bottom: int, rtol: float, unit: float) -> _Found:
        """Read the values off the operator in the Krylov space and the length of what leads out of it."""
        values, vectors = torch.linalg.eigh(small)
        count = len(values)
        chosen = list(range(count - 1, max(count - 1 - top, -1), -1))
        chosen += [place for place in range(min(bottom, count)) if place not in chosen]
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
    """Return how far each value is off, estimated: its residual, or what the values close to it allow together.

    The values of an invariant subspace are off by at most norm(R)^2/gap: R the residuals of all vectors of a cluster,
    gap the distance of the cluster to all other eigenvalues (here: to the other values that were found). The best
    cluster around each value counts, up to `CLUSTER` of them; one that holds every value says nothing.
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
    """Return a random vector orthogonal to those known; None where the space is exhausted."""
    drawn = torch.randn(known.shape[1], generator=generator, dtype=torch.float64).to(known)
    vector = project(drawn)
    for _ in range(3):
        vector = vector - known.T @ (known @ vector)
    return vector if float(vector.norm()) > 1e-3 * float(drawn.norm()) / known.shape[1] ** 0.5 else None


def _restarted(basis: Tensor, small: Tensor, top: int, bottom: int) -> int:
    """Keep the best Ritz vectors alone; what leads out of the space couples to each of them in the next step."""
    count = len(small)
    values, vectors = torch.linalg.eigh(small)
    kept = [*range(min(bottom, count // 3)), *range(count - min(top, count // 3), count)]
    basis[: len(kept)] = vectors[:, kept].to(basis).T @ basis[:count]
    small.zero_()
    small[range(len(kept)), range(len(kept))] = values[kept]
    return len(kept)
