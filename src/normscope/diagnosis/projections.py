"""Names for the weight layers that one module runs itself, such as the projections of an attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..bounds.applied import weight_of
from ..graph.ir import Graph, Node, overlap


def projection_names(model: nn.Module, graph: Graph, nodes: Sequence[Node]) -> dict[str, str]:
    """Return names that tell apart the weight layers of one module, as far as their weights do.

    `nn.MultiheadAttention` runs two linear layers under its own path; they are called after their parameters,
    `attn.in_proj` and `attn.out_proj`. Layers that use different rows of one parameter name the rows, and a module that
    runs the same weight again keeps its path.

    Args:
        model: what was captured.
        graph: as captured, in the memory of the model.
        nodes: those that have rows.

    Returns:
        By node name, for those whose path is not enough.
    """
    rows, modules = {node.name for node in nodes}, dict(model.named_modules(remove_duplicate=False))
    weights = [(node, weight) for node in graph if node.name in rows and (weight := weight_of(node)) is not None]
    by_path: dict[str, dict[str, str]] = {}
    for node, weight in weights:
        by_path.setdefault(node.path, {})[node.name] = _name(modules.get(node.path), node.path, weight)
    told = [names for names in by_path.values() if len(set(names.values())) > 1 and all(names.values())]
    return {node: name for names in told for node, name in names.items()}


def _name(module: nn.Module | None, path: str, weight: Tensor) -> str:
    """Return a module's path with the parameter of it that a weight is, or is part of; empty where it is none."""
    for name, parameter in () if module is None else module.named_parameters():
        if overlap(parameter.detach(), weight):
            short = name.removesuffix(".weight").removesuffix("_weight")
            return ".".join(filter(None, (path, short))) + _part(parameter.detach(), weight)
    return ""


def _part(parameter: Tensor, weight: Tensor) -> str:
    """Return which rows of a parameter a weight is, as Python writes them; empty for all, and for what is no rows."""
    whole_rows = weight.ndim == parameter.ndim and weight.shape[1:] == parameter.shape[1:]
    if not whole_rows or weight.stride() != parameter.stride() or len(weight) == len(parameter):
        return ""
    first = (weight.storage_offset() - parameter.storage_offset()) // parameter.stride(0)
    return f"[{first}:{first + len(weight)}]"
