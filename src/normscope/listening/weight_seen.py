"""What one call of a weight layer shows: its input, weight, bias and output, and how it was called.

`LayerGeometry` is the last of these alone: a linear map of one sample, for whatever weight the layer has later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .calls import PRODUCTS, FunctionCall

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSeen:
    """One call of a weight layer; it holds the tensors of the call, so that it must not outlive the forward.

    Attributes:
        call: the call itself.
        input, output: what the layer was given and returned.
        weight: the weight as it was applied.
        bias: None without one.
        settings: further arguments of a convolution by name.
    """

    call: FunctionCall
    input: Tensor
    output: Tensor
    weight: Tensor
    bias: Tensor | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> list[Tensor]:
        """The weight, and the bias where there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def axis(self) -> int:
        """The dimension of the weight that counts output channels."""
        return 1 if "transpose" in self.call.name or self._is_matrix else 0

    @property
    def channels(self) -> int:
        """The dimension of the output that counts its channels."""
        return self.output.ndim - (self.weight.ndim - 1 if self._is_convolution else 1)

    @property
    def _is_convolution(self) -> bool:
        return "conv" in self.call.name

    @property
    def _is_matrix(self) -> bool:
        """Whether the weight is the second factor of a product x W, and not transposed."""
        return self.call.name in (*PRODUCTS, "addmm")

    def geometry(self) -> LayerGeometry:
        """Return how the layer was called, apart from its weight."""
        if not self._is_convolution:
            kind = "matrix" if self._is_matrix else "linear"
            return LayerGeometry(kind=kind, shape=(1, self.input.shape[-1]), channels=self.output.shape[-1])
        batched = self.input.ndim == self.weight.ndim
        shape = (1, *(self.input.shape[1:] if batched else self.input.shape))
        channels = self.output.shape[self.channels]
        rest, func, spatial = self.settings, self.call.func, self.weight.ndim - 2
        if isinstance(rest["padding"], str):
            return LayerGeometry(
                kind="other", shape=shape, channels=channels, function=lambda v, w: func(v, w, None, **rest)
            )
        settings = (
            *(_repeated(rest[key], spatial) for key in ("stride", "padding", "dilation")),
            "transpose" in self.call.name,
            _repeated(rest.get("output_padding", 0), spatial),
            rest["groups"],
        )
        return LayerGeometry(kind="convolution", shape=shape, channels=channels, settings=settings)


def weight_seen(call: FunctionCall, output: Tensor) -> WeightSeen:
    """Return what a call of a weight layer shows."""
    if call.name in PRODUCTS:
        return WeightSeen(call=call, input=call.args[0], output=output, weight=call.args[1])
    given = dict(call.named())
    if call.name == "addmm":
        bias = given["input"] if "input" in given else given["self"]
        return WeightSeen(call=call, input=given["mat1"], output=output, weight=given["mat2"], bias=bias)
    first, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
    return WeightSeen(call=call, input=first, output=output, weight=weight, bias=bias, settings=given)


def _repeated(value: Any, count: int) -> list[int]:
    """Return one number per dimension."""
    given = [value] if isinstance(value, int) else list(value)
    return given * count if len(given) == 1 else given


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
                (pulled_back,) = torch.autograd.grad(self.image(anywhere, weight), anywhere, images.detach())
            return pulled_back
        if self.kind != "convolution":
            return images @ (weight.mT if self.kind == "matrix" else weight)
        anywhere = images.new_empty(self._like(images))  # its shape alone is read
        result: Tensor = aten.convolution_backward.default(
            images, anywhere, weight, None, *self.settings, (True, False, False)
        )[0]
        return result

    def _like(self, images: Tensor) -> tuple[int, ...]:
        return (len(images), *self.shape[1:])
