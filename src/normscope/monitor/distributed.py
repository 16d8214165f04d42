"""Tensors that lie on several processes: norms of the whole, not of a shard."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as it would lie on one process; every process has to call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


def norms(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the l2 norm of every tensor, of all of its shards together, in float32 or better.

    Args:
        tensors: by name; on one process they are taken together, in few kernels.
    """
    plain = {name: t.detach() for name, t in tensors.items() if not hasattr(t, "full_tensor")}
    found = (
        dict(zip(plain, torch._foreach_norm(list(plain.values()), dtype=torch.float32), strict=True)) if plain else {}
    )
    for name, tensor in tensors.items():
        if name not in plain:
            found[name] = whole(torch.linalg.vector_norm(tensor.detach()))
    return {name: found[name] for name in tensors}
