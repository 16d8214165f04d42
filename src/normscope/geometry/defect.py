"""What eps leaves of scale invariance: <w, grad> = eps/(var + eps) sum (dL/dzhat) zhat, unit by unit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.channels import channel_numbers
from ..graph.ir import Graph, Node, Unit
from ..graph.regions import SAME
from ..rules.invariance import MOVES, FeedingLayer, weight_layer
from ..rules.registry import sets_of
from .candidate import Candidate
from .normalized import joined


def defects(graph: Graph, candidates: list[Candidate], weights: Tensor, output: Tensor) -> dict[int, Tensor]:
    """Return what the formula gives for <w_k, grad_k> of every unit of every scaling in front of a normalizer.

    Args:
        graph: of the whole batch, in float64.
        candidates: any; those without feeds are passed over.
        weights: the loss is the sum of the outputs times these.
        output: of the model; nothing is returned if the graph's is another (a model that drops values by itself).

    Returns:
        One tensor per such candidate, by its place in the list.
    """
    inputs = [item.value.detach().clone().requires_grad_() for item in graph.inputs]
    values = graph.values(*inputs)
    if not torch.allclose(values[graph.output], output, rtol=1e-6, atol=1e-6 * float(output.abs().amax())):
        return {}
    wanted = {place: one for place, one in enumerate(candidates) if one.feeds}
    nodes = [feed.normalizer for one in wanted.values() for feed in one.feeds]
    outputs = [values[node.name] for node in nodes]
    if not outputs:
        return {}
    gradients = torch.autograd.grad((values[graph.output] * weights).sum(), outputs, allow_unused=True)
    behind = {
        node.name: torch.zeros_like(value) if g is None else g for node, value, g in zip(nodes, outputs, gradients)
    }
    with torch.no_grad():
        return {place: _summed(graph, one, values, behind) for place, one in wanted.items()}


def _summed(graph: Graph, one: Candidate, values: dict[str, Tensor], behind: dict[str, Tensor]) -> Tensor:
    parts = joined(list(one.feeds))
    total = torch.zeros(int(parts.amax()) + 1, dtype=torch.float64)
    for feed in one.feeds:
        node = graph.node(feed.normalizer.name)
        normal, share = normalized_value(node, values[node.refs[0]])
        lost = share * normal * behind[node.name] * _gamma(node, normal)
        units = parts[_numbers(feed)].expand(lost.shape)
        total = total.index_add(0, units.reshape(-1), lost.cpu().reshape(-1))
    return total


def _numbers(feed: FeedingLayer) -> Tensor:
    """Return the output channel of the layer that each entry of the normalizer's input comes from."""
    layer = weight_layer(feed.weight)
    assert layer is not None
    return channel_numbers(feed.weight, layer.axis, tuple(n for n in feed.between if n.op in MOVES | SAME))


def normalized_value(node: Node, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a normalizer makes of a value without gamma and beta, and eps/(var + eps)."""
    found = sets_of(node)
    assert found is not None
    normal, share = _over(value.reshape(found.view), found.axes, found.eps, found.centred)
    return normal.reshape(value.shape), share.expand(found.view).reshape(value.shape)


def _over(value: Tensor, dims: tuple[int, ...], eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    centre = value - value.mean(dims, keepdim=True) if centred else value
    variance = centre.square().mean(dims, keepdim=True)
    return centre * torch.rsqrt(variance + eps), eps / (variance + eps)


def _gamma(node: Node, value: Tensor) -> Tensor:
    """Return a normalizer's scale, in a shape that broadcasts to its input; 1 without one."""
    given = {} if isinstance(node.op, Unit) else node.bound()
    gamma = given.get("weight")
    if not isinstance(gamma, Tensor):
        return torch.ones((), dtype=torch.float64, device=value.device)
    return gamma if "normalized_shape" in given else gamma.reshape(1, -1, *(1,) * (value.ndim - 2))
