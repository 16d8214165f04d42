"""The graph that everything else reads: nodes that know their operator, parameters, shapes, module and source line."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ...calls.stand_ins import CaptureSource, StandIn
from ...core.bracket import HELD_CONSTANT
from ...core.budget import check_time, count
from ...core.errors import InputError, visible
from ...core.shown import Shown
from ...core.untouched import plain_parts

Shape = tuple[int, ...]
HELD = f"masks, ids and other constant inputs are {HELD_CONSTANT} at those of the first sample; other samples differ"
"""The note of a graph that is the map of one sample of a batch whose samples have different ones."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands in a node's arguments for the value of another node."""

    name: str
    shape: Shape = ()


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One operator that stands for several: its name, its function, and the data that its rule reads."""

    name: str
    function: Callable[..., Tensor]
    data: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator on the path from the input to the output.

    Attributes:
        name: unique in its graph.
        op: an `OpOverload` of torch, or a `Unit`.
        args, kwargs: the operator's arguments, with a `Ref` wherever another node's value goes; constants
            (parameters, buffers, masks, folded sub-expressions) stand as they are.
        index: which output is meant, for operators with several.
        shape, dtype, device: those of the value.
        path: the module that ran it, e.g. `layer1.0.conv1`.
        kind: that module's class.
        call: identifies the call of that module, for modules that run several times.
        source: `file:line` of the user's code.
        operands: references to the values that it reads, one per occurrence, in order.
        refs: the names of these values.
    """

    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    index: int | None = None
    shape: Shape
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")
    path: str = ""
    kind: str = ""
    call: str = ""
    source: str = ""
    operands: tuple[Ref, ...] = field(init=False, repr=False)
    refs: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        operands = tuple(leaf for leaf in leaves((self.args, self.kwargs)) if isinstance(leaf, Ref))
        object.__setattr__(self, "operands", operands)
        object.__setattr__(self, "refs", tuple(ref.name for ref in operands))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields to pickle; torch cannot pickle its operators, which are known by their names."""
        state = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return state | ({"op": None, "operator_name": str(self.op)} if isinstance(self.op, OpOverload) else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "operator_name" in state:
            state["op"] = operator.attrgetter(state.pop("operator_name"))(torch.ops)
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Run the operator with one value per entry of `refs`."""
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            values = [value.detach() for value in values]  # autograd refuses to sum floats up to an integer
        fill = iter(values)

        def put(leaf: Any) -> Any:
            if isinstance(leaf, Ref):
                return next(fill)
            return [put(item) for item in leaf] if isinstance(leaf, list | tuple) else leaf

        args, kwargs = [put(leaf) for leaf in self.args], {key: put(leaf) for key, leaf in self.kwargs.items()}
        function = self.op.function if isinstance(self.op, Unit) else self.op
        result = function(*args, **kwargs)
        return result if self.index is None else result[self.index]

    def bound(self) -> dict[str, Any]:
        """Return the arguments by the name the operator's schema gives them, defaults filled in."""
        if isinstance(self.op, Unit):
            return dict(self.kwargs)
        arguments = {}
        for position, argument in enumerate(self.op._schema.arguments):
            if position < len(self.args):
                arguments[argument.name] = self.args[position]
            elif argument.name in self.kwargs:
                arguments[argument.name] = self.kwargs[argument.name]
            elif argument.has_default_value():
                arguments[argument.name] = argument.default_value
        return arguments

    @property
    def operator(self) -> str:
        """The operator's name without its overload, e.g. `conv2d`; one that is not torch's own, with its namespace."""
        return self.overload.rpartition(".")[0] or self.overload

    @property
    def overload(self) -> str:
        """The operator's name with its overload but without torch's own namespace, e.g. `max.dim`."""
        return str(self.op).removeprefix("aten.")

    @property
    def is_batch_norm(self) -> bool:
        """Whether the operator is a BatchNorm, in train or in eval mode."""
        return "batch_norm" in self.operator

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether a BatchNorm normalizes by the statistics of its batch rather than by those it has stored."""
        return bool(self.bound().get("training", "no_training" not in self.operator))

    @property
    def pooled_axes(self) -> int:
        """The number of trailing axes of a max pooling: 2 for `max_pool2d_with_indices`."""
        return int(self.operator.split("max_pool")[1][0])

    @property
    def takes_smallest(self) -> bool:
        """Whether the operator takes the smallest of several values, as `amin` and `minimum` do."""
        return self.operator in ("amin", "min", "minimum")

    @property
    def is_transposed_convolution(self) -> bool:
        """Whether the operator is a transposed convolution."""
        return self.operator.startswith("conv_transpose")

    @property
    def where(self) -> str:
        """Module path and source line, for messages."""
        return f"{self.path or '(top level)'}" + (f" at {self.source}" if self.source else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A variable of the graph: a float tensor the user passes, or the output of the token embedding.

    `place` says which argument of the call it is, counted over all of them; None for an embedding and a parameter.
    """

    name: str
    value: Tensor
    path: str = ""
    place: int | None = None

    @property
    def shape(self) -> Shape:
        """Shape of the variable."""
        return tuple(self.value.shape)


