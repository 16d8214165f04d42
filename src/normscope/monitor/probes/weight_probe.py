"""The operator norm of a weight, of the layer alone and folded with its normalizer.

At first by a search from a random start, which says how far it may be off; later by a step from the vectors that were
found, which have moved little: the best in their span, and the images of those.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...linalg.lanczos import lanczos
from ...listening.calls import LayerGeometry

SQUARED_NORM_RTOL = 0.05
"""Relative error of a squared norm with which a search ends: a hundredth of a decade of the norm."""
MAX_SEARCH_STEPS = 64
"""A search takes at most this many steps."""
SEARCH_MEMORY_BYTES = 1 << 28
"""The vectors of a search may take this many bytes."""
MAX_FOLLOWED_ENTRIES = 1 << 19
"""How many entries the vectors of one layer may have together; a layer with a larger input has as few as possible."""
MAX_EXTRA_ROUNDS = 3
"""How many further rounds are made where one is not enough."""
MATRIX_POWER = 32
"""The power of a small matrix that is taken, twice: eigenvalues within a thousandth of the largest count as largest."""
GRAM_JITTER = 1e-6
"""What is added to the diagonal of a Gram matrix of unit vectors, so that dependent ones do no harm."""
MIN_DIVISOR = 1e-37
"""Lengths below this are raised to it before anything is divided by them."""


class NormEstimate(NamedTuple):
    """The norm of a layer, then with its output channels scaled, as far as it was followed.

    Attributes:
        norms: both norms, from below.
        errors: by how many decades each may be too low.
        vectors: the vectors that either of them stretches most, `[groups, several, entries of a group]`.
    """

    norms: Tensor
    errors: Tensor
    vectors: Tensor


def search_norms(
    geometry: LayerGeometry, weight: Tensor, warm: Tensor | None, scale: Tensor | None, generator: torch.Generator
) -> NormEstimate:
    """Return norms from a random start, by as many Lanczos steps as they need: they wait for the device.

    The error is the distance to Hochstenbach's bound, which fails for one start in a thousand; where there is no memory
    for so many vectors, it is that of the residual.

    Args:
        geometry: how the layer is called.
        weight: the weight as it is applied.
        warm: the vectors of the last time, if there are any.
        scale: one factor per output channel, or one for all; None for the norm of the layer alone.
        generator: draws the start.
    """
    norms, groups = 1 if scale is None else 2, geometry.groups
    size = math.prod(geometry.shape[1:]) // groups

    def rows(vectors: Tensor) -> Tensor:
        together = vectors.reshape(norms, *geometry.shape[1:])
        images = geometry.image(together, weight)
        if scale is not None:
            images = torch.cat([images[:1], _scale_channels(images[1:], scale.square())])
        return geometry.back(images, weight).reshape(vectors.shape)

    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        start = _draw_vectors((norms * groups, size), weight, generator)
        ritz = lanczos(rows, start, steps=_affordable_steps(start), rtol=SQUARED_NORM_RTOL, sure=True)
        errors = torch.where(ritz.values > 0, ritz.above / ritz.values - 1.0, 0.0)
        for _ in range(MAX_EXTRA_ROUNDS):
            if bool((errors <= SQUARED_NORM_RTOL).all()):
                break
            ritz = lanczos(rows, ritz.vectors, steps=_affordable_steps(start), rtol=SQUARED_NORM_RTOL)
            errors = ritz.errors
        best = torch.where(ritz.values[:, None] > 0, ritz.vectors, start)  # of a weight that is zero any is as good
        best = best.reshape(norms, groups, size).transpose(0, 1)
        several = _count_vectors(size, norms)
        if warm is None or warm.shape != (groups, several, size):
            warm = torch.cat([best, _draw_vectors((groups, several - norms, size), weight, generator)], dim=1)
            for _ in range(2):
                warm = _advance(geometry, weight, warm, scale)[2]
        vectors = torch.cat([best, warm[:, : several - norms]], dim=1)
    return _take_largest(geometry, ritz.values, errors, vectors)


def follow_norms(
    geometry: LayerGeometry, weight: Tensor, warm: Tensor, scale: Tensor | None, generator: torch.Generator
) -> NormEstimate:
    """Return norms by a step from vectors that were good a while ago; nothing waits for a GPU.

    The last vector is drawn anew: what grows where no vector looks is met by and by. Where the residual says that a
    step is too little, and the device is not waited for, more are taken, and in the end the search begins anew.

    Args:
        geometry: how the layer is called.
        weight: the weight as it is applied.
        warm: the vectors of the last time.
        scale: one factor per output channel, or one for all; None for the norm of the layer alone.
        generator: draws the new vector.
    """
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        if warm.shape[1] > (1 if scale is None else 2):
            warm = torch.cat([warm[:, :-1], _draw_vectors((len(warm), 1, warm.shape[2]), weight, generator)], dim=1)
        values, errors, vectors = _advance(geometry, weight, warm, scale)
        for _ in range(MAX_EXTRA_ROUNDS):
            if weight.is_cuda or not bool((errors > SQUARED_NORM_RTOL).any()):
                return _take_largest(geometry, values, errors, vectors)
            values, errors, vectors = _advance(geometry, weight, vectors, scale)
    return search_norms(geometry, weight, vectors, scale, generator)


def _take_largest(geometry: LayerGeometry, values: Tensor, errors: Tensor, vectors: Tensor) -> NormEstimate:
    """Return norms from the largest eigenvalue of every group, and its relative error: the largest of all counts."""
    # a group that is smaller may be the largest if it is off by its error
    values = values.clamp(min=0.0).reshape(-1, geometry.groups)
    most = values.amax(1)
    above = (values * (1.0 + errors.clamp(min=0.0).reshape(values.shape))).amax(1)
    off = torch.where(most > 0, above / most, 1.0)
    return NormEstimate(most.sqrt(), torch.log10(off) / 2.0, vectors)


def _advance(
    geometry: LayerGeometry, weight: Tensor, vectors: Tensor, scale: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest Ritz value of every norm and group in the span of vectors, its residual, and the next ones."""
    # The next vectors of a group are its best ones, their residuals and the second best, or where few are followed the
    # images of the best. Both norms share a span: the layer is applied to it once, its adjoint to two images alone.
    groups, (_, several, size) = geometry.groups, vectors.shape
    basis = _orthonormalise(vectors)
    images = geometry.image(basis.transpose(0, 1).reshape(several, *geometry.shape[1:]), weight)
    both = images[None] if scale is None else torch.stack([images, _scale_channels(images, scale)])
    norms = len(both)
    parts = both.reshape(norms, several, groups, -1).transpose(1, 2)
    small = parts @ parts.mT  # norms, groups, several, several
    best = _top_eigenvectors(small.flatten(0, 1), min(2, several)).reshape(norms, groups, several, -1)
    first = best[..., :1]
    values = (first.mT @ small @ first)[..., 0, 0]
    chosen = best.mT @ basis  # norms, groups, 1 or 2, entries
    rises = (best if norms == 1 else first).mT @ parts  # of two vectors of each group
    made = rises.transpose(1, 2).reshape(-1, *images.shape[1:])
    if scale is not None:
        made = torch.cat([made[:1], _scale_channels(made[1:], scale)])
    backs = geometry.back(made, weight).reshape(norms, -1, groups, size).transpose(1, 2)
    best = best[..., : backs.shape[2]]
    levels = torch.diagonal(best.mT @ small @ best, dim1=2, dim2=3)[..., None]
    residuals = backs - levels * chosen[:, :, : backs.shape[2]]
    left = torch.linalg.vector_norm(residuals[:, :, 0], dim=2)
    errors = torch.where(values > 0, left / values, 0.0)
    if several > 2 * norms:  # the best of their span and of that of their images
        ordered = [*_list_vectors(chosen[:, :, :1]), *_list_vectors(residuals), *_list_vectors(chosen[:, :, 1:])]
    else:
        length = torch.linalg.vector_norm(backs, dim=3, keepdim=True)
        ordered = _list_vectors(torch.where((length > 0) & length.isfinite(), backs, chosen[:, :, : backs.shape[2]]))
    ordered = ordered[:several]
    following = torch.cat([torch.stack(ordered, dim=1), basis[:, len(ordered) :]], dim=1)
    return values.flatten(), errors.flatten(), following


