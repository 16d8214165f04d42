"""The largest entry of a window near a point: max pooling, max and min over dimensions or of two values.

An entry that is below another one of its window over the whole ball is out of the race. Windows with one entry left are
a fixed selection; otherwise the derivative is some point of the simplex over the entries left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...graph.ir import Node, Ref
from ...linalg.linear_map import LinearMap
from ..arithmetic import spread
from .local import Builder, Enclosure, LocalForm, OperandShare, Primitive, flat, local
from .scalar import Scalar, TurningPoint

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class WindowMaximum(Primitive):
    """The largest entry of every window.

    Attributes:
        windows: `[outputs, width]` flat input indices, -1 where a window is shorter.
        shape: of the output.
    """

    windows: Tensor
    shape: tuple[int, ...]

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Take the largest entry of every window."""
        return self._seen(values[0], -torch.inf).amax(-1).reshape(-1, *self.shape)

    def _seen(self, x: Tensor, missing: float) -> Tensor:
        """Return `[B, outputs, width]`: what every window sees."""
        seen = flat(x)[:, self.windows.clamp(min=0)]
        return torch.where(self.windows >= 0, seen, missing)

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Keep the entries that can win; their mean is the centre map."""
        (x,) = operands
        lows, highs = self._seen(x.low, -torch.inf), self._seen(x.high, -torch.inf)
        floor = lows.amax(-1, keepdim=True)
        racing = (highs >= floor) & (self.windows >= 0)
        speeds = self._seen(x.entries, 0.0)
        moving = racing & (speeds > 0)
        count, fixed = moving.sum(-1).double(), (racing & (speeds == 0)).any(-1)
        # the derivative is a point of the simplex over the entries that move, or of its hull with 0 if one stands still
        corners = count + fixed
        share = moving / corners.clamp(min=1.0)[..., None]
        size = x.centre[0].numel()
        sharing = self._counted(moving, size).amax(-1).sqrt()
        disputed = self._counted(moving & (corners > 1)[..., None], size).amax(-1).sqrt()
        radius = torch.where(corners > 1, _reach(count, corners), 0.0) * disputed[:, None]
        index = self.windows.clamp(min=0).reshape(-1)
        shape, in_shape = self.shape, x.centre.shape[1:]

        def pull(rows: Tensor) -> Tensor:
            spread_out = flat(flat(rows, 2)[..., None] * share[:, None], 2)
            result = torch.zeros(*rows.shape[:2], size, dtype=rows.dtype, device=rows.device)
            return result.index_add_(2, index, spread_out).reshape(*rows.shape[:2], *in_shape)

        fastest = torch.where(racing, speeds, 0.0).amax(-1).reshape(-1, *shape)
        part = OperandShare(pull, (radius * (1 + 1e-12)).reshape(-1, *shape), sharing, fastest)
        return LocalForm(floor[..., 0].reshape(-1, *shape), highs.amax(-1).reshape(-1, *shape), (part,))

    def _counted(self, chosen: Tensor, size: int) -> Tensor:
        """Return `[B, inputs]`: how many windows have each input among the chosen."""
        index = self.windows.clamp(min=0).reshape(1, -1).expand(chosen.shape[0], -1)
        zeros = torch.zeros(chosen.shape[0], size, dtype=torch.float64, device=chosen.device)
        return zeros.scatter_add_(1, index, flat(chosen).double())


def _reach(count: Tensor, corners: Tensor) -> Tensor:
    """Return how far a corner e_j is from the point with all coordinates 1/corners (0 is nearer)."""
    return (
        (1 - 1 / corners.clamp(min=1.0)).square() + (count - 1).clamp(min=0.0) / corners.clamp(min=1.0).square()
    ).sqrt()


def _windows(shape: Sequence[int], per_axis: Sequence[list[list[int]]], device: torch.device) -> Tensor:
    """Combine windows per axis into flat indices; `shape` is the input's, the axes its last dimensions."""
    dims = len(per_axis)
    leading = math.prod(shape[:-dims])
    places = torch.zeros(1, 1, dtype=torch.int64)
    valid = torch.ones(1, 1, dtype=torch.bool)
    for axis, lists in zip(range(-dims, 0), per_axis, strict=True):
        width = max(len(window) for window in lists)
        table = torch.tensor([window + [-1] * (width - len(window)) for window in lists])
        places = (
            (places[:, None, :, None] * shape[axis] + table.clamp(min=0)[None, :, None, :]).flatten(2).flatten(0, 1)
        )
        valid = (valid[:, None, :, None] & (table >= 0)[None, :, None, :]).flatten(2).flatten(0, 1)
    block = math.prod(shape[-dims:])
    places = torch.arange(leading)[:, None, None] * block + places
    places = torch.where(valid, places, -1).flatten(0, 1)
    return places.to(device)


