"""The trace of one sample, from that of its batch: so a model is traced once.

Where no two samples of a batch meet (`samples.py`), a traced value has them along one of its dimensions, with as many
places for each, and the same operators make the part of the first sample from the first sample alone. What is written
anew are the sizes that a view or an expansion asks for, and those of constants with a row for every sample. Every
operator then runs on tensors without entries, and must give a value of the size of that part; otherwise there is no
such trace, and the model is traced again. The caller compares the graph with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .ir import leaves, map_leaves
from .traced_program import ChainProgram, TracedProgram

aten = torch.ops.aten
SIZED = {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default}
"""Operators whose second argument is the size of what they return."""
ALIGNED = {aten.cat.default, aten.bmm.default, aten.baddbmm.default, aten.scaled_dot_product_attention.default}
"""Operators besides those that work entry by entry whose operands have their samples where the value has its own."""
FILLED = {aten.zeros.default, aten.ones.default, aten.full.default}
"""Operators whose first argument is the size of what they return."""
UNARY = {
    *(aten.clone.default, aten.alias.default, aten.contiguous.default, aten.detach_.default, aten.detach.default),
    *(aten.lift_fresh_copy.default, aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten._to_copy.default),
}
"""Operators that work entry by entry, though torch does not say so."""


class _NoPartError(Exception):
    """The samples of a value do not lie along a dimension, or an operator does not make the part of one."""


def first_sample(program: TracedProgram, dims: Mapping[str, int | None], count: int) -> ChainProgram | None:
    """Return the trace of the first sample of a traced batch; None where it is not known.

    Args:
        program: of a batch of `count` samples that can be measured one by one.
        dims: along which dimension each value has its samples, by name, as `samples.joined` found it.
        count: the number of samples.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return _Rewriting(program, dims, count).program
    except Exception:  # the second trace says what is wrong, if anything is
        return None


