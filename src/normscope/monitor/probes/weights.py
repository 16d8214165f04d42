"""The operator norm of a weight, of the layer alone and folded with its normalizer.

At first by a search from a random start, which says how far it may be off; later by a step of subspace iteration from
the vectors that were found, which have moved little.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...linalg.lanczos import lanczos

CLOSE = 0.05
"""Relative error of a squared norm with which a search ends: a hundredth of a decade of the norm."""
MOST = 64
"""Steps of a search, at most."""
MEMORY = 1 << 28
"""Bytes for the vectors of a search."""
SEVERAL = 6
"""Vectors that are followed, at most: the largest of them may change places."""
FOLLOWED = 1 << 19
"""Entries of the vectors that are followed together; of a layer with a larger input two are followed all the same."""
ROUNDS = 3
"""Further rounds, where one is too little."""
SQUARINGS = 10
"""Of a small matrix: directions within a thousandth of the largest are as good as that."""
JITTER = 1e-6
"""Of a Gram matrix of unit vectors: those that depend on others so far count as none."""
TINY = 1e-37
"""Lengths that are not divided by."""
aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How a weight layer was called, apart from its weight.

    Attributes:
        kind: `"matrix"` (x W), `"linear"` (x W^T), `"convolution"`, or `"other"`.
        shape: of one sample, with a leading dimension of 1.
        channels: of the output, along its second dimension.
        settings: stride, padding, dilation, transposed, output padding and groups of a convolution.
        function: of (sample, weight), for what has no adjoint of its own here.
    """

    kind: str
    shape: tuple[int, ...]
    channels: int
    settings: tuple[Any, ...] = ()
    function: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def groups(self) -> int:
        """How many groups of channels do not see each other."""
        return self.settings[5] if self.settings else 1

    def gram(self, vectors: Tensor, weight: Tensor, squares: Tensor | None = None) -> Tensor:
        """Return A^T D^2 A v for the layer A and each of several vectors; D scales the output channels.

        Args:
            vectors: one behind the other.
            weight: of the layer.
            squares: the factors D^2 for every vector and channel; None for ones.
        """
        if self.kind == "other":
            return self._gram(vectors, weight, squares)
        if self.kind != "convolution":
            matrix = weight if self.kind == "matrix" else weight.mT
            return _scaled(vectors @ matrix, squares) @ matrix.mT
        made = _scaled(aten.convolution.default(vectors, weight, None, *self.settings), squares)
        result: Tensor = aten.convolution_backward.default(
            made, vectors, weight, None, *self.settings, (True, False, False)
        )[0]
        return result

    def _gram(self, vectors: Tensor, weight: Tensor, squares: Tensor | None) -> Tensor:
        assert self.function is not None, "a layer without adjoint has a function"
        with torch.enable_grad():
            moving = vectors.detach().requires_grad_(True)
            made = self.function(moving, weight)
            (back,) = torch.autograd.grad(made, moving, _scaled(made, squares).detach())
        return back


class Estimate(NamedTuple):
    """The norm of a layer, then with its output channels scaled, as far as it was followed.

    Attributes:
        norms: from below.
        errors: by how many decades each may be too low.
        vectors: that are stretched most, `[norms * groups, several, entries of a group]`.
    """

    norms: Tensor
    errors: Tensor
    vectors: Tensor


def settled(
    geometry: Geometry, weight: Tensor, warm: Tensor | None, scale: Tensor | None, generator: torch.Generator
) -> Estimate:
    """Return norms from a random start, by as many Lanczos steps as they need: they wait for the device.

    The error is the distance to Hochstenbach's bound, which fails for one start in a thousand; where there is no memory
    for so many vectors, it is that of the residual.

    Args:
        geometry: of the layer.
        weight: as it is applied.
        warm: the vectors of the last time, if there are any.
        scale: one factor per output channel, or one for all; None for the norm of the layer alone.
        generator: for the start.
    """
    operator, blocks = _operator(geometry, weight, scale), geometry.groups * (1 if scale is None else 2)
    size = math.prod(geometry.shape[1:]) // geometry.groups

    def rows(vectors: Tensor) -> Tensor:
        return operator(vectors[:, None])[:, 0]

    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        start = _random((blocks, size), weight, generator)
        found = lanczos(rows, start, steps=_room(start), rtol=CLOSE, sure=True)
        errors = torch.where(found.values > 0, found.above / found.values - 1.0, 0.0)
        for _ in range(ROUNDS):
            if bool((errors <= CLOSE).all()):
                break
            found = lanczos(rows, found.vectors, steps=_room(start), rtol=CLOSE)
            errors = found.errors
        if warm is None or (warm.shape[0], warm.shape[2]) != (blocks, size):
            warm = _random((blocks, _several(size), size), weight, generator)
            for _ in range(2):
                warm = _advanced(operator, warm)[2]
        vectors = torch.cat([found.vectors[:, None], warm[:, 1:]], dim=1)
    return _largest(geometry, found.values, errors, vectors)


