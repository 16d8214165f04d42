"""Steps on products of spheres: each row of a matrix moves on the sphere through it (Cho and Lee 2017).

A row y = r u has the direction u on the unit sphere; its length r stays. The gradient with respect to u is
h = r g - <u, r g> u. A tangent t of norm n leads along the geodesic by an angle a to u' = u cos(a) + t/n sin(a), and
parallel transport along it turns t into t cos(a) - u n sin(a).

The time goes into passes over memory, so that a step makes few. h is not computed: a multiple of r g is added to
the buffer b of a row, which so gets a component along u of known size c, b = t + c u. A turn by the angle a is three
additions in place: b += -(n tan(a/2) + c)/r y, then y += (r sin(a)/n) b, which leaves the transported tangent plus
n tan(a/2) u' in b, and the last takes that component off. Rows of zeros have no direction and stay.

All matrices of a group are processed together: one number per row in a single column, the rows by `torch._foreach_*`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

Matrices = list[Tensor]
ROUNDING = 4.0
"""In units of the dtype's eps: a tangent whose square is a smaller share of the square of the whole vector counts as
zero, as it may be rounding alone (in float32: less than 0.0007 of the vector)."""


@contextmanager
def as_rows(units: Sequence[int], axis: int, tensors: Matrices) -> Iterator[list[Tensor]]:
    """Give tensors as matrices with one row per sphere; after the block, the tensors hold what the rows hold."""
    channels_first = [tensor.movedim(axis, 0) for tensor in tensors]
    rows = [tensor.reshape(count, -1) for tensor, count in zip(channels_first, units, strict=True)]
    yield rows
    for tensor, row in zip(channels_first, rows, strict=True):
        if row.data_ptr() != tensor.data_ptr():  # The rows are a copy.
            tensor.copy_(row.reshape(tensor.shape))


def make_tangent(buffer: Tensor, y: Tensor) -> None:
    """Remove from the rows of a buffer what they hold along y, in place."""
    part, square = torch.linalg.vecdot(buffer, y), torch.linalg.vecdot(y, y)
    buffer.addcmul_(y, torch.where(square > 0, -part / square, 0.0)[:, None])


def momentum_step(
    ys: Matrices,
    gradients: Matrices,
    buffers: Matrices,
    *,
    lr: float,
    momentum: float,
    clip: float | None,
) -> None:
    """Move rows by a step with momentum, in place (SGD-G): t <- momentum t - lr h, y moves along t, t is transported.

    `buffers` hold the last steps, tangents of the unit spheres at y.
    """
    slope = _slope(ys, gradients, clip)
    along = slope.added_to(buffers, momentum, -lr)
    norm = _across(_norms(buffers).square(), along)
    _turn(ys, buffers, slope.length, along, norm, norm)


def adaptive_step(
    ys: Matrices,
    gradients: Matrices,
    means: Matrices,
    squares: Matrices,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    step: float,
    clip: float | None,
) -> None:
    """Move rows by Adam's step with one second moment per sphere, in place (Adam-G)."""
    first, second = betas
    slope = _slope(ys, gradients, clip)
    along = slope.added_to(means, first, 1.0 - first)
    sizes = (slope.share * slope.norm).square()
    torch._foreach_mul_(squares, second)
    torch._foreach_add_(squares, _split(sizes, squares), alpha=1.0 - second)
    root = (torch.cat(squares) / (1.0 - second**step)).sqrt()
    norm = _across(_norms(means).square(), along)
    angle = -norm * (lr / (1.0 - first**step)) / (root + eps)
    _turn(ys, means, slope.length, along, norm, angle)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Slope:
    """The gradients h of rows on their unit spheres, by their components; each figure is a column, one entry per row.

    Attributes:
        gradients: the gradients with respect to the rows.
        length: r, the lengths of the rows.
        along: <u, g>.
        norm: the norm of h.
        share: the share of h that clipping keeps.
    """

    gradients: Matrices
    length: Tensor
    along: Tensor
    norm: Tensor
    share: Tensor

    def added_to(self, buffers: Matrices, kept: float, factor: float) -> Tensor:
        """Set buffers b to kept b + factor h, plus a component along y; return how much this adds to that component."""
        scale = factor * self.share * self.length
        torch._foreach_mul_(buffers, kept)
        _add(buffers, self.gradients, scale)
        return scale * self.along


def _slope(ys: Matrices, gradients: Matrices, clip: float | None) -> _Slope:
    """Return the gradients on the unit spheres, clipped."""
    length = _norms(ys)
    along = torch.cat([torch.linalg.vecdot(y, g) for y, g in zip(ys, gradients, strict=True)])
    along = along / torch.where(length > 0, length, 1.0)
    norm = length * _across(_norms(gradients).square(), along)
    share = torch.ones_like(norm) if clip is None else clip / norm.clamp(min=clip)
    share = torch.where(norm > 0, share, 0.0)
    return _Slope(gradients=gradients, length=length, along=along, norm=norm, share=share)


def _across(square: Tensor, along: Tensor) -> Tensor:
    """Return the norms of the tangents of vectors whose squared norms and components along y are known."""
    rest = square - along.square()
    return torch.where(rest > ROUNDING * torch.finfo(rest.dtype).eps * square, rest, 0.0).sqrt()


def _turn(ys: Matrices, buffers: Matrices, length: Tensor, along: Tensor, norm: Tensor, angle: Tensor) -> None:
    """Turn y by an angle towards the tangent in b, and transport the tangent, in place; a negative angle turns away."""
    moving = (length > 0) & (norm > 0)
    part = torch.where(moving, norm * (angle / 2.0).tan(), 0.0)
    _straighten(ys, buffers, length, part + along)
    _add(ys, buffers, torch.where(moving, length * angle.sin() / norm, 0.0))
    _straighten(ys, buffers, length, part)


def _straighten(ys: Matrices, buffers: Matrices, length: Tensor, part: Tensor) -> None:
    """Subtract a component along y from the buffers."""
    _add(buffers, ys, torch.where(length > 0, -part / length, 0.0))


def _norms(rows: Matrices) -> Tensor:
    return torch.cat([torch.linalg.vector_norm(matrix, dim=1) for matrix in rows])


def _split(numbers: Tensor, like: Matrices) -> Matrices:
    return list(numbers.split([len(matrix) for matrix in like]))


def _add(rows: Matrices, others: Matrices, factors: Tensor) -> None:
    """Add to each row another row times a factor, in place."""
    torch._foreach_addcmul_(rows, others, [column[:, None] for column in _split(factors, rows)])
