"""The network as the norm-based bounds see it: weight layers with their norms, and units that bend.

Eval-mode BatchNorms are affine maps and are folded into the layers before them first. A bias is a column more: with a
constant 1 as one more entry of the input, and one more unit that hands it on, a layer `A x + b` is the matrix
`[[A, b], [0, 1]]` without a bias. ReLU keeps the 1, so that bounds for networks without biases hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..bounds.bounding import Bounding
from ..bounds.captured import Captured
from ..bounds.printed import is_normalizer, is_weight, printed
from ..core.errors import NormscopeError, said
from ..core.log10 import log10, power10
from ..graph.ir import Graph, Node, leaves
from ..networks.twin import twin
from ..rules.effects import Linear
from ..rules.registry import lookup
from .bound import Condition, alone, condition
from .vc import Units

BENDS = {"relu": 1, "relu_": 1, "leaky_relu": 1, "leaky_relu_": 1, "abs": 1, "relu6": 2, "hardtanh": 2}
"""Piecewise linear activations, and how often each bends."""
HOMOGENEOUS = ("relu", "relu_", "leaky_relu", "leaky_relu_", "abs")
"""Those that a positive factor passes through."""
SUMS = ("add", "add_", "sub")
AVERAGES = ("avg_pool2d", "adaptive_avg_pool2d", "avg_pool1d", "adaptive_avg_pool1d", "mean")
"""Fixed linear maps of the pooling family."""
POOLS = ("max_pool1d", "max_pool2d", "max_pool3d")
MATRICES = ("linear", "conv1d", "conv2d", "conv3d")
"""Weight layers whose norms are known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixNorms:
    """The norms of one weight layer as a matrix on the whole input, its bias as a column; all as log10.

    Attributes:
        path: the module.
        log10_spectral: of the operator norm, from above.
        log10_frobenius: of the Frobenius norm.
        log10_rows: of the sum over its outputs of the l2 norms of their rows, the (2, 1) norm of its transpose.
        inputs, outputs: entries on either side.
    """

    path: str
    log10_spectral: float
    log10_frobenius: float
    log10_rows: float
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNorms:
    """What the norm-based bounds need of a network.

    Attributes:
        layers: the weight layers in order, BatchNorms folded; empty where a weight layer is of another kind.
        units: what bends, in order; the last are the differences of the outputs. Empty where they cannot be counted.
        biased: whether there are biases, so that every input has one entry more, which is 1.
        parameters: weights, biases and other constants after folding.
        chain, homogeneous, entrywise, alone, matrices, piecewise: conditions that bounds ask for.
        weight_frobenius: the Frobenius norm of each weight tensor itself, as log10.
    """

    layers: tuple[MatrixNorms, ...]
    units: tuple[Units, ...]
    biased: bool
    parameters: int
    chain: Condition
    homogeneous: Condition
    entrywise: Condition
    alone: Condition
    matrices: Condition
    piecewise: Condition
    weight_frobenius: tuple[float, ...]

    @property
    def log10_spectral(self) -> float:
        """Log10 of the product of the operator norms."""
        return math.fsum(layer.log10_spectral for layer in self.layers)

    @property
    def log10_frobenius(self) -> float:
        """Log10 of the product of the Frobenius norms."""
        return math.fsum(layer.log10_frobenius for layer in self.layers)

    @property
    def width(self) -> int:
        """The most entries that stand between two layers, the constant one counted."""
        return max(max(layer.inputs, layer.outputs) for layer in self.layers) + self.biased


def read_network(
    model: nn.Module, batch: Tensor, classes: int, output: str | int | None, max_seconds: float | None
) -> NetworkNorms:
    """Return what the norm-based bounds need of a model in eval mode.

    Raises:
        NormscopeError: the model cannot be traced, or has operators without a rule.
    """
    folded, why = _folded(model, batch)
    captured = Captured.of(folded, batch, Bounding.within(max_seconds), mode="eval", output=output)
    graph = captured.graph
    nodes = [node for node in graph if is_weight(node)]
    biased = any(isinstance(node.bound().get("bias"), Tensor) for node in nodes)
    known = bool(nodes) and all(
        node.operator in MATRICES and isinstance(node.bound()["weight"], Tensor) for node in nodes
    )
    with torch.no_grad():
        layers = tuple(_norms(captured, node, biased, node is nodes[-1]) for node in nodes) if known else ()
    formula = printed(captured.segments, captured.norm, exact=True)
    left = next((node for node in graph if is_normalizer(node)), None)
    odd = next((node for node in graph if not _is_homogeneous(node)), None)
    pool = next((node for node in graph if node.operator in (*POOLS, *AVERAGES)), None)
    units, stops = _units(graph, classes)
    return NetworkNorms(
        layers=layers,
        units=units,
        biased=biased,
        parameters=sum(_parameters(node) for node in graph),
        chain=condition(
            "the network is a chain of weight layers with 1-Lipschitz activations between them",
            formula.holds and left is None,
            f"{_named(left)} normalizes by what it sees{why}" if left is not None else formula.reason or "read off the "
            "graph, BatchNorms folded",
        ),
        homogeneous=condition(
            "what stands between weight layers lets positive factors through (ReLU, leaky ReLU, pooling)",
            odd is None,
            "read off the graph" if odd is None else f"{_named(odd)} does not",
        ),
        entrywise=condition(
            "activations act on single entries",
            pool is None,
            "read off the graph" if pool is None else f"{_named(pool)} pools",
        ),
        alone=alone(graph.per_sample),
        matrices=condition(
            "every weight layer is a matrix or a convolution",
            known,
            "read off the graph" if known else "the norms of some weight layer are not known",
        ),
        piecewise=condition("the network is piecewise linear, from weights, sums and ReLUs", not stops, stops or
                            "read off the graph"),
        weight_frobenius=tuple(log10(float(node.bound()["weight"].double().norm())) for node in nodes if known),
    )  # fmt: skip


