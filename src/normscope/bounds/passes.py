"""What a pass through a network costs, counted from shapes: searches through large networks take fewer steps."""

from __future__ import annotations

import math

from ..core.budget import affordable
from ..graph.ir import Graph, Node
from ..rules.linear import PRODUCTS
from .applied import factors_of


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
