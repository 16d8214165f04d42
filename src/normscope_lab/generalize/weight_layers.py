"""The network as the norm-based bounds need it: weight layers with their norms, and piecewise linear units.

BatchNorms in eval mode are affine maps and are first folded into the layers before them. A bias becomes one more
column: with a constant 1 as one more entry of the input, and one more unit that passes it on, the layer `A x + b` is
the matrix `[[A, b], [0, 1]]` without a bias. ReLU keeps the 1, so that bounds for networks without biases apply.

The growth function of piecewise linear networks is that of Bartlett, Harvey, Liaw and Mehrabian 2019. Fix m inputs. On
a region of weights where no unit before it changes its side of a kink, a unit's input is a polynomial in the weights,
whose degree is the number of weight layers up to it. By Warren's theorem t polynomials of degree d in W variables have
at most `2 (2 e t d/W)^W` sign patterns if `t >= W`, and at most 2^t in any case. The product over the layers bounds the
number of patterns of the whole network (the proof of Theorem 7 there). The last polynomials are the differences of two
outputs: their signs decide which class wins, so that the number of ways to classify m samples is bounded for any number
of classes, and shared weights count once.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope import Graph
from normscope.toolkit import (
    BoundSettings,
    Linear,
    Node,
    Ref,
    TracedModel,
    TracedNetwork,
    family_of,
    is_homogeneous,
    is_normalizer,
    is_weight,
    log10,
    power10,
    printed,
    trace,
    traits_of,
)

from .bound import CAPTURED, Condition, alone, condition
from .description import Description, Fixed, describe

SUMS = ("add", "sub")
READ_OFF = "read off the graph"
MATRICES = ("linear", "conv1d", "conv2d", "conv3d")
"""Weight layers whose norms can be computed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixNorms:
    """The norms of one weight layer as a matrix on the whole input, with its bias as a column.

    `log10_spectral` bounds the operator norm; `log10_rows` is that of the sum of the l2 norms of the rows, which is the
    (2, 1) norm of the transpose.
    """

    log10_spectral: float
    log10_frobenius: float
    log10_rows: float
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNorms:
    """What the norm-based bounds need of a network."""

    # the weight layers in order, with BatchNorms folded; empty where a weight layer is of another kind
    layers: tuple[MatrixNorms, ...]
    # the units with kinks, in order; the last are the differences of the outputs. Empty where they cannot be counted
    units: tuple[Units, ...]
    biased: bool  # whether there are biases, so that every input has one more entry, which is 1
    parameters: int  # how many weights, biases and other floats there are after folding that may have been learned
    beside_parameters: Description  # what else may have been learned, for bounds that count all of these
    beside_layers: Description  # what else may have been learned, for bounds by the norms of the layers
    chain: Condition  # chain, homogeneous, entrywise, alone, matrices, piecewise: the conditions of the bounds
    homogeneous: Condition
    entrywise: Condition
    alone: Condition
    matrices: Condition
    piecewise: Condition
    weight_frobenius: tuple[float, ...]  # log10 of the Frobenius norm of each weight tensor itself

    @property
    def width(self) -> int:
        """The largest number of entries between two layers, including the constant 1."""
        return max(max(layer.inputs, layer.outputs) for layer in self.layers) + self.biased


