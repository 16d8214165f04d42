"""Operators that write values at given indices, such as `scatter`, `index_add` and `index_put`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .ir import Node, Ref, leaves

PLACES = ("index", "indices")
"""The arguments that hold the indices."""
SOURCES = ("source", "src", "values", "value")
"""The arguments that hold the values to write."""


def places_vary(node: Node) -> bool:
    """Whether the indices depend on the input."""
    given = node.bound()
    return any(isinstance(leaf, Ref) for name in PLACES for leaf in leaves(given.get(name)))


def source_of_writing(node: Node) -> Ref | Tensor | float:
    """Return the values to write."""
    given = node.bound()
    return next(given[name] for name in SOURCES if name in given)


def entries_written(node: Node) -> Tensor:
    """Return the flat index of the entry that each value is written to."""
    given = node.bound()
    entries = torch.arange(math.prod(node.shape), device=node.device).reshape(node.shape)
    if "indices" in given:
        return entries[tuple(slice(None) if index is None else index for index in given["indices"])]
    if node.operator.startswith("scatter"):
        return entries.gather(given["dim"], given["index"])
    return entries.index_select(given["dim"], given["index"])


def values_written(node: Node, source: Tensor, entries: Tensor) -> Tensor:
    """Return the values to write in the shape of the indices; `scatter` takes the first ones along each axis."""
    if node.operator.startswith("scatter"):
        return source[tuple(slice(size) for size in entries.shape)]
    return source.expand(entries.shape)
