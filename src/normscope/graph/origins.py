"""What a traced function holds besides its input: every constant, of every type, and which operators read it.

A traced program names its parameters, buffers and lifted tensors (globals, closures, plain attributes, NumPy arrays),
and shows every Python number as an argument of an operator. Operators on constants alone are evaluated before the graph
is made: what they were computed from is found here, and not in the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.node import map_aggregate

from .user_lines import source_of

KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant:
    """Something that a traced function holds besides its input.

    Attributes:
        name: of a tensor as the model or torch.export calls it; of a number the operator and its argument.
        kind: `"parameter"`, `"buffer"`, `"tensor"` (held elsewhere), `"number"` (or text), `"object"` (anything else).
        value: the tensor, the number, or the object.
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
        own = list(_numbers(node)) if node.target not in without_effect else []
        source = source_of(node.meta) if own else ""
        numbers = [add(f"{node.target}:{name}", "number", number, source) for name, number in own]
        constant = [operand.name for operand in node.all_input_nodes if operand.name not in varying]
        if node.name not in varying:
            origins[node.name] = frozenset().union(*numbers, *(origins[name] for name in constant))
            continue
        reads += [ConstantRead(node=node.name, entries=1, real=False, origins=number) for number in numbers]
        for name in constant:
            value = values.get(name)
            real, entries = (value.is_floating_point(), value.numel()) if isinstance(value, Tensor) else (False, 1)
            reads.append(ConstantRead(node=node.name, entries=entries, real=real, origins=origins[name]))
    return tuple(constants), tuple(reads)


def _numbers(node: torch.fx.Node) -> Iterator[tuple[str, Any]]:
    """Yield the numbers, flags and texts among an operator's arguments, each with the name of its argument."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    named = [(names[place] if place < len(names) else str(place), value) for place, value in enumerate(node.args)]
    for name, argument in (*named, *node.kwargs.items()):
        leaves: list[Any] = []
        map_aggregate(argument, leaves.append)
        yield from ((name, leaf) for leaf in leaves if isinstance(leaf, bool | int | float | complex | str))
