"""The trace of one sample, rewritten from that of its batch, so that a model is traced only once.

Where no two samples of a batch meet (`samples.py`), every traced value has its samples along one dimension, with as
many places for each, and the operators of the batch applied to the first sample alone make the first sample's part of
every value. Two things are rewritten: the sizes that views and expansions ask for, and constants with a row for every
sample, of which the first row is kept. Each rewritten operator then runs on fake tensors, which have a shape and no
entries, and must return a value of the size of that part. Where one does not, there is no such trace, and the caller
traces the model again. The caller also compares the graph with the model.
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
TAKES_SIZE_SECOND = {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default}
"""Operators whose second argument is the size of what they return."""
SAMPLES_ALIGNED = {aten.cat.default, aten.bmm.default, aten.baddbmm.default, aten.scaled_dot_product_attention.default}
"""Operators whose operands have their samples along the dimension where the value has its own, as operators that work
entry by entry have, too."""
TAKES_SIZE_FIRST = {aten.zeros.default, aten.ones.default, aten.full.default}
"""Operators whose first argument is the size of what they return."""
ENTRYWISE_UNTAGGED = {
    *(aten.clone.default, aten.alias.default, aten.contiguous.default, aten.detach_.default, aten.detach.default),
    *(aten.lift_fresh_copy.default, aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten._to_copy.default),
}
"""Operators that work entry by entry, though torch does not tag them `pointwise`."""


class _NoPartError(Exception):
    """The samples of a value lie along no single dimension, or an operator does not make the part of the first one."""


def first_sample(program: TracedProgram, dims: Mapping[str, int | None], count: int) -> ChainProgram | None:
    """Return the trace of the first sample of a traced batch; None where it cannot be written.

    Args:
        program: the trace of a batch of `count` samples that can be measured one by one.
        dims: along which dimension each value has its samples, by name, as `samples.joined` fills it in.
        count: the number of samples.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return _Rewriting(program, dims, count).program
    except Exception:  # the second trace says what is wrong, if anything is
        return None


