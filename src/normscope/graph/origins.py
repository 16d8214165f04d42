"""What a traced function holds besides its input: every constant, of every type, and which operators read it.

A traced program names its parameters, buffers and lifted tensors (globals, closures, plain attributes, NumPy arrays),
and shows every Python number, flag, text and dtype as an argument of an operator. Operators on constants alone are
evaluated before the graph is made: what they were computed from is found here, and not in the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from .user_lines import source_of

KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}
NUMBERS = ("int", "float", "number")
"""Types of arguments that are one number."""


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


def read_constants(
    program: ExportedProgram,
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
            kind = KINDS.get(spec.kind, "tensor") if spec else "tensor"
            reader = next(user for user in node.users if user in needed)
            kind = kind if isinstance(value, Tensor) else "object"
            origins[node.name] = add(name, kind, value, source_of(reader.meta))
            continue
        own = list(_written(node)) if node.target not in without_effect else []
        source = source_of(node.meta) if own else ""
        written = [add(name, kind, value, source) for name, kind, value in own]
        constant = [operand.name for operand in node.all_input_nodes if operand.name not in varying]
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
        given, chosen = {str(place): value for place, value in enumerate((*node.args, *node.kwargs.items()))}, None
    else:
        given = dict(zip((port.name for port in schema.arguments), node.args)) | node.kwargs
        chosen = [
            port.name
            for port in schema.arguments
            if "Tensor" not in str(port.type) and (port.has_default_value() or str(port.real_type) not in NUMBERS)
        ]
    numbers: dict[str, list[Any]] = {name: [] for name in given}
    forms = {name: _form(value, numbers[name]) for name, value in given.items()}
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
