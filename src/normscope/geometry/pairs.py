"""Pairs of layers that trade a factor a per channel, through a ReLU or directly: (a W_i, a b_i) and W_{i+1}/a."""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.ir import Node, Ref
from ..rules.invariance import weight_layer
from .actions import ParameterPart, Scaling, UnitEntries
from .candidate import Candidate, Layers, read_channels
from .streams import End, along, by_axis, follow

aten = torch.ops.aten

NORMALIZERS = {
    "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "instance_norm", "group_norm", "layer_norm",
    "rms_norm",
}  # fmt: skip


def pairs(layers: Layers) -> list[Candidate]:
    """Return the pairs of a graph: an operator that computes channels, and all operators that read them."""
    return [pair for node in layers.graph if (pair := _pair(layers, node)) is not None]


def _pair(layers: Layers, node: Node) -> Candidate | None:
    """Return the pair whose channels a node computes; None if a reader of them cannot be divided by a factor."""
    maker = _maker(layers, node)
    if maker is None:
        return None
    terms, numbers = maker
    stream = follow(layers.graph, node, numbers)
    if stream.escapes or not stream.ends or any(end.turned is not None for end in stream.ends):
        return None
    found = [_reader(layers, end) for end in stream.ends]
    readers = [reader for reader in found if reader is not None]
    if len(readers) < len(found):
        return None
    bent = any(end.bent for end in stream.ends)
    after = " and ".join(dict.fromkeys(end.node.path for end in stream.ends))
    own = "w, b" if len(terms) > 1 else "w"
    return Candidate(
        kind="relu pair" if bent else "linear pair",
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
