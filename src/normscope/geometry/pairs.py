"""Pairs of layers that trade a factor a per channel, (a W_i, a b_i) and W_{i+1}/a.

Channels are followed from the layer that computes them, through a ReLU or directly, to every operator that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.ir import Graph, Node, Ref
from ..graph.units import Reader
from ..rules.invariance import MOVES, weight_layer
from .candidate import Candidate, Layers, ParameterPart, Scaling, UnitEntries, read_channels

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
NO_CHANNEL = -1.0
"""The number of an entry that belongs to no channel."""
NORMALIZERS = {
    "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "instance_norm", "group_norm", "layer_norm",
    "rms_norm",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class End:
    """An operator that reads channels and does not commute with scaling one of them."""

    node: Node  # the operator
    numbers: Tensor  # the channel of each entry of the operand that holds them, in its shape
    through_relu: bool = False  # whether a ReLU or a maximum lies on the way, so that only positive factors pass


def follow(graph: Graph, node: Node, numbers: Tensor) -> list[End]:
    """Follow the channels of a node's output to every operator that does not commute with scaling one of them.

    Nothing is returned where the channels reach the output of the graph.
    """
    readers: dict[str, list[Node]] = {}
    for other in graph:
        for name in dict.fromkeys(other.refs):
            readers.setdefault(name, []).append(other)
    reader, ends = Reader(graph), list[End]()
    waiting = [(node, numbers, False)]
    while waiting:
        current, channels, through_relu = waiting.pop()
        if current.name == graph.output:
            return []
        for other in readers.get(current.name, []):
            passed = _through(reader, other, channels)
            if passed is not None:
                waiting.append((other, passed, through_relu or other.op in HOMOGENEOUS | LARGEST))
            else:
                ends.append(End(node=other, numbers=channels, through_relu=through_relu))
    return ends


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
    mean = torch.where(taken, first / shares, NO_CHANNEL)
    whole = mean.round()
    spread = torch.where(taken, second / shares - mean**2, 0.0)
    alone = (whole - mean).abs().amax() < 1e-6 and spread.abs().amax() < 1e-9 * (1 + float(whole.amax()) ** 2)
    return whole if bool(alone) else None


def pairs(layers: Layers) -> list[Candidate]:
    """Return the pairs of a graph: an operator that computes channels, and all operators that read them."""
    return [pair for node in layers.graph if (pair := _pair(layers, node)) is not None]


def _pair(layers: Layers, node: Node) -> Candidate | None:
    """Return the pair whose channels a node computes; None if a reader of them cannot be divided by a factor."""
    maker = _maker(layers, node)
    if maker is None:
        return None
    terms, numbers = maker
    ends = follow(layers.graph, node, numbers)
    readers = [reader for end in ends if (reader := _reader(layers, end)) is not None]
    if not ends or len(readers) < len(ends):
        return None
    through_relu = any(end.through_relu for end in ends)
    after = " and ".join(dict.fromkeys(end.node.path for end in ends))
    own = "w, b" if len(terms) > 1 else "w"
    return Candidate(
        kind="relu pair" if through_relu else "linear pair",
        path=f"{node.path} -> {after}",
        form=f"{own} -> {own.replace('w', 'a w').replace('b', 'a b')}, W -> W/a for each channel",
        action=Scaling(terms=(*terms, *readers), units=int(numbers.amax()) + 1),
        weights=tuple(term.piece for term in (terms[0], *readers)),
    )


def _maker(layers: Layers, node: Node) -> tuple[list[UnitEntries], Tensor] | None:
    """Return the parameters that scale the channels of a node's output, and the channel of each entry of the output.

    Return None for a node that has no such parameters, or shares them with another.
    """
    layer = layers.by_name.get(node.name)
    if layer is not None:
        if not layers.only_here(layer):
            return None
        terms = [UnitEntries(piece=layer.weight, units=layer.made)]
        if layer.bias is not None:
            terms.append(UnitEntries(piece=layer.bias, units=torch.arange(layer.channels)))
        return terms, along(node.shape, layer.axis)
    if weight_layer(node) is not None or len(node.refs) != 1:
        return None
    scale, shift, numbers = _affine(node)
    if scale is None or numbers is None or not layers.alone(node, scale, shift):
        return None
    pieces = [layers.piece(tensor) for tensor in (scale, shift) if tensor is not None]
    if any(piece is None for piece in pieces):
        return None
    units = torch.arange(scale.numel()).reshape(scale.shape)
    return [UnitEntries(piece=piece, units=units) for piece in pieces if piece is not None], numbers


def _affine(node: Node) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return gamma and beta of a normalizer, or a factor per channel, and the channel of each entry of the output.

    Return None three times for any other node.
    """
    if node.operator in NORMALIZERS and node.index in (None, 0):
        arguments = node.bound()
        scale, shift = arguments.get("weight"), arguments.get("bias")
        if not isinstance(scale, Tensor) or not (shift is None or isinstance(shift, Tensor)):
            return None, None, None
        if "normalized_shape" in arguments:
            numbers = torch.arange(scale.numel(), dtype=torch.float64).reshape(scale.shape).expand(node.shape)
            return scale, shift, numbers
        return scale, shift, along(node.shape, 1)
    if node.op is aten.mul.Tensor and len(node.args) == 2 and not node.kwargs:
        [scale] = [leaf for leaf in node.args if not isinstance(leaf, Ref)] or [None]
        if isinstance(scale, Tensor) and scale.numel() > 1 and scale.is_floating_point():
            numbers = torch.arange(scale.numel(), dtype=torch.float64).reshape(scale.shape)
            if torch.broadcast_shapes(scale.shape, node.operands[0].shape) == node.operands[0].shape:
                return scale, None, numbers.expand(node.shape)
    return None, None, None


def _reader(layers: Layers, end: End) -> UnitEntries | None:
    """Return the weights that read channels, which must be divided by the factors; None if the reader has none."""
    node = end.node
    layer, own = layers.by_name.get(node.name), weight_layer(node)
    if layer is not None and own is not None and layers.only_here(layer):
        read, axis = read_channels(node, own)
        channel = by_axis(end.numbers, axis)
        if channel is None or bool((channel < 0).any()):
            return None
        return UnitEntries(piece=layer.weight, units=channel[read], power=-1)
    if own is None and node.op is aten.mul.Tensor and len(node.refs) == 1:
        scale, _, _ = _affine(node)
        return None if scale is None else _factor(layers, node, scale, end.numbers)
    return None


def _factor(layers: Layers, node: Node, scale: Tensor, numbers: Tensor) -> UnitEntries | None:
    """Return a factor per channel as the weights of a reader; None if one of its entries reads several channels."""
    piece: ParameterPart | None = layers.piece(scale)
    if piece is None or not layers.alone(node, scale) or tuple(numbers.shape) != node.shape:
        return None
    sizes = (1,) * (len(node.shape) - scale.ndim) + tuple(scale.shape)
    inner = [dim for dim, size in enumerate(sizes) if size == 1]
    low, high = (numbers.amin(inner, keepdim=True), numbers.amax(inner, keepdim=True)) if inner else (numbers, numbers)
    if not torch.equal(low, high) or bool((low < 0).any()):
        return None
    return UnitEntries(piece=piece, units=low.reshape(scale.shape).long(), power=-1)