@local(
    aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default, aten.max_pool2d_with_indices.default,
    aten.max_pool1d_with_indices.default, aten.max_pool3d_with_indices.default,
)  # fmt: skip
def max_pool(node: Node, build: Builder) -> str | None:
    """Max pooling: windows of taps."""
    if node.index not in (None, 0):
        return None
    arguments = node.bound()
    dims = node.pooled_axes
    kernel = _each(arguments["kernel_size"], dims)
    stride = _each(arguments.get("stride") or kernel, dims)
    padding, dilation = _each(arguments.get("padding", 0), dims), _each(arguments.get("dilation", 1), dims)
    shape = node.operands[0].shape
    per_axis = []
    for axis in range(dims):
        size, outputs = shape[axis - dims], node.shape[axis - dims]
        starts = [output * stride[axis] - padding[axis] for output in range(outputs)]
        taps = [start + tap * dilation[axis] for start in starts for tap in range(kernel[axis])]
        rows = [taps[i * kernel[axis] : (i + 1) * kernel[axis]] for i in range(outputs)]
        per_axis.append([[place for place in row if 0 <= place < size] for row in rows])
    windows = _windows(shape, per_axis, node.device)
    return build.apply(WindowMaximum(windows, node.shape), node.refs[0], shape=node.shape)


@local(aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(node: Node, build: Builder) -> str | None:
    """Adaptive max pooling: windows of neighbours."""
    if node.index not in (None, 0):
        return None
    dims = node.pooled_axes
    shape = node.operands[0].shape
    per_axis = []
    for axis in range(-dims, 0):
        size, outputs = shape[axis], node.shape[axis]
        per_axis.append([list(range(o * size // outputs, -(-(o + 1) * size // outputs))) for o in range(outputs)])
    windows = _windows(shape, per_axis, node.device)
    return build.apply(WindowMaximum(windows, node.shape), node.refs[0], shape=node.shape)


@local(
    aten.amax.default, aten.amin.default, aten.max.dim, aten.min.dim, aten.max.default, aten.min.default
)  # fmt: skip
def extreme(node: Node, build: Builder) -> str | None:
    """The largest or smallest entry over dimensions."""
    if node.index not in (None, 0) or len(node.operands) != 1:
        return None
    shape = node.operands[0].shape
    given = node.bound().get("dim")
    dims = [given] if isinstance(given, int) else list(given or range(len(shape)))
    dims = sorted(d % max(len(shape), 1) for d in dims) if shape else []
    ids = torch.arange(math.prod(shape), device=node.device).reshape(shape)
    kept = [d for d in range(len(shape)) if d not in dims]
    windows = ids.permute(*kept, *dims).reshape(math.prod(shape[d] for d in kept), -1)
    name = node.refs[0]
    if node.takes_smallest:
        name = build.affine([(name, spread(Ref(name, shape), shape, -1, node.device))])
    name = build.apply(WindowMaximum(windows, node.shape), name, shape=node.shape)
    if node.takes_smallest:
        name = build.affine([(name, spread(Ref(name, node.shape), node.shape, -1, node.device))])
    return name


@local(aten.maximum.default, aten.minimum.default, aten.max.other, aten.min.other)
def larger(node: Node, build: Builder) -> str | None:
    """max(a, b) = b + relu(a - b) and min(a, b) = b - relu(b - a), so that shared sources cancel."""
    sign = -1.0 if node.takes_smallest else 1.0
    values = [build.operand(argument) for argument in node.args[:2]]
    a, b = [build.moved(value, lambda x: x.expand(node.shape)) for value in values]

    def scaled(name: str, factor: float) -> tuple[str, LinearMap]:
        return name, spread(Ref(name, node.shape), node.shape, factor, node.device)

    apart = build.affine([scaled(a, sign), scaled(b, -sign)])
    kept = build.apply(
        Scalar(torch.relu, (TurningPoint(0.0),), bounded=(0.0, math.inf), margin=0.0), apart, shape=node.shape
    )
    return build.affine([scaled(b, 1.0), scaled(kept, sign)])


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
