"""What torch.export made of a model as a `Graph`: what does not depend on the input is evaluated, the rest is kept."""

from __future__ import annotations

import operator
import os
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ..core.errors import InputError, RandomOperatorError
from ..theory.normalizers import rms_epsilon
from .call import Call
from .ir import Graph, Input, Node, Ref, leaves
from .memory import AS_STRIDED, entries_read
from .precision import rounded
from .state import (
    batch_norm_output,
    refuse_hidden_reads,
    refuse_moving_statistics,
    state_notes,
    without_unread_statistics,
)

aten = torch.ops.aten

EMBEDDINGS = {aten.embedding.default}
MOVES = {  # what may stand between the user's token ids and the embedding
    aten.view.default, aten.reshape.default, aten._to_copy.default, aten.clone.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.slice.Tensor, aten.alias.default, aten.contiguous.default, aten._unsafe_view.default,
    aten.to.dtype,
}  # fmt: skip
CALLER = os.path.join("normscope", "graph", "call.py")
RESHAPES = {  # a view that was legal on the original strides may not be on ours
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}
BY_SHAPE = {  # constants that only take the shape of their operand
    aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_zeros.default,
    aten.new_ones.default, aten.new_full.default, aten.fill.Scalar, aten.fill.Tensor, aten.copy.default,
}  # fmt: skip
DROPPED = "dropout counts as off"
DROPOUT = {aten.native_dropout.default, aten.dropout.default}


