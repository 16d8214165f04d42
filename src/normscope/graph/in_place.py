"""Replace operators that write in place by those that do not, wherever no later operator can see the difference.

`x += y` and `nn.ReLU(inplace=True)` save memory and change nothing else as long as the old value is not read again.
Torch's own rewriting follows all shared memory and takes longer than the trace. The replacement is safe if the
overwritten value was made by an operator whose result has memory of its own, and if all its other readers ran before
and have results with memory of their own: then nothing reads the old value after the write.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from .direct_trace import operators

IN_PLACE = dict(
    zip(
        operators("""
            add_.Tensor sub_.Tensor mul_.Tensor div_.Tensor relu_ relu6_ leaky_relu_ elu_ selu_ celu_ silu_ mish_ gelu_
            hardtanh_ hardswish_ hardsigmoid_ sigmoid_ tanh_ clamp_
        """),
        operators("""
            add.Tensor sub.Tensor mul.Tensor div.Tensor relu relu6 leaky_relu elu selu celu silu mish gelu
            hardtanh hardswish hardsigmoid sigmoid tanh clamp
        """),
        strict=True,
    )
)
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
    """Replace the operators that write in place, in the trace itself, if this is safe for all of them; else none."""
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
    others = [user for user in written.users if user is not write]
    return all(_own(user) and order[user] < order[write] for user in others) and _keeps_form(write, written)


def _own(node: torch.fx.Node) -> bool:
    """Whether a value has memory of its own."""
    target: Any = node.target
    return node.op == "call_function" and IN_PLACE.get(target, target) in OWN_MEMORY


def _keeps_form(write: torch.fx.Node, written: torch.fx.Node) -> bool:
    """Whether a new value would have the dtype and the shape of the overwritten one."""
    values = [written.meta.get("val"), *(operand.meta.get("val") for operand in write.all_input_nodes)]
    tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    same = len(tensors) == len(values) and len({value.dtype for value in tensors}) == 1
    return same and write.meta["val"].shape == tensors[0].shape
