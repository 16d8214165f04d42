"""Read traces without torch's rewriting, where nothing is written in place or no later operator can see it.

torch.export leaves views, casts and batch norms as the model called them. `run_decompositions` rewrites them in fewer
kinds of operators, which takes longer than the trace itself. A trace without other operators that need it is read as it
is, and `simpler` rewrites these few operators in the same way.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

aten = torch.ops.aten


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
BATCH_NORM = aten.batch_norm.default
DROPOUT = aten.dropout.default
TRAINING = 5
"""The position of the argument of a batch norm that makes it use, and store, the statistics of its batch."""


def writes_nothing(program: ExportedProgram) -> bool:
    """Whether no operator writes in place; torch does not declare that a batch norm writes its running statistics."""
    return all(
        isinstance(node.target, torch._ops.OpOverload)
        and not node.target._schema.is_mutable
        and not ("batch_norm" in str(node.target) and node.args[TRAINING : TRAINING + 1] == (True,))
        for node in _calls(program)
    )


def is_plain(program: ExportedProgram) -> bool:
    """Whether a trace can be read as it is: every operator on values that depend on the input must be known."""
    known = KEPT | VIEWS | CASTS | COPIES | {BATCH_NORM, DROPOUT}
    varying = _varying(program)
    return writes_nothing(program) and all(node.target in known for node in _calls(program) if node in varying)


def _varying(program: ExportedProgram) -> set[torch.fx.Node]:
    """Return the values that depend on a float input or on an embedding; all others are constants."""
    given = set(program.graph_signature.user_inputs)
    found: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        starts = node.name in given and isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        if starts or node.target is aten.embedding.default or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _calls(program: ExportedProgram) -> list[torch.fx.Node]:
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
    if target is BATCH_NORM:
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


def write_out_of_place(program: ExportedProgram) -> None:
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
