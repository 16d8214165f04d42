"""Tensors that lie on several processes: norms of the whole, not of a shard; who writes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...core.whole_weights import is_sharded

Name = TypeVar("Name", bound=Hashable)

LARGE_ENTRIES = 1 << 15
"""How many entries a tensor has at least where a call costs little beside the sum over them."""


def rank() -> int:
    """Return the number of this process; 0 where there is one alone."""
    return dist.get_rank() if _parallel() else 0


def is_alone() -> bool:
    """Whether no other process trains with this one."""
    return not _parallel() or dist.get_world_size() == 1


def _parallel() -> bool:
    return dist.is_available() and dist.is_initialized()


def agree_with_first(number: int) -> int:
    """Return what the first process has: a run that goes on does so at the same step everywhere."""
    if not _parallel():
        return number
    held = [number]
    dist.broadcast_object_list(held, src=0)
    return held[0]


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """What this process does for a watched run, alone or one of several.

    Attributes:
        sharded: whether parameters are spread over the processes, all of which then measure.
        writes: whether it is the one that records.
    """

    sharded: bool
    writes: bool

    @staticmethod
    def of(model: nn.Module) -> ProcessRole:
        """Return the role of this process in the training of a model."""
        return ProcessRole(is_sharded(model.parameters()), rank() == 0)

    @property
    def idle(self) -> bool:
        """Whether it only counts steps."""
        return not self.writes and not self.sharded


def l2_norms(tensors: Mapping[Name, Tensor], careful: Collection[Name] = ()) -> dict[Name, Tensor]:
    """Return the l2 norm of every tensor, of all its shards together, in float32 or better.

    Args:
        tensors: by name; those on one process are taken together in few kernels, and so are the shards, with one sum
            over the processes of a mesh.
        careful: names of those whose squares may leave the range of float32.
    """
    sharded = is_sharded(tensors.values())
    local = [_local(tensor) for tensor in tensors.values()] if sharded else list(tensors.values())
    norms = dict(zip(tensors, _local_norms(local), strict=True))
    norms |= {
        name: torch.linalg.vector_norm(tensor, dtype=torch.float64).float()
        for name, tensor in zip(tensors, local, strict=True)
        if name in careful and not tensor.is_complex()
    }
    if not sharded:
        return norms
    parts: dict[Any, list[Name]] = {}
    for name, tensor in tensors.items():
        for group in groups_of(tensor):
            parts.setdefault(group, []).append(name)
    for group, names in parts.items():
        squares = torch.stack([norms[name] for name in names]).double().square()
        dist.all_reduce(squares, group=group)
        norms |= dict(zip(names, squares.sqrt().float().unbind(), strict=True))
    return norms


def _local_norms(tensors: list[Tensor]) -> list[Tensor]:
    """Return the norms of tensors on this process; those in half precision are summed in float32."""
    if all(tensor.dtype == torch.float32 for tensor in tensors):
        large = [_is_large(tensor) for tensor in tensors]
        squares = [_square(tensor) for tensor, is_large in zip(tensors, large, strict=True) if is_large]
        rest = [tensor for tensor, is_large in zip(tensors, large, strict=True) if not is_large]
        roots = iter(torch.stack(squares).sqrt().unbind() if squares else ())
        norms = iter(torch._foreach_norm(rest) if rest else ())
        return [next(roots) if is_large else next(norms) for is_large in large]
    half = (torch.float16, torch.bfloat16)
    wide = [torch.float32 if tensor.dtype in half else None for tensor in tensors]
    return [torch.linalg.vector_norm(t, dtype=dtype).float() for t, dtype in zip(tensors, wide, strict=True)]


def _is_large(tensor: Tensor) -> bool:
    """Whether to take the product of a vector with itself, which on a CPU is faster than a norm."""
    return tensor.numel() >= LARGE_ENTRIES and tensor.device.type == "cpu" and tensor.is_contiguous()


def _square(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return torch.dot(flat, flat)


def _local(tensor: Tensor) -> Tensor:
    shard = getattr(tensor, "to_local", None)
    return tensor.detach() if shard is None else shard().detach()


def groups_of(tensor: Tensor, dimension: int | None = None) -> list[Any]:
    """Return the groups of processes over which a tensor is cut into parts, at all or along a dimension."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return []
    placements: Any = getattr(tensor, "placements")  # noqa: B009
    cut = [not one.is_replicate() if dimension is None else one.is_shard(dimension % tensor.ndim) for one in placements]
    return [mesh.get_group(dim) for dim, is_cut in enumerate(cut) if is_cut]


def sum_over(groups: Iterable[Any], numbers: Tensor) -> Tensor:
    """Add numbers up over groups of processes; where all have the same values, means of them stay what they are."""
    for group in groups:
        dist.all_reduce(numbers, group=group)
    return numbers