def _folded(model: nn.Module, batch: Tensor) -> tuple[nn.Module, str]:
    """Return the model with its BatchNorms folded, or the model itself and why not."""
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return model, ""
    try:
        return twin(model, batch, normalizer=None, fold=True).model.eval(), ""
    except NormscopeError as error:
        return model, f" ({said(error)})"


def _is_homogeneous(node: Node) -> bool:
    """Whether a positive factor passes through; weight layers and normalizers have conditions of their own.

    A constant that is added, set beside or padded with does not: it is a bias that the weight layers do not show.
    """
    found = lookup(node)
    if is_weight(node) or is_normalizer(node) or node.operator in (*HOMOGENEOUS, *POOLS, *AVERAGES):
        return True
    if node.operator in SUMS:
        return len(node.refs) > 1
    return found is not None and found.family == "shape" and "pad" not in node.operator and not _parameters(node)


def _is_activation(node: Node) -> bool:
    found = lookup(node)
    return found is not None and found.family == "activation"


def _parameters(node: Node) -> int:
    """Return how many numbers of its own a node takes: weights, biases, and any constant of floats."""
    own = [leaf for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, Tensor)]
    return sum(tensor.numel() for tensor in own if tensor.is_floating_point())


def _named(node: Node) -> str:
    """Return what a condition calls an operation: its layer, or that it stands outside of every named one."""
    where = f"`{node.path}` (`{node.operator}`)"
    return where if node.path else f"the operation `{node.operator}` outside of every named layer"


def _norms(captured: Captured, node: Node, biased: bool, last: bool) -> MatrixNorms:
    """Return the norms of a layer; those of a convolution count every place as if none were at the border."""
    given = node.bound()
    weight, bias = given["weight"].double(), given.get("bias")
    outputs, inputs = math.prod(node.shape), math.prod(node.operands[0].shape)
    channels = len(weight)
    places = outputs // channels
    effect = captured.segments.effects[node.name]
    assert isinstance(effect, Linear)
    spectral = captured.norm(effect.maps[0]).log10
    rows = weight.flatten(1).norm(dim=1).clamp(max=power10(spectral))  # no row is longer than the operator norm
    shift = bias.double() if isinstance(bias, Tensor) else torch.zeros_like(rows)
    frobenius = math.sqrt(places) * float(rows.norm())
    if not biased:
        return MatrixNorms(
            path=node.path,
            log10_spectral=spectral,
            log10_frobenius=log10(frobenius),
            log10_rows=log10(places * float(rows.sum())),
            inputs=inputs,
            outputs=outputs,
        )
    extra = 0.0 if last else 1.0
    column = math.sqrt(places) * float(shift.norm())
    corner = torch.tensor([[power10(spectral), column], [0.0, extra]], dtype=torch.float64)
    return MatrixNorms(
        path=node.path,
        log10_spectral=log10(float(torch.linalg.matrix_norm(corner, 2)) * (1 + 1e-12)),
        log10_frobenius=log10(math.sqrt(frobenius**2 + column**2 + extra)),
        log10_rows=log10(places * float(torch.hypot(rows, shift).sum()) + extra),
        inputs=inputs,
        outputs=outputs,
    )


def _is_fixed_linear(node: Node) -> bool:
    """Whether a node adds, averages or moves values about, without weights."""
    found = lookup(node)
    return found is not None and (found.family == "shape" or node.operator in (*SUMS, *AVERAGES))


def _units(graph: Graph, classes: int) -> tuple[tuple[Units, ...], str]:
    """Return what bends, in order, and why it cannot be counted (empty where it can).

    Every operator must be a weight layer, a sum, a fixed linear map or a piecewise linear activation; a product of two
    values that both depend on the input is none of these.
    """
    behind: dict[str, frozenset[str]] = {item.name: frozenset() for item in graph.inputs}
    degrees = {item.name: 0 for item in graph.inputs}
    sizes: dict[str, int] = {}
    found: list[Units] = []
    for node in graph:
        weights: frozenset[str] = frozenset().union(*(behind[name] for name in node.refs))
        degree = max((degrees[name] for name in node.refs), default=0)
        if is_weight(node) and len(node.refs) == 1 and (own := _parameters(node)):
            sizes[node.name] = own
            weights, degree = weights | {node.name}, degree + 1
        elif _is_activation(node) and node.operator in BENDS:
            total = sum(sizes[name] for name in weights)
            found.append(
                Units(count=math.prod(node.shape), bends=BENDS[node.operator], weights=total, degree=max(degree, 1))
            )
        elif not _is_fixed_linear(node):
            return (), f"{_named(node)} is none of these"
        elif own := _parameters(node):  # a constant that is added or set beside may have been learned
            sizes[node.name] = own
            weights, degree = weights | {node.name}, max(degree, 1)
        behind[node.name], degrees[node.name] = weights, degree
    total = sum(sizes[name] for name in behind[graph.output])
    last = Units(count=classes * (classes - 1), bends=1, weights=total, degree=max(degrees[graph.output], 1))
    return (*found, last), ""
