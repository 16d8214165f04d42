"""Pairs of layers that trade a factor a per channel, (a W_i, a b_i) and W_{i+1}/a, or a matrix per attention head.

Channels are followed from the layer that computes them, through a ReLU or directly, to every operator that reads them.
In an attention the scores q^T k are the same for (A^-T W_Q, A W_K) with any invertible A per head; behind rotary
embeddings only for those A that commute with the rotations of the planes. The mean of the values is linear, so that
(A W_V, W_O A^-1) gives the same output. A bias of the keys adds one number to all scores of a query, which does not
change the softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.ir import Graph, Node, Ref, Unit
from ..graph.traits import traits_of
from ..graph.units import Reader
from ..operators.invariance import weight_layer
from ..operators.registry import is_normalizer
from .candidate import (
    Candidate,
    Layers,
    Mixing,
    ParameterPart,
    ParametrisedLayer,
    RowMixing,
    Scaling,
    ShiftAction,
    UnitEntries,
    read_channels,
)

aten = torch.ops.aten

SUMS = {aten.sum.dim_IntList, aten.constant_pad_nd.default}
"""Linear operators without negative coefficients, beside averages."""
NUMBERS = {aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar}
NO_CHANNEL = -1.0
"""The number of an entry that belongs to no channel."""
ATTENTION = aten.scaled_dot_product_attention.default


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class End:
    """An operator that reads channels and does not commute with scaling one of them."""

    node: Node  # the operator
    operand: int  # which of its operands holds the channels
    numbers: Tensor  # the channel of each entry of that operand, in its shape
    through_relu: bool = False  # whether a ReLU or a maximum lies on the way, so that only positive factors pass
    rotary: Node | None = None  # the rotary embedding on the way; None without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """All operators at which a layer's channels end, and whether the channels reach the output of the graph."""

    ends: tuple[End, ...]
    reaches_output: bool


def follow(graph: Graph, node: Node, numbers: Tensor) -> Stream:
    """Follow the channels of a node's output to every operator that does not commute with scaling one of them."""
    readers: dict[str, list[Node]] = {}
    for other in graph:
        for name in dict.fromkeys(other.refs):
            readers.setdefault(name, []).append(other)
    reader, ends, reaches_output = Reader(graph), [], False
    waiting: list[tuple[Node, Tensor, bool, Node | None]] = [(node, numbers, False, None)]
    while waiting:
        current, channels, through_relu, rotary = waiting.pop()
        reaches_output |= current.name == graph.output
        for other in readers.get(current.name, []):
            passed = _through(reader, other, channels)
            if passed is not None:
                waiting.append(
                    (other, passed, through_relu or _is_relu(other) or traits_of(other.op).pools == "largest", rotary)
                )
            elif isinstance(other.op, Unit) and other.op.name == "rotary" and rotary is None:
                waiting.append((other, channels, through_relu, other))
            else:
                operands = [operand for operand, name in enumerate(other.refs) if name == current.name]
                ends += [
                    End(node=other, operand=i, numbers=channels, through_relu=through_relu, rotary=rotary)
                    for i in operands
                ]
    return Stream(ends=tuple(ends), reaches_output=reaches_output)


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
    traits = traits_of(node.op)
    if reader.same(node) or _is_relu(node):
        return numbers
    if traits.keeps is not None and traits.keeps != "same":
        return node.evaluate([numbers])
    if node.op in NUMBERS:
        other = [leaf for leaf in node.args if not hasattr(leaf, "name")]
        plain = all(isinstance(leaf, int | float) or (isinstance(leaf, Tensor) and leaf.ndim == 0) for leaf in other)
        first = hasattr(node.args[0], "name") or node.op in (aten.mul.Tensor, aten.mul.Scalar)
        return numbers if plain and first and node.shape == tuple(numbers.shape) else None
    if traits.pools == "largest":
        most, least = node.evaluate([numbers]), -node.evaluate([-numbers])
        return most if torch.equal(most, least) else None
    return _averaged(node, numbers) if traits.pools == "average" or node.op in SUMS else None