def _list_vectors(of_norms: Tensor) -> list[Tensor]:
    """Return each of several vectors of every norm, the first of all norms first."""
    return [of_norms[norm, :, index] for index in range(of_norms.shape[2]) for norm in range(len(of_norms))]


def _top_eigenvectors(matrices: Tensor, count: int) -> Tensor:
    """Return the top eigenvectors of small symmetric matrices, the best first."""
    if matrices.is_cuda:
        return eigenvectors_by_powers(matrices, count)
    return torch.linalg.eigh(matrices)[1][:, :, -count:].flip(2)


def eigenvectors_by_powers(matrices: Tensor, count: int) -> Tensor:
    """Return the top eigenvectors of small symmetric matrices by high powers of them, which wait for no device."""
    vectors: list[Tensor] = []
    for _ in range(count):
        share = torch.linalg.matrix_power(matrices / _trace(matrices), MATRIX_POWER)
        share = torch.linalg.matrix_power(share / _trace(share), MATRIX_POWER)
        most = torch.diagonal(share, dim1=1, dim2=2).argmax(1)
        top = torch.take_along_dim(share, most[:, None, None].expand(-1, share.shape[1], 1), 2)
        top = top / torch.linalg.vector_norm(top, dim=1, keepdim=True).clamp(min=MIN_DIVISOR)
        vectors.append(top)
        away = matrices @ top
        matrices = matrices - away @ top.mT - top @ away.mT + (top.mT @ away) * (top @ top.mT)
    return torch.cat(vectors, dim=2)


def _orthonormalise(rows: Tensor) -> Tensor:
    """Return rows that span the same, by a Cholesky factor; rows that add nothing come out short."""
    rows = rows / torch.linalg.vector_norm(rows, dim=2, keepdim=True).clamp(min=MIN_DIVISOR)
    gram = rows @ rows.mT
    torch.diagonal(gram, dim1=1, dim2=2).add_(GRAM_JITTER)
    factor = torch.linalg.cholesky_ex(gram)[0]
    return torch.linalg.solve_triangular(factor, rows, upper=False)


def _trace(matrices: Tensor) -> Tensor:
    return torch.diagonal(matrices, dim1=1, dim2=2).sum(1).clamp(min=MIN_DIVISOR)[:, None, None]


def _draw_vectors(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random vectors; the generator of the user is left alone."""
    return torch.randn(shape, generator=generator, device=generator.device).to(like)


def _count_vectors(size: int, norms: int) -> int:
    """Return how many vectors of a size are followed: the best two for each norm, two residuals, and a new one."""
    return max(norms, min(size, max(norms + 1, min(2 * norms + 3, MAX_FOLLOWED_ENTRIES // size))))


def _affordable_steps(rows: Tensor) -> int:
    """Return how many steps there is memory for."""
    return max(8, min(MAX_SEARCH_STEPS, SEARCH_MEMORY_BYTES // max(rows.numel() * rows.element_size(), 1)))


def _scale_channels(images: Tensor, scale: Tensor) -> Tensor:
    """Return images with a factor for every channel, or one for all."""
    return images * scale.to(images).reshape(1, -1, *(1,) * (images.ndim - 2))
