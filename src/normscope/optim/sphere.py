"""Steps on products of spheres: each row of a matrix moves on the sphere through it (Cho and Lee 2017).

A row y = r u has the direction u on the unit sphere; its length r stays. The gradient with respect to u is
h = r g - <u, r g> u. A tangent t of norm n leads along the geodesic by an angle a to u' = u cos(a) + t/n sin(a), and
parallel transport along it turns t into t cos(a) - u n sin(a).

Time goes into passes over memory, so there are few. The buffer b of a row holds the tangent and a part along u whose
size is known: b = t + c u. Then h need not be made: adding a multiple of r g to b adds one of <u, r g> to c. A turn is
two additions in place, b += -(n tan(a/2) + c)/r y and y += (r sin(a)/n) b, after which b is the transported tangent and
n tan(a/2) u', the new c; a third addition would take that off. Rows of zeros have no direction and stay.

All matrices of a group go together: the numbers of their rows as one column, the rows by `torch._foreach_*`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

Matrices = list[Tensor]
ROUNDING = 4.0
"""Times the float's eps: a vector whose square along the sphere is a smaller share of the whole counts as zero there,
since rounding is all that is left of it (in float32: less than 0.0007 of the vector)."""


@contextmanager
def as_rows(units: Sequence[int], axis: int, tensors: Matrices) -> Iterator[list[Tensor]]:
    """Give tensors as matrices with one row per sphere; what is written into the rows is in the tensors afterwards.

    Args:
        units: how many spheres each tensor has: equal blocks of neighbours along the axis.
        axis: of the tensors, that counts channels.
        tensors: of any shapes.
    """
    turned = [tensor.movedim(axis, 0) for tensor in tensors]
    rows = [tensor.reshape(count, -1) for tensor, count in zip(turned, units, strict=True)]
    yield rows
    for tensor, row in zip(turned, rows, strict=True):
        if row.data_ptr() != tensor.data_ptr():  # the rows are a copy
            tensor.copy_(row.reshape(tensor.shape))


def momentum_step(
    ys: Matrices,
    gradients: Matrices,
    buffers: Matrices,
    parts: Matrices,
    *,
    lr: float,
    momentum: float,
    clip: float | None,
) -> None:
    """Move rows by a step with momentum, in place: t <- momentum t - lr h, y along t, t transported (SGD-G).

    Args:
        ys: the rows.
        gradients: with respect to them.
        buffers: the last steps as tangents of the unit spheres, transported to y, and a part along y.
        parts: how large that part is, one number per row.
        lr: learning rate.
        momentum: the share of the last step that is kept.
        clip: largest norm of h.
    """
    slope = _slope(ys, gradients, clip)
    along = momentum * torch.cat(parts) + slope.added_to(buffers, momentum, -lr)
    norm = _across(_norms(buffers).square(), along)
    part = _turned(ys, buffers, slope.length, along, norm, norm)
    if clip is None or lr * clip > 1.0 - momentum:  # a step of more than a radian may leave a large part along y
        _straighten(ys, buffers, slope.length, part)
        torch._foreach_zero_(parts)
    else:
        torch._foreach_copy_(parts, _split(part, parts))


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
    """Move rows by Adam's step with one second moment per sphere, in place (Adam-G).

    Args:
        ys: the rows.
        gradients: with respect to them.
        means: the running means of h, transported to y.
        squares: the running means of norm(h)^2, one per row.
        lr: learning rate.
        betas: decay of both means.
        eps: added to the root of the second moment.
        step: how many steps were taken, with this one.
        clip: largest norm of h.
    """
    first, second = betas
    slope = _slope(ys, gradients, clip)
    along = slope.added_to(means, first, 1.0 - first)
    sizes = (slope.share * slope.norm).square()
    torch._foreach_mul_(squares, second)
    torch._foreach_add_(squares, _split(sizes, squares), alpha=1.0 - second)
    root = (torch.cat(squares) / (1.0 - second**step)).sqrt()
    norm = _across(_norms(means).square(), along)
    angle = -norm * (lr / (1.0 - first**step)) / (root + eps)
    _straighten(ys, means, slope.length, _turned(ys, means, slope.length, along, norm, angle))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Slope:
    """The gradients of rows on their unit spheres, as what they are made of; numbers of rows are one column.

    Attributes:
        gradients: of the rows as they are.
        length: r, of the rows.
        along: <u, g>.
        norm: of h.
        share: of h that is kept.
    """

    gradients: Matrices
    length: Tensor
    along: Tensor
    norm: Tensor
    share: Tensor

    def added_to(self, buffers: Matrices, kept: float, factor: float) -> Tensor:
        """Make buffers kept b + factor h and a part along y; return how large this part is."""
        scale = factor * self.share * self.length
        torch._foreach_mul_(buffers, kept)
        _add(buffers, self.gradients, scale)
        return scale * self.along


def _slope(ys: Matrices, gradients: Matrices, clip: float | None) -> _Slope:
    length = _norms(ys)
    along = torch.cat([torch.linalg.vecdot(y, g) for y, g in zip(ys, gradients, strict=True)])
    along = along / torch.where(length > 0, length, 1.0)
    norm = length * _across(_norms(gradients).square(), along)
    share = torch.ones_like(norm) if clip is None else clip / norm.clamp(min=clip)
    share = torch.where(norm > 0, share, 0.0)
    return _Slope(gradients=gradients, length=length, along=along, norm=norm, share=share)


def _across(square: Tensor, along: Tensor) -> Tensor:
    """Return the norm of the tangent part of rows, of which the squared norm and the part along y are known."""
    rest = square - along.square()
    return torch.where(rest > ROUNDING * torch.finfo(rest.dtype).eps * square, rest, 0.0).sqrt()


def _turned(ys: Matrices, buffers: Matrices, length: Tensor, along: Tensor, norm: Tensor, angle: Tensor) -> Tensor:
    """Turn y by an angle towards the tangent in b, and that with it, in place; a negative angle turns away from it.

    Args:
        ys: the rows.
        buffers: b, one row for each.
        length: of y.
        along: the part of b along y.
        norm: of the tangent.
        angle: to turn by.

    Returns:
        How large the part of b along y is afterwards.
    """
    live = (length > 0) & (norm > 0)
    part = torch.where(live, norm * (angle / 2.0).tan(), 0.0)
    _straighten(ys, buffers, length, part + along)
    _add(ys, buffers, torch.where(live, length * angle.sin() / norm, 0.0))
    return part


def _straighten(ys: Matrices, buffers: Matrices, length: Tensor, part: Tensor) -> None:
    """Take a part along y off the buffers."""
    _add(buffers, ys, torch.where(length > 0, -part / length, 0.0))


def _norms(rows: Matrices) -> Tensor:
    return torch.cat([torch.linalg.vector_norm(matrix, dim=1) for matrix in rows])


def _split(numbers: Tensor, like: Matrices) -> Matrices:
    return list(numbers.split([len(matrix) for matrix in like]))


def _add(rows: Matrices, others: Matrices, factors: Tensor) -> None:
    """Add to each row another times its factor."""
    torch._foreach_addcmul_(rows, others, [column[:, None] for column in _split(factors, rows)])
