"""Turn a traced program into a `Graph`: evaluate the values that do not depend on the input, keep the rest as nodes."""

from __future__ import annotations

import linecache
import operator
import os
import re
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind, OutputKind

from ...calls.call import Call, is_mask
from ...core.bracket import HELD_CONSTANT
from ...core.errors import CaptureError, InputError, RandomOperatorError, describe_error
from ...theory.normalizers import rms_epsilon
from .ir import HELD, Argument, Constant, ConstantRead, Graph, HeldArgument, Input, Node, Ref, leaves, overlap
from .traced_program import (
    AS_STRIDED,
    BATCH_NORM,
    CALLED_BATCH_NORM,
    TracedProgram,
    ancestors,
    batch_norm_output,
    entries_read,
    moved_statistics,
    refuse_moved_statistics,
    refuse_varying_statistics,
    simpler,
    state_notes,
)
from .traits import traits_of

aten = torch.ops.aten

EMBEDDINGS = {aten.embedding.default}
RESHAPES = {  # a view that is legal on the model's strides may not be legal on those of the graph's values
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}
BY_SHAPE = {  # operators that read only the shape of their operand
    aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_zeros.default,
    aten.new_ones.default, aten.new_full.default, aten.fill.Scalar, aten.fill.Tensor, aten.copy.default,
}  # fmt: skip
DROPPED = "dropout counts as off"
DROPOUT = {aten.native_dropout.default, aten.dropout.default}


def _moves_tokens(target: Any) -> bool:
    """Whether an operator may stand between the user's token ids and the embedding."""
    return traits_of(target).keeps in ("same", "order") or target is aten.slice.Tensor


