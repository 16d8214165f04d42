"""Lanczos iteration: many small Hermitian matrices at once, or one large linear map with its transpose."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .linear_map import LinearMap

_DIRECT = 128
"""Matrices up to this order are diagonalized directly."""


def top_eigenpairs(
    matrices: Tensor, *, steps: int = 48, rtol: float = 1e-6, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue `[b]` and its eigenvector `[b, m]` of Hermitian matrices `[b, m, m]`.

    Args:
        matrices: float64 or complex128.
        steps: at most this many Lanczos steps (with full reorthogonalization).
        rtol: stop once the estimated relative error of every eigenvalue is below this.
        generator: a CPU generator for the start vectors; a fixed seed when None.
    """
    count, size, _ = matrices.shape
    if size <= _DIRECT:
        values, vectors = torch.linalg.eigh(matrices)
        return values[:, -1], vectors[:, :, -1]
    generator = generator or torch.Generator().manual_seed(0)
    start = torch.randn(count, size, dtype=torch.float64, generator=generator).to(matrices)
    values, vectors, _ = lanczos(lambda v: (matrices @ v[:, :, None])[:, :, 0], start, steps=steps, rtol=rtol)
    return values, vectors


def lanczos(
    apply: Callable[[Tensor], Tensor], start: Tensor, *, steps: int, rtol: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest eigenvalue, its eigenvector and the relative error estimate of many Hermitian maps at once.

    Args:
        apply: takes one vector per map, `[b, m]`, to its image.
        start: `[b, m]`, in the dtype to work in.
        steps: at most this many steps (with full reorthogonalization).
        rtol: stop once the estimated relative error of every eigenvalue is below this.
    """
    count, size = start.shape
    steps = min(steps, size)
    basis = start.new_zeros(count, steps, size)
    alpha = torch.zeros(count, steps, dtype=torch.float64, device=start.device)
    beta = torch.zeros(count, steps, dtype=torch.float64, device=start.device)
    vector = start / start.norm(dim=1, keepdim=True)
    for step in range(steps):
        basis[:, step] = vector
        image = apply(vector)
        alpha[:, step] = (vector.conj() * image).sum(dim=1).real
        known = basis[:, : step + 1]
        for _ in range(2):
            image = image - (known.mT @ (known.conj() @ image[:, :, None]))[:, :, 0]
        beta[:, step] = image.norm(dim=1)
        vector = image / beta[:, step : step + 1].clamp(min=1e-300)
        if step + 1 == steps or step % 12 == 11:
            values, coordinates, error = _ritz(alpha[:, : step + 1].cpu(), beta[:, : step + 1].cpu())
            if float(error.max()) <= rtol:
                break
    vectors = (coordinates.to(start)[:, None, :] @ basis[:, : step + 1])[:, 0]
    return (
        values.to(start.device),
        vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-300),
        error.to(start.device),
    )


def _ritz(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the top Ritz values, their coordinates and estimated relative errors of tridiagonal matrices."""
    tri = torch.diag_embed(alpha)
    if alpha.shape[1] > 1:
        tri = tri + torch.diag_embed(beta[:, :-1], offset=1) + torch.diag_embed(beta[:, :-1], offset=-1)
    values, vectors = torch.linalg.eigh(tri)
    top = values[:, -1]
    residual = (beta[:, -1] * vectors[:, -1, -1]).abs()
    gap = top - values[:, -2] if alpha.shape[1] > 1 else top
    error = torch.minimum(residual, residual.square() / gap.clamp(min=1e-300))
    return top, vectors[:, :, -1], error / top.clamp(min=1e-300)


@dataclass(slots=True)
class Search:
    """The outcome of a search for the largest singular value: its vector and what was spent.

    Attributes:
        vector: the best vector found, `[*in_shape]`.
        value: its gain, as computed in the working dtype (an estimate).
        steps: applications of the map and of its transpose.
        settled: whether the value had stopped growing.
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
    deadline: float | None = None,
    memory: float = 4e8,
    observe: Callable[[float], None] | None = None,
) -> Search:
    """Search for the unit vector that a map stretches most: thick-restart Lanczos on the transpose times the map.

    Args:
        linear: the map.
        start: `[*in_shape]`, in the dtype to work in.
        rtol: settled once the estimated relative error of the singular value is below this.
        steps: at most this many steps (one application of the map and its transpose each).
        enough: stop as soon as the gain reaches this value.
        deadline: stop at this `time.monotonic()`.
        memory: bytes that the basis may take (restarts happen when it is full).
        observe: called with the estimate at each check.
    """
    size = linear.in_size
    room = int(max(8, min(64, steps + 1, size, memory // (start.element_size() * max(size, 1)))))
    keep = max(2, room // 4)
    basis = start.new_zeros(room, size)
    small = torch.zeros(room, room, dtype=torch.float64)
    vector = start.reshape(-1)
    norm = float(vector.norm())
    if norm == 0.0 or size == 0:
        return Search(start, 0.0, 0, True)
    vector = vector / norm
    filled, taken, settled = 0, 0, False
    while True:
        basis[filled] = vector
        image = linear.adjoint(linear.apply(vector.reshape(1, *linear.in_shape))).reshape(-1)
        known = basis[: filled + 1]
        inner = known @ image
        image = image - known.T @ inner
        image = image - known.T @ (known @ image)
        taken += 1
        filled += 1
        column = torch.cat([inner, image.norm()[None]]).double().cpu()
        small[:filled, filled - 1] = small[filled - 1, :filled] = column[:-1]
        rest = float(column[-1])
        full, late = filled == room, deadline is not None and time.monotonic() > deadline
        if full or late or taken >= steps or taken % 4 == 0 or filled >= size:
            values, vectors = torch.linalg.eigh(small[:filled, :filled])
            top = max(float(values[-1]), 0.0)
            residual = rest * abs(float(vectors[-1, -1]))
            gap = top - float(values[-2]) if filled > 1 else top
            error = min(residual, residual**2 / gap if gap > 0 else residual) / (2.0 * top) if top > 0 else 0.0
            settled = error <= rtol or rest <= 1e-12 * top or filled >= size
            if observe is not None:
                observe(math.sqrt(top))
            if settled or late or taken >= steps or math.sqrt(top) >= enough:
                best = (vectors[:, -1].to(known) @ known).reshape(linear.in_shape)
                return Search(best / best.norm(), math.sqrt(top), taken, settled)
            if full:
                basis[:keep] = vectors[:, -keep:].to(known).T @ known
                small.zero_()
                small[range(keep), range(keep)] = values[-keep:]
                filled = keep
        vector = image / rest
