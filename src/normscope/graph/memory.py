"""Find tensors that share memory, and read the operator `as_strided`, which addresses memory directly.

Which entries `as_strided` reads depends on the strides of its operand. They are taken from the run that torch.export
traced, and compared with those of a real run of the model. A read of memory outside the operand is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.errors import CaptureError

aten = torch.ops.aten

AS_STRIDED = aten.as_strided.default
Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""Size, strides and offset of the first entry, of an operand or of a read."""


def entries_read(node: torch.fx.Node) -> Tensor:
    """Return which entry of its operand each entry of an `as_strided` is, as flat indices in the result's shape."""
    (size, stride, offset), (shape, steps, start) = _operand(node), _read(node)
    length = 1 + max(_end(size, stride, offset), _end(shape, steps, start))
    held = torch.arange(length).as_strided(size, stride, offset).reshape(-1)
    entries = torch.full((length,), -1).scatter(0, held, torch.arange(len(held)))
    found = entries.as_strided(shape, steps, start).clone()
    if bool((found < 0).any()):
        raise CaptureError(
            "as_strided reads memory outside its operand, and what lies there is no function of the operand: "
            "call it on the whole tensor, or use slices"
        )
    return found.to(node.meta["val"].device)


def refuse_other_strides(nodes: Iterable[torch.fx.Node], seen: list[tuple[Layout, Layout]]) -> None:
    """Refuse `as_strided` of an operand that has other strides in a real run than in the traced one."""
    for node in nodes:
        layout, read = _operand(node), _read(node)
        met = {other for other, same in seen if same == read and other[0] == layout[0]}
        if met != {layout}:
            raise CaptureError(
                f"as_strided read a tensor with strides {layout[1]} when it was traced and other strides when it ran: "
                "which entries it reads is not known"
            )


class Strides(TorchDispatchMode):
    """Records the layout of the operand of every `as_strided` in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Layout, Layout]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the layout of an `as_strided`, and run the operator."""
        if func is AS_STRIDED:
            operand = args[0]
            layout = tuple(operand.shape), operand.stride(), operand.storage_offset()
            given = args[3] if len(args) > 3 else (kwargs or {}).get("storage_offset")
            start = operand.storage_offset() if given is None else given
            self.seen.append((layout, (tuple(args[1]), tuple(args[2]), start)))
        return func(*args, **(kwargs or {}))


def storage_of(tensor: Tensor) -> int:
    """Return the address at which the memory of a tensor begins."""
    return tensor.untyped_storage().data_ptr()


def overlap(first: Tensor, second: Tensor) -> bool:
    """Whether the memory of two tensors overlaps."""
    if first.device != second.device or storage_of(first) != storage_of(second):
        return False
    if not first.numel() or not second.numel():
        return False
    (start, end), (other_start, other_end) = _span(first), _span(second)
    return start < other_end and other_start < end


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor, and the one after its last."""
    reach = _end(tuple(tensor.shape), tensor.stride(), 0)
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _operand(node: torch.fx.Node) -> Layout:
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    return tuple(value.shape), value.stride(), value.storage_offset()


def _read(node: torch.fx.Node) -> Layout:
    given = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    start = node.args[0].meta["val"].storage_offset() if given is None else given  # type: ignore[union-attr]
    return tuple(node.args[1]), tuple(node.args[2]), start  # type: ignore[arg-type,return-value]


def _end(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> int:
    """Return the offset of the last entry."""
    return offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