def _is_relu(node: Node) -> bool:
    """Whether a node is a ReLU, leaky or not; an absolute value lets factors through, but counts as no ReLU."""
    return traits_of(node.op).homogeneous and node.op is not aten.abs.default


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
    stream = follow(layers.graph, node, numbers)
    if stream.reaches_output or not stream.ends or any(end.rotary is not None for end in stream.ends):
        return None
    readers = [reader for end in stream.ends if (reader := _reader(layers, end)) is not None]
    if len(readers) < len(stream.ends):
        return None
    through_relu = any(end.through_relu for end in stream.ends)
    after = " and ".join(dict.fromkeys(end.node.path for end in stream.ends))
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
    if is_normalizer(node) and not isinstance(node.op, Unit):
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Heads:
    """The channels of a layer that an attention reads as one operand."""

    layer: ParametrisedLayer  # the layer
    channels: Tensor  # `[heads, width]`, the output channel of the layer for every head and index
    rotary: Node | None  # the rotary embedding between them; None without one


def attention(layers: Layers) -> list[Candidate]:
    """Return the symmetries of every attention of a graph whose operands are channels of weight layers."""
    streams = {
        name: follow(layers.graph, layer.node, along(layer.node.shape, layer.axis))
        for name, layer in layers.by_name.items()
        if layers.only_here(layer)
    }
    candidates: list[Candidate] = []
    for node in layers.graph:
        if node.op is not ATTENTION or len(node.refs) < 3:
            continue
        query, key, value = (_heads(layers, streams, node, operand) for operand in range(3))
        if key is not None and query is not None:
            candidates += _scores(node, query, key)
        if key is not None:
            candidates += _key_bias(node, key)
        if value is not None:
            candidates += _values(layers, node, value)
    return candidates


def _heads(layers: Layers, streams: dict[str, Stream], node: Node, operand: int) -> _Heads | None:
    """Return the layer whose output is an operand of an attention, if no other operator reads these channels."""
    for name, stream in streams.items():
        here = [end for end in stream.ends if end.node.name == node.name and end.operand == operand]
        if len(here) != 1 or here[0].through_relu or layers.by_name[name].rows is None:
            continue
        channels = _per_head(here[0].numbers)
        if channels is None or stream.reaches_output:
            return None
        others = [end.numbers for end in stream.ends if end is not here[0]]
        if any(bool(torch.isin(other, channels.to(other)).any()) for other in others):
            return None
        return _Heads(layer=layers.by_name[name], channels=channels, rotary=here[0].rotary)
    return None


def _per_head(numbers: Tensor) -> Tensor | None:
    """Return the channel of each head and index; None if it depends on the sample or the token."""
    if numbers.ndim < 3 or bool((numbers < 0).any()):
        return None
    first = numbers[(0,) * (numbers.ndim - 3)][:, 0]
    same = bool((numbers == first.unsqueeze(-2)).all())
    return first.long() if same else None


