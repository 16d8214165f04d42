"""`LayerGeometry`: how a weight layer was called, as a linear map of one sample for whatever weight it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGeometry:
    """How a weight layer was called, apart from its weight.

    Attributes:
        kind: `"matrix"` (x W), `"linear"` (x W^T), `"convolution"`, or `"other"`.
        shape: the shape of one sample, with a leading dimension of 1.
        channels: how many channels the output has.
        settings: stride, padding, dilation, transposed, output padding and groups of a convolution.
        function: the layer as a function of (sample, weight), where it has no adjoint of its own here.
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

    def image(self, vectors: Tensor, weight: Tensor) -> Tensor:
        """Return A v for the layer A, without bias, and each of several vectors, one behind the other."""
        if self.kind == "other":
            assert self.function is not None, "a layer without adjoint has a function"
            return self.function(vectors, weight)
        if self.kind != "convolution":
            return vectors @ (weight if self.kind == "matrix" else weight.mT)
        made: Tensor = aten.convolution.default(vectors, weight, None, *self.settings)
        return made

    def back(self, images: Tensor, weight: Tensor) -> Tensor:
        """Return A^T w for the layer A and each of several images, one behind the other."""
        if self.kind == "other":
            with torch.enable_grad():
                anywhere = images.new_zeros(self._like(images)).requires_grad_(True)
                (found,) = torch.autograd.grad(self.image(anywhere, weight), anywhere, images.detach())
            return found
        if self.kind != "convolution":
            return images @ (weight.mT if self.kind == "matrix" else weight)
        anywhere = images.new_empty(self._like(images))  # its shape alone is read
        result: Tensor = aten.convolution_backward.default(
            images, anywhere, weight, None, *self.settings, (True, False, False)
        )[0]
        return result

    def _like(self, images: Tensor) -> tuple[int, ...]:
        return (len(images), *self.shape[1:])
