"""Values written or added to the entries that indices name: linear in the values and in what they are written to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.rounding import ONE
from ..graph import samples
from ..graph.ir import SOURCES, Node, Ref, entries_written, places_vary, source_of_writing, values_written
from ..graph.traits import describe
from ..linalg.folding import compose
from ..linalg.linear_map import Averaging, Diagonal, Identity, LinearMap, Reindex
from .effects import Effect, Gain, Linear, Range, Unbounded, coded
from .registry import rule
from .shape import map_per_operand

aten = torch.ops.aten
_ROWS = torch.tensor([0, 2, 2])
_ENTRIES = torch.tensor([[0, 1], [0, 1], [2, 0]])
_MASK = torch.tensor([True, False, True])


def _assigned(x: Tensor, places: Any, values: Any) -> Tensor:
    """Return a copy of `x` with values assigned to some places."""
    x = x.clone()
    x[places] = values
    return x


@rule(
    aten.index_add.default, aten.scatter_add.default,
    examples=[
        (lambda x: torch.zeros(4, 2).index_add(0, _ROWS, x), (3, 2)),
        (lambda x: x.index_add(0, _ROWS, 2 * x, alpha=-3), (3, 2)),
        (lambda x: x.tanh().index_add(1, torch.tensor([1, 1]), torch.ones(3, 2)), (3, 2)),
        (lambda x: torch.ones(3, 2).scatter_add(0, _ENTRIES, x.relu()), (3, 2)),
        (lambda x: x.scatter_add(1, torch.tensor([[0, 0, 1]]), x.tanh()), (2, 3)),
        (lambda x: torch.zeros(3, 2).index_add(0, x.argmax(0), x[:2]), (3, 2)),
        (lambda x: torch.zeros(3, 2).scatter_add(0, x.argsort(0), x), (3, 2)),
    ],
    linear=True,
)  # fmt: skip
def adds(node: Node, operands: Sequence[Range]) -> Effect:
    """Adds values to entries that fixed indices name: sqrt of the largest number of values that meet in one."""
    if places_vary(node):
        return _jumps(node)
    arguments, source = node.bound(), source_of_writing(node)
    maps: list[LinearMap] = [Identity(node.shape)] if isinstance(arguments["self"], Ref) else []
    return Linear(maps=(*maps, *([_sums(node, source, arguments.get("alpha", 1))] if isinstance(source, Ref) else [])))


@rule(
    aten.scatter.src, aten.scatter.value, aten.index_copy.default, aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    examples=[
        (lambda x: x.scatter(0, torch.tensor([[0, 1]]), 2 * x), (3, 2)),
        (lambda x: torch.zeros(4, 2).scatter(0, torch.tensor([[3, 1], [0, 2]]), x), (3, 2)),
        (lambda x: x.scatter(0, torch.tensor([[0, 1], [0, 1]]), torch.ones(3, 2)), (3, 2)),
        (lambda x: x.scatter(0, torch.tensor([[0, 1]]), 2.0), (3, 2)),
        (lambda x: x.index_copy(0, torch.tensor([2, 0]), 3 * x[:2]), (3, 2)),
        (lambda x: x.index_copy(0, torch.tensor([1, 1]), x[:2]), (3, 2)),
        (lambda x: torch.zeros(3, 2).scatter(0, x.argsort(0), x), (3, 2)),
        (lambda x: x.index_fill(0, torch.tensor([1]), -torch.inf).softmax(0), (3, 2)),
        (lambda x: x.index_fill(0, torch.tensor([1]), x[0, 0]), (3, 2)),
    ],
    linear=True,
)  # fmt: skip
def overwrites(node: Node, operands: Sequence[Range]) -> Effect:
    """Writes values to entries that fixed indices name, each one once; the other entries stay."""
    if places_vary(node):
        return _jumps(node)
    source, places = source_of_writing(node), entries_written(node)
    single = math.prod(source.shape) == 1 if isinstance(source, Ref) else True
    if not single and len(places.unique()) < places.numel():
        return Unbounded(reason=f"{node.op} writes two values to one entry in {node.where}: either may stay")
    return Linear(maps=map_per_operand(_filling_zeros(node)), disjoint=len(node.operands) > 1)


@rule(
    aten.index_put.default,
    examples=[
        (lambda x: _assigned(x, (slice(None), torch.tensor([1])), 5 * x[:, :1]), (3, 2)),
        (lambda x: _assigned(x, (_MASK,), x[:2].tanh()), (3, 2)),
        (lambda x: _assigned(x, (_MASK,), 0.0), (3, 2)),
        (lambda x: _assigned(x, (_MASK, 1), -torch.inf).softmax(1), (3, 2)),
        (lambda x: _assigned(x, (torch.tensor([[0], [2]]), torch.tensor([0, 1])), x[:1]), (3, 2)),
        (lambda x: _assigned(x, (_ROWS,), 2 * x), (3, 2)), (lambda x: _assigned(x, x > 0, 1.0), (3, 2)),
        (lambda x: torch.zeros(3, 2).index_put((_ROWS,), x[:1], accumulate=True), (3, 2)),
        (lambda x: x.index_put((_ROWS, torch.tensor([1, 0, 0])), x[:, 0].relu(), accumulate=True), (3, 2)),
    ],
    linear=True,
)  # fmt: skip
def assigns(node: Node, operands: Sequence[Range]) -> Effect:
    """Assignment to indexed entries, `x[index] = values`: written or added, with fixed indices."""
    return adds(node, operands) if node.bound().get("accumulate") else overwrites(node, operands)


@rule(
    aten.scatter_reduce.two,
    examples=[
        (lambda x: torch.ones(3, 2).scatter_reduce(0, _ENTRIES, x, "sum"), (3, 2)),
        (lambda x: x.scatter_reduce(0, _ENTRIES, 2 * x, "sum", include_self=False), (3, 2)),
        (lambda x: x.scatter_reduce(0, _ENTRIES, 2 * x, "mean"), (3, 2)),
        (lambda x: x.scatter_reduce(0, _ENTRIES, x.relu(), "mean", include_self=False), (3, 2)),
        (lambda x: x.scatter_reduce(0, _ENTRIES, -2 * x, "amax"), (3, 2)),
        (lambda x: torch.zeros(3, 2).scatter_reduce(0, _ENTRIES, x, "amin", include_self=False), (3, 2)),
        (lambda x: x.scatter_reduce(0, _ENTRIES, x, "prod"), (3, 2)),
    ],
    linear=True,
)  # fmt: skip
def gathers(node: Node, operands: Sequence[Range]) -> Effect:
    """Sums, means and extremes over the values that meet in an entry; products have no bound."""
    kind = node.bound()["reduce"]
    if places_vary(node):
        return _jumps(node)
    if kind in ("sum", "mean"):  # no negative weight
        return Linear(maps=tuple(coded(node, position, Averaging) for position in range(len(node.operands))))
    if kind in ("amax", "amin"):  # every value has one place, and an entry moves no further than one of its values
        return Gain(gains=(ONE,) * len(node.operands), joint=True)
    return Unbounded(reason=f"a product of values that depend on the input in {node.where}")


def _jumps(node: Node) -> Unbounded:
    """Return why there is no bound where the places depend on the input."""
    return Unbounded(reason=f"the places that {node.op} writes to depend on the input in {node.where}: not continuous")


def _sums(node: Node, source: Ref, factor: float) -> LinearMap:
    """Return the map that adds the values of `source`, times a factor, to their places."""
    places = entries_written(node)
    taken = Reindex.of(lambda x: values_written(node, x, places), source.shape, node.device)
    numbers, size = places.reshape(-1), math.prod(node.shape)

    def function(batch: Tensor) -> Tensor:
        values = taken.apply(batch).reshape(len(batch), -1)
        return torch.zeros(len(batch), size, dtype=batch.dtype, device=batch.device).index_add(1, numbers, values)

    summed = Averaging(function, source.shape, node.shape, node.device)
    scale = torch.tensor(float(factor), dtype=torch.float64, device=node.device)
    return summed if factor == 1 else compose(Diagonal(scale, node.shape), summed)


def _filling_zeros(node: Node) -> Node:
    """Return the operator with zeros in the place of constants that it writes, which may be infinite."""
    names = [argument.name for argument in node.op._schema.arguments]
    args = tuple(_zero(value) if name in SOURCES else value for name, value in zip(names, node.args, strict=False))
    kwargs = {name: _zero(value) if name in SOURCES else value for name, value in node.kwargs.items()}
    return dataclasses.replace(node, args=args, kwargs=kwargs)


def _zero(value: Any) -> Any:
    return value if isinstance(value, Ref) else torch.zeros_like(value) if isinstance(value, Tensor) else 0


describe(
    "index_add.default scatter_add.default scatter_reduce.two scatter.src scatter.value index_copy.default "
    "index_fill.int_Scalar index_fill.int_Tensor index_put.default",
    samples=samples.written,
)