def _scores(node: Node, query: _Heads, key: _Heads) -> list[Candidate]:
    """Return the mixing of queries against keys; heads that share their keys share one matrix."""
    if (query.rotary is None) != (key.rotary is None) or query.channels.shape[1] != key.channels.shape[1]:
        return []
    heads, width = query.channels.shape
    repeated = key.channels.repeat_interleave(heads // len(key.channels), 0)
    if len(repeated) != heads:
        return []
    groups = [tuple(row.tolist()) for row in repeated]
    order = list(dict.fromkeys(groups))
    if len(groups) % len(order) or len({k for row in order for k in row}) != len(order) * width:
        return []
    members = torch.stack([query.channels[[i for i, row in enumerate(groups) if row == one]] for one in order])
    turn = None
    if key.rotary is not None and query.rotary is not None:
        turn = _plane(key.rotary, width)
        if turn is None or _plane(query.rotary, width) is None:
            return []
    rows = [*_rows(key.layer, torch.tensor(order)[:, None], False), *_rows(query.layer, members, True)]
    return [
        Candidate(
            kind="query-key pair",
            path=_both(query.layer, key.layer),
            form="W_K -> A W_K, W_Q -> A^-T W_Q for each head" + ("" if turn is None else ", A a turn of each plane"),
            action=Mixing(rows=tuple(rows), units=len(order), width=width, turn=turn),
            weights=(query.layer.weight, key.layer.weight),
        )
    ]


def _key_bias(node: Node, key: _Heads) -> list[Candidate]:
    """Return the shift of the keys' bias, which adds one number to all scores of a query."""
    bias = key.layer.bias
    rows = list(dict.fromkeys(tuple(row.tolist()) for row in key.channels))
    width, first = len(rows[0]), rows[0][0]
    apart = rows[1][0] - first if len(rows) > 1 else width
    regular = [tuple(first + i * apart + k for k in range(width)) for i in range(len(rows))]
    if bias is None or key.rotary is not None or rows != regular or apart < width:
        return []
    [step] = bias.stride
    part = ParameterPart(
        name=bias.name,
        size=(len(rows), width),
        stride=(apart * step, step),
        offset=bias.offset + first * step,
    )
    units = torch.arange(len(rows) * width).reshape(len(rows), width)
    return [
        Candidate(
            kind="redundant bias",
            path=key.layer.node.path,
            normalizer=node.path,
            form="b_K -> b_K + any vector: the softmax does not see it",
            action=ShiftAction(terms=(UnitEntries(piece=part, units=units),), units=units.numel(), size=0.1),
            weights=(key.layer.weight,),
        )
    ]


def _values(layers: Layers, node: Node, value: _Heads) -> list[Candidate]:
    """Return the mixing of values against the layer that reads the attention's output."""
    heads, width = node.shape[-3], node.shape[-1]
    if value.rotary is not None or tuple(value.channels.shape) != (heads, width) or len(node.shape) < 4:
        return []
    if value.channels.unique().numel() != heads * width:  # Some heads share their values.
        return []
    numbers = torch.arange(heads * width, dtype=torch.float64).reshape(heads, 1, width).expand(node.shape)
    stream = follow(layers.graph, node, numbers)
    if stream.reaches_output or len(stream.ends) != 1 or stream.ends[0].through_relu:
        return []
    [end] = stream.ends
    layer, own = layers.by_name.get(end.node.name), weight_layer(end.node)
    if layer is None or own is None or not layers.only_here(layer) or end.rotary is not None:
        return []
    read, axis = read_channels(end.node, own)
    channel = by_axis(end.numbers, axis)
    if channel is None or channel.unique().numel() != len(channel) or len(channel) != heads * width:
        return []
    columns = channel.argsort().reshape(heads, 1, width)
    counting = next(dim for dim in range(read.ndim) if read.shape[dim] > 1)
    rows = [
        *_rows(value.layer, value.channels[:, None], False),
        RowMixing(piece=layer.weight, axis=counting, channels=columns, inverse=True),
    ]
    return [
        Candidate(
            kind="value-output pair",
            path=_both(value.layer, layer),
            form="W_V -> A W_V, W_O -> W_O A^-1 for each head",
            action=Mixing(rows=tuple(rows), units=heads, width=width),
            weights=(value.layer.weight, layer.weight),
        )
    ]


def _rows(layer: ParametrisedLayer, channels: Tensor, inverse: bool) -> list[RowMixing]:
    """Return the rows of a layer's weight and bias that compute some output channels."""
    assert layer.rows is not None
    rows = [RowMixing(piece=layer.weight, axis=layer.rows, channels=channels, inverse=inverse)]
    if layer.bias is not None:
        rows.append(RowMixing(piece=layer.bias, axis=0, channels=channels, inverse=inverse))
    return rows


def _plane(node: Node, width: int) -> Tensor | None:
    """Return the J of a rotary embedding: at every position it applies diag(c) + diag(s) J; None if it does not."""
    basis = torch.eye(width, dtype=torch.float64, device=node.device)
    shape = node.operands[0].shape
    images = [node.evaluate([row.expand(shape).clone()]).double().reshape(-1, width) for row in basis]
    matrices = torch.stack(images, -1)  # [positions, width, width]: the matrix that each position applies.
    largest = matrices.abs().amax(0).fill_diagonal_(0.0)
    partner = largest.argmax(1)
    paired = bool((partner[partner] == torch.arange(width, device=partner.device)).all())
    if not paired or bool((largest.sum(1) - largest.amax(1)).abs().amax() > 1e-6):
        return None
    turn = torch.zeros_like(basis)
    rows = torch.arange(width, device=partner.device)
    strongest = matrices[:, rows, partner].abs().sum(1).argmax()
    turn[rows, partner] = torch.sign(matrices[strongest, rows, partner])
    return turn if bool(((turn @ turn) == -torch.eye(width).to(turn)).all()) else None


def _both(first: ParametrisedLayer, second: ParametrisedLayer) -> str:
    return " and ".join(dict.fromkeys((first.node.path, second.node.path)))