class _Rewriting:
    """Writes the operators of a trace anew, one by one."""

    def __init__(self, program: TracedProgram, dims: Mapping[str, int | None], count: int) -> None:
        self.dims, self.count = dims, count
        self.graph = torch.fx.Graph()
        self.nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self.values: dict[torch.fx.Node, Any] = {}
        self.rows: dict[tuple[torch.fx.Node, int], torch.fx.Node] = {}
        inputs = set(program.graph_signature.user_inputs)
        varying: set[torch.fx.Node] = set()
        for node in program.graph.nodes:
            if node.name in inputs or not varying.isdisjoint(node.all_input_nodes):
                varying.add(node)
            if node.op == "call_function" and node in varying:
                self._operator(node)
            else:
                self._copied(node)
        self.program = ChainProgram(
            graph=self.graph,
            graph_signature=program.graph_signature,
            state_dict=dict(program.state_dict),
            constants=dict(program.constants),
            graph_module=program.graph_module,
        )

    def _part(self, node: torch.fx.Node) -> tuple[int, ...]:
        """Return the size of what a value holds of the first sample."""
        dim, shape = self.dims[node.name], list(node.meta["val"].shape)
        if dim is not None:
            if dim < 0:
                raise _NoPartError
            shape[dim] //= self.count
        return tuple(shape)

    def _copied(self, node: torch.fx.Node) -> None:
        """Take over an argument, a constant or the output."""
        made = self.graph.node_copy(node, lambda other: self.nodes[other])
        value = node.meta.get("val")
        if isinstance(value, Tensor) and node.name in self.dims:  # an argument of the call
            self._keep(node, made, value.new_empty(self._part(node)))
        else:
            self.nodes[node] = made
            self.values[made] = map_leaves(value, lambda v: _without_entries(v) if isinstance(v, Tensor) else v)

    def _operator(self, node: torch.fx.Node) -> None:
        """Write an operator for the part of the first sample."""
        known = node.name in self.dims
        given: Any = (tuple(node.args), dict(node.kwargs))
        args, kwargs = map_leaves(given, lambda leaf: self._operand(node, leaf))
        if known and node.target in SIZED:
            args = (args[0], list(self._part(node)))
        function: Any = node.target
        passed = map_leaves((args, kwargs), lambda v: self.values[v] if isinstance(v, torch.fx.Node) else v)
        value = function(*passed[0], **passed[1])
        if known and tuple(value.shape) != self._part(node):
            raise _NoPartError
        made = self.graph.create_node("call_function", function, args, kwargs, name=node.name)
        made.meta = dict(node.meta)
        self._keep(node, made, value)

    def _operand(self, node: torch.fx.Node, operand: Any) -> Any:
        """Return what an operator reads in the place of an argument: of a constant for all samples the first row."""
        if not isinstance(operand, torch.fx.Node):
            return operand
        held, value, dim = self.nodes[operand], node.meta.get("val"), self.dims.get(node.name)
        if dim is None or not isinstance(value, Tensor) or operand.name in self.dims or not _is_aligned(node.target):
            return held
        there = self._place(operand, dim - value.ndim, value.shape[dim])
        if there is None:
            return held
        if value.shape[dim] != self.count:  # which rows are those of the first sample is not known
            raise _NoPartError
        return self._first_row(operand, there)

    def _place(self, operand: torch.fx.Node, dim: int, size: int) -> int | None:
        """Return the dimension of a constant that a dimension of a value, counted from its end, lies along; or None."""
        value = self.values[self.nodes[operand]]
        there = dim + value.ndim if isinstance(value, Tensor) else -1
        return there if there >= 0 and value.shape[there] == size else None

    def _first_row(self, node: torch.fx.Node, dim: int) -> torch.fx.Node:
        """Write a constant with a row for every sample along a dimension as the same operators make its first row."""
        if (node, dim) in self.rows:
            return self.rows[node, dim]
        target: Any = node.target
        args: list[Any] = list(node.args)
        if target is aten.expand.default or target in FILLED:
            sizes = list(args[target is aten.expand.default])
            sizes[dim] = 1
            args[target is aten.expand.default] = sizes
        elif target is aten.slice.Tensor and len(args) == 4 and args[1:3] == [dim, 0]:
            args[3] = 1
        elif target is aten.embedding.default:
            args[1] = self._first_row(args[1], dim)
        elif target is aten.unsqueeze.default and args[1] not in (dim, -1):
            args[0] = self._first_row(args[0], dim - (0 <= args[1] < dim))
        elif target in UNARY or _is_aligned(target):
            rank = self.values[self.nodes[node]].ndim
            places = {o: self._place(o, dim - rank, self.count) for o in node.all_input_nodes}
            rows = {o: self.nodes[o] if there is None else self._first_row(o, there) for o, there in places.items()}
            args = [map_leaves(leaf, lambda o: rows.get(o, o) if isinstance(o, torch.fx.Node) else o) for leaf in args]
        else:
            raise _NoPartError
        args = map_leaves(args, lambda o: self.nodes.get(o, o) if isinstance(o, torch.fx.Node) else o)
        kwargs: dict[str, Any] = map_leaves(
            dict(node.kwargs), lambda o: self.nodes[o] if isinstance(o, torch.fx.Node) else o
        )
        passed = map_leaves((args, kwargs), lambda o: self.values[o] if isinstance(o, torch.fx.Node) else o)
        value = target(*passed[0], **passed[1])
        if value.shape[dim] != 1:
            raise _NoPartError
        with self.graph.inserting_after(self.nodes[node]):  # where the constant for all samples is
            row = self.graph.create_node("call_function", target, tuple(args), kwargs)
        row.meta = {**node.meta, "val": value}
        self.values[row] = value
        self.rows[node, dim] = row
        return row

    def _keep(self, node: torch.fx.Node, made: torch.fx.Node, value: Any) -> None:
        """Remember what an operator became, with its value."""
        self.nodes[node], self.values[made] = made, value
        if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves(value)):
            raise _NoPartError
        made.meta["val"] = value


def _without_entries(value: Tensor) -> Tensor:
    """Return a tensor without entries of the same form."""
    return torch.empty(value.shape, dtype=value.dtype, device=value.device)


def _is_aligned(target: Any) -> bool:
    """Whether the samples of an operand of an operator lie where the value has them."""
    return target in ALIGNED or torch.Tag.pointwise in getattr(target, "tags", ())