def followed(
    geometry: Geometry, weight: Tensor, warm: Tensor, scale: Tensor | None, generator: torch.Generator
) -> Estimate:
    """Return norms by a step of subspace iteration from vectors that were good a while ago; nothing waits for a GPU.

    The last vector is drawn anew: what grows where no vector looks is met by and by. Where the residual says that a
    step is too little, and the device is not waited for, more are taken, and in the end the search begins anew.

    Args:
        geometry: of the layer.
        weight: as it is applied.
        warm: the vectors of the last time.
        scale: one factor per output channel, or one for all; None for the norm of the layer alone.
        generator: for the new vector.
    """
    operator = _operator(geometry, weight, scale)
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        if warm.shape[1] > 1:
            warm = torch.cat([warm[:, :-1], _random((len(warm), 1, warm.shape[2]), weight, generator)], dim=1)
        values, errors, vectors = _advanced(operator, warm)
        for _ in range(ROUNDS):
            if weight.is_cuda or not bool((errors > CLOSE).any()):
                return _largest(geometry, values, errors, vectors)
            values, errors, vectors = _advanced(operator, vectors)
    return settled(geometry, weight, vectors, scale, generator)


def _largest(geometry: Geometry, values: Tensor, errors: Tensor, vectors: Tensor) -> Estimate:
    """Return norms from the largest eigenvalue of every group, and its relative error: the norm is that of the largest.

    A group that is smaller may be the largest if it is off by its error.
    """
    values = values.clamp(min=0.0).reshape(-1, geometry.groups)
    most = values.amax(1)
    above = (values * (1.0 + errors.clamp(min=0.0).reshape(values.shape))).amax(1)
    off = torch.where(most > 0, above / most, 1.0)
    return Estimate(most.sqrt(), torch.log10(off) / 2.0, vectors)


def _advanced(operator: Callable[[Tensor], Tensor], vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest Ritz value in the span of some vectors, its relative residual, and their images."""
    basis = _orthonormal(vectors)
    images = operator(basis)
    small, power = basis @ images.mT, images @ images.mT
    top = _top(small)
    values = (top.mT @ small @ top)[:, 0, 0]
    left = ((top.mT @ power @ top)[:, 0, 0] - values.square()).clamp(min=0.0).sqrt()
    errors = torch.where(values > 0, left / values, 0.0)
    size = torch.linalg.vector_norm(images, dim=2, keepdim=True)
    return values, errors, torch.where((size > 0) & size.isfinite(), images, basis)


def _top(matrices: Tensor) -> Tensor:
    """Return the top eigenvector of small symmetric matrices; on a GPU by squaring them, which waits for nothing."""
    if not matrices.is_cuda:
        return torch.linalg.eigh(matrices)[1][:, :, -1:]
    share = matrices / _trace(matrices)
    for _ in range(SQUARINGS):
        share = share @ share
        share = share / _trace(share)
    most = torch.diagonal(share, dim1=1, dim2=2).argmax(1)
    top = torch.take_along_dim(share, most[:, None, None].expand(-1, share.shape[1], 1), 2)
    return top / torch.linalg.vector_norm(top, dim=1, keepdim=True).clamp(min=TINY)


def _orthonormal(rows: Tensor) -> Tensor:
    """Return rows that span the same, by a Cholesky factor; rows that add nothing come out short."""
    rows = rows / torch.linalg.vector_norm(rows, dim=2, keepdim=True).clamp(min=TINY)
    gram = rows @ rows.mT
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky_ex(gram + JITTER * eye)[0]
    return torch.linalg.solve_triangular(factor, rows, upper=False)


def _trace(matrices: Tensor) -> Tensor:
    return torch.diagonal(matrices, dim1=1, dim2=2).sum(1).clamp(min=TINY)[:, None, None]


def _operator(geometry: Geometry, weight: Tensor, scale: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return the Gram operator of a layer on `[norms * groups, several, entries]`: groups do not see each other.

    The first norm is that of the layer alone, the second has its output channels scaled.
    """
    norms, groups = 1 if scale is None else 2, geometry.groups

    def apply(vectors: Tensor) -> Tensor:
        _, several, size = vectors.shape
        squares = None
        if scale is not None:
            factors = scale.to(weight).square().reshape(1, -1)
            squares = torch.cat([torch.ones_like(factors), factors]).repeat_interleave(several, 0)
        together = vectors.reshape(norms, groups, several, size).transpose(1, 2)
        images = geometry.gram(together.reshape(norms * several, *geometry.shape[1:]), weight, squares)
        return images.reshape(norms, several, groups, size).transpose(1, 2).reshape(vectors.shape)

    return apply


def _random(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random vectors; the generator of the user is left alone."""
    return torch.randn(shape, generator=generator, device=generator.device).to(like)


def _several(size: int) -> int:
    """Return how many vectors of a size are followed."""
    return min(size, max(2, min(SEVERAL, FOLLOWED // size)))


def _room(rows: Tensor) -> int:
    """Return how many steps there is memory for."""
    return max(8, min(MOST, MEMORY // max(rows.numel() * rows.element_size(), 1)))


def _scaled(made: Tensor, squares: Tensor | None) -> Tensor:
    return made if squares is None else made * squares.reshape(*squares.shape, *(1,) * (made.ndim - 2))
