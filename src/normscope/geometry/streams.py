"""Which operators read the channels of a layer's output, behind operators that commute with scaling a channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.ir import Graph, Node, Unit
from ..graph.regions import Reader
from ..rules.invariance import MOVES

aten = torch.ops.aten

PARTS = MOVES | {
    aten.expand.default, aten.slice.Tensor, aten.select.int, aten.split.Tensor, aten.split_with_sizes.default,
    aten.chunk.default, aten.unbind.int, aten.unflatten.int, aten.flatten.using_ints, aten.movedim.int,
    aten.squeeze.dims, aten.view.default, aten._unsafe_view.default,
}  # fmt: skip
"""Operators that move, repeat or leave out entries."""
HOMOGENEOUS = {aten.relu.default, aten.leaky_relu.default}
"""Activations with phi(c x) = c phi(x) for c > 0."""
LARGEST = {
    aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default, aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default, aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default,
}  # fmt: skip
AVERAGES = {
    aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default, aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default, aten.mean.dim, aten.sum.dim_IntList,
    aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default, aten.constant_pad_nd.default,
}  # fmt: skip
"""Linear operators without negative coefficients."""
NUMBERS = {aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar}
NONE = -1.0
"""The number of an entry that belongs to no channel."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class End:
    """An operator that reads channels and does not commute with scaling one of them.

    Attributes:
        node: the operator.
        operand: which of its operands holds the channels.
        numbers: the channel of each entry of that operand, in its shape.
        bent: whether a ReLU or a maximum lies on the way, so that only positive factors pass.
        turned: the rotary embedding on the way; None without one.
    """

    node: Node
    operand: int
    numbers: Tensor
    bent: bool = False
    turned: Node | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """All operators at which a layer's channels end, and whether the channels reach the output of the graph."""

    ends: tuple[End, ...]
    escapes: bool


def follow(graph: Graph, node: Node, numbers: Tensor) -> Stream:
    """Follow the channels of a node's output to every operator that does not commute with scaling one of them."""
    readers: dict[str, list[Node]] = {}
    for other in graph:
        for name in dict.fromkeys(other.refs):
            readers.setdefault(name, []).append(other)
    reader, ends, escapes = Reader(graph), [], False
    waiting: list[tuple[Node, Tensor, bool, Node | None]] = [(node, numbers, False, None)]
    while waiting:
        current, channels, bent, turned = waiting.pop()
        escapes |= current.name == graph.output
        for other in readers.get(current.name, []):
            passed = _through(reader, other, channels)
            if passed is not None:
                waiting.append((other, passed, bent or other.op in HOMOGENEOUS | LARGEST, turned))
            elif isinstance(other.op, Unit) and other.op.name == "rotary" and turned is None:
                waiting.append((other, channels, bent, other))
            else:
                operands = [operand for operand, name in enumerate(other.refs) if name == current.name]
                ends += [End(node=other, operand=i, numbers=channels, bent=bent, turned=turned) for i in operands]
    return Stream(ends=tuple(ends), escapes=escapes)


def along(shape: tuple[int, ...], axis: int) -> Tensor:
    """Return the index along one axis for every entry of a shape, as a view that takes no memory."""
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    return torch.arange(shape[axis], dtype=torch.float64).reshape(sizes).expand(shape)


def by_axis(numbers: Tensor, axis: int) -> Tensor | None:
    """Return the channel at each index of an axis; None if it depends on anything else."""
    rows = numbers.movedim(axis, 0).flatten(1)
    if rows.shape[1] == 0 or not bool((rows == rows[:, :1]).all()):
        return None
    return rows[:, 0].long()


def _through(reader: Reader, node: Node, numbers: Tensor) -> Tensor | None:
    """Return the channel of each entry of a node's output; None if the node does not commute with scaling a channel."""
    if len(node.refs) != 1:
        return None
    if reader.same(node) or node.op in HOMOGENEOUS:
        return numbers
    if node.op in PARTS:
        return node.evaluate([numbers])
    if node.op in NUMBERS:
        other = [leaf for leaf in node.args if not hasattr(leaf, "name")]
        plain = all(isinstance(leaf, int | float) or (isinstance(leaf, Tensor) and leaf.ndim == 0) for leaf in other)
        first = hasattr(node.args[0], "name") or node.op in (aten.mul.Tensor, aten.mul.Scalar)
        return numbers if plain and first and node.shape == tuple(numbers.shape) else None
    if node.op in LARGEST:
        most, least = node.evaluate([numbers]), -node.evaluate([-numbers])
        return most if torch.equal(most, least) else None
    return _averaged(node, numbers) if node.op in AVERAGES else None


def _averaged(node: Node, numbers: Tensor) -> Tensor | None:
    """Return the channels behind a linear operator that never adds two of them; None if it does."""
    if node.op is aten.constant_pad_nd.default and node.bound().get("value", 0):
        return None
    shares, first, second = (node.evaluate([value]) for value in (torch.ones_like(numbers), numbers, numbers**2))
    taken = shares > 0
    mean = torch.where(taken, first / shares, NONE)
    whole = mean.round()
    spread = torch.where(taken, second / shares - mean**2, 0.0)
    alone = (whole - mean).abs().amax() < 1e-6 and spread.abs().amax() < 1e-9 * (1 + float(whole.amax()) ** 2)
    return whole if bool(alone) else None