def read_network(
    model: nn.Module,
    batch: Tensor,
    classes: int,
    output: str | int | None,
    max_seconds: float | None,
    *,
    fixed: Fixed | None = None,
    traced: TracedModel | None = None,
    captured: TracedNetwork | None = None,
) -> NetworkNorms:
    """Return what the norm-based bounds need of a model in eval mode."""
    traced, fixed = traced or trace(model, batch[:CAPTURED], output), fixed or Fixed()
    bounding = BoundSettings.within(max_seconds)
    if captured is None or traced.folded is not traced.graph:
        captured = TracedNetwork.of(
            traced.folded_model, batch[:CAPTURED], bounding, mode="eval", output=output, graph=traced.folded
        )
    captured = dataclasses.replace(captured, norm=bounding.norm)
    graph = captured.graph
    nodes = [node for node in graph if is_weight(node)]
    biased = any(isinstance(node.bound().get("bias"), Tensor) for node in nodes)
    are_matrices = bool(nodes) and all(
        node.operator in MATRICES and isinstance(node.bound()["weight"], Tensor) for node in nodes
    )
    with torch.no_grad():
        layers = tuple(_norms(captured, node, biased, node is nodes[-1]) for node in nodes) if are_matrices else ()
    learned: Counter[str] = Counter()  # How many floats each operator reads that may have been learned, by its name.
    for read in graph.reads:
        if read.real and not all(graph.constants[origin] in fixed for origin in read.origins):
            learned[read.node] += read.entries
    formula = printed(captured.segments, captured.norm, exact=True)
    normalizer = next((node for node in graph if is_normalizer(node)), None)
    units, counted, why_not_counted = _units(graph, classes, learned)
    return NetworkNorms(
        layers=layers,
        units=units,
        biased=biased,
        parameters=sum(learned.values()),
        beside_parameters=_beside(graph, counted if units else {node.name for node in graph}, fixed),
        beside_layers=_beside(graph, {node.name for node in nodes}, fixed),
        chain=condition(
            "the network is a chain of weight layers with 1-Lipschitz activations between them",
            formula.holds and normalizer is None,
            formula.reason or f"{READ_OFF}, BatchNorms folded"
            if normalizer is None
            else f"{_named(normalizer)} normalizes by what it sees{traced.why_not_folded}",
        ),
        homogeneous=_for_all_nodes(
            graph,
            is_homogeneous,
            "what stands between weight layers lets positive factors through (ReLU, leaky ReLU, pooling)",
            "does not",
        ),
        entrywise=_for_all_nodes(
            graph,
            lambda node: traits_of(node.op).pools is None,
            "activations act on single entries",
            "pools",
        ),
        alone=alone(graph, traced.folded_model, batch, output),
        matrices=condition(
            "every weight layer is a matrix or a convolution",
            are_matrices,
            READ_OFF if are_matrices else "the norms of some weight layer are not known",
        ),
        piecewise=condition(
            "the network is piecewise linear, from weights, sums and ReLUs",
            not why_not_counted,
            why_not_counted or READ_OFF,
        ),
        weight_frobenius=tuple(log10(float(node.bound()["weight"].double().norm())) for node in nodes if are_matrices),
    )


def _for_all_nodes(graph: Graph, holds: Callable[[Node], bool], what: str, otherwise: str) -> Condition:
    """Return a condition on every node; the first node that does not meet it is named."""
    exception = next((node for node in graph if not holds(node)), None)
    why = READ_OFF if exception is None else f"{_named(exception)} {otherwise}"
    return condition(what, exception is None, why)


def _beside(graph: Graph, counted: Collection[str], fixed: Fixed) -> Description:
    """Return what the constants cost that are not among the floats that some operators, by name, read."""
    others = [read.origins for read in graph.reads if not (read.real and read.node in counted)]
    return describe(graph, frozenset().union(*others), fixed)


def _named(node: Node) -> str:
    """Return the name of an operation for readers: its layer, or that it is outside of every named layer."""
    where = f"`{node.path}` (`{node.operator}`)"
    return where if node.path else f"the operation `{node.operator}` outside of every named layer"


def _norms(captured: TracedNetwork, node: Node, biased: bool, last: bool) -> MatrixNorms:
    """Return the norms of a layer; a convolution counts every output position as if none were at the border."""
    arguments = node.bound()
    weight, bias = arguments["weight"].double(), arguments.get("bias")
    outputs, inputs = math.prod(node.shape), math.prod(node.operands[0].shape)
    channels = len(weight)
    positions = outputs // channels
    effect = captured.segments.effects[node.name]
    assert isinstance(effect, Linear)
    spectral = captured.norm(effect.maps[0]).log10
    rows = weight.flatten(1).norm(dim=1).clamp(max=power10(spectral))  # No row is longer than the operator norm.
    shift = bias.double() if isinstance(bias, Tensor) else torch.zeros_like(rows)
    frobenius = math.sqrt(positions) * float(rows.norm())
    passed_on = 1.0 if biased and not last else 0.0  # The last layer does not pass the constant 1 on.
    column = math.sqrt(positions) * float(shift.norm())
    if biased:
        corner = torch.tensor([[power10(spectral), column], [0.0, passed_on]], dtype=torch.float64)
        spectral = log10(float(torch.linalg.matrix_norm(corner, 2)) * (1 + 1e-12))
    return MatrixNorms(
        log10_spectral=spectral,
        log10_frobenius=log10(math.sqrt(frobenius**2 + column**2 + passed_on)),
        log10_rows=log10(positions * float(torch.hypot(rows, shift).sum()) + passed_on),
        inputs=inputs,
        outputs=outputs,
    )


