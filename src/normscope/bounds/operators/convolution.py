"""Convolutions and their transposes, at their real input size, stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.convolution_map import Convolution
from ..linalg.folding import repeated
from .effects import Effect, Linear, Range, Unbounded
from .linear import weighted
from .registry import Factors, rule

aten = torch.ops.aten


@rule(
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
    examples=[
        (nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 2, 7)),
        (nn.Conv2d(2, 4, 3, padding=1, groups=2), (1, 2, 5, 5)),
        (nn.Conv2d(2, 3, 2, padding="same", dilation=2), (1, 2, 5, 4)),
        (nn.Conv3d(1, 2, 2, stride=(1, 2, 1)), (1, 1, 3, 4, 3)), (nn.Conv1d(2, 2, 3, padding="same"), (1, 2, 5)),
        (nn.Conv3d(1, 1, 2, padding="same"), (1, 1, 3, 3, 3)),
    ],
    linear=True, factors=weighted,
)  # fmt: skip
def convolution(node: Node, operands: Sequence[Range]) -> Effect:
    """A convolution as the operator really applied."""
    return _convolution(node, transposed=False)


@rule(
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
    examples=[
        (nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), (1, 2, 4)),
        (nn.ConvTranspose2d(4, 2, 3, stride=2, groups=2), (1, 4, 3, 3)), (nn.ConvTranspose3d(1, 2, 2), (1, 1, 2, 2, 2)),
    ],
    linear=True, factors=weighted,
)  # fmt: skip
def transposed(node: Node, operands: Sequence[Range]) -> Effect:
    """A transposed convolution: the norm of the convolution it transposes."""
    return _convolution(node, transposed=True)


@rule(
    "padded_convolution",
    examples=[
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (1, 2, 4, 4)),
        (nn.Conv2d(2, 2, 3, padding=(1, 2), padding_mode="reflect", stride=2), (1, 2, 4, 5)),
        (nn.Conv1d(2, 2, 4, padding=2, padding_mode="replicate", groups=2), (2, 2, 6)),
    ],
    linear=True,
    factors=lambda node: Factors(*node.args[:3]),
)
def padded(node: Node, operands: Sequence[Range]) -> Effect:
    """A convolution with circular, reflecting or replicating padding."""
    image, weight = node.args[:2]
    dims = weight.ndim - 2
    data = node.op.data
    applied = Convolution(
        weight,
        image.shape[-dims:],
        stride=_per_axis(data["stride"], dims),
        padding=data["padding"],
        dilation=_per_axis(data["dilation"], dims),
        groups=data["groups"],
        padding_mode=data["mode"],
    )
    return Linear(maps=(repeated(applied, image.shape[: -dims - 1]),))


def _convolution(node: Node, *, transposed: bool) -> Effect:
    arguments = node.bound()
    weight, image = arguments["weight"], arguments["input"]
    if not isinstance(weight, Tensor) or not isinstance(image, Ref):
        return Unbounded(reason=f"a convolution with a kernel that depends on the input, in {node.where}")
    dims = weight.ndim - 2
    padding = arguments["padding"]
    applied = Convolution(
        weight,
        image.shape[-dims:],
        stride=_per_axis(arguments["stride"], dims),
        padding=padding if isinstance(padding, str) else _per_axis(padding, dims),
        dilation=_per_axis(arguments["dilation"], dims),
        groups=arguments["groups"],
        transposed=transposed,
        output_padding=_per_axis(arguments.get("output_padding", 0), dims),
    )
    return Linear(maps=(repeated(applied, image.shape[: -dims - 1]),))


def _per_axis(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


for axes, overload in ((1, "default"), (2, "input"), (3, "input")):
    describe(
        f"conv{axes}d.default conv{axes}d.padding conv_transpose{axes}d.{overload}", samples=samples.convolved(axes)
    )