def floats(node: Any) -> bool:
    """Whether a traced value is a float tensor."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def translate(program: ExportedProgram, call: Call, mode: str) -> Graph:
    """Evaluate what does not depend on the input, keep the rest as nodes."""
    held = call.per_sample and len(call.leaves) > len(call.variables) > 0
    notes = ["masks and other constant inputs are those of the first sample"] if held else []
    nodes = {node.name: node for node in program.graph.nodes}
    output = output_of(program)
    needed = ancestors(output)
    refuse_hidden_reads(program, needed)
    constants = _placeholders(program, call)
    tokens = _token_inputs(program, constants)
    variables: dict[str, Input] = {}
    made: dict[str, Node] = {}
    notes = [*notes, *call.notes, *state_notes(program, needed)]

    def resolve(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            if argument.name in variables or argument.name in made:
                return Ref(argument.name, tuple(int(size) for size in argument.meta["val"].shape))
            return constants[argument.name]
        if isinstance(argument, list | tuple):
            return [resolve(item) for item in argument]
        return argument

    named = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    masks = {name for name in named if "mask" in name}
    notes += [f"input {name!r} is held constant, as its name says mask" for name in masks if floats(nodes[name])]
    has_floats = any(floats(nodes[name]) for name in named - masks if name in nodes)
    multiple: dict[str, Node] = {}
    for name, node in nodes.items():
        if node not in needed:
            continue
        if node.op == "placeholder":
            if has_floats and name in named - masks and floats(node):
                variables[name] = Input(name=name, value=constants[name], path=name)
            continue
        if node.op == "get_attr":
            constants[name] = _attribute(program.graph_module, str(node.target))
            continue
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and node.args[0].name in multiple:
            parent = multiple[node.args[0].name]
            if parent.op in DROPOUT:
                made[name] = _identity(node, parent.args[0])
            else:
                chosen = _node(node, parent.op, parent.args, parent.kwargs, index=node.args[1], meta=parent)
                made |= {written.name: written for written in batch_norm_output(chosen)}
            continue
        args = tuple(resolve(item) for item in without_unread_statistics(node))
        refuse_moving_statistics(node, args)
        kwargs = {key: resolve(item) for key, item in node.kwargs.items()}
        depends = any(isinstance(leaf, Ref) for leaf in leaves((args, kwargs)))
        if node.target in DROPOUT:
            if depends:
                notes += [] if _switched_off(node) else [DROPPED]
                if node.target is aten.dropout.default:
                    made[name] = _identity(node, args[0])
                else:
                    multiple[name] = _node(node, node.target, args, kwargs)
            else:
                constants[name] = (args[0], None) if node.target is aten.native_dropout.default else args[0]
            continue
        if not depends and not has_floats and node.target in EMBEDDINGS and _from_tokens(node.args[1], tokens):
            value = node.target(*args, **kwargs)
            variables[name] = Input(name=name, value=value, path=_path(node.meta)[0])
            continue
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _switched_off(node):
            path, _ = _path(node.meta)
            raise RandomOperatorError(
                f"the model draws random numbers ({node.target} in {path or '(top level)'} at {source_of(node.meta)}): "
                "a random function has no Lipschitz constant. Switch the randomness off, or measure another mode."
            )
        if not depends:
            constants[name] = node.target(*args, **kwargs)
            continue
        if node.target is aten.type_as.default:  # of the second operand it reads the dtype alone
            dtype = {"dtype": node.meta["val"].dtype}
            if isinstance(args[0], Ref):
                made[name] = _node(node, aten._to_copy.default, args[:1], dtype)
            else:
                constants[name] = args[0].to(**dtype)
            continue
        if node.target is AS_STRIDED:
            made[name] = _node(node, aten.take.default, (args[0], entries_read(node)), {})
            continue
        if node.target in BY_SHAPE and not any(isinstance(leaf, Ref) for leaf in leaves((args[1:], kwargs))):
            like = torch.zeros(args[0].shape, dtype=node.args[0].meta["val"].dtype, device=node.meta["val"].device)
            constants[name] = node.target(like, *args[1:], **kwargs)
            continue
        if not isinstance(node.meta.get("val"), Tensor):
            multiple[name] = _node(node, node.target, args, kwargs)
            continue
        if node.target is aten.scaled_dot_product_attention.default:
            args, kwargs, dropping = _without_dropout(args, kwargs)
            notes += [DROPPED] if dropping else []
        if node.target is aten.detach.default:  # it changes gradients, not the function
            made[name] = _identity(node, args[0])
            continue
        made[name] = _node(node, node.target, args, kwargs)

    if not variables and has_floats:
        raise InputError("the output does not depend on the input: there is nothing to measure")
    if not variables:
        raise InputError(
            "the batch holds integers and the model has no embedding for them to start at: pass float inputs "
            "(for language models pass input_ids; the measurement starts at the token embeddings)"
        )
    if output.name not in variables and output.name not in made:
        raise InputError("the output does not depend on the input: there is nothing to measure")
    narrow = rounded(variables.values(), made.values())
    notes += [
        f"{where}, which is a jump: no bound is PROVEN, and all are those without this rounding" for where in narrow
    ]
    return Graph(
        inputs=tuple(variables.values()),
        nodes=tuple(made.values()),
        output=output.name,
        mode=mode,
        per_sample=call.per_sample,
        notes=tuple(dict.fromkeys(notes)),
        rounded=narrow,
        derived=_derived(nodes, multiple | made, constants, _parameters(program)),
        samples=_samples(call, program, variables) if has_floats and call.per_sample else None,
    )


def _derived(
    nodes: dict[str, torch.fx.Node], made: dict[str, Node], constants: dict[str, Any], weights: set[str]
) -> tuple[tuple[str, Tensor], ...]:
    """Return which places read a constant that was computed from a parameter, with the parameter; views are no such."""
    found: dict[tuple[str, str], tuple[str, Tensor]] = {}
    for name, node in made.items():
        for operand in nodes[name].all_input_nodes if name in nodes else ():
            value = constants.get(operand.name)
            if not isinstance(value, Tensor):
                continue
            for source in ancestors(operand):
                if source.name in weights and not _one_memory(value, constants[source.name]):
                    found[node.where, source.name] = node.where, constants[source.name]
    return tuple(found.values())


def _one_memory(first: Tensor, second: Tensor) -> bool:
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def _parameters(program: ExportedProgram) -> set[str]:
    """Names of the placeholders that are parameters."""
    return {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.PARAMETER}


def _samples(call: Call, program: ExportedProgram, variables: dict[str, Input]) -> Tensor:
    """Return the batch as one flat row per sample, of the inputs that are used."""
    names = program.graph_signature.user_inputs
    tensors = [leaf.detach() for leaf, name in zip(call.leaves, names, strict=True) if name in variables]
    return torch.cat([tensor.reshape(tensor.shape[0], -1) for tensor in tensors], dim=1)


def _placeholders(program: ExportedProgram, call: Call) -> dict[str, Any]:
    """Return the value of every placeholder: parameters, buffers, lifted constants, and the batch itself."""
    values: dict[str, Any] = {}
    single = call.sample() if call.per_sample else call
    given = iter(single.leaves)
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            values[name] = next(given)
        elif spec.target in program.state_dict:
            held = program.state_dict[spec.target].detach()
            values[name] = held.clone() if spec.kind is InputKind.BUFFER else held  # some operators write into buffers
        else:
            values[name] = program.constants[str(spec.target)]
    return values


def _token_inputs(program: ExportedProgram, constants: dict[str, Any]) -> set[str]:
    """Names of the integer inputs the measurement starts from: `input_ids`, or the only integer tensor."""
    integer = [n for n in program.graph_signature.user_inputs if isinstance(constants.get(n), Tensor)]
    integer = [n for n in integer if not constants[n].is_floating_point() and "mask" not in n]
    named = [n for n in integer if "input_ids" in n]
    return set(named or integer)


def _from_tokens(node: Any, tokens: set[str]) -> bool:
    while isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in MOVES:
        node = node.args[0]
    return isinstance(node, torch.fx.Node) and node.name in tokens


def output_of(program: ExportedProgram) -> torch.fx.Node:
    """Return the traced value that is measured."""
    specs = program.graph_signature.output_specs
    name = next(spec.arg.name for spec in specs if spec.kind is OutputKind.USER_OUTPUT)
    return next(node for node in program.graph.nodes if node.name == name)


def ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    """Return a traced value and everything it depends on."""
    seen, stack = set(), [node]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack.extend(current.all_input_nodes)
    return seen


def _switched_off(node: torch.fx.Node) -> bool:
    """Attention carries the random tag whatever its dropout; rrelu and dropout are random in train mode only."""
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
    ):  # torch: the eps of the input's dtype
        args, kwargs = args[:3], {**kwargs, "eps": rms_epsilon(None, value.dtype)}
    path, kind = (meta.path, meta.kind) if meta else _path(node.meta)
    call = meta.call if meta else next(reversed(node.meta.get("nn_module_stack") or [""]), "")
    return Node(
        name=node.name,
        op=RESHAPES.get(op, op),
        args=tuple(args),
        kwargs=dict(kwargs),
        index=index,
        shape=tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else (),
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
    """Module path and class, less the wrapper's own level."""
    stack = list((meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", ""
    path, kind = stack[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return re.sub(r"^model\.?", "", path.split("@")[0]), kind.rsplit(".", 1)[-1]


def source_of(meta: dict[str, Any]) -> str:
    """Deepest line of the user's code (or of their library) that is not PyTorch's own."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', meta.get("stack_trace") or "")
    inside = os.path.dirname(torch.__file__) + os.sep
    frames = [(file, line) for file, line in frames if not file.endswith(CALLER) and not file.startswith("<eval")]
    own = [(file, line) for file, line in frames if not file.startswith(inside)]
    return ":".join((_short((own or frames)[-1][0]), (own or frames)[-1][1])) if frames else ""


def _short(file: str) -> str:
    """Return a source file as its package names it, or relative to where the program runs."""
    for root in ("site-packages", "dist-packages"):
        if f"{os.sep}{root}{os.sep}" in file:
            return file.split(f"{os.sep}{root}{os.sep}", 1)[1]
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def _attribute(module: nn.Module, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part)
    return module
