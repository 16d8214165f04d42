"""Operators that write values into places which indices name: `scatter`, `index_add`, `index_put` and their kin."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .ir import Node, Ref, leaves

PLACES = ("index", "indices")
"""Arguments that say where entries go, or come from."""
SOURCES = ("source", "src", "values", "value")
"""Arguments that hold what is written."""


def places_vary(node: Node) -> bool:
    """Whether the places depend on the input."""
    given = node.bound()
    return any(isinstance(leaf, Ref) for name in PLACES for leaf in leaves(given.get(name)))


def source_of_writing(node: Node) -> Ref | Tensor | float:
    """Return what is written."""
    given = node.bound()
    return next(given[name] for name in SOURCES if name in given)


def entries_written(node: Node) -> Tensor:
    """Return the places as numbers of entries of the value, one for each value that is written."""
    given = node.bound()
    entries = torch.arange(math.prod(node.shape), device=node.device).reshape(node.shape)
    if "indices" in given:
        return entries[tuple(slice(None) if index is None else index for index in given["indices"])]
    if node.operator.startswith("scatter"):
        return entries.gather(given["dim"], given["index"])
    return entries.index_select(given["dim"], given["index"])


def values_written(node: Node, source: Tensor, places: Tensor) -> Tensor:
    """Return the values that are written, in the shape of `places`: `scatter` takes the first ones along each axis."""
    if node.operator.startswith("scatter"):
        return source[tuple(slice(size) for size in places.shape)]
    return source.expand(places.shape)
