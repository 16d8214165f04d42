"""Prepare a traced program to be read: state that it changes, operators that write in place, memory that it addresses.

A normalizer in train mode also moves its running statistics. Its output does not read them; a model whose output reads
statistics that the same run has moved is refused.

torch.export leaves views, casts and batch norms as the model called them. `run_decompositions` rewrites them in fewer
kinds of operators, which takes longer than the trace itself. A trace without other operators that need it is read as it
is, and `simpler` rewrites these few operators in the same way.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.nn.modules.batchnorm import _NormBase

from ...core.errors import CaptureError
from ...core.untouched import same
from .ir import Node, Ref

aten = torch.ops.aten

BATCH_NORM = aten._native_batch_norm_legit_functional.default
BATCH_NORM_EVAL = aten._native_batch_norm_legit_no_training.default
INSTANCE_NORM = aten.instance_norm.default
STATISTICS = (3, 4)
"""The positions of the running statistics among a normalizer's arguments, and of the moved ones in its outputs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainProgram:
    """A trace that was made without torch.export (`chains.py`), with what is read of an exported one."""

    graph: torch.fx.Graph
    graph_signature: Any
    state_dict: dict[Any, Tensor]
    constants: dict[str, Any] = dataclasses.field(default_factory=dict)
    graph_module: None = None


TracedProgram = ExportedProgram | ChainProgram


def batch_norm_output(node: Node) -> Node:
    """Return the normalized output of a train-mode batch norm as an operator without statistics; others as they are."""
    if node.op is not BATCH_NORM or not node.args[5]:
        return node
    args = (*node.args[:3], *node.args[5:])
    return dataclasses.replace(node, op=aten._native_batch_norm_legit.no_stats, args=args, kwargs={})


@contextmanager
def with_momentum(model: nn.Module) -> Iterator[None]:
    """Give batch norms with `momentum=None` a number while they are traced.

    Torch would read theirs from a tensor, which a trace cannot do. No output reads statistics that its own run has
    moved, so that any number will do.
    """
    averaging = [module for module in model.modules() if isinstance(module, _NormBase) and module.momentum is None]
    for module in averaging:
        module.momentum = 0.1
    try:
        yield
    finally:
        for module in averaging:
            module.momentum = None


def part_twins(program: TracedProgram) -> None:
    """Give the second name of a tensor, which no operator reads, a value of its own.

    A module that is registered twice has two names, and so have its statistics; torch's rewriting fails where one of
    two names is written.
    """
    unread = {node.name for node in program.graph.nodes if node.op == "placeholder" and not node.users}
    held: Counter[int] = Counter(id(value) for value in program.state_dict.values())
    for spec in program.graph_signature.input_specs:
        value = program.state_dict.get(str(spec.target))
        if value is not None and spec.arg.name in unread and held[id(value)] > 1:
            filler = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
            program.state_dict[str(spec.target)] = nn.Parameter(filler) if isinstance(value, nn.Parameter) else filler


def moved_statistics(node: torch.fx.Node) -> tuple[int, ...]:
    """Return the positions of the arguments that a normalizer moves and does not read: running statistics, in training.

    The argument behind the statistics is the flag that says so, for both kinds of normalizers.
    """
    moves = node.target in (BATCH_NORM, INSTANCE_NORM) and node.args[5] is True and node.args[3] is not None
    return STATISTICS if moves else ()


def ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    """Return a traced value and everything it depends on."""
    reached, stack = set(), [node]
    while stack:
        current = stack.pop()
        if current not in reached:
            reached.add(current)
            if skipped := moved_statistics(current):
                arguments = [argument for place, argument in enumerate(current.args) if place not in skipped]
                stack.extend(argument for argument in arguments if isinstance(argument, torch.fx.Node))
            else:
                stack.extend(current.all_input_nodes)
    return reached


def refuse_moved_statistics(program: TracedProgram, needed: set[torch.fx.Node]) -> None:
    """Refuse an output that reads running statistics that a normalizer moves in the same run.

    torch.export does not see what an instance norm moves, so that its statistics must be no part of anything else.
    """
    for node in program.graph.nodes:
        held = [node.args[place] for place in moved_statistics(node)]
        if node.target is INSTANCE_NORM:
            read = any(statistic in needed or statistic.op != "placeholder" for statistic in held)
        else:
            read = bool(held) and any(user in needed and user.args[1] in STATISTICS for user in node.users)
        if read:
            raise CaptureError(
                f"the output reads running statistics that {node.target} moves in the same run: normalize with "
                "track_running_stats=False, or do not read them"
            )


