"""Whether two runs of one function agree, entry by entry, up to rounding.

One large entry (a logit masked with -1e9) must not excuse another that is wrong, so no entry is measured by the size of
others. How far rounding can move an entry is seen in further runs of the same function in which every operator is
rounded otherwise (stochastic arithmetic, Vignes 1993): terms that cancel on the way show by how much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

ALLOWED_ULPS = 8.0
"""Units in the last place by which two ways to compute an entry may differ whatever came before."""
ROUNDING_MARGIN = 64.0
"""A rounding error may be this many times what runs with other roundings show. Those move each operator's result, not
the sum inside of it: a sum of n terms in blocks is off by some sqrt(n) units in the last place, and layers of today sum
up some thousand terms. 64 such units in float32 are 1e-5 of what an entry is made of, far below any wrong factor."""
MAX_ROUNDED_RUNS = 16
"""At most so many runs with other roundings; the first one or two show enough wherever two functions agree."""


class RoundedOtherwise(TorchDispatchMode):
    """Moves random entries of each operator's result, and of its vectors, towards zero by a unit in the last place.

    The unit is that of the value's own precision, or `eps` where that is coarser. Vectors are biases and statistics:
    they cancel against each other where the other operand is zero. Nothing grows, so that no finite mask overflows.
    """

    def __init__(self, seed: int, eps: float = 0.0) -> None:
        super().__init__()
        self.seed, self.eps = seed, eps
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes a second, at the first operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator with other roundings; those that write into tensors or return views run as they are."""
        kwargs = kwargs or {}
        if func._schema.is_mutable or any(port.alias_info is not None for port in func._schema.returns):
            return func(*args, **kwargs)
        args, kwargs = tree_map(lambda v: self._round_otherwise(v) if _is_vector(v) else v, (args, kwargs))
        return tree_map(self._round_otherwise, func(*args, **kwargs))

    def _round_otherwise(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        if value.itemsize == 1 or value.is_nested or value.layout is not torch.strided:
            return value
        if value.device not in self._generators:
            self._generators[value.device] = torch.Generator(value.device).manual_seed(self.seed)
        generator = self._generators[value.device]
        chosen = torch.randint(0, 2, value.shape, generator=generator, device=value.device, dtype=torch.bool)
        return torch.where(chosen, value * (1.0 - max(self.eps, torch.finfo(value.dtype).eps)), value)


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1


@torch.no_grad()
def agree(first: Tensor, second: Tensor, again: Callable[[], Tensor], *, eps: float = 0.0) -> bool:
    """Whether two outputs agree entry by entry up to rounding; `again` computes the first one anew.

    `eps` is the unit of the precision in which the second one was computed, where that is coarser. NaN agrees with NaN.
    """
    if first.shape != second.shape:
        return False
    unit = max(eps, torch.finfo(first.dtype).eps)
    first, second = first.detach().double(), second.detach().double().to(first.device)
    equal = (first == second) | (first.isnan() & second.isnan())
    distance = torch.where(equal, 0.0, (first - second).abs())
    allowed = (ALLOWED_ULPS * unit * first.abs()).nan_to_num(0.0, 0.0)
    for seed in range(MAX_ROUNDED_RUNS):
        if bool((distance <= allowed).all()):
            return True
        with RoundedOtherwise(seed, eps):
            rounded = again().detach().double().reshape(first.shape)
        # where a run leaves the finite numbers it shows nothing
        allowed = torch.maximum(allowed, ROUNDING_MARGIN * (rounded - first).abs().nan_to_num(0.0, 0.0))
    return bool((distance <= allowed).all())