def floats(node: Any) -> bool:
    """Whether a traced value is a float tensor."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def translate(program: TracedProgram, call: Call, mode: str, *, masks: bool = False, weights: bool = False) -> Graph:
    """Evaluate the values that do not depend on the input, and keep the rest as nodes.

    Masks, token ids and all other tensors of the batch are constants, or inputs of the graph, too, with `masks`. With
    `weights`, float parameters are inputs too, before the others, and their paths are their names.
    """
    output = output_of(program)
    reader = _Reader(program, call, ancestors(output), _parameters(program) if weights else {}, masks=masks)
    for node in program.graph.nodes:
        if node in reader.needed:
            reader.read(node)
    variables, made = reader.variables, reader.made
    if not variables and not reader.has_floats:
        if bag := next((n for n in reader.needed if n.target is aten.embedding_bag.padding_idx), None):
            raise InputError(
                f"the batch holds integers, and their EmbeddingBag `{_path(bag.meta)[0]}` adds up embeddings, so that "
                "the measurement has none of single tokens to start at: pass the sums to the rest of the model, as "
                "float inputs"
            )
        raise InputError(
            "the batch holds integers and the model has no embedding for them to start at: pass float inputs "
            "(for language models pass input_ids; the measurement starts at the token embeddings)"
        )
    if output.name not in variables and output.name not in made:
        raise InputError("the output does not depend on the input: there is nothing to measure")
    held = _held(program, reader)
    differing = call.per_sample and len(call.groups(h.place for h in held if h.in_constants)) > 1
    narrow = rounded(variables.values(), made.values())
    jumps = [
        f"{where}, which is a jump: no bound is PROVEN, and all are those without this rounding" for where in narrow
    ]
    constants, reads = read_constants(
        program, reader.needed, reader.constants, variables.keys() | made.keys() | reader.multiple.keys(), DROPOUT
    )
    return Graph(
        inputs=tuple(variables.values()),
        nodes=tuple(made.values()),
        output=output.name,
        mode=mode,
        per_sample=call.per_sample,
        notes=tuple(dict.fromkeys([*([HELD] if differing else []), *reader.notes, *jumps])),
        rounded=narrow,
        derived=_derived(program, reader.multiple | made, reader.constants),
        constants=constants,
        reads=reads,
        samples=_samples(call, program, variables) if reader.has_floats and call.per_sample else None,
        held=held,
    )


class _Reader:
    """Reads a traced program from its first value to its last.

    Attributes:
        needed: the traced values that the output depends on.
        constants: the values that do not depend on the input, by name.
        variables: the inputs from which the measurement starts.
        made: the nodes of the graph.
        multiple: operators with several outputs, each of which becomes a node when it is read.
        weights: the names of the parameters from which the measurement starts too, by those of their placeholders.
        notes: what the reader of a figure must know.
    """

    def __init__(
        self, program: TracedProgram, call: Call, needed: set[torch.fx.Node], weights: dict[str, str], *, masks: bool
    ) -> None:
        self.program, self.needed, self.weights = program, needed, weights
        refuse_moved_statistics(program, needed)
        self.constants = _placeholders(program, call)
        # tokens: the inputs named `input_ids`, or else all integer tensors that are no masks
        user_inputs = program.graph_signature.user_inputs
        tensors = [n for n in user_inputs if isinstance(self.constants.get(n), Tensor)]
        masked = {n: call.name(place) for place, n in enumerate(user_inputs) if n in tensors}
        masked = {n: name for n, name in masked.items() if is_mask(name, self.constants[n])}
        integer = [n for n in tensors if not self.constants[n].is_floating_point() and n not in masked]
        self.tokens = set([n for n in integer if "input_ids" in n] or integer)
        self.variables: dict[str, Input] = {}
        self.made: dict[str, Node] = {}
        self.multiple: dict[str, Node] = {}
        named = {node.name: node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs}
        self.inputs = {name for name, node in named.items() if name not in masked and floats(node)}
        if masks:
            self.inputs = {name for name in named if isinstance(v := self.constants[name], Tensor) and v.ndim}
        self.has_floats = bool(self.inputs)
        self.notes = [
            *call.notes,
            *state_notes(program, needed),
            *(
                f"the float input {name!r} is {HELD_CONSTANT}, as masks have this name: rename it to measure it too"
                for n, name in masked.items()
                if floats(named[n])
            ),
        ]

    def read(self, node: torch.fx.Node) -> None:
        """Read the next traced value."""
        if node.op == "placeholder":
            if node.name in self.inputs or (node.name in self.weights and floats(node)):
                path, arguments = self.weights.get(node.name, node.name), self.program.graph_signature.user_inputs
                place = arguments.index(node.name) if node.name in self.inputs else None
                value = self.constants[node.name]
                self.variables[node.name] = Input(name=node.name, value=value, path=path, place=place)
        elif node.op == "get_attr":
            self.constants[node.name] = operator.attrgetter(str(node.target))(self.program.graph_module)
        elif node.op == "call_function":
            source = node.args[0] if node.target is operator.getitem else None
            if isinstance(source, torch.fx.Node) and source.name in self.multiple:
                self._pick(node, self.multiple[source.name])
            else:
                self._call(node)

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            if argument.name in self.variables or argument.name in self.made:
                return Ref(argument.name, _shape(argument))
            return self.constants[argument.name]
        if isinstance(argument, list | tuple):
            return [self._resolve(item) for item in argument]
        return argument

    def _pick(self, node: torch.fx.Node, parent: Node) -> None:
        """Read one output of an operator that has several."""
        if parent.op in DROPOUT:
            self.made[node.name] = _identity(node, parent.args[0])
        else:
            chosen = _node(node, parent.op, parent.args, parent.kwargs, index=node.args[1], meta=parent)
            self.made[node.name] = batch_norm_output(chosen)

    def _call(self, node: torch.fx.Node) -> None:
        """Read an operator, which becomes a constant, an input of the measurement, or a node."""
        unread: list[Any] = [node.args[place] for place in moved_statistics(node)]
        # a batch norm of constants is evaluated, and needs its statistics; an instance norm would write into them
        statistics = {one: self.constants.get(one.name) if node.target is BATCH_NORM else None for one in unread}
        args = tuple(statistics[item] if item in unread else self._resolve(item) for item in node.args)
        refuse_varying_statistics(node, args)
        kwargs = {key: self._resolve(item) for key, item in node.kwargs.items()}
        depends = _refers((args, kwargs))
        if node.target in DROPOUT:
            self._dropout(node, args, kwargs, depends)
        elif not depends and not self.has_floats and node.target in EMBEDDINGS and self._from_tokens(node.args[1]):
            value = node.target(*args, **kwargs)
            self.variables[node.name] = Input(name=node.name, value=value, path=_path(node.meta)[0])
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _switched_off(node):
            raise RandomOperatorError(
                f"the model draws random numbers ({node.target} in {_path(node.meta)[0] or '(top level)'} at "
                f"{source_of(node.meta)}): a random function has no Lipschitz constant. Switch the randomness off, or "
                "measure another mode."
            )
        elif not depends:
            self.constants[node.name] = node.target(*args, **kwargs)  # type: ignore[operator]
        elif (constant := _constant_by_shape(node, args, kwargs)) is not None:
            self.constants[node.name] = constant
        elif not isinstance(node.meta.get("val"), Tensor):
            refuse_numbers(node)
            self.multiple[node.name] = _node(node, node.target, args, kwargs)
        else:
            self.made[node.name] = self._written(node, args, kwargs)

    def _dropout(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], depends: bool) -> None:
        """Read a dropout, which counts as off."""
        both = node.target is aten.native_dropout.default  # it returns its mask as well
        if not depends:
            self.constants[node.name] = (args[0], None) if both else args[0]
            return
        self.notes += [] if _switched_off(node) else [DROPPED]
        if both:
            self.multiple[node.name] = _node(node, node.target, args, kwargs)
        else:
            self.made[node.name] = _identity(node, args[0])

    def _from_tokens(self, node: Any) -> bool:
        """Whether an argument is the user's tokens, perhaps moved about."""
        while isinstance(node, torch.fx.Node) and node.op == "call_function" and _moves_tokens(node.target):
            node = node.args[0]
        return isinstance(node, torch.fx.Node) and node.name in self.tokens

    def _written(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """Return the node of an operator, in a form that rules know."""
        if node.target is aten.type_as.default:  # it reads only the dtype of its second operand
            return _node(node, aten._to_copy.default, args[:1], {"dtype": node.meta["val"].dtype})
        if node.target is AS_STRIDED:
            return _node(node, aten.take.default, (args[0], entries_read(node)), {})
        if node.target is aten.detach.default:  # it changes gradients, but not the function
            return _identity(node, args[0])
        if (written := simpler(node.target, args, node.meta["val"])) is not None:
            picked = 0 if node.target is CALLED_BATCH_NORM else None
            return _node(node, *written, index=picked)
        if node.target is aten.scaled_dot_product_attention.default:
            args, kwargs, dropping = _without_dropout(args, kwargs)
            self.notes += [DROPPED] if dropping else []
        return _node(node, node.target, args, kwargs)


def _refers(arguments: Any) -> bool:
    """Whether arguments hold a value that depends on the input."""
    return any(isinstance(leaf, Ref) for leaf in leaves(arguments))


def _constant_by_shape(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the value of an operator that reads only the shape or the dtype of its operands; None for any other."""
    if node.target is aten.type_as.default and not isinstance(args[0], Ref):
        return args[0].to(node.meta["val"].dtype)
    if node.target in BY_SHAPE and not _refers((args[1:], kwargs)):
        dtype = node.args[0].meta["val"].dtype  # type: ignore[union-attr]
        like = torch.zeros(args[0].shape, dtype=dtype, device=node.meta["val"].device)
        return node.target(like, *args[1:], **kwargs)
    return None


def _shape(node: torch.fx.Node) -> tuple[int, ...]:
    """Return the shape of a traced value; refuse one that depends on values, unless a later layer takes one size."""
    sizes = [size if isinstance(size, int) else size.node.maybe_as_int() for size in node.meta["val"].shape]
    if any(size is None for size in sizes):
        raise CaptureError(
            f"how many entries the tensor made at {source_of(node.meta) or node.target} has depends on values (a mask "
            "as an index, nonzero, unique), which torch.export does not read, not even those of a constant mask, and a "
            "traced graph has fixed shapes. Index by integers that were made beforehand (mask.nonzero()), multiply by "
            "the mask, or use torch.where; figures at the data still work: normscope.lipschitz(model, batch, "
            'scope="point")'
        )
    return tuple(sizes)


def refuse_numbers(node: torch.fx.Node) -> None:
    """Refuse a value of a tensor that is taken out as a Python number."""
    if isinstance(node.meta.get("val"), torch.SymFloat | torch.SymInt | torch.SymBool):
        raise CaptureError(
            f"a value of a tensor is taken out as a number (.item(), float()) at "
            f"{source_of(node.meta) or node.target}, and no bound is known through it: keep it a tensor"
        )


def _derived(
    program: TracedProgram, made: dict[str, Node], constants: dict[str, Any]
) -> tuple[tuple[str, Tensor], ...]:
    """Return where a constant is read that was computed from a parameter, with that parameter; views do not count."""
    weights, nodes = _parameters(program), {node.name: node for node in program.graph.nodes}
    derived: dict[tuple[str, str], tuple[str, Tensor]] = {}
    for name, node in made.items():
        for operand in nodes[name].all_input_nodes if name in nodes else ():
            value = constants.get(operand.name)
            if not isinstance(value, Tensor):
                continue
            for source in ancestors(operand):
                if source.name in weights and not overlap(value, constants[source.name]):
                    derived[node.where, source.name] = node.where, constants[source.name]
    return tuple(derived.values())


def _held(program: TracedProgram, reader: _Reader) -> tuple[HeldArgument, ...]:
    """Return the tensors among the arguments that are no inputs of the graph, and that it depends on."""
    nodes = {node.name: node for node in program.graph.nodes}
    read = {
        operand for name in reader.multiple | reader.made if name in nodes for operand in nodes[name].all_input_nodes
    }
    constants = _names_above(operand for operand in read if operand.name in reader.constants)
    starts = _names_above(nodes[name] for name in reader.variables)
    return tuple(
        HeldArgument(place, value, name in constants)
        for place, name in enumerate(program.graph_signature.user_inputs)
        if name in constants | starts
        and name not in reader.variables
        and isinstance(value := reader.constants[name], Tensor)
        and value.ndim
    )


def _names_above(nodes: Iterable[torch.fx.Node]) -> set[str]:
    """Return the names of traced values and of everything they depend on."""
    return {source.name for node in nodes for source in ancestors(node)}


def _parameters(program: TracedProgram) -> dict[str, str]:
    """Return the names of the parameters, by those of their placeholders."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.PARAMETER]
    return {spec.arg.name: str(spec.target).removeprefix("model.") for spec in specs}


def _samples(call: Call, program: TracedProgram, variables: dict[str, Input]) -> Tensor:
    """Return the used inputs of the batch as one flat row per sample."""
    names = program.graph_signature.user_inputs
    tensors = [leaf.detach() for leaf, name in zip(call.leaves, names, strict=True) if name in variables]
    return torch.cat([tensor.reshape(tensor.shape[0], -1) for tensor in tensors], dim=1)


def _placeholders(program: TracedProgram, call: Call) -> dict[str, Any]:
    """Return the value of every placeholder: parameters, buffers, lifted constants, and the batch itself."""
    values: dict[str, Any] = {}
    single = call.sample() if call.per_sample else call
    leaves_left = iter(single.leaves)
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            values[name] = next(leaves_left)
        elif spec.target in program.state_dict:
            held = program.state_dict[spec.target].detach()
            values[name] = held.clone() if spec.kind is InputKind.BUFFER else held  # some operators write into buffers
        else:
            values[name] = program.constants[str(spec.target)]
    return values


def output_of(program: TracedProgram) -> torch.fx.Node:
    """Return the traced value that is measured."""
    specs = program.graph_signature.output_specs
    name = next(spec.arg.name for spec in specs if spec.kind is OutputKind.USER_OUTPUT)
    return next(node for node in program.graph.nodes if node.name == name)


def draws_in(program: TracedProgram) -> int:
    """Return how many operators of a trace draw random numbers, whether the output depends on them or not."""
    return sum(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _switched_off(node)
        for node in program.graph.nodes
        if node.op == "call_function"
    )


def _switched_off(node: torch.fx.Node) -> bool:
    """Whether an operator that torch tags as random draws nothing here.

    Dropout and rrelu are random in train mode only; attention has the tag whatever its dropout is.
    """
    if "dropout" in str(node.target):
        return node.args[2] is False
    if node.target is aten.rrelu.default:
        return not (node.args[3] if len(node.args) > 3 else node.kwargs.get("training", False))
    if str(node.target).startswith(("aten.lstm", "aten.gru", "aten.rnn")):
        return bool(node.args[5] == 0 or not node.args[6])
    return "scaled_dot_product_attention" in str(node.target)


def _without_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """Return attention's arguments with its dropout off, and whether it was on."""
    share = _argument(args, kwargs, 4, "dropout_p") or 0.0
    args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
    return args, {key: value for key, value in kwargs.items() if key != "dropout_p"}, share > 0


def _identity(node: torch.fx.Node, argument: Any) -> Node:
    return _node(node, aten.alias.default, (argument,), {})


def _node(node: torch.fx.Node, op: Any, args: Any, kwargs: Any, index: Any = None, meta: Node | None = None) -> Node:
    value = node.meta.get("val")
    if (
        op is aten.rms_norm.default and isinstance(value, Tensor) and _argument(args, kwargs, 3, "eps") is None
    ):  # torch takes the eps of the input's dtype
        args, kwargs = args[:3], {**kwargs, "eps": rms_epsilon(None, value.dtype)}
    path, kind = (meta.path, meta.kind) if meta else _path(node.meta)
    call = meta.call if meta else next(reversed(node.meta.get("nn_module_stack") or [""]), "")
    return Node(
        name=node.name,
        op=RESHAPES.get(op, op),
        args=tuple(args),
        kwargs=dict(kwargs),
        index=index,
        shape=_shape(node) if isinstance(value, Tensor) else (),
        dtype=value.dtype if isinstance(value, Tensor) else torch.float32,
        device=value.device if isinstance(value, Tensor) else torch.device("cpu"),
        path=path,
        kind=kind,
        call=call,
        source=meta.source if meta else source_of(node.meta),
    )


def _argument(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _path(meta: dict[str, Any]) -> tuple[str, str]:
    """Return the path and the class of the module that ran an operator, without the level of `Caller`."""
    stack = list((meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", ""
    path, kind = stack[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return re.sub(r"^model\.?", "", path.split("@")[0]), kind.rsplit(".", 1)[-1]


def rounded(inputs: Iterable[Input], nodes: Iterable[Node]) -> tuple[str, ...]:
    """Say where values that depend on an input are stored in a float that does not hold every value of that input.

    A model in one float throughout counts as the real function of its stored weights, however narrow that float is.
    """
    reached = {item.name: {dtype} if (dtype := item.value.dtype).is_floating_point else set() for item in inputs}
    narrow: set[str] = set()
    places = []
    for node in nodes:
        reached[node.name] = set().union(*(reached[ref] for ref in node.refs))
        if not narrow.isdisjoint(node.refs):
            narrow.add(node.name)
        elif (node.dtype.is_floating_point or node.dtype.is_complex) and not all(
            holds(node.dtype, wide) for wide in reached[node.name]
        ):
            narrow.add(node.name)
            places.append(f"values are rounded to {str(node.dtype).removeprefix('torch.')} in {node.where}")
    return tuple(dict.fromkeys(places))


def holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether a float, or each part of a complex number, holds every value of a float."""
    mine, theirs = torch.finfo(dtype), torch.finfo(other)
    return mine.eps <= theirs.eps and mine.max >= theirs.max and mine.smallest_normal <= theirs.smallest_normal


TENSOR_WORDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}
NUMBERS = ("int", "float", "number")
"""Types of arguments that are one number."""


def read_constants(
    program: TracedProgram,
    needed: Collection[torch.fx.Node],
    values: Mapping[str, Any],
    varying: Collection[str],
    without_effect: Collection[Any],
) -> tuple[tuple[Constant, ...], tuple[ConstantRead, ...]]:
    """Return every constant that the output depends on, and which operators of the graph read it."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    constants: list[Constant] = []
    reads: list[ConstantRead] = []
    # What belongs to the sample, as a mask that was passed with it, is no constant.
    origins: dict[str, frozenset[int]] = {name: frozenset() for name in program.graph_signature.user_inputs}

    def add(name: str, kind: str, value: Any, source: str) -> frozenset[int]:
        constants.append(Constant(name=name, kind=kind, value=value, source=source))
        return frozenset({len(constants) - 1})

    for node in program.graph.nodes:
        if node not in needed or node.name in origins or (node.name in varying and node.op != "call_function"):
            continue
        if node.op != "call_function":
            spec, value = specs.get(node.name), values.get(node.name)
            name = str(spec.target if spec else node.target).removeprefix("model.")
            kind = TENSOR_WORDS.get(spec.kind, "tensor") if spec else "tensor"
            reader = next(user for user in node.users if user in needed)
            kind = kind if isinstance(value, Tensor) else "object"
            origins[node.name] = add(name, kind, value, source_of(reader.meta))
            continue
        own = list(_written(node)) if node.target not in without_effect else []
        source = source_of(node.meta) if own else ""
        written = [add(name, kind, value, source) for name, kind, value in own]
        operands = [operand.name for operand in node.all_input_nodes if operand in needed]
        constant = [name for name in operands if name not in varying]
        if node.name not in varying:
            origins[node.name] = frozenset().union(*written, *(origins[name] for name in constant))
            continue
        reads += [ConstantRead(node=node.name, entries=1, real=False, origins=one) for one in written]
        for name in constant:
            value = values.get(name)
            real, entries = (value.is_floating_point(), value.numel()) if isinstance(value, Tensor) else (False, 1)
            reads.append(ConstantRead(node=node.name, entries=entries, real=real, origins=origins[name]))
    return tuple(constants), tuple(reads)


def _written(node: torch.fx.Node) -> Iterator[tuple[str, str, Any]]:
    """Yield what the code writes into an operator's arguments: the name, kind and value of each constant.

    Which tensors an operator reads, and in which arguments, is how operators are connected. All else was chosen: the
    numbers, and what the arguments are besides (which of them are given, flags, texts, dtypes, lengths of lists).
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        arguments, chosen = {str(place): value for place, value in enumerate((*node.args, *node.kwargs.items()))}, None
    else:
        arguments = dict(zip((port.name for port in schema.arguments), node.args)) | node.kwargs
        chosen = [
            port.name
            for port in schema.arguments
            if "Tensor" not in str(port.type) and (port.has_default_value() or str(port.real_type) not in NUMBERS)
        ]
    numbers: dict[str, list[Any]] = {name: [] for name in arguments}
    forms = {name: _form(value, numbers[name]) for name, value in arguments.items()}
    choice = [forms.get(name, Argument.ABSENT) for name in (forms if chosen is None else chosen)]
    if choice:
        while choice and choice[-1] is Argument.ABSENT:
            choice.pop()
        yield str(node.target), "choice", tuple(choice)
    for name, values in numbers.items():
        yield from ((f"{node.target}:{name}", "number", value) for value in values)


def _form(argument: Any, numbers: list[Any]) -> Any:
    """Return an argument with a kind of `Argument` for each number and traced value; add the numbers to a list."""
    if isinstance(argument, slice):
        argument = argument.start, argument.stop, argument.step
    if isinstance(argument, Mapping):
        argument = tuple(argument.items())
    if isinstance(argument, list | tuple):
        return tuple(_form(one, numbers) for one in argument)
    if isinstance(argument, int | float | complex) and not isinstance(argument, bool):
        numbers.append(argument)
        return Argument.NUMBER
    if isinstance(argument, torch.fx.Node):
        return Argument.VALUE
    return str(argument) if isinstance(argument, torch.device) else argument


TORCH = os.path.dirname(torch.__file__) + os.sep
HERE = str(Path(__file__).parents[2]) + os.sep
STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
PACKAGES = tuple(f"{os.sep}{root}{os.sep}" for root in ("site-packages", "dist-packages"))
BY_VALUE = ("data-dependent", "data dependent", "datadependent", "_local_scalar_dense")
"""Parts of torch's errors where Python reads the value of a tensor that is only traced."""


def source_of(meta: dict[str, Any]) -> str:
    """Return the deepest line of code behind a traced value that is not PyTorch's own."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', meta.get("stack_trace") or "")
    frames = [(file, line) for file, line in frames if not file.startswith((HERE, "<eval"))]
    own = [(file, line) for file, line in frames if not file.startswith(TORCH)]
    return ":".join((_short((own or frames)[-1][0]), (own or frames)[-1][1])) if frames else ""


def line_of(error: BaseException) -> str:
    """Return the deepest line of the user's code that an error came through, as `code` at file:line; "" if none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return users_line(frames)


def users_line(frames: Iterable[tuple[str, int]]) -> str:
    """Return the deepest of some lines that is the user's code, as `code` at file:line; "" if none is."""
    own = [(file, line) for file, line in frames if _is_users(file)]
    if not own:
        return ""
    file, line = own[-1]
    code = linecache.getline(file, line).strip()
    return f"`{code}` at {_short(file)}:{line}" if code else f"{_short(file)}:{line}"


def _is_users(file: str) -> bool:
    if file.startswith((TORCH, HERE, "<eval", "<frozen", "<string")):
        return False
    return not file.startswith(STANDARD) or any(root in file for root in PACKAGES)


def why_untraced(error: BaseException) -> str:
    """Say why torch.export stopped, with the user's own line."""
    where, reason = line_of(error), describe_error(error)
    if any(words in f"{type(error).__name__} {error}".lower() for words in BY_VALUE):
        return why_by_value(where)
    return f"torch.export cannot trace this model: {reason}{f', in {where}' if where else ''}"


def why_by_value(where: str) -> str:
    """Say why a model cannot be traced in which Python reads the value of a tensor, with the user's own line."""
    return (
        f"torch.export cannot trace this model: Python reads the value of a tensor "
        f"({where or 'torch does not say where'}) to decide what to do next or "
        "to compute with it, and a traced graph is the same for all values. Write it in tensor operators "
        "(torch.where for a choice, tensors instead of .item()), move a check out of forward, or remove a hook or a "
        "print that only shows values"
    )


def _short(file: str) -> str:
    """Return the path of a source file inside its package, or relative to the working directory."""
    for root in PACKAGES:
        if root in file:
            return file.split(root, 1)[1]
    here = os.getcwd() + os.sep
    return file.removeprefix(here)
