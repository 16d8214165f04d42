"""`Candidate`: a symmetry that the graph suggests, before it is verified numerically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..graph.ir import Graph, Node, leaves
from ..graph.memory import overlap
from ..rules.invariance import FeedingLayer, WeightLayer, is_convolution, weight_layer
from .actions import Action, ParameterPart, piece_of

aten = torch.ops.aten

Kind = Literal[
    "channel scale", "group scale", "layer scale", "row shift", "redundant bias", "weight norm", "spectral norm",
    "relu pair", "linear pair", "query-key pair", "value-output pair",
]  # fmt: skip
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
SPHERICAL: tuple[Kind, ...] = ("channel scale", "group scale", "layer scale", "weight norm", "spectral norm")
"""The kinds under which the length of a weight has no effect, so that the weight can be kept on a sphere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A group action that should leave the function as it is, by the structure of the graph.

    Attributes:
        kind: the kind of the symmetry.
        path: the module whose weights move; for pairs both, first to last.
        normalizer: the module that undoes the change; empty where none does.
        form: the action as a formula.
        action: the action itself.
        feeds: for scalings in front of normalizers: the layer and the normalizer behind it, one entry per normalizer.
        weights: the parts of parameters that are changed at random for comparison; if such a change does not move the
            output, the check shows nothing.
    """

    kind: Kind
    path: str
    normalizer: str = ""
    form: str
    action: Action
    feeds: tuple[FeedingLayer, ...] = ()
    weights: tuple[ParameterPart, ...]

    @property
    def exact(self) -> bool:
        """Whether the symmetry holds for every eps."""
        return not self.feeds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParametrisedLayer:
    """A weight layer with its parameters: the channel of each entry of the weight, on both sides.

    Attributes:
        node: the layer in the graph.
        weight, bias: where its tensors lie among the parameters; `bias` is None without one.
        made: the output channel that each entry of the weight contributes to, in numbers that broadcast to its shape.
        axis: the axis of the output that counts channels.
        rows: the axis of the weight that counts its output channels; None where no axis does (groups, transposed).
    """

    node: Node
    weight: ParameterPart
    bias: ParameterPart | None
    made: Tensor
    axis: int
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
        found = ((node.name, self._layer(node)) for node in graph)
        self.by_name: dict[str, ParametrisedLayer] = {name: layer for name, layer in found if layer is not None}

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
        groups = int(node.op.data["groups"] if node.operator == "padded_convolution" else node.bound()["groups"])
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