class _Rewriting:
    """Writes the operators of a trace anew, one by one.

    Attributes:
        nodes: the new node for each node of the trace.
        values: what each new node returns, as fake tensors.
        rows: the new node for the first row of a constant along a dimension.
    """

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
                self._write_operator(node)
            else:
                self._copy(node)
        self.program = ChainProgram(
            graph=self.graph,
            graph_signature=program.graph_signature,
            state_dict=dict(program.state_dict),
            constants=dict(program.constants),
            graph_module=program.graph_module,
        )

    def _part_size(self, node: torch.fx.Node) -> tuple[int, ...]:
        """Return the size of the first sample's part of a value."""
        dim, shape = self.dims[node.name], list(node.meta["val"].shape)
        if dim is not None:
            if dim < 0:
                raise _NoPartError
            shape[dim] //= self.count
        return tuple(shape)

    def _copy(self, node: torch.fx.Node) -> None:
        """Take over an argument, a constant or the output."""
        copied = self.graph.node_copy(node, lambda other: self.nodes[other])
        value = node.meta.get("val")
        if isinstance(value, Tensor) and node.name in self.dims:  # an argument of the call
            self._keep(node, copied, value.new_empty(self._part_size(node)))
        else:
            self.nodes[node] = copied
            self.values[copied] = map_leaves(value, lambda v: _without_entries(v) if isinstance(v, Tensor) else v)

    def _write_operator(self, node: torch.fx.Node) -> None:
        """Write an operator for the part of the first sample."""
        has_samples = node.name in self.dims
        arguments: Any = (tuple(node.args), dict(node.kwargs))
        args, kwargs = map_leaves(arguments, lambda leaf: self._operand(node, leaf))
        if has_samples and node.target in TAKES_SIZE_SECOND:
            args = (args[0], list(self._part_size(node)))
        function: Any = node.target
        value = self._run(function, args, kwargs)
        if has_samples and tuple(value.shape) != self._part_size(node):
            raise _NoPartError
        written = self.graph.create_node("call_function", function, args, kwargs, name=node.name)
        written.meta = dict(node.meta)
        self._keep(node, written, value)

    def _operand(self, node: torch.fx.Node, operand: Any) -> Any:
        """Return what an operator reads in place of an argument: the new node, or the first row of a constant."""
        if not isinstance(operand, torch.fx.Node):
            return operand
        written, value, dim = self.nodes[operand], node.meta.get("val"), self.dims.get(node.name)
        if dim is None or not isinstance(value, Tensor) or operand.name in self.dims or not _is_aligned(node.target):
            return written
        rows_dim = self._constant_dim(operand, dim - value.ndim, value.shape[dim])
        if rows_dim is None:
            return written
        if value.shape[dim] != self.count:  # which rows are those of the first sample is not known
            raise _NoPartError
        return self._first_row(operand, rows_dim)

    def _constant_dim(self, operand: torch.fx.Node, dim: int, size: int) -> int | None:
        """Return the dimension of a constant that broadcasts along one of a value, counted from the end, or None."""
        value = self.values[self.nodes[operand]]
        constant_dim = dim + value.ndim if isinstance(value, Tensor) else -1
        return constant_dim if constant_dim >= 0 and value.shape[constant_dim] == size else None

    def _first_row(self, node: torch.fx.Node, dim: int) -> torch.fx.Node:
        """Write the first row of a constant that has one for every sample along a dimension, by the same operators."""
        if (node, dim) in self.rows:
            return self.rows[node, dim]
        target: Any = node.target
        args: list[Any] = list(node.args)
        if target is aten.expand.default or target in TAKES_SIZE_FIRST:
            place = 1 if target is aten.expand.default else 0  # of the argument with the size
            args[place] = [1 if other == dim else size for other, size in enumerate(args[place])]
        elif target is aten.slice.Tensor and len(args) == 4 and args[1:3] == [dim, 0]:
            args[3] = 1
        elif target is aten.embedding.default:
            args[1] = self._first_row(args[1], dim)
        elif target is aten.unsqueeze.default and args[1] not in (dim, -1):
            args[0] = self._first_row(args[0], dim - (0 <= args[1] < dim))
        elif target in ENTRYWISE_UNTAGGED or _is_aligned(target):
            rank = self.values[self.nodes[node]].ndim
            row_dims = {o: self._constant_dim(o, dim - rank, self.count) for o in node.all_input_nodes}
            rows = {o: self.nodes[o] if d is None else self._first_row(o, d) for o, d in row_dims.items()}
            args = [map_leaves(leaf, lambda o: rows.get(o, o) if isinstance(o, torch.fx.Node) else o) for leaf in args]
        else:
            raise _NoPartError
        args = map_leaves(args, lambda o: self.nodes.get(o, o) if isinstance(o, torch.fx.Node) else o)
        kwargs: dict[str, Any] = map_leaves(
            dict(node.kwargs), lambda o: self.nodes[o] if isinstance(o, torch.fx.Node) else o
        )
        value = self._run(target, args, kwargs)
        if value.shape[dim] != 1:
            raise _NoPartError
        with self.graph.inserting_after(self.nodes[node]):  # where the constant for all samples is
            row = self.graph.create_node("call_function", target, tuple(args), kwargs)
        row.meta = {**node.meta, "val": value}
        self.values[row] = value
        self.rows[node, dim] = row
        return row

    def _run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator makes of the values of its new operands."""
        args, kwargs = map_leaves((args, kwargs), lambda v: self.values[v] if isinstance(v, torch.fx.Node) else v)
        return function(*args, **kwargs)

    def _keep(self, node: torch.fx.Node, written: torch.fx.Node, value: Any) -> None:
        """Remember what an operator became, with its value."""
        self.nodes[node], self.values[written] = written, value
        if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves(value)):
            raise _NoPartError
        written.meta["val"] = value


def _without_entries(value: Tensor) -> Tensor:
    """Return a tensor of the same shape and type; inside of `FakeTensorMode` it has no entries."""
    return torch.empty(value.shape, dtype=value.dtype, device=value.device)


def _is_aligned(target: Any) -> bool:
    """Whether the samples of an operand of an operator lie where the value has them."""
    return target in SAMPLES_ALIGNED or torch.Tag.pointwise in getattr(target, "tags", ())
