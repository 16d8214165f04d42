"""Which weights feed which normalizer, and what that makes invariant (Akbar section 4, corrected).

A pair is found by walking back from a normalizer over operators that only move entries to a weight layer. Whether the
channels a normalizer sees are still the channels the weight makes is read off by moving the channels' numbers along.
Where there is doubt the pair is left out, so that an invariance that is claimed holds.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..graph.ir import Graph, Node, Ref, Unit, leaves, overlap, storage_of
from ..graph.traits import traits_of
from ..graph.units import Reader, is_copy
from .linear import PRODUCTS
from .registry import lookup, multiplied, sets_of

aten = torch.ops.aten

Gauge = Literal["channel", "group", "layer"]
Redundancy = Literal["whole", "common", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingLayer:
    """A weight layer whose output goes into a normalizer with nothing but moves of entries in between.

    The claims speak of the graph, a function of its inputs, and of the tensors that stand at the node: for a
    reparametrised weight (`weight_norm`, `spectral_norm`) that is the weight as applied.

    Attributes:
        weight: the linear layer or convolution.
        normalizer: what it feeds.
        between: the nodes between them, in order (reshapes, transposes, dropped dropout, the centring of a LayerNorm
            that is written out, ...).
        unit: what can be rescaled on its own: a `channel` (BatchNorm, InstanceNorm), a `group` of channels (GroupNorm),
            the whole `layer` (LayerNorm, RMSNorm). A normalizer whose sets lie within one channel each acts on a
            `channel`, whatever its name.
        exclusive: whether nothing else reads the layer's output.
        scale_invariant: whether scaling weight and bias of a unit together by c > 0 leaves the output as it is, up to
            eps: False where the normalizer uses running statistics, where the output is read elsewhere, or where the
            same tensors also serve a layer that is not invariant in the same way.
        bias_redundant: `"whole"` (BatchNorm, InstanceNorm: any bias is subtracted again; by the running mean in eval
            mode, which has to move along), `"common"` (LayerNorm, GroupNorm: only its mean over a normalized set is),
            `"no"` (RMSNorm, or an output or a bias that is used elsewhere).
        sets: for every output channel of the layer, the number of the least part of the channels that no normalized
            set leaves: one part per channel (BatchNorm), group (GroupNorm), head (a norm over heads) or for the layer.
        pointwise: whether every normalized set lies at one position of the layer's output and holds a channel once, so
            that a vector added to every row of the weight (W + 1 u^T) is subtracted again.
    """

    weight: Node
    normalizer: Node
    between: tuple[Node, ...]
    unit: Gauge
    exclusive: bool
    scale_invariant: bool
    bias_redundant: Redundancy
    sets: tuple[int, ...]
    pointwise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayer:
    """A weight layer's tensors and the axis of its output that counts its channels.

    `columns` says that the weight stands on the right of a product, so that its columns make the channels.
    """

    weight: Tensor
    bias: Tensor | None
    axis: int
    columns: bool = False

    def tensors(self) -> list[Tensor]:
        """Return the tensors that are scaled together."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def same(self, other: WeightLayer) -> bool:
        """Whether two layers use the same tensors in the same places."""
        pairs = list(zip(self.tensors(), other.tensors()))
        return (
            self.axis == other.axis
            and len(self.tensors()) == len(other.tensors()) == len(pairs)
            and all(_view(a) == _view(b) if overlap(a, b) else _equal(a, b) for a, b in pairs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Normalizer:
    """What a normalizer reads and over which sets: `groups` of the channels on axis 1, or whole `dims`."""

    source: Ref
    groups: int | None = None
    dims: tuple[int, ...] = ()
    running: bool = False
    centred: bool = True
    inner: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A feed before it is known who else uses its tensors."""

    feed: FeedingLayer
    layer: WeightLayer
    groups: int | None


def feeds(graph: Graph) -> tuple[FeedingLayer, ...]:
    """Return every pair of a weight layer and the normalizer it feeds, in the order of the normalizers.

    Weight layers behind activations, sums, pooling or anything else that does more than move entries feed nothing. The
    graph must be as `capture` returned it: `graph.double()` copies tensors, and then shared ones are not seen to be.
    """
    reader = Reader(graph)
    pairs = [pair for node in graph if (pair := _pair(graph, reader, node)) is not None]
    others: dict[str, list[_Pair]] = {}
    for pair in pairs:
        others.setdefault(pair.feed.weight.name, []).append(pair)
    users = _Users(graph)
    return tuple(_settled(pair, others, users) for pair in pairs)


def _pair(graph: Graph, reader: Reader, node: Node) -> _Pair | None:
    """Return the pair that ends at a node, if it is a normalizer fed by a weight layer."""
    normalizer = _normalizer(reader, node)
    if normalizer is None:
        return None
    walked = _walk(reader, normalizer.source)
    if walked is None:
        return None
    weight, layer, moves = walked
    channels = weight.shape[layer.axis]
    numbers = channel_numbers(weight, layer.axis, moves)
    if normalizer.groups is not None and not aligned(numbers, normalizer.source.shape):
        return None
    if normalizer.groups is None:
        single = bool((numbers.amin(normalizer.dims) == numbers.amax(normalizer.dims)).all())  # one channel a set
        sets = parts(numbers, normalizer.dims, channels)
        pointwise = once_each(numbers, normalizer.dims, normalizer.source.shape)
    else:
        single = normalizer.groups == channels
        sets = tuple(channel * normalizer.groups // channels for channel in range(channels))
        pointwise = math.prod(normalizer.source.shape[2:]) == 1
    between = (*moves, *normalizer.inner)
    inside, readers = {n.name for n in (weight, *between)}, {n.name for n in (*between, node)}
    others = (n for n in graph if n.name not in readers)
    exclusive = graph.output not in inside and not any(inside.intersection(n.refs) for n in others)
    unit: Gauge = "channel" if single else "layer" if normalizer.groups is None else "group"
    redundancy: Redundancy = "no" if not (normalizer.centred and exclusive) else "whole" if single else "common"
    feed = FeedingLayer(
        weight=weight,
        normalizer=node,
        between=between,
        unit=unit,
        exclusive=exclusive,
        scale_invariant=exclusive and not normalizer.running,
        bias_redundant=redundancy,
        sets=sets,
        pointwise=normalizer.centred and not single and pointwise,
    )
    return _Pair(feed=feed, layer=layer, groups=normalizer.groups)


class _Users:
    """Looks up who uses a tensor: the same memory, or the same module with a weight that it makes anew in every run."""

    def __init__(self, graph: Graph) -> None:
        self.places: dict[Any, list[tuple[Node, Tensor]]] = {}
        for node in graph:
            for tensor in (leaf for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, Tensor)):
                for key in {storage_of(tensor), node.path} - {""}:
                    self.places.setdefault(key, []).append((node, tensor))

    def of(self, user: Node, tensor: Tensor) -> set[str]:
        """Return the names of the nodes that use the tensor of one of them."""
        names = {node.name for node, other in self.places.get(storage_of(tensor), []) if overlap(tensor, other)}
        remade = self.places.get(user.path, []) if tensor.ndim > 1 else []
        return names | {node.name for node, other in remade if _equal(tensor, other)}


def _settled(pair: _Pair, others: dict[str, list[_Pair]], users: _Users) -> FeedingLayer:
    """Return the feed with its claims withdrawn where its tensors also serve another purpose."""
    feed, layer = pair.feed, pair.layer

    def alike(other: _Pair) -> bool:
        mine, its = (
            (p.feed.unit, p.groups, p.feed.exclusive, p.feed.scale_invariant, p.feed.bias_redundant)
            for p in (pair, other)
        )
        return mine == its and layer.same(other.layer)

    def well_shared(tensor: Tensor) -> bool:
        return all(any(map(alike, others.get(name, []))) for name in users.of(feed.weight, tensor))

    if all(map(well_shared, layer.tensors())):
        return feed
    return dataclasses.replace(feed, scale_invariant=False, bias_redundant="no")


def weight_layer(node: Node) -> WeightLayer | None:
    """Return a node's weight, bias and channel axis if it is a layer with a constant weight."""
    factors = multiplied(node)
    if factors is None or len(node.operands) != 1 or node.index is not None:
        return None
    product = PRODUCTS.get(node.op)
    turned = product == 0 and isinstance(factors.right, Ref)  # the weight stands on the left
    weight, read, bias = (factors.left, factors.right, None) if turned else (factors.right, factors.left, factors.added)
    if not isinstance(weight, Tensor) or weight.ndim < 2 or not isinstance(read, Ref):
        return None
    if not (bias is None or isinstance(bias, Tensor)):
        return None
    rank = len(node.shape)
    if is_convolution(node):
        return WeightLayer(weight=weight, bias=bias, axis=rank - weight.ndim + 1)
    if weight.ndim != 2 or (turned and len(read.shape) < 2):
        return None
    if product == 1 and (bias is None or tuple(bias.shape) != node.shape[-1:]):  # another bias for every sample
        return None
    return WeightLayer(
        weight=weight, bias=bias, axis=rank - 2 if turned else rank - 1, columns=product is not None and not turned
    )


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution, transposed or not."""
    record = lookup(node)
    return record is not None and record.family == "convolution"


def _normalizer(reader: Reader, node: Node) -> _Normalizer | None:
    """Return what a node normalizes, if it is a normalizer of one value with constant parameters."""
    sets = sets_of(node)
    if sets is None:
        return None
    [source] = node.operands
    if isinstance(node.op, Unit):
        return _written(reader, node, source)
    dims = sets.axes if sets.groups is None else ()
    return _Normalizer(source=source, groups=sets.groups, dims=dims, running=sets.running, centred=sets.centred)


def _written(reader: Reader, node: Node, source: Ref) -> _Normalizer:
    """Return a normalizer that is written out: with a centring over the same sets before it, or without one."""
    dims = node.op.data["dims"]
    centred = reader.find(source, aten.sub.Tensor)
    if centred is None or len(centred.args) != 2 or centred.kwargs or len(centred.refs) != 2:
        return _Normalizer(source=source, dims=dims, centred=False)
    whole, mean = centred.operands[0], reader.find(centred.operands[1], aten.mean.dim)
    if mean is None or reader.origin(mean.args[0]) != reader.origin(whole) or not mean.bound()["keepdim"]:
        return _Normalizer(source=source, dims=dims, centred=False)
    rank = len(whole.shape)
    over = tuple(sorted(dim % rank for dim in mean.bound()["dim"] or range(rank)))
    if over != tuple(sorted(dims)):
        return _Normalizer(source=source, dims=dims, centred=False)
    return _Normalizer(source=whole, dims=dims, inner=(mean, centred))


def moves_all(node: Node) -> bool:
    """Whether a node moves entries about, and keeps every one."""
    return traits_of(node.op).keeps in ("order", "all")


def _walk(reader: Reader, source: Ref) -> tuple[Node, WeightLayer, tuple[Node, ...]] | None:
    """Go back over moves of entries to a weight layer; return it with the moves in order."""
    moves: list[Node] = []
    node = reader.nodes.get(source.name)
    while node is not None:
        layer = weight_layer(node)
        if layer is not None:
            return node, layer, tuple(reversed(moves))
        if not (reader.same(node) or (moves_all(node) and len(node.refs) == 1)):
            return None
        moves.append(node)
        node = reader.nodes.get(node.refs[0])
    return None


def _view(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.device, tuple(tensor.shape), tensor.stride()


def _equal(first: Tensor, second: Tensor) -> bool:
    alike = (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
    return alike and torch.equal(first, second)


def channel_numbers(weight: Node, axis: int, moves: tuple[Node, ...]) -> Tensor:
    """Return, for every entry after some moves, the output channel of the weight that it comes from.

    Dimensions along which the channel does not change have size 1: the numbers start as one expanded row, and most
    moves keep them so.
    """
    shape = [1] * len(weight.shape)
    shape[axis] = weight.shape[axis]
    numbers = torch.arange(weight.shape[axis]).reshape(shape).expand(weight.shape)
    for move in moves:
        numbers = numbers if is_copy(move) else move.evaluate([numbers])
    return numbers[tuple(slice(None) if stride else slice(0, 1) for stride in numbers.stride())]


def aligned(numbers: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether position k on axis 1 is always channel k."""
    positions = torch.arange(shape[1]).reshape(1, -1, *(1,) * (len(shape) - 2))
    return bool((numbers == positions).all())


def _rows(numbers: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the channels of every normalized set, one row per set; a repeated channel may be listed once."""
    outer = [dim for dim in range(numbers.ndim) if dim not in dims]
    size = math.prod(numbers.shape[dim] for dim in dims)
    return numbers.permute(*outer, *dims).reshape(-1, size).unique(dim=0)


def parts(numbers: Tensor, dims: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """Return each channel's part, of the finest partition in which each set over `dims` lies in one part."""
    rows, part = _rows(numbers, dims), torch.arange(channels)
    while True:
        least = part[rows].amin(1, keepdim=True).expand(rows.shape)
        joined = part.scatter_reduce(0, rows.reshape(-1), least.reshape(-1), "amin")
        if torch.equal(joined, part):
            return tuple(part.unique(return_inverse=True)[1].tolist())
        part = joined


def once_each(numbers: Tensor, dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether every set over `dims` of a value of that shape holds as many entries as different channels."""
    size = math.prod(shape[dim] for dim in dims)
    rows = _rows(numbers, dims).sort(1).values
    return rows.shape[1] == size and bool((rows[:, 1:] > rows[:, :-1]).all())
