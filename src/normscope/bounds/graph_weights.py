"""The weights a graph applies: where each stands, who shares it, and what is read with it at given data.

The cost of a pass is counted from the same factors: searches through large networks take fewer steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.budget import affordable
from .graph.ir import Graph, Input, Node, Ref, leaves, map_leaves, overlap, storage_of
from .linalg.convolution_map import Convolution
from .linalg.linear_map import Repeated
from .linalg.patches import Read, patches
from .operators.effects import Effect, Linear
from .operators.linear import PRODUCTS
from .operators.registry import multiplied

aten = torch.ops.aten
WEIGHT = "weight:"
"""How the name of a weight begins where it is an input of a graph; no node is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """One weight tensor and the nodes that apply it.

    Attributes:
        name: of the weight as an input of a graph.
        value: the tensor as applied, in float64 (behind a reparametrisation: what it makes).
        tensor: the same in the memory and precision of the model.
        nodes: names of the nodes that apply it, in order; several for a module that runs several times.
        turned: which of them apply its transpose.
        chained: whether one of them is reached from another: the output is then no Lipschitz function of the weight.
        also: where else the same memory is used, or what was computed from it, which is held fixed.
    """

    name: str
    value: Tensor
    tensor: Tensor
    nodes: tuple[str, ...]
    turned: frozenset[str] = frozenset()
    chained: bool = False
    also: tuple[str, ...] = ()


def factors_of(node: Node) -> tuple[Ref, Tensor, bool] | None:
    """Return what a weight layer multiplies, the constant weight, and whether the weight is the left factor.

    None for what is no weight layer, or one with a weight that depends on the input.
    """
    product = multiplied(node)
    if product is None:
        return None
    left, right = product.left, product.right
    if isinstance(left, Ref) and isinstance(right, Tensor) and right.is_floating_point():
        return left, right, False
    if isinstance(left, Tensor) and isinstance(right, Ref) and left.is_floating_point():
        return right, left, True
    return None


def weight_of(node: Node) -> Tensor | None:
    """Return the constant weight that a node applies, or None."""
    factors = factors_of(node)
    return None if factors is None else factors[1]


def applied_weights(graph: Graph, double: Graph) -> tuple[Applied, ...]:
    """Return the weights a graph applies, in order; a tensor that several nodes apply counts once."""
    wide = {node.name: weight for node in double if (weight := weight_of(node)) is not None}
    groups: list[tuple[Node, Tensor, list[str], set[str]]] = []
    for node in graph:
        weight = weight_of(node)
        if weight is None or node.name not in wide:
            continue
        for first, shared, names, turned in groups:
            same, transposed = _shared(shared, weight, first.path != "" and first.path == node.path)
            if same or transposed:
                names.append(node.name)
                turned.update([node.name] if transposed else [])
                break
        else:
            groups.append((node, weight, [node.name], set()))
    places: dict[int, list[tuple[Node, Tensor]]] = {}  # the tensors that nodes hold, by the memory they lie in
    for node in graph:
        for leaf in leaves((node.args, node.kwargs)):
            if isinstance(leaf, Tensor):
                places.setdefault(storage_of(leaf), []).append((node, leaf))

    def used_elsewhere(weight: Tensor, names: Sequence[str]) -> dict[str, None]:
        """Where other nodes use the memory of a weight, or read a constant that was computed from it."""
        holders = [
            n.where for n, leaf in places.get(storage_of(weight), []) if n.name not in names and overlap(leaf, weight)
        ]
        return dict.fromkeys([*holders, *(where for where, parameter in graph.derived if overlap(parameter, weight))])

    return tuple(
        Applied(
            name=f"{WEIGHT}{first.name}",
            value=wide[first.name].detach(),
            tensor=weight,
            nodes=tuple(names),
            turned=frozenset(turned),
            chained=len(names) > 1 and _chained(graph, names),
            also=tuple(used_elsewhere(weight, names)),
        )
        for first, weight, names, turned in groups
    )


def _shared(first: Tensor, second: Tensor, same_module: bool) -> tuple[bool, bool]:
    """Whether two tensors are one (the same view, or made anew by one module), and whether they are transposes."""
    if first is second or (first.data_ptr() == second.data_ptr() and first.device == second.device):
        if (first.shape, first.stride()) == (second.shape, second.stride()):
            return True, False
        turned = second.mT if second.ndim == 2 else None
        if turned is not None and (first.shape, first.stride()) == (turned.shape, turned.stride()):
            return False, True
    remade = same_module and first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second)
    return remade, False


def _chained(graph: Graph, names: list[str]) -> bool:
    reached: set[str] = set()
    for node in graph:
        if any(ref in reached for ref in node.refs):
            if node.name in names:
                return True
            reached.add(node.name)
        if node.name in names:
            reached.add(node.name)
    return False


