"""Which node of the graph is which site of a forward that was watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..graph.ir import Node
from ..listening.calls import RECURRENT, Site
from ..rules.linear import MATRICES
from ..rules.registry import lookup


def family(node: Node) -> str:
    """Return the family of a node, as a `Site` names it."""
    known = lookup(node)
    if node.is_batch_norm:
        return "batch_norm"
    if known is not None and known.family in ("recurrent", "convolution"):
        return known.family
    return "linear" if node.op in MATRICES else node.operator


def first_names(model: nn.Module) -> dict[str, str]:
    """Return, for every name of a module, the first one it has."""
    first = {id(module): name for name, module in model.named_modules()}
    return {name: first[id(module)] for name, module in model.named_modules(remove_duplicate=False)}


def once(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes with one for each run of a recurrent layer, which hands out several values."""
    found: dict[Any, Node] = {}
    for node in nodes:
        key = (node.path, node.operator, node.refs, node.call) if node.operator in RECURRENT else node.name
        found.setdefault(key, node)
    return list(found.values())


def sites(model: nn.Module, nodes: Iterable[Node], seen: Iterable[Site]) -> dict[str, Site]:
    """Return where nodes ran, by their names: the module's path, the family, and a count of its runs.

    A module with several names goes by the first. Nodes of a module that ran more or less often than the graph knows
    (on constants, or beside the path to the output) are left out: which run is which cannot be told.
    """
    known = first_names(model)
    ran = Counter(site[:2] for site in seen)
    placed: dict[tuple[str, str], list[str]] = {}
    for node in once(nodes):
        placed.setdefault((known.get(node.path, node.path), family(node)), []).append(node.name)
    return {
        name: (*key, run) for key, group in placed.items() if len(group) == ran[key] for run, name in enumerate(group)
    }
