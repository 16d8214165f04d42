"""Pooling and interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from ..core.bracket import Evidence
from ..core.rounding import ONE, Upper
from ..graph.ir import Node
from ..linalg.linear_map import Averaging
from .effects import Effect, Gain, Linear, Range, Unbounded
from .linear import coded
from .registry import rule

aten = torch.ops.aten


@rule(
    aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default, aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default, aten.upsample_linear1d.vec,
    aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec, aten._upsample_bilinear2d_aa.vec,
    examples=[
        (nn.AvgPool1d(2), (1, 2, 6)), (nn.AvgPool2d(3, 2, 1), (1, 2, 5, 5)), (nn.AvgPool3d(2, 1), (1, 1, 3, 3, 3)),
        (nn.AdaptiveAvgPool1d(2), (1, 2, 5)), (nn.AdaptiveAvgPool2d(2), (1, 2, 5, 5)),
        (nn.AdaptiveAvgPool3d(2), (1, 1, 3, 3, 3)),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False, ceil_mode=True), (1, 1, 6, 6)),
        (nn.AvgPool2d(2, divisor_override=-3), (1, 1, 4, 4)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 1, 3, 3)),
        (lambda x: F.interpolate(x, size=5, mode="linear", align_corners=True), (1, 1, 3)),
        (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (1, 1, 2, 2, 2)),
        (lambda x: F.interpolate(x, size=3, mode="bilinear", antialias=True), (1, 1, 5, 5)),
    ],
)  # fmt: skip
def averaging(node: Node, operands: Sequence[Range]) -> Effect:
    """Averages and linear interpolation: weights without a negative one, bounded by the Schur test."""
    if (node.bound().get("divisor_override") or 1) < 0:
        return Linear(maps=(coded(node, 0),))
    return Linear(maps=(coded(node, 0, Averaging),))


@rule(
    aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default, aten.max_pool2d_with_indices.default,
    aten.max_pool1d_with_indices.default, aten.max_pool3d_with_indices.default,
    examples=[
        (nn.MaxPool1d(2), (1, 2, 6)), (nn.MaxPool2d(3, 2, 1), (1, 2, 5, 5)), (nn.MaxPool2d(3, 1), (1, 1, 5, 5)),
        (nn.MaxPool2d(2, 1, dilation=2), (1, 1, 5, 5)), (nn.MaxPool1d(3, 2, 1, ceil_mode=True), (1, 1, 6)),
        (nn.MaxPool3d(2, 1), (1, 1, 3, 3, 3)), (lambda x: F.max_pool1d(x, 2, return_indices=True)[0], (1, 1, 4)),
        (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (1, 1, 4, 4)),
        (lambda x: F.max_pool3d(x, 2, return_indices=True)[0], (1, 1, 4, 4, 4)),
    ],
)  # fmt: skip
def max_pool(node: Node, operands: Sequence[Range]) -> Effect:
    """Max pooling: sqrt of the largest number of windows that share an input."""
    if node.index not in (None, 0):
        return Unbounded(reason=f"indices returned by {node.op} in {node.where}: not continuous")
    arguments = node.bound()
    dims = node.pooled_axes
    kernel = _each(arguments["kernel_size"], dims)
    stride = _each(arguments.get("stride") or kernel, dims)
    padding, dilation = _each(arguments.get("padding", 0), dims), _each(arguments.get("dilation", 1), dims)
    shared = 1
    for axis in range(dims):
        size, outputs = node.operands[0].shape[axis - dims], node.shape[axis - dims]
        counts = [0] * size
        for output in range(outputs):
            for tap in range(kernel[axis]):
                place = output * stride[axis] - padding[axis] + tap * dilation[axis]
                if 0 <= place < size:
                    counts[place] += 1
        shared *= max(counts)
    return Gain(gains=(_root(shared),), range=Range.of(operands[0].entry, node.shape[-1]))


@rule(
    aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default,
    examples=[(nn.AdaptiveMaxPool2d(2), (1, 2, 5, 5)), (nn.AdaptiveMaxPool1d(3), (1, 2, 4)),
    (nn.AdaptiveMaxPool3d(2), (1, 1, 3, 3, 3))],
)  # fmt: skip
def adaptive_max_pool(node: Node, operands: Sequence[Range]) -> Effect:
    """Adaptive max pooling: windows may share an input where the sizes do not divide."""
    if node.index not in (None, 0):
        return Unbounded(reason=f"indices returned by {node.op} in {node.where}: not continuous")
    dims = node.pooled_axes
    shared = 1
    for axis in range(dims):
        size, outputs = node.operands[0].shape[axis - dims], node.shape[axis - dims]
        windows = [(o * size // outputs, -(-(o + 1) * size // outputs)) for o in range(outputs)]
        shared *= max(sum(start <= place < end for start, end in windows) for place in range(size))
    return Gain(gains=(_root(shared),), range=Range.of(operands[0].entry, node.shape[-1]))


def _root(shared: int) -> Upper:
    return ONE if shared == 1 else Upper.of(math.sqrt(shared), Evidence.PROVEN, "shared windows", allowance=1e-15)


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
