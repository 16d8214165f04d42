"""Find where to insert normalizers into a model without any: behind the weight layers that feed an activation."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..core.errors import InputError
from ..graph.ir import Graph
from ..rules.invariance import MOVES, weight_layer

ACTIVATIONS = {
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid",
    "softplus", "hardtanh", "hardswish", "hardsigmoid", "clamp_min", "softsign",
}  # fmt: skip


def hidden_layers(graph: Graph, model: nn.Module) -> list[str]:
    """Return the paths of linear layers and convolutions whose output an activation reads, in order."""
    readers: dict[str, list[str]] = {}
    for node in graph:
        for name in node.refs:
            readers.setdefault(name, []).append(node.name)
    nodes = {node.name: node for node in graph}

    def activated(name: str) -> bool:
        for reader in (nodes[other] for other in readers.get(name, ())):
            if reader.operator.rstrip("_") in ACTIVATIONS or (reader.op in MOVES and activated(reader.name)):
                return True
        return False

    modules = dict(model.named_modules())
    found = [node.path for node in graph if weight_layer(node) is not None and activated(node.name)]
    paths = [path for path in dict.fromkeys(found) if isinstance(modules.get(path), nn.Linear | _ConvNd)]
    if not paths:
        raise InputError("no linear layer or convolution of the model feeds an activation: name the places with where=")
    return paths