def _units(graph: Graph, classes: int, learned: Counter[str]) -> tuple[tuple[Units, ...], set[str], str]:
    """Return the units with kinks, in order, the operators whose floats count as weights, and why there are none.

    Every operator must be a weight layer, a sum, a fixed linear map or a piecewise linear activation. Anything else, as
    a product of two values that both depend on the input, or a value that is rounded to a whole number, cannot be
    counted. `learned` has the number of floats of each operator that may have been learned.
    """
    weights_before: dict[str, frozenset[str]] = {item.name: frozenset() for item in graph.inputs}
    degrees = {item.name: 0 for item in graph.inputs}
    units: list[Units] = []
    counted: set[str] = set()
    for node in graph:
        weights: frozenset[str] = frozenset().union(*(weights_before[name] for name in node.refs))
        degree = max((degrees[name] for name in node.refs), default=0)
        if not node.dtype.is_floating_point:
            return (), set(), f"{_named(node)} gives no real numbers"
        traits = traits_of(node.op)
        if traits.kinks:
            total = sum(learned[name] for name in weights)
            units.append(Units(count=math.prod(node.shape), bends=traits.kinks, weights=total, degree=max(degree, 1)))
        elif is_weight(node) and len(node.refs) == 1:
            counted.add(node.name)
            arguments = node.bound()  # `addmm(x, a, b)` adds a product of two constants to its input.
            added = "add" in node.operator and isinstance(arguments.get("self"), Ref)
            is_shift = added or isinstance(arguments.get("bias"), Ref)
            weights, degree = weights | {node.name}, max(degree, 2) if is_shift else degree + 1
        elif family_of(node) != "shape" and node.operator not in SUMS and traits.pools != "average":
            return (), set(), f"{_named(node)} is none of these"
        elif learned[node.name]:  # A constant that is added or concatenated may have been learned.
            counted.add(node.name)
            weights, degree = weights | {node.name}, max(degree, 1)
        weights_before[node.name], degrees[node.name] = weights, degree
    total = sum(learned[name] for name in weights_before[graph.output])
    last = Units(count=classes * (classes - 1), bends=1, weights=total, degree=max(degrees[graph.output], 1))
    return (*units, last), counted, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Units with kinks."""

    count: int  # how many units there are
    bends: int  # how many kinks each has
    weights: int  # how many weights their input depends on
    degree: int  # the degree of their input as a polynomial in these weights


def log_growth(layers: Sequence[Units], samples: int) -> float:
    """Return the natural logarithm of an upper bound on the number of ways to classify m samples."""
    total = 0.0
    for layer in layers:
        if not layer.weights:
            continue  # A unit without weights before it has one pattern.
        signs = layer.count * layer.bends * samples
        most = signs * math.log(2.0)
        if signs >= layer.weights:
            warren = math.log(2.0) + layer.weights * math.log(2.0 * math.e * signs * layer.degree / layer.weights)
            most = min(most, warren)
        total += most
    return total


def vc_dimension(layers: Sequence[Units]) -> int:
    """Return an upper bound on the VC dimension: the largest m for which the growth function allows 2^m ways."""

    def shattered(m: int) -> bool:
        return log_growth(layers, m) >= m * math.log(2.0)

    high = 1
    while shattered(high):
        high *= 2
        if high > 2**80:
            return high
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if shattered(middle) else (low, middle)
    return low


def growth_bound(log_count: float, samples: int, delta: float, nats: float = 0.0) -> tuple[float, float]:
    """Return the two terms that, added to the error on D, bound the error on fresh data.

    They are `sqrt(2 ln Pi(m)/m)` and `sqrt(ln(1/delta)/(2 m))`, by Massart's lemma for losses that are 0 or 1.
    What constants cost that may have been taken from D (`description.py`), `nats`, is added to `ln(1/delta)`.

    Reference: Mohri, Rostamizadeh and Talwalkar 2018, Corollary 3.9.
    """
    return math.sqrt(2.0 * log_count / samples), math.sqrt((math.log(1.0 / delta) + nats) / (2.0 * samples))


def slides_bound(dimension: float, samples: int, delta: float) -> float:
    """Return the right side that the Slides print: `sqrt((2/m) d ln(2 e m/d) + (1/m) ln(2/delta))`.

    Where d is above 2 e m the logarithm is negative and the formula says nothing: infinity is returned.
    """
    if dimension == 0:
        return math.sqrt(math.log(2.0 / delta) / samples)
    inner = 2.0 * math.e * samples / dimension
    if inner <= 1.0:
        return math.inf
    return math.sqrt(2.0 * dimension * math.log(inner) / samples + math.log(2.0 / delta) / samples)
