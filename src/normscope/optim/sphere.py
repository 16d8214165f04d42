"""Steps on products of spheres: each row of a matrix moves on the sphere through it (Cho and Lee 2017).

A row y = r u has the direction u on the unit sphere; its length r stays. The gradient with respect to u is
h = r g - <u, r g> u. A step d in the tangent space leads along the geodesic to u cos(norm d) + d/norm(d) sin(norm d),
and parallel transport along it turns d into d cos(norm d) - u norm(d) sin(norm d): a rotation in the plane of u and d,
done as three shears in place. Rows of zeros have no direction and stay.

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
"""Times the float's eps: a gradient whose square along the sphere is a smaller share of the whole counts as zero, since
rounding is all that is left of it (in float32: less than 0.0007 of the gradient)."""


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
    ys: Matrices, gradients: Matrices, ds: Matrices, *, lr: float, momentum: float, clip: float | None
) -> None:
    """Move rows by a step with momentum, in place: d <- momentum d - lr h, y along d, d transported (SGD-G).

    Args:
        ys: the rows.
        gradients: with respect to them.
        ds: the last steps as tangents of the unit spheres, transported to y.
        lr: learning rate.
        momentum: the share of the last step that is kept.
        clip: largest norm of h.
    """
    tangent = _tangent(ys, gradients, clip)
    torch._foreach_mul_(ds, momentum)
    tangent.add_to(ds, -lr)
    angle = _norms(ds)
    tangent.turn(ds, angle, angle)


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
    tangent = _tangent(ys, gradients, clip)
    torch._foreach_mul_(means, first)
    tangent.add_to(means, 1.0 - first)
    sizes = (tangent.share * tangent.norm).square().split([len(y) for y in ys])
    torch._foreach_mul_(squares, second)
    torch._foreach_add_(squares, [size.squeeze(1) for size in sizes], alpha=1.0 - second)
    root = (torch.cat(list(squares))[:, None] / (1.0 - second**step)).sqrt()
    norm = _norms(means)
    tangent.turn(means, norm * (lr / (1.0 - first**step)) / (root + eps), -norm)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tangent:
    """The gradients of rows on their unit spheres, as what they are made of; numbers of rows are one column.

    Attributes:
        ys, gradients: the rows.
        length: of the rows.
        safe: the same with 1 for 0.
        along: <u, g>.
        norm: of h.
        share: of h that is kept.
    """

    ys: Matrices
    gradients: Matrices
    length: Tensor
    safe: Tensor
    along: Tensor
    norm: Tensor
    share: Tensor

    def add_to(self, rows: Matrices, factor: float) -> None:
        """Add factor h to rows: factor share (r g - <u, g> y)."""
        _add(rows, self.gradients, factor * self.share * self.length)
        _add(rows, self.ys, -factor * self.share * self.along)

    def turn(self, ds: Matrices, angle: Tensor, norm: Tensor) -> None:
        """Turn y by an angle towards d, and d with it, in place; a norm of d below zero turns y away from d."""
        live = (self.length > 0) & (norm != 0)
        half = torch.where(live, (angle / 2.0).tan() * self.length / torch.where(live, norm, 1.0), 0.0)
        back = torch.where(live, angle.sin() * norm / self.safe, 0.0)
        _add(self.ys, ds, half)
        _add(ds, self.ys, -back)
        _add(self.ys, ds, half)


def _tangent(ys: Matrices, gradients: Matrices, clip: float | None) -> _Tangent:
    length = _norms(ys)
    safe = torch.where(length > 0, length, 1.0)
    along = torch.cat([torch.linalg.vecdot(y, g) for y, g in zip(ys, gradients, strict=True)])[:, None] / safe
    whole = _norms(gradients).square()
    across = whole - along.square()
    across = torch.where(across > ROUNDING * torch.finfo(whole.dtype).eps * whole, across, 0.0)
    norm = length * across.sqrt()
    share = torch.ones_like(norm) if clip is None else clip / norm.clamp(min=clip)
    share = torch.where(norm > 0, share, 0.0)
    return _Tangent(ys=ys, gradients=gradients, length=length, safe=safe, along=along, norm=norm, share=share)


def _norms(rows: Matrices) -> Tensor:
    return torch.cat([torch.linalg.vector_norm(matrix, dim=1, keepdim=True) for matrix in rows])


def _add(rows: Matrices, others: Matrices, factors: Tensor) -> None:
    """Add to each row another times its factor."""
    torch._foreach_addcmul_(rows, others, list(factors.split([len(matrix) for matrix in rows])))
