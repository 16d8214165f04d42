"""Treat state that a forward both changes and reads: it stays in the graph, or the model is refused with the reason.

A batch norm in train mode also updates its running statistics. Its normalized output does not read them, but an
operator that reads them later reads the batch: the updated mean is linear in the input, the updated variance quadratic.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.nn.modules.batchnorm import _NormBase

from ..core.errors import CaptureError
from ..core.untouched import same
from .ir import Node, Ref

aten = torch.ops.aten

BATCH_NORM = aten._native_batch_norm_legit_functional.default
BATCH_NORM_EVAL = aten._native_batch_norm_legit_no_training.default
INSTANCE_NORM = aten.instance_norm.default
MOVED_MEAN, MOVED_VARIANCE = 3, 4
"""The positions of the running statistics among a batch norm's arguments, and of the updated ones in its outputs."""


def batch_norm_output(node: Node) -> tuple[Node, ...]:
    """Write an output of a train-mode batch norm in operators that show its operands; leave other nodes alone."""
    if node.op is not BATCH_NORM:
        return (node,)
    arguments = node.bound()
    image, momentum = arguments["input"], arguments["momentum"]
    if not arguments["training"] or not isinstance(image, Ref):
        return (node,)
    if node.index not in (MOVED_MEAN, MOVED_VARIANCE):
        args = (image, arguments["weight"], arguments["bias"], True, momentum, arguments["eps"])
        return (dataclasses.replace(node, op=aten._native_batch_norm_legit.no_stats, args=args, kwargs={}),)
    dims = [dim for dim in range(len(image.shape)) if dim != 1]
    old = arguments["running_mean" if node.index == MOVED_MEAN else "running_var"]

    def write(name: str, op: Any, *args: Any, **kwargs: Any) -> Node:
        return dataclasses.replace(node, name=name, op=op, args=args, kwargs=kwargs, index=None)

    if node.index == MOVED_MEAN:
        now = write(f"{node.name}_batch", aten.mean.dim, image, dims, False, dtype=node.dtype)
    else:
        now = write(f"{node.name}_batch", aten.var.correction, image, dims, correction=1)
    share = write(f"{node.name}_share", aten.mul.Tensor, Ref(now.name, node.shape), momentum)
    if isinstance(old, Tensor):
        kept: tuple[Node, ...] = ()
        rest: Any = old * (1 - momentum)
    else:
        kept = (write(f"{node.name}_kept", aten.mul.Tensor, old, 1 - momentum),)
        rest = Ref(kept[0].name, node.shape)
    return now, share, *kept, write(node.name, aten.add.Tensor, Ref(share.name, node.shape), rest)


@contextmanager
def averages_counted(model: nn.Module) -> Iterator[None]:
    """Let batch norms with `momentum=None` be traced, by giving them their momentum, 1 over the batches seen.

    Torch reads the number of batches from a tensor, which a trace cannot do. Here hooks count them, from the number
    that was found.
    """
    counted = [
        (module, int(module.num_batches_tracked))
        for module in model.modules()
        if isinstance(module, _NormBase) and module.momentum is None and module.num_batches_tracked is not None
    ]

    def hook(seen: int) -> Callable[[_NormBase, Any], None]:
        runs = itertools.count(seen + 1)

        def share(module: _NormBase, _: Any) -> None:
            if module.training and module.track_running_stats:
                module.momentum = 1.0 / next(runs)

        return share

    handles = [module.register_forward_pre_hook(hook(seen)) for module, seen in counted]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, _ in counted:
            module.momentum = None


def part_twins(program: ExportedProgram) -> None:
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


def without_unread_statistics(node: torch.fx.Node) -> tuple[Any, ...]:
    """Return a node's arguments, without the running statistics that an instance norm updates and does not read."""
    if not _moves_statistics(node):
        return node.args
    return (*node.args[:3], None, None, *node.args[5:])


def _moves_statistics(node: torch.fx.Node) -> bool:
    return node.target is INSTANCE_NORM and node.args[5] is True and node.args[3] is not None


def refuse_moving_statistics(node: torch.fx.Node, args: Sequence[Any]) -> None:
    """Refuse a normalizer whose running statistics depend on the input; torch has no derivative for it either."""
    statistics = args[3:5] if node.target in (BATCH_NORM_EVAL, aten.batch_norm.default, INSTANCE_NORM) else ()
    if any(isinstance(statistic, Ref) for statistic in statistics):
        raise CaptureError(
            f"{node.target} normalizes with running statistics that this very run has changed: write the normalization "
            "out in operators, or give it statistics that stay"
        )


def refuse_hidden_reads(program: ExportedProgram, needed: set[torch.fx.Node]) -> None:
    """Refuse an output that reads running statistics that an instance norm updates: torch.export misses the update."""
    moving = [node for node in program.graph.nodes if _moves_statistics(node)]
    for node in moving:
        for statistic in (node.args[3], node.args[4]):
            readers = [user for user in statistic.users if user in needed and not _only_moves(user, statistic)]
            if readers or statistic.op != "placeholder":
                raise CaptureError(
                    f"{node.target} moves running statistics that the output reads ({readers or [statistic]}), and "
                    "torch.export does not see it: normalize with track_running_stats=False, or do not read them"
                )


def _only_moves(node: torch.fx.Node, statistic: torch.fx.Node) -> bool:
    return _moves_statistics(node) and statistic not in (*node.args[:3], *node.args[5:])


def read_state(program: ExportedProgram, needed: set[torch.fx.Node]) -> dict[str, Tensor]:
    """Return the buffers and plain tensors that the output reads and that no operator of the graph writes."""
    written = {spec.target for spec in program.graph_signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION}
    kinds = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    named = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.kind in kinds}
    found = {}
    for node in needed:
        target = named.get(node.name) if node.op == "placeholder" else None
        if target is None or target in written or all(_only_moves(user, node) for user in node.users if user in needed):
            continue
        held = program.state_dict.get(target, program.constants.get(target))
        if isinstance(held, Tensor):
            found[target.removeprefix("model.")] = held
    return found


def changed(before: dict[str, Tensor], now: dict[str, Tensor]) -> list[str]:
    """Return the names of the tensors whose values have changed."""
    return [name for name, value in now.items() if not same(value, before[name])]


def state_notes(program: ExportedProgram, needed: Iterable[torch.fx.Node]) -> list[str]:
    """Say which buffers the forward both changes and reads as found."""
    named = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
    placeholders = {node.name: node for node in needed if node.op == "placeholder"}
    found = []
    for spec in program.graph_signature.output_specs:
        held = placeholders.get(named.get(spec.target, ""))
        if spec.kind is OutputKind.BUFFER_MUTATION and held is not None and not _statistic(held, set(needed)):
            found.append(str(spec.target).removeprefix("model."))
    return [f"every run changes {name!r}, which the output reads: measured with its value as found" for name in found]


def _statistic(node: torch.fx.Node, needed: set[torch.fx.Node]) -> bool:
    """Whether a value is a running statistic that train-mode batch norms update and that nothing else reads."""
    for user in node.users:
        if user not in needed:
            continue
        positions = {index for index, argument in enumerate(user.args) if argument is node}
        if user.target is not BATCH_NORM or user.args[5] is not True or not positions <= {MOVED_MEAN, MOVED_VARIANCE}:
            return False
        moved = [read for read in user.users if read in needed and read.args[1] in positions]
        if not all(_statistic(read, needed) for read in moved):
            return False
    return True
