"""How far the samples of a batch differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


@torch.no_grad()
def spread(args: Any, kwargs: Any) -> Tensor | None:
    """Return the largest difference between two samples in any entry of the batch; of one sample between its entries.

    Args:
        args: the positional arguments of the forward.
        kwargs: the named arguments of the forward.

    Returns:
        A number on the device of the batch; None where it holds no tensor that could be compared.

    Example:
        >>> float(spread((torch.tensor([[1.0, 5.0], [1.0, 7.0]]),), {}))
        2.0
    """
    leaves = [leaf.detach() for leaf in tree_leaves((args, kwargs)) if _is_compared(leaf)]
    found = []
    for leaf in leaves:
        if len(leaf) == len(leaves[0]):
            low, high = torch.aminmax(leaf, dim=0) if len(leaf) > 1 else torch.aminmax(leaf)
            apart = high - low if leaf.dtype in (torch.float32, torch.float64) else high.double() - low.double()
            found.append(apart.amax())
    if len(found) < 2:
        return found[0] if found else None
    return torch.stack([one.to(found[0].device, torch.float64) for one in found]).amax()


def _is_compared(leaf: Any) -> bool:
    return (
        isinstance(leaf, Tensor)
        and leaf.ndim > 0
        and leaf.numel() > 0
        and leaf.layout == torch.strided
        and not leaf.is_complex()
        and leaf.dtype is not torch.bool
    )
