"""Symmetries of attention: queries against keys, values against the output projection, and the bias of the keys.

The scores q^T k are the same for (A^-T W_Q, A W_K) with any invertible A per head; behind rotary embeddings only for
those A that commute with the rotations of the planes. The mean of the values is linear, so that (A W_V, W_O A^-1) gives
the same output. A bias of the keys adds one number to all scores of a query, which does not change the softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.ir import Node
from ..rules.invariance import weight_layer
from .actions import Mixing, ParameterPart, RowMixing, ShiftAction, UnitEntries
from .candidate import Candidate, Layers, ParametrisedLayer, read_channels
from .streams import End, Stream, along, by_axis, follow

aten = torch.ops.aten

ATTENTION = aten.scaled_dot_product_attention.default


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Heads:
    """The channels of a layer that an attention reads as one operand.

    Attributes:
        layer: the layer.
        channels: `[heads, width]`, the output channel of the layer for every head and index.
        turned: the rotary embedding between them; None without one.
    """

    layer: ParametrisedLayer
    channels: Tensor
    turned: Node | None


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
        if len(here) != 1 or here[0].bent or layers.by_name[name].rows is None:
            continue
        channels = _per_head(here[0].numbers)
        if channels is None or stream.escapes or not _unread_elsewhere(channels, here[0], stream):
            return None
        return _Heads(layer=layers.by_name[name], channels=channels, turned=here[0].turned)
    return None


def _unread_elsewhere(channels: Tensor, here: End, stream: Stream) -> bool:
    others = [end.numbers for end in stream.ends if end is not here]
    return not any(bool(torch.isin(other, channels.to(other)).any()) for other in others)


def _per_head(numbers: Tensor) -> Tensor | None:
    """Return the channel of each head and index; None if it depends on the sample or the token."""
    if numbers.ndim < 3 or bool((numbers < 0).any()):
        return None
    first = numbers[(0,) * (numbers.ndim - 3)][:, 0]
    same = bool((numbers == first.unsqueeze(-2)).all())
    return first.long() if same else None


def _scores(node: Node, query: _Heads, key: _Heads) -> list[Candidate]:
    """Return the mixing of queries against keys; heads that share their keys share one matrix."""
    if (query.turned is None) != (key.turned is None) or query.channels.shape[1] != key.channels.shape[1]:
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
    if key.turned is not None and query.turned is not None:
        turn = _plane(key.turned, width)
        if turn is None or _plane(query.turned, width) is None:
            return []
    rows = [*_rows(key.layer, torch.tensor(order)[:, None], False), *_rows(query.layer, members, True)]
    return [
        Candidate(
            kind="query-key pair",
            path=_both(query.layer, key.layer),
            form="W_K -> A W_K, W_Q -> A^-T W_Q for each head" + ("" if turn is None else ", A a turn of each plane"),
            action=Mixing(rows=tuple(rows), groups=len(order), width=width, turn=turn),
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
    if bias is None or key.turned is not None or rows != regular or apart < width:
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
    if value.turned is not None or tuple(value.channels.shape) != (heads, width) or len(node.shape) < 4:
        return []
    if value.channels.unique().numel() != heads * width:  # Some heads share their values.
        return []
    numbers = torch.arange(heads * width, dtype=torch.float64).reshape(heads, 1, width).expand(node.shape)
    stream = follow(layers.graph, node, numbers)
    if stream.escapes or len(stream.ends) != 1 or stream.ends[0].bent:
        return []
    [end] = stream.ends
    layer, own = layers.by_name.get(end.node.name), weight_layer(end.node)
    if layer is None or own is None or not layers.only_here(layer) or end.turned is not None:
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
            action=Mixing(rows=tuple(rows), groups=heads, width=width),
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