def refuse_varying_statistics(node: torch.fx.Node, args: Sequence[Any]) -> None:
    """Refuse a normalizer whose running statistics depend on the input; torch has no derivative for it either."""
    statistics = args[3:5] if node.target in (BATCH_NORM_EVAL, aten.batch_norm.default, INSTANCE_NORM) else ()
    if any(isinstance(statistic, Ref) for statistic in statistics):
        raise CaptureError(
            f"{node.target} normalizes with running statistics that this very run has changed: write the normalization "
            "out in operators, or give it statistics that stay"
        )


def read_state(program: TracedProgram, needed: set[torch.fx.Node]) -> dict[str, Tensor]:
    """Return the buffers and plain tensors that the output reads and that no operator of the graph writes."""
    written = {spec.target for spec in program.graph_signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION}
    kinds = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    names = {node.name for node in needed if node.op == "placeholder"}
    state = {}
    for spec in program.graph_signature.input_specs:
        target = str(spec.target)
        if spec.kind in kinds and spec.arg.name in names and spec.target not in written:
            held = program.state_dict.get(target, program.constants.get(target))
            if isinstance(held, Tensor):
                state[target.removeprefix("model.")] = held
    return state


def changed(before: dict[str, Tensor], now: dict[str, Tensor]) -> list[str]:
    """Return the names of the tensors whose values have changed."""
    return [name for name, value in now.items() if not same(value, before[name])]


def state_notes(program: TracedProgram, needed: Iterable[torch.fx.Node]) -> list[str]:
    """Say which buffers the forward both changes and reads as found."""
    named = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
    read = {node.name for node in needed if node.op == "placeholder"}
    changes = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION]
    names = [str(spec.target).removeprefix("model.") for spec in changes if named.get(spec.target) in read]
    return [f"every run changes {name!r}, which the output reads: measured with its value as found" for name in names]


def operators(names: str) -> list[Any]:
    """Return torch's operators with the given names, in the same order."""
    parts = (name.partition(".") for name in names.split())
    return [getattr(getattr(aten, name), overload or "default") for name, _, overload in parts]


KEPT = set(
    operators("""
    linear matmul mm bmm addmm conv1d conv2d embedding scaled_dot_product_attention softmax.int
    layer_norm rms_norm group_norm avg_pool2d adaptive_avg_pool2d max_pool2d
    add.Tensor sub.Tensor mul.Tensor div.Tensor rsub.Scalar neg abs exp log sqrt rsqrt reciprocal
    pow.Tensor_Scalar square
    sin cos erf tanh sigmoid relu relu6 leaky_relu elu selu gelu silu mish hardtanh hardswish hardsigmoid softplus
    clamp clamp_min maximum minimum gt.Scalar ge.Scalar lt.Scalar le.Scalar eq.Scalar ne.Scalar where.self
    masked_fill.Scalar mean mean.dim sum sum.dim_IntList amax amin
    permute transpose.int t unsqueeze squeeze.dim cat stack select.int slice.Tensor expand split.Tensor
    expm1 log1p sinh cosh atan floor round celu log_sigmoid threshold glu prelu addcmul lerp.Scalar logsumexp
    log_softmax.int var.dim std.dim max.dim linalg_vector_norm baddbmm einsum outer conv_transpose2d.input im2col
    pixel_shuffle adaptive_max_pool2d upsample_nearest2d.vec upsample_bilinear2d.vec flip rot90 repeat tile hstack
    unbind.int tril index.Tensor gather pad roll cumsum type_as __and__.Tensor le.Tensor
    arange linspace zeros ones full ones_like zeros_like full_like new_ones new_zeros
""")
)
"""Operators that torch's rewriting leaves as they are."""
VIEWS = {aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.unflatten.int}
CASTS = {aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.to.other}
COPIES = {aten.contiguous.default, aten.clone.default, aten.alias.default}
CALLED_BATCH_NORM = aten.batch_norm.default
DROPOUT = aten.dropout.default
TRAINING = 5
"""The position of the argument of a batch norm that makes it use, and store, the statistics of its batch."""


def writes_nothing(program: TracedProgram) -> bool:
    """Whether no operator writes in place; torch does not declare that a batch norm writes its running statistics."""
    return all(
        isinstance(node.target, torch._ops.OpOverload)
        and not node.target._schema.is_mutable
        and not ("batch_norm" in str(node.target) and node.args[TRAINING : TRAINING + 1] == (True,))
        for node in _calls(program)
    )


def is_plain(program: TracedProgram) -> bool:
    """Whether a trace can be read as it is: every operator on values that depend on the input must be known."""
    readable = KEPT | VIEWS | CASTS | COPIES | {CALLED_BATCH_NORM, DROPOUT}
    varying = _varying(program)
    return writes_nothing(program) and all(node.target in readable for node in _calls(program) if node in varying)


def _varying(program: TracedProgram) -> set[torch.fx.Node]:
    """Return the values that depend on a float input or on an embedding; all others are constants."""
    inputs = set(program.graph_signature.user_inputs)
    varying: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        starts = node.name in inputs and isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        if starts or node.target is aten.embedding.default or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
    return varying