@dataclass(frozen=True, slots=True, eq=False)
class HeldArgument:
    """An argument of the call that is no input of the graph: a mask, token ids.

    Attributes:
        place: which argument it is, counted over all of them.
        value: what it was when the graph was captured; that of the first sample where the graph is the map of one.
        in_constants: whether constants of the graph were computed from it; else only its captured inputs were, which
            start at the embeddings of tokens.
    """

    place: int
    value: Tensor
    in_constants: bool


class Argument(Enum):
    """What an argument is, if it is no flag, text, dtype or list: a number, a traced value, or left to its default."""

    NUMBER, VALUE, ABSENT = range(3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant:
    """Something that a traced function holds besides its input.

    Attributes:
        name: of a tensor as the model or torch.export calls it; of a number the operator and its argument; of a choice
            the operator.
        kind: `"parameter"`, `"buffer"`, `"tensor"` (held elsewhere), `"number"`, `"choice"` (what the arguments of one
            operator are besides tensors and numbers), `"object"` (anything else).
        value: the tensor, the number, the arguments with an `Argument` for each number, or the object.
        source: the user's line that reads it.
    """

    name: str
    kind: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRead:
    """An argument of an operator of the graph that does not depend on the input.

    Attributes:
        node: the operator.
        entries: how many numbers the argument holds.
        real: whether it is a tensor of floats.
        origins: the positions, among the constants of the graph, of all that it was computed from.
    """

    node: str
    entries: int
    real: bool
    origins: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(StandIn, Shown):
    """A model as a function of its float inputs, in one mode, at one input size.

    Attributes:
        inputs: the variables with their values in the captured batch; several count as one concatenated input.
        nodes: the operators on the path, in order.
        output: name of the node (or input) whose value is returned.
        mode: `"train"` or `"eval"`.
        per_sample: True if the graph is the model's map of a single sample (the first of the batch).
        notes: what the reader must know.
        rounded: where values are rounded to a narrower float than the input's; no bound is PROVEN then.
        derived: where in the model a constant is read that was computed from a parameter, each with that parameter.
        constants: everything that the traced function holds besides its input, before any of it was evaluated.
        reads: which operators read these constants.
        samples: the whole batch, one flat row per sample, where the graph is the map of one sample.
        held: the arguments of the call that are no inputs of the graph, and that it depends on: masks, ids, lengths.
        batched: the graphs of the whole batch and of its first sample, operator by operator, where the graph is the
            map of one sample.
        source: the model and the batch; None for a graph that no user captured.
    """

    page = "normscope.bounds.pages.bounds:graph_document"

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    output: str
    mode: str
    per_sample: bool = False
    notes: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    derived: tuple[tuple[str, Tensor], ...] = field(default=(), repr=False)
    constants: tuple[Constant, ...] = field(default=(), repr=False)
    reads: tuple[ConstantRead, ...] = field(default=(), repr=False)
    samples: Tensor | None = field(default=None, repr=False)
    held: tuple[HeldArgument, ...] = field(default=(), repr=False)
    batched: tuple[Graph, ...] = field(default=(), repr=False)
    source: CaptureSource | None = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def constant_places(self) -> tuple[int, ...]:
        """The places of the arguments that constants of the graph were computed from."""
        return tuple(argument.place for argument in self.held if argument.in_constants)

    @property
    def eps(self) -> float:
        """The relative distance between neighbouring numbers in the narrowest precision that the graph computes in."""
        dtypes = {item.value.dtype for item in self.inputs} | {node.dtype for node in self.nodes}
        return max(torch.finfo(one).eps for one in dtypes if one.is_floating_point or one.is_complex)

    def node(self, name: str) -> Node:
        """Return the node of that name."""
        return {node.name: node for node in self.nodes}[name]

    @property
    def input_shape(self) -> Shape:
        """Shape of the input, or the number of its entries if there are several."""
        if len(self.inputs) == 1:
            return self.inputs[0].shape
        return (sum(item.value.numel() for item in self.inputs),)

    @property
    def output_shape(self) -> Shape:
        """Shape of the output."""
        shapes = {item.name: item.shape for item in self.inputs} | {node.name: node.shape for node in self.nodes}
        return shapes[self.output]

    def values(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Run the graph and return the value of every node by name."""
        if len(inputs) != len(self.inputs):
            raise InputError(f"this graph takes {len(self.inputs)} input(s), {len(inputs)} given")
        values: dict[str, Tensor] = {}
        for item, value in zip(self.inputs, inputs, strict=True):
            if tuple(value.shape) != item.shape:
                raise InputError(f"input {item.name!r} has shape {tuple(value.shape)}, captured with {item.shape}")
            values[item.name] = value
        count("passes", 1 if self.per_sample or not inputs[0].ndim else len(inputs[0]))
        for node in self.nodes:
            check_time()
            values[node.name] = node.evaluate([values[name] for name in node.refs])
        return values

    def run(self, *inputs: Tensor) -> Tensor:
        """Run the graph on new inputs of the captured shapes."""
        return self.values(*inputs)[self.output]

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Cut one flat vector into the graph's inputs."""
        sizes = [item.value.numel() for item in self.inputs]
        return tuple(part.reshape(i.shape) for part, i in zip(flat.split(sizes), self.inputs, strict=True))

    def flat(self) -> Tensor:
        """Return the captured inputs as one flat vector."""
        return torch.cat([item.value.reshape(-1) for item in self.inputs])

    def double(self) -> Graph:
        """Return the same function with every constant in float64 or complex128, which hold every narrower number."""

        def widen(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf.to(widen(leaf.dtype))
            if isinstance(leaf, torch.dtype) and (leaf.is_floating_point or leaf.is_complex):
                return torch.complex128 if leaf.is_complex else torch.float64
            return leaf

        nodes = []
        for node in self.nodes:
            args, kwargs = map_leaves((node.args, node.kwargs), widen)
            op = node.op
            if isinstance(op, Unit):
                op = Unit(op.name, op.function, map_leaves(op.data, widen))
            nodes.append(dataclasses.replace(node, op=op, args=args, kwargs=kwargs, dtype=widen(node.dtype)))
        inputs = tuple(dataclasses.replace(item, value=item.value.double()) for item in self.inputs)
        return dataclasses.replace(self, nodes=tuple(nodes), inputs=inputs)

    def _rendered(self, width: int, color: bool = False) -> str:
        """Return one line per operator."""
        shown = [f"{i.name}: input {list(i.shape)} {i.path}" for i in self.inputs]
        for node in self.nodes:
            shown.append(f"{node.name} = {node.op}({', '.join(node.refs)}) {list(node.shape)}  # {node.where}")
        return visible("\n".join([*shown, f"return {self.output}"]))


def same_constants(first: Graph, second: Graph) -> bool:
    """Whether two graphs of one trace have the same constants."""
    pairs = zip(*([leaf for node in graph for leaf in leaves((node.args, node.kwargs))] for graph in (first, second)))
    return all(_equal(one, other) for one, other in pairs)


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the entries of nested lists, tuples and dicts of arguments, in order."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same nested arguments with a function applied to every entry."""
    if isinstance(tree, dict):
        return {key: map_leaves(item, function) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(item, function) for item in tree)
    return function(tree)


def storage_of(tensor: Tensor) -> int:
    """Return the address at which the memory of a tensor begins."""
    dense = tensor if tensor.layout is torch.strided else plain_parts(tensor)[-1]
    return dense.untyped_storage().data_ptr()


def overlap(first: Tensor, second: Tensor) -> bool:
    """Whether the memory of two tensors overlaps."""
    if first.device != second.device or storage_of(first) != storage_of(second):
        return False
    if not first.numel() or not second.numel():
        return False
    ends = []
    for tensor in (first, second):
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        ends.append(tensor.data_ptr() + tensor.element_size() * (1 + last))
    return first.data_ptr() < ends[1] and second.data_ptr() < ends[0]


PLACES = ("index", "indices")
"""The arguments that hold the indices."""
SOURCES = ("source", "src", "values", "value")
"""The arguments that hold the values to write."""


def places_vary(node: Node) -> bool:
    """Whether the indices depend on the input."""
    arguments = node.bound()
    return any(isinstance(leaf, Ref) for name in PLACES for leaf in leaves(arguments.get(name)))


def source_of_writing(node: Node) -> Ref | Tensor | float:
    """Return the values to write."""
    arguments = node.bound()
    return next(arguments[name] for name in SOURCES if name in arguments)


def entries_written(node: Node) -> Tensor:
    """Return the flat index of the entry that each value is written to."""
    arguments = node.bound()
    entries = torch.arange(math.prod(node.shape), device=node.device).reshape(node.shape)
    if "indices" in arguments:
        return entries[tuple(slice(None) if index is None else index for index in arguments["indices"])]
    if node.operator.startswith("scatter"):
        return entries.gather(arguments["dim"], arguments["index"])
    return entries.index_select(arguments["dim"], arguments["index"])


def values_written(node: Node, source: Tensor, entries: Tensor) -> Tensor:
    """Return the values to write in the shape of the indices; `scatter` takes the first ones along each axis."""
    if node.operator.startswith("scatter"):
        return source[tuple(slice(size) for size in entries.shape)]
    return source.expand(entries.shape)
