"""How far eps breaks scale invariance: <w, grad> = eps/(var + eps) sum (dL/dzhat) zhat for every unit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.ir import Graph, Node, Unit
from ..graph.regions import SAME
from ..rules.invariance import MOVES, FeedingLayer, channel_numbers, weight_layer
from ..rules.registry import sets_of
from .candidate import Candidate
from .normalized import joined


def defects(graph: Graph, candidates: list[Candidate], weights: Tensor, output: Tensor) -> dict[int, Tensor]:
    """Return what the formula gives for <w_k, grad_k> of every unit of every scaling in front of a normalizer.

    Args:
        graph: the graph of the whole batch, in float64.
        candidates: the candidates; those without feeds are skipped.
        weights: the loss is the sum of the outputs times these.
        output: the output of the model; if that of the graph differs, because the model drops values by itself,
            nothing is returned.

    Returns:
        One tensor per such candidate, by its index in the list.
    """
    inputs = [item.value.detach().clone().requires_grad_() for item in graph.inputs]
    values = graph.values(*inputs)
    if not torch.allclose(values[graph.output], output, rtol=1e-6, atol=1e-6 * float(output.abs().amax())):
        return {}
    scalings = {index: candidate for index, candidate in enumerate(candidates) if candidate.feeds}
    nodes = [feed.normalizer for candidate in scalings.values() for feed in candidate.feeds]
    outputs = [values[node.name] for node in nodes]
    if not outputs:
        return {}
    gradients = torch.autograd.grad((values[graph.output] * weights).sum(), outputs, allow_unused=True)
    slopes = {
        node.name: torch.zeros_like(value) if g is None else g for node, value, g in zip(nodes, outputs, gradients)
    }
    with torch.no_grad():
        return {index: _summed(graph, candidate, values, slopes) for index, candidate in scalings.items()}


def _summed(graph: Graph, candidate: Candidate, values: dict[str, Tensor], slopes: dict[str, Tensor]) -> Tensor:
    """Return the formula of one candidate, summed over each unit.

    `slopes` are the derivatives of the loss with respect to the normalizers' outputs, by node.
    """
    parts = joined(list(candidate.feeds))
    total = torch.zeros(int(parts.amax()) + 1, dtype=torch.float64)
    for feed in candidate.feeds:
        node = graph.node(feed.normalizer.name)
        normal, share = normalized_value(node, values[node.refs[0]])
        terms = share * normal * slopes[node.name] * _gamma(node, normal)
        units = parts[_numbers(feed)].expand(terms.shape)
        total = total.index_add(0, units.reshape(-1), terms.cpu().reshape(-1))
    return total


def _numbers(feed: FeedingLayer) -> Tensor:
    """Return the output channel of the layer that each entry of the normalizer's input comes from."""
    layer = weight_layer(feed.weight)
    assert layer is not None
    return channel_numbers(feed.weight, layer.axis, tuple(n for n in feed.between if n.op in MOVES | SAME))


def normalized_value(node: Node, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the normalized value before gamma and beta are applied, and eps/(var + eps)."""
    found = sets_of(node)
    assert found is not None
    normal, share = _over(value.reshape(found.view), found.axes, found.eps, found.centred)
    return normal.reshape(value.shape), share.expand(found.view).reshape(value.shape)


def _over(value: Tensor, dims: tuple[int, ...], eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    """Return a value normalized over some dimensions, and eps/(var + eps)."""
    centre = value - value.mean(dims, keepdim=True) if centred else value
    variance = centre.square().mean(dims, keepdim=True)
    return centre * torch.rsqrt(variance + eps), eps / (variance + eps)


def _gamma(node: Node, value: Tensor) -> Tensor:
    """Return a normalizer's gamma, in a shape that broadcasts to its input; 1 without one."""
    arguments = {} if isinstance(node.op, Unit) else node.bound()
    gamma = arguments.get("weight")
    if not isinstance(gamma, Tensor):
        return torch.ones((), dtype=torch.float64, device=value.device)
    return gamma if "normalized_shape" in arguments else gamma.reshape(1, -1, *(1,) * (value.ndim - 2))