def _calls(program: TracedProgram) -> list[torch.fx.Node]:
    """Return the calls of operators, without checks of metadata, which compute nothing."""
    passed = (operator.getitem, aten._assert_tensor_metadata.default)
    return [node for node in program.graph.nodes if node.op == "call_function" and node.target not in passed]


def simpler(target: Any, args: tuple[Any, ...], value: Tensor) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Return an operator, with its arguments, as torch's rewriting would write it; None for one that stays as it is."""
    if target in VIEWS:
        return aten.reshape.default, (args[0], list(value.shape)), {}
    if target in CASTS:
        return aten._to_copy.default, args[:1], {"dtype": value.dtype, "device": value.device}
    if target in COPIES:
        return aten.clone.default, args[:1], {}
    if target is CALLED_BATCH_NORM:
        return aten._native_batch_norm_legit_no_training.default, (*args[:5], *args[6:8]), {}
    return None


_WITH_TWIN = """
    add.Tensor sub.Tensor mul.Tensor div.Tensor relu relu6 leaky_relu elu selu celu silu mish gelu
    hardtanh hardswish hardsigmoid sigmoid tanh clamp
"""
IN_PLACE = dict(zip(operators(re.sub(r"(?<!\S)\w+", r"\g<0>_", _WITH_TWIN)), operators(_WITH_TWIN), strict=True))
"""Operators that write into their first operand, each with the operator that makes a new value instead."""
OWN_MEMORY = {
    *IN_PLACE.values(),
    *operators("""
        conv1d conv2d conv_transpose2d.input linear mm bmm addmm batch_norm layer_norm rms_norm group_norm
        scaled_dot_product_attention softmax.int max_pool2d avg_pool2d adaptive_avg_pool2d mean.dim cat clone
    """),
}
"""Operators whose value never shares memory with an operand, whatever the arguments."""


def write_out_of_place(program: TracedProgram) -> None:
    """Replace the operators that write in place, in the trace itself, if this is safe for all of them; else none.

    `x += y` and `nn.ReLU(inplace=True)` save memory and change nothing else as long as the old value is not read again.
    The replacement is safe if the overwritten value was made by an operator whose result has memory of its own, and if
    all its other readers ran before and have results with memory of their own.
    """
    nodes = list(program.graph.nodes)
    order = {node: position for position, node in enumerate(nodes)}
    writing = [
        node for node in nodes if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    ]
    if all(_unseen(node, order) for node in writing):
        for node in writing:
            node.target = IN_PLACE[node.target]


def _unseen(write: torch.fx.Node, order: dict[torch.fx.Node, int]) -> bool:
    """Whether the value that an operator overwrites is read nowhere after the write."""
    written = write.args[0]
    if write.target not in IN_PLACE or not isinstance(written, torch.fx.Node) or not _own(written):
        return False
    if not all(_own(user) and order[user] < order[write] for user in written.users if user is not write):
        return False
    values = [written.meta.get("val"), *(operand.meta.get("val") for operand in write.all_input_nodes)]
    tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    same = len(tensors) == len(values) and len({value.dtype for value in tensors}) == 1
    return same and write.meta["val"].shape == tensors[0].shape  # a new value has the form of the overwritten one


def _own(node: torch.fx.Node) -> bool:
    """Whether a value has memory of its own."""
    target: Any = node.target
    return node.op == "call_function" and IN_PLACE.get(target, target) in OWN_MEMORY


AS_STRIDED = aten.as_strided.default


def entries_read(node: torch.fx.Node) -> Tensor:
    """Return which entry of its operand each entry of an `as_strided` is, as flat indices in the result's shape.

    That depends on the strides of the operand in memory, which are taken from the traced run.
    """
    arguments: Any = node.args
    operand = arguments[0].meta["val"]
    size, stride, offset = tuple(operand.shape), operand.stride(), operand.storage_offset()
    given_start: Any = arguments[3] if len(arguments) > 3 else node.kwargs.get("storage_offset")
    shape, steps, start = arguments[1], arguments[2], offset if given_start is None else given_start
    length = 1 + max(_end(size, stride, offset), _end(shape, steps, start))
    held = torch.arange(length).as_strided(size, stride, offset).reshape(-1)
    entries = torch.full((length,), -1).scatter(0, held, torch.arange(len(held))).as_strided(shape, steps, start)
    if bool((entries < 0).any()):
        raise CaptureError(
            "as_strided reads memory outside its operand, and what lies there is no function of the operand: "
            "call it on the whole tensor, or use slices"
        )
    return entries.clone().to(node.meta["val"].device)


def _end(size: Any, stride: Any, offset: Any) -> int:
    """Return the offset of the last entry."""
    return offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
