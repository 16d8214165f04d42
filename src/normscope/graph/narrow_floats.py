"""Find where values are rounded to a narrower float than the input: such a step jumps, and `Graph.double` drops it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .ir import Input, Node


def rounded(inputs: Iterable[Input], nodes: Iterable[Node]) -> tuple[str, ...]:
    """Say where values that depend on an input are stored in a float that does not hold every value of that input.

    A model in one float throughout counts as the real function of its stored weights, however narrow that float is.
    """
    reached = {item.name: {dtype} if (dtype := item.value.dtype).is_floating_point else set() for item in inputs}
    narrow: set[str] = set()
    found = []
    for node in nodes:
        reached[node.name] = set().union(*(reached[ref] for ref in node.refs))
        if not narrow.isdisjoint(node.refs):
            narrow.add(node.name)
        elif (node.dtype.is_floating_point or node.dtype.is_complex) and not all(
            holds(node.dtype, wide) for wide in reached[node.name]
        ):
            narrow.add(node.name)
            found.append(f"values are rounded to {str(node.dtype).removeprefix('torch.')} in {node.where}")
    return tuple(dict.fromkeys(found))


def holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether a float, or each part of a complex number, holds every value of a float."""
    mine, theirs = torch.finfo(dtype), torch.finfo(other)
    return mine.eps <= theirs.eps and mine.max >= theirs.max and mine.smallest_normal <= theirs.smallest_normal
