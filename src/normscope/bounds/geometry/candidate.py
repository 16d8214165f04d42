"""`Candidate`: a symmetry that the graph suggests, before it is verified numerically, and its action on the parameters.

A state is a dict of tensors by parameter name, each laid out in memory like its parameter. An action (a scaling, a
shift or a mixing of rows) moves a state by a group element; at every state, an element of its Lie algebra gives a
direction. All three kinds are linear or affine, so <X w, grad> = 0 everywhere implies H (X w) = -X^T grad, and for a
shift d: <d, grad> = 0 and H d = 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from ..graph.ir import Graph, Node, leaves, overlap
from ..operators.invariance import FeedingLayer, WeightLayer, is_convolution, weight_layer

State = Mapping[str, Tensor]
SPREAD = 0.5
"""The standard deviation of the logarithms of random factors, and of random mixings about the identity."""
aten = torch.ops.aten
SymmetryKind = Literal[
    "channel scale", "group scale", "layer scale", "row shift", "redundant bias", "weight norm", "spectral norm",
    "relu pair", "linear pair", "query-key pair", "value-output pair",
]  # fmt: skip
SYMMETRY_KINDS: tuple[SymmetryKind, ...] = SymmetryKind.__args__  # type: ignore[attr-defined]
SPHERICAL: tuple[SymmetryKind, ...] = ("channel scale", "group scale", "layer scale", "weight norm", "spectral norm")
"""The kinds under which the length of a weight has no effect, so that the weight can be kept on a sphere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """The part of a parameter that an operator reads: its name, and how the part lies in its memory."""

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, state: State) -> Tensor:
        """Return the part of a state's tensor, as a view."""
        whole = state[self.name]
        return whole.as_strided(self.size, self.stride, whole.storage_offset() + self.offset)


def piece_of(model: nn.Module, tensor: Tensor | None) -> ParameterPart | None:
    """Return where a tensor lies in the parameters of a model; None if it is no part of one."""
    if tensor is None:
        return None
    for name, parameter in model.named_parameters():
        if overlap(tensor, parameter) and tensor.dtype == parameter.dtype:
            offset = (tensor.data_ptr() - parameter.data_ptr()) // parameter.element_size()
            last = offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
            dense = parameter.numel() == 1 + sum((n - 1) * s for n, s in zip(parameter.shape, parameter.stride()))
            if dense and offset >= 0 and last < parameter.numel():
                return ParameterPart(name=name, size=tuple(tensor.shape), stride=tensor.stride(), offset=offset)
    return None


def laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a float64 copy of a tensor with the memory layout of another tensor of its shape."""
    laid = torch.empty_strided(like.shape, like.stride(), dtype=torch.float64, device=like.device)
    return laid.copy_(tensor)


def blank(state: State, names: Iterable[str]) -> dict[str, Tensor]:
    """Return zeros in the memory layout of the tensors of those names."""
    return {name: torch.zeros_like(state[name]) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitEntries:
    """A part of a parameter, and the number of the unit that each entry belongs to (broadcast to the part's shape)."""

    piece: ParameterPart
    units: Tensor
    power: int = 1

    def pick(self, element: Tensor) -> Tensor:
        """Return a group element, one number per unit, in the shape of the entries that it acts on."""
        return element[self.units.to(element.device)]

    def total(self, values: Tensor, count: int) -> Tensor:
        """Return the sum of values of the part's shape over each unit."""
        broadcast = [dim for dim in range(values.ndim) if self.units.shape[dim] == 1 and values.shape[dim] > 1]
        reduced = values.sum(broadcast, keepdim=True) if broadcast else values
        units = self.units.to(values.device).expand(reduced.shape)
        return values.new_zeros(count).index_add(0, units.reshape(-1), reduced.reshape(-1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _UnitAction:
    """An action with one number per unit, on the entries of some parts of parameters."""

    terms: tuple[UnitEntries, ...]
    units: int

    @property
    def dof(self) -> int:
        """Dimensions of the group."""
        return self.units

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that move."""
        return tuple(dict.fromkeys(term.piece.name for term in self.terms))

    def draw(self, state: State, generator: torch.Generator) -> Tensor:
        """Return a random element of the Lie algebra, one number per unit."""
        return _normal((self.units,), state, self.names, generator)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scaling(_UnitAction):
    """The action w -> c^power w with one factor c > 0 per unit; the Lie algebra holds the logarithms of factors."""

    def apply(self, state: State, element: Tensor) -> dict[str, Tensor]:
        """Return the state moved by the group element whose logarithm is given."""
        moved = {**state, **{name: state[name].clone() for name in self.names}}
        for term in self.terms:
            term.piece.of(moved).mul_(term.pick((SPREAD * term.power * element).exp()))
        return moved

    def direction(self, state: State, element: Tensor) -> dict[str, Tensor]:
        """Return the tangent X w."""
        tangent = blank(state, self.names)
        for term in self.terms:
            term.piece.of(tangent).add_(term.piece.of(state) * term.pick(element), alpha=term.power)
        return tangent

    def adjoint(self, gradient: State, element: Tensor) -> dict[str, Tensor]:
        """Return X^T g, which is X g, as X is diagonal."""
        return self.direction(gradient, element)

    def inner(self, state: State, gradient: State) -> Tensor:
        """Return <X_k w, g> for every unit k."""
        products = torch.stack(
            [term.power * term.total(term.piece.of(state) * term.piece.of(gradient), self.units) for term in self.terms]
        )
        return products.sum(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShiftAction(_UnitAction):
    """The action w -> w + u with one number u per unit; `size` is the standard deviation of a random u."""

    size: float = 1.0

    def draw(self, state: State, generator: torch.Generator) -> Tensor:
        """Return a random shift per unit."""
        return self.size * _normal((self.units,), state, self.names, generator)

    def apply(self, state: State, element: Tensor) -> dict[str, Tensor]:
        """Return the shifted state."""
        moved = {**state, **{name: state[name].clone() for name in self.names}}
        for term in self.terms:
            term.piece.of(moved).add_(term.pick(element))
        return moved

    def direction(self, state: State, element: Tensor) -> dict[str, Tensor]:
        """Return the shift as a direction."""
        tangent = blank(state, self.names)
        for term in self.terms:
            term.piece.of(tangent).add_(term.pick(element))
        return tangent

    def adjoint(self, gradient: State, element: Tensor) -> dict[str, Tensor]:
        """Return zero: a shift has no linear part."""
        return {}

    def inner(self, state: State, gradient: State) -> Tensor:
        """Return the derivative along the shift of every unit."""
        return torch.stack([term.total(term.piece.of(gradient), self.units) for term in self.terms]).sum(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowMixing:
    """Blocks of rows of a part of a parameter; a matrix per group mixes the d rows of each of its blocks."""

    piece: ParameterPart  # the part of the parameter
    axis: int  # the axis of the part that counts the rows
    channels: Tensor  # `[groups, blocks, d]`: `channels[g, r]` are the rows of the r-th block of group g
    inverse: bool  # whether the block is multiplied by A^-T instead of A

    def read(self, state: State) -> Tensor:
        """Return the blocks, `[groups, blocks, d, entries]`."""
        part = self.piece.of(state).movedim(self.axis, 0)
        return part[self.channels.to(part.device)].flatten(3) if part.ndim > 1 else part[self.channels].unsqueeze(-1)

    def write(self, state: State, blocks: Tensor) -> None:
        """Write the blocks into the state."""
        part = self.piece.of(state).movedim(self.axis, 0)
        part[self.channels.to(part.device)] = blocks.reshape(*self.channels.shape, *part.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixing:
    """The action of an invertible matrix A per group: W -> A W on some blocks of rows, V -> A^-T V on others."""

    rows: tuple[RowMixing, ...]  # the blocks of rows of both kinds
    units: int  # units, width: how many matrices there are, and their size
    width: int
    # None, or a matrix J with J^2 = -1 that A must commute with, so that A = diag(s) + diag(t) J. This is the symmetry
    # that rotary embeddings leave: a scaling and a rotation of each plane
    turn: Tensor | None = field(default=None)

    @property
    def dof(self) -> int:
        """Dimensions of the group."""
        return self.units * (self.width**2 if self.turn is None else self.width)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that move."""
        return tuple(dict.fromkeys(row.piece.name for row in self.rows))

    def draw(self, state: State, generator: torch.Generator) -> Tensor:
        """Return a random matrix per group."""
        if self.turn is None:
            drawn = _normal((self.units, self.width, self.width), state, self.names, generator)
            return drawn / self.width**0.5
        turn = self.turn.to(state[self.names[0]])
        pair = (turn.abs() + torch.eye(self.width).to(turn)) / 2  # This matrix averages over each plane.
        scale, angle = _normal((2, self.units, self.width), state, self.names, generator) @ pair
        return torch.diag_embed(scale) + angle.unsqueeze(-1) * turn

    def apply(self, state: State, element: Tensor) -> dict[str, Tensor]:
        """Return the mixed state."""
        moved = {**state, **{name: state[name].clone() for name in self.names}}
        matrix = torch.matrix_exp(SPREAD * element)
        other = torch.linalg.inv(matrix).mT
        for row in self.rows:
            row.write(moved, (other if row.inverse else matrix).unsqueeze(1) @ row.read(moved))
        return moved

    def direction(self, state: State, element: Tensor) -> dict[str, Tensor]:
        """Return M W on one side and -M^T V on the other."""
        return self._acted(state, element, -element.mT)

    def adjoint(self, gradient: State, element: Tensor) -> dict[str, Tensor]:
        """Return X^T g: M^T on one side and -M on the other."""
        return self._acted(gradient, element.mT, -element)

    def inner(self, state: State, gradient: State) -> Tensor:
        """Return the derivative along every entry of the matrices that may move, as one vector."""
        slopes = torch.zeros(self.units, self.width, self.width).to(state[self.names[0]])
        for row in self.rows:
            product = (row.read(gradient) @ row.read(state).mT).sum(1)
            slopes = slopes - product.mT if row.inverse else slopes + product
        if self.turn is None:
            return slopes.reshape(-1)
        turn = self.turn.to(slopes)
        pair = turn.abs() + torch.eye(self.width).to(turn)
        return torch.cat([slopes.diagonal(dim1=-2, dim2=-1) @ pair, (slopes * turn).sum(-1) @ pair]).reshape(-1)

    def _acted(self, state: State, forward: Tensor, backward: Tensor) -> dict[str, Tensor]:
        """Return one matrix times the plain blocks, and another times the inverse blocks."""
        image = blank(state, self.names)
        for row in self.rows:
            matrix = (backward if row.inverse else forward).unsqueeze(1)
            row.write(image, row.read(image) + matrix @ row.read(state))
        return image


Action = Scaling | ShiftAction | Mixing


def _normal(shape: tuple[int, ...], state: State, names: tuple[str, ...], generator: torch.Generator) -> Tensor:
    """Return random normal numbers on the device of the parameters."""
    numbers = torch.randn(shape, dtype=torch.float64, generator=generator)
    return numbers.to(state[names[0]].device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A group action that should leave the function as it is, by the structure of the graph."""

    kind: SymmetryKind  # the kind of the symmetry
    path: str  # the module whose weights move; for pairs both, first to last
    normalizer: str = ""  # the module that undoes the change; empty where none does
    form: str  # the action as a formula
    action: Action  # the action itself
    # for scalings in front of normalizers: the layer and the normalizer behind it, one entry per normalizer
    feeds: tuple[FeedingLayer, ...] = ()
    # the parts of parameters that are changed at random for comparison; if such a change does not move the output, the
    # check shows nothing
    weights: tuple[ParameterPart, ...]

    @property
    def exact(self) -> bool:
        """Whether the symmetry holds for every eps."""
        return not self.feeds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParametrisedLayer:
    """A weight layer with its parameters: the channel of each entry of the weight, on both sides."""

    node: Node  # the layer in the graph
    weight: ParameterPart  # weight, bias: where its tensors lie among the parameters; `bias` is None without one
    bias: ParameterPart | None
    # the output channel that each entry of the weight contributes to, in numbers that broadcast to its shape
    made: Tensor
    axis: int  # the axis of the output that counts channels
    # the axis of the weight that counts its output channels; None where no axis does (groups, transposed)
    rows: int | None

    @property
    def channels(self) -> int:
        """How many output channels there are."""
        return self.node.shape[self.axis]

    def pieces(self) -> list[ParameterPart]:
        """Return the weight, and the bias if there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


class Layers:
    """The weight layers of a graph whose tensors are parameters of the model."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self.model, self.graph = model, graph
        self._constants = [
            (node.name, leaf) for node in graph for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, Tensor)
        ]
        self._tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        named_layers = ((node.name, self._layer(node)) for node in graph)
        self.by_name: dict[str, ParametrisedLayer] = {name: layer for name, layer in named_layers if layer is not None}

    def piece(self, tensor: Tensor | None) -> ParameterPart | None:
        """Return where a tensor lies among the parameters."""
        return piece_of(self.model, tensor)

    def alone(self, node: Node, *tensors: Tensor | None) -> bool:
        """Whether no other operator reads these tensors, or anything that was computed from their parameters.

        Tables of embeddings count as read: a graph may start behind them.
        """
        own = [tensor for tensor in tensors if tensor is not None]
        others = (*(source for _, source in self.graph.derived), *self._tables)
        derived = any(overlap(tensor, source) for tensor in own for source in others)
        return not derived and not any(
            name != node.name and overlap(tensor, other) for tensor in own for name, other in self._constants
        )

    def only_here(self, layer: ParametrisedLayer) -> bool:
        """Whether no other operator reads the tensors of a layer."""
        own = weight_layer(layer.node)
        return own is not None and self.alone(layer.node, own.weight, own.bias)

    def _layer(self, node: Node) -> ParametrisedLayer | None:
        own = weight_layer(node)
        weight = None if own is None else self.piece(own.weight)
        if own is None or weight is None:
            return None
        bias = self.piece(own.bias)
        if own.bias is not None and bias is None:
            return None
        made, rows = made_channels(node, own)
        return ParametrisedLayer(node=node, weight=weight, bias=bias, made=made, axis=own.axis, rows=rows)


def made_channels(node: Node, layer: WeightLayer) -> tuple[Tensor, int | None]:
    """Return which output channel each entry of a weight contributes to, and the weight's axis that counts them."""
    weight, channels = layer.weight, node.shape[layer.axis]
    rows = 0
    if node.is_transposed_convolution:
        groups = int(node.bound()["groups"])
        block = torch.arange(weight.shape[0]) * groups // weight.shape[0]
        made = block[:, None] * weight.shape[1] + torch.arange(weight.shape[1])
        if groups > 1:
            return made.reshape(*made.shape, *(1,) * (weight.ndim - 2)), None
        rows = 1
    elif layer.columns:
        rows = 1
    sizes = [1] * weight.ndim
    sizes[rows] = channels
    return torch.arange(channels).reshape(sizes), rows


def read_channels(node: Node, layer: WeightLayer) -> tuple[Tensor, int]:
    """Return which input channel each entry of a weight reads, and the axis of the input that counts them."""
    weight = layer.weight
    if is_convolution(node):
        axis = len(node.shape) - weight.ndim + 1
        if node.is_transposed_convolution:
            return torch.arange(weight.shape[0]).reshape(-1, *(1,) * (weight.ndim - 1)), axis
        groups = conv_groups(node)
        block = torch.arange(weight.shape[0]) * groups // weight.shape[0]
        read = block[:, None] * weight.shape[1] + torch.arange(weight.shape[1])
        read = read[:1] if groups == 1 else read
        return read.reshape(*read.shape, *(1,) * (weight.ndim - 2)), axis
    if layer.columns:
        return torch.arange(weight.shape[0])[:, None], -1
    return torch.arange(weight.shape[1])[None], -2 if layer.axis == len(node.shape) - 2 else -1


def conv_groups(node: Node) -> int:
    """Return into how many groups a layer's channels are split; 1 for a layer that is no convolution."""
    if node.operator == "padded_convolution":
        return int(node.op.data["groups"])
    return int(node.bound()["groups"]) if is_convolution(node) else 1
