"""The operator norm of a weight by warm power steps, of the layer alone and folded with its normalizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FIRST = 12
"""Power steps when a layer is met for the first time."""
LATER = {"economy": 1, "standard": 2, "full": 12}
"""Power steps at each later measurement: the vectors are warm, the weights have moved little."""
aten = torch.ops.aten


@dataclass(slots=True)
class Power:
    """The warm vectors of one layer.

    A step goes from v to A^T A v/norm(A^T A v). norm(A^T A v)^(1/2) is between norm(A v) and norm(A): an estimate from
    below that is exact once v has settled.
    """

    bare: Tensor | None = field(default=None, repr=False)
    folded: Tensor | None = field(default=None, repr=False)


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

    def gram(self, vector: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return A^T D^2 A v for the layer A, its output channels scaled by D."""
        if self.kind == "other":
            return self._gram(vector, weight, scale)
        if self.kind != "convolution":
            matrix = weight if self.kind == "matrix" else weight.mT
            made = vector @ matrix
            return (made if scale is None else made * scale.square()) @ matrix.mT
        made = aten.convolution.default(vector, weight, None, *self.settings)
        if scale is not None:
            made = made * _along(scale.square(), made.ndim)
        result: Tensor = aten.convolution_backward.default(
            made, vector, weight, None, *self.settings, (True, False, False)
        )[0]
        return result

    def _gram(self, vector: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
        assert self.function is not None, "a layer without adjoint has a function"
        with torch.enable_grad():
            moving = vector.detach().requires_grad_(True)
            made = self.function(moving, weight)
            weighted = made if scale is None else made * _along(scale.square(), made.ndim)
            (back,) = torch.autograd.grad(made, moving, weighted.detach())
        return back


def power_norm(
    geometry: Geometry, weight: Tensor, warm: Tensor | None, *, steps: int, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of a layer, its output channels scaled, and the vector it was found with.

    Args:
        geometry: of the layer.
        weight: as it is applied.
        warm: the vector of the last time; None to start from a fixed one.
        steps: how many to take from a warm start; at least `FIRST` without one.
        scale: one factor per output channel, or one for all.
    """
    vector = warm
    if vector is None or tuple(vector.shape) != geometry.shape:
        vector, steps = _start(geometry.shape, weight), max(steps, FIRST)
    scale = None if scale is None else scale.to(weight)
    size = vector
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        for _ in range(steps):
            back = geometry.gram(vector, weight, scale)
            size = torch.linalg.vector_norm(back)
            # a vector that overflowed, or that the layer maps to zero, begins anew
            vector = torch.where((size > 0) & size.isfinite(), back / size, 1.0 / back.numel() ** 0.5)
    return size.sqrt(), vector


def _start(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return a fixed vector in general position; the generator of the user is left alone."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(shape, generator=generator).to(like)
    return vector / torch.linalg.vector_norm(vector)


def _along(scale: Tensor, rank: int) -> Tensor:
    return scale.reshape(1, -1, *(1,) * (rank - 2)) if scale.numel() > 1 else scale.reshape(())
