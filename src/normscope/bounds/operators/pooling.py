"""Pooling and interpolation, and the windows of every maximum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.bracket import Evidence
from ...core.rounding import ONE, Upper
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.convolution_map import combine_axes
from ..linalg.linear_map import Averaging
from .effects import Effect, Gain, Linear, Range, Unbounded, coded, spread
from .local.entry_sets import WindowMaximum
from .local.local import Builder
from .registry import WindowsWord, rule

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
    linear=True,
)  # fmt: skip
def averaging(node: Node, operands: Sequence[Range]) -> Effect:
    """Averages and linear interpolation: weights without a negative one, bounded by the Schur test."""
    if (node.bound().get("divisor_override") or 1) < 0:
        return Linear(maps=(coded(node, 0),))
    return Linear(maps=(coded(node, 0, Averaging),))


def windows(node: Node) -> WindowsWord:
    """Return the windows of a max pooling, or of an extreme over dimensions."""
    shape = node.operands[0].shape
    if "max_pool" not in node.operator:
        wanted = node.bound().get("dim")
        dims = [wanted] if isinstance(wanted, int) else list(wanted or range(len(shape)))
        dims = sorted(d % max(len(shape), 1) for d in dims) if shape else []
        kept = [d for d in range(len(shape)) if d not in dims]
        ids = torch.arange(math.prod(shape)).reshape(shape)
        index = ids.permute(*kept, *dims).reshape(math.prod(shape[d] for d in kept), -1)
        return WindowsWord(index, 0, node.takes_smallest)
    axes = range(-node.pooled_axes, 0)
    index = combine_axes([_taps(node, axis) for axis in axes], [shape[axis] for axis in axes])
    return WindowsWord(index, len(shape) - node.pooled_axes)


def _taps(node: Node, axis: int) -> Tensor:
    """Return the places along one axis that each output of a max pooling reads, `[outputs, taps]`, -1 for none."""
    size, outputs = node.operands[0].shape[axis], node.shape[axis]
    if node.operator.startswith("adaptive"):
        ends = [(o * size // outputs, -(-(o + 1) * size // outputs)) for o in range(outputs)]
        widest = max(end - start for start, end in ends)
        return torch.tensor([[p if p < end else -1 for p in range(start, start + widest)] for start, end in ends])
    arguments = node.bound()
    kernel = arguments["kernel_size"]
    options = (kernel, arguments.get("stride") or kernel, arguments.get("padding", 0), arguments.get("dilation", 1))
    kernel, stride, padding, dilation = (
        value if isinstance(value, int) else value[axis if len(value) > 1 else 0] for value in options
    )
    places = torch.arange(outputs)[:, None] * stride - padding + torch.arange(kernel)[None] * dilation
    return torch.where((places >= 0) & (places < size), places, -1)


def window_steps(node: Node, build: Builder) -> str | None:
    """The largest or smallest entry of every window."""
    if node.index not in (None, 0) or len(node.operands) != 1:
        return None
    word, shape = windows(node), node.operands[0].shape
    slices, block = math.prod(shape[: word.leading]), math.prod(shape[word.leading :])
    places = torch.arange(slices)[:, None, None] * block + word.index
    places = torch.where(word.index >= 0, places, -1).flatten(0, 1).to(node.device)
    name = node.refs[0]
    if word.lowest:
        name = build.affine([(name, spread(Ref(name, shape), shape, -1, node.device))])
    name = build.apply(WindowMaximum(places, node.shape), name, shape=node.shape)
    if word.lowest:
        name = build.affine([(name, spread(Ref(name, node.shape), node.shape, -1, node.device))])
    return name


def window_word(node: Node) -> WindowsWord | None:
    """The windows as the checker reads them."""
    return windows(node) if len(node.operands) == 1 else None


@rule(
    aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default, aten.max_pool2d_with_indices.default,
    aten.max_pool1d_with_indices.default, aten.max_pool3d_with_indices.default, aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default,
    examples=[
        (nn.MaxPool1d(2), (1, 2, 6)), (nn.MaxPool2d(3, 2, 1), (1, 2, 5, 5)), (nn.MaxPool2d(3, 1), (1, 1, 5, 5)),
        (nn.MaxPool2d(2, 1, dilation=2), (1, 1, 5, 5)), (nn.MaxPool1d(3, 2, 1, ceil_mode=True), (1, 1, 6)),
        (nn.MaxPool3d(2, 1), (1, 1, 3, 3, 3)), (lambda x: F.max_pool1d(x, 2, return_indices=True)[0], (1, 1, 4)),
        (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (1, 1, 4, 4)),
        (lambda x: F.max_pool3d(x, 2, return_indices=True)[0], (1, 1, 4, 4, 4)),
        (nn.AdaptiveMaxPool2d(2), (1, 2, 5, 5)), (nn.AdaptiveMaxPool1d(3), (1, 2, 4)),
        (nn.AdaptiveMaxPool3d(2), (1, 1, 3, 3, 3)),
    ],
    local=window_steps, word=window_word,
)  # fmt: skip
def max_pool(node: Node, operands: Sequence[Range]) -> Effect:
    """Max pooling: sqrt of the largest number of windows that share an input."""
    if node.index not in (None, 0):
        return Unbounded(reason=f"indices returned by {node.op} in {node.where}: not continuous")
    shared = 1
    for axis in range(-node.pooled_axes, 0):
        taps = _taps(node, axis)
        shared *= int(taps[taps >= 0].bincount().max())
    root = Upper.of(math.sqrt(shared), Evidence.PROVEN, "shared windows", allowance=1e-15)
    return Gain(gains=(ONE if shared == 1 else root,), range=Range.of(operands[0].entry, node.shape[-1]))


for axes, interpolation in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    meeting = samples.trailing(axes)
    describe(
        f"max_pool{axes}d.default adaptive_max_pool{axes}d.default max_pool{axes}d_with_indices.default",
        samples=meeting,
        pools="largest",
    )
    describe(f"avg_pool{axes}d.default adaptive_avg_pool{axes}d.default", samples=meeting, pools="average")
    describe(f"upsample_{interpolation}.vec", samples=meeting)
describe("_upsample_bilinear2d_aa.vec", samples=samples.trailing(2))
