"""Lanczos iteration: many small Hermitian matrices at once, or one large linear map with its transpose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.budget import Budget
from ..core.cost import count
from .linear_map import LinearMap

_DIRECT = 128
"""Matrices up to this order are diagonalized directly."""


def top_eigenpairs(
    matrices: Tensor, *, steps: int = 48, rtol: float = 1e-6, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalue `[b]` and its eigenvector `[b, m]` of Hermitian matrices `[b, m, m]`.

    Args:
        matrices: float64 or complex128.
        steps: at most this many Lanczos steps.
        rtol: stop once the estimated relative error of every eigenvalue is below this.
        generator: a CPU generator for the start vectors; a fixed seed when None.
    """
    count, size, _ = matrices.shape
    if size <= _DIRECT:
        values, vectors = torch.linalg.eigh(matrices.cpu())  # small: not worth a GPU solver's start
        return values[:, -1].to(matrices.device), vectors[:, :, -1].to(matrices.device)
    generator = generator or torch.Generator().manual_seed(0)
    start = torch.randn(count, size, dtype=torch.float64, generator=generator).to(matrices)
    values, vectors, _ = lanczos(lambda x: (matrices @ x[:, :, None])[:, :, 0], start, steps=steps, rtol=rtol)
    return values, vectors


def lanczos(
    operator: Callable[[Tensor], Tensor], start: Tensor, *, steps: int = 60, rtol: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Search for the largest eigenvalues of a batch of Hermitian positive semidefinite operators.

    Args:
        operator: maps rows `[b, n]` to rows `[b, n]`, each row by its own operator.
        start: start vectors `[b, n]`, real or complex.
        steps: at most this many steps, with full reorthogonalization.
        rtol: stop once the estimated relative error of every eigenvalue is below this.

    Returns:
        The largest eigenvalue of each, its unit eigenvector, and the estimated relative error (not a bound).
    """
    count, size = start.shape
    steps = min(steps, size)
    basis = start.new_zeros(count, steps, size)
    real = start.real.dtype if start.is_complex() else start.dtype
    alpha = torch.zeros(count, steps, dtype=real, device=start.device)
    beta = torch.zeros_like(alpha)
    vector = start / start.norm(dim=1, keepdim=True).clamp(min=1e-300)
    least = torch.zeros(count, dtype=real, device=start.device)
    for step in range(steps):
        basis[:, step] = vector
        image = operator(vector)
        known = basis[:, : step + 1]
        inner = known.conj() @ image[:, :, None]
        alpha[:, step] = inner[:, step, 0].real
        image = image - (known.mT @ inner)[:, :, 0]
        image = image - (known.mT @ (known.conj() @ image[:, :, None]))[:, :, 0]
        size = image.norm(dim=1)
        least = torch.maximum(least, 1e-14 * alpha[:, step].abs())
        ended = size <= least  # an invariant subspace: stay at zero
        beta[:, step] = size.masked_fill(ended, 0.0)
        vector = image / size.masked_fill(ended, math.inf)[:, None]
        if step + 1 == steps or step % 8 == 7:
            values, coordinates, errors = _ritz(alpha[:, : step + 1].double().cpu(), beta[:, : step + 1].double().cpu())
            if float(errors.max()) <= rtol:
                break
    vectors = (coordinates.to(start)[:, None, :] @ basis[:, : step + 1])[:, 0]
    vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return values.to(start.device, real), vectors, errors.to(start.device, real)


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
        settled: whether the value had stopped growing; False where the map overflows, with the start as vector.
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
) -> Search:
    """Search for the unit vector that a map stretches most: thick-restart Lanczos on the transpose times the map.

    Args:
        linear: the map.
        start: `[*in_shape]`, in the dtype to work in.
        rtol: settled once the estimated relative error of the singular value is below this.
        steps: at most this many steps (one application of the map and its transpose each).
        enough: stop as soon as the gain reaches this value.
        budget: nothing more is done once it is over; one step of it is one step here.
        memory: bytes that the basis may take (restarts happen when it is full).
        scale: about how large the gain is (so that its square neither overflows nor vanishes).
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
        count("products", 2)
        image = linear.adjoint(linear.apply(vector.reshape(1, *linear.in_shape)) / scale).reshape(-1) / scale
        if not bool(image.isfinite().all()):  # the map overflows on the way: what was found so far has to do
            return Search(start, 0.0, taken, False)
        known = basis[: filled + 1]
        inner = known @ image
        image = image - known.T @ inner
        image = image - known.T @ (known @ image)
        taken += 1
        filled += 1
        column = torch.cat([inner, image.norm()[None]]).double().cpu()
        small[:filled, filled - 1] = small[filled - 1, :filled] = column[:-1]
        rest = float(column[-1])
        ended = rest <= 1e-7 * float(column[:-1].abs().max())  # an invariant subspace, as far as float32 can tell
        full, late = filled == room, budget is not None and not budget.spend()
        if full or late or taken >= steps or taken % 4 == 0 or ended or filled >= size:
            values, vectors = torch.linalg.eigh(small[:filled, :filled])
            top = max(float(values[-1]), 0.0)
            residual = rest * abs(float(vectors[-1, -1]))
            gap = top - float(values[-2]) if filled > 1 else top
            error = min(residual, residual**2 / gap if gap > 0 else residual) / (2.0 * top) if top > 0 else 0.0
            settled = error <= rtol or ended or filled >= size
            if settled or late or taken >= steps or math.sqrt(top) * scale >= enough:
                best = (vectors[:, -1].to(known) @ known).reshape(linear.in_shape)
                return Search(best / best.norm(), math.sqrt(top) * scale, taken, settled)
            if full:
                basis[:keep] = vectors[:, -keep:].to(known).T @ known
                small.zero_()
                small[range(keep), range(keep)] = values[-keep:]
                filled = keep
        vector = image / rest
