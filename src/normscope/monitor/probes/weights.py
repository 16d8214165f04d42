"""The operator norm of a weight by warm power steps, of the layer alone and folded with its normalizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FIRST = 12
"""Power steps when a layer is met for the first time."""
LATER = {"economy": 1, "standard": 2, "full": 12}
"""Power steps at each later measurement: the vectors are warm, the weights have moved little."""
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


def power_norms(
    geometry: Geometry, weight: Tensor, warm: Tensor | None, *, steps: int, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of a layer, then with its output channels scaled, and the vectors they were found with.

    A step goes from v to A^T A v/norm(A^T A v). norm(A^T A v)^(1/2) is between norm(A v) and norm(A): an estimate from
    below that is exact once v has settled.

    Args:
        geometry: of the layer.
        weight: as it is applied.
        warm: the vectors of the last time; None to start from a fixed one.
        steps: how many to take from a warm start; at least `FIRST` without one.
        scale: one factor per output channel, or one for all; None for the norm of the layer alone.
    """
    shape = (1 if scale is None else 2, *geometry.shape[1:])
    vectors = warm
    if vectors is None or tuple(vectors.shape) != shape:
        vectors, steps = _start(shape, weight), max(steps, FIRST)
    squares = None
    if scale is not None:
        factors = scale.to(weight).square().reshape(1, -1)
        squares = torch.cat([torch.ones_like(factors), factors])
    sizes = vectors
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        for _ in range(steps):
            back = geometry.gram(vectors, weight, squares).reshape(len(vectors), -1)
            sizes = torch.linalg.vector_norm(back, dim=1, keepdim=True)
            # a vector that overflowed, or that the layer maps to zero, begins anew
            usable = (sizes > 0) & sizes.isfinite()
            vectors = torch.where(usable, back / sizes, 1.0 / back.shape[1] ** 0.5).reshape(shape)
    return sizes[:, 0].sqrt(), vectors


def _start(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return a fixed vector in general position, repeated; the generator of the user is left alone."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(shape[1:], generator=generator).to(like)
    return (vector / torch.linalg.vector_norm(vector)).expand(shape)


def _scaled(made: Tensor, squares: Tensor | None) -> Tensor:
    return made if squares is None else made * squares.reshape(*squares.shape, *(1,) * (made.ndim - 2))