def reading(node: Node, effect: Effect, values: Mapping[str, Tensor]) -> Read | None:
    """Return what a node reads with its weight at the data; None for a form that is not known.

    Its norm is that of the map from the weight (Frobenius) to the node's value.
    """
    factors = factors_of(node)
    assert factors is not None
    ref, weight, weight_first = factors
    x = values[ref.name]
    if node.op in PRODUCTS:
        if weight_first:  # weight @ x reads columns
            x = x[:, None].mT if x.ndim == 1 else x.mT
        stacked = weight.ndim > 2
        if stacked and (x.ndim != weight.ndim or x.shape[:-2] != weight.shape[:-2]):
            return None
        matrix = x.flatten(0, -3) if stacked else x.reshape(-1, x.shape[-1])
        return Read.of(matrix * abs(float(node.bound().get("alpha", 1))))
    if node.op is aten.linear.default:
        return Read.of(x.reshape(-1, x.shape[-1]))
    linear = effect.maps[0] if isinstance(effect, Linear) else None
    inner = linear.inner if isinstance(linear, Repeated) else linear
    return patches(inner, x) if isinstance(inner, Convolution) else None


def joint(reads: Mapping[str, Read], weight: Applied) -> list[Read]:
    """Join what the uses of a shared weight read, so that the norm speaks of all their outputs together.

    Uses of the weight and of its transpose stay apart: the root of the sum of their squares is a bound.
    """
    upright = [read for name, read in reads.items() if name not in weight.turned]
    turned = [read for name, read in reads.items() if name in weight.turned]
    return [Read.together(group) for group in (upright, turned) if group]


def opened(graph: Graph, weights: Sequence[Applied]) -> Graph:
    """Return the graph with weights as further inputs, behind its own ones."""
    places = {name: weight for weight in weights for name in weight.nodes}
    nodes: list[Node] = []
    for node in graph:
        weight = places.get(node.name)
        if weight is None:
            nodes.append(node)
            continue
        ref = Ref(weight.name, tuple(weight.value.shape))
        if node.name in weight.turned:
            turn = dataclasses.replace(
                node, name=f"{weight.name}:{node.name}", op=aten.t.default, args=(ref,), kwargs={}, index=None,
                shape=tuple(weight.value.mT.shape), dtype=torch.float64,
            )  # fmt: skip
            nodes.append(turn)
            ref = Ref(turn.name, turn.shape)
        nodes.append(_pointed(node, weight_of(node), ref))
    inputs = [Input(name=weight.name, value=weight.value) for weight in weights]
    return dataclasses.replace(graph, inputs=(*graph.inputs, *inputs), nodes=tuple(nodes), samples=None)


def behind(graph: Graph, names: set[str], values: Mapping[str, Tensor]) -> Graph:
    """Return the part of a graph that depends on some of its inputs, everything else held at given values."""
    moving = set(names)
    nodes = []
    for node in graph:
        if any(ref in moving for ref in node.refs):
            nodes.append(held(node, {ref: values[ref] for ref in node.refs if ref not in moving}))
            moving.add(node.name)
    inputs = tuple(item for item in graph.inputs if item.name in names)
    return dataclasses.replace(graph, inputs=inputs, nodes=tuple(nodes), samples=None)


def held(node: Node, constants: Mapping[str, Tensor]) -> Node:
    """Return a node that reads constants in place of some values."""
    if not constants:
        return node
    return _replaced(node, lambda leaf: constants.get(leaf.name, leaf) if isinstance(leaf, Ref) else leaf)


def _pointed(node: Node, weight: Tensor | None, ref: Ref) -> Node:
    return _replaced(node, lambda leaf: ref if leaf is weight else leaf)


def _replaced(node: Node, function: Callable[[Any], Any]) -> Node:
    args, kwargs = map_leaves((node.args, node.kwargs), function)
    return dataclasses.replace(node, args=args, kwargs=kwargs)


def multiplications(graph: Graph) -> float:
    """Return about how many multiplications one pass takes: those of products, and one for every value."""
    return sum(_product(node) + math.prod(node.shape) for node in graph)


def passes(graph: Graph, most: int, *, work: float, least: int = 1, samples: int = 1) -> int:
    """Return how many steps, each with one forward pass of `samples`, fit into some work: from `least` to `most`."""
    device = graph.inputs[0].value.device
    return affordable(most, multiplications(graph) * samples, work=work, least=least, device=device)


def _product(node: Node) -> float:
    factors = factors_of(node)
    if factors is not None:
        weight = factors[1]
        return float(weight.numel()) * math.prod(node.shape) / max(weight.shape[0], 1)
    matrices = [ref for ref in node.operands if len(ref.shape) >= 2]
    if node.op in PRODUCTS and matrices:
        return float(math.prod(node.shape)) * matrices[0].shape[-1]
    if "attention" in node.operator and matrices:
        return 2.0 * math.prod(node.shape) * matrices[-1].shape[-2]
    return 0.0
