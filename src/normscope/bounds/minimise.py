"""The search for the free parameters of bounds: Adam on many bounds at once, each of which keeps the best it has met.

Any parameters give a bound, so a search may end at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


def minimise(
    parameters: Sequence[Tensor],
    evaluate: Callable[[], tuple[Tensor, ...]],
    best: Sequence[Tensor],
    *,
    turns: Iterable[object],
    rate: float,
    betas: tuple[float, float],
    watched: Sequence[Tensor] = (),
    decay: float = 1.0,
) -> tuple[Tensor, ...]:
    """Return the smallest values met, with the tensors that belong to them.

    `evaluate` returns values `[*]`, and tensors `[*, ...]` that belong to each; `best` is what to begin with, then a
    gradient of every leaf that is `watched`, not moved. There are as many evaluations as `turns` has items; `decay` is
    the factor from the length of each step to that of the next.
    """
    adam = torch.optim.Adam(parameters, lr=rate, betas=betas)
    leaves = [*parameters, *watched]
    for _ in turns:
        with torch.enable_grad():
            values, *others = evaluate()
            total = torch.where(values.isfinite(), values, 0.0).sum()
        grads: Sequence[Tensor | None] = [None] * len(leaves)
        if total.requires_grad:
            grads = torch.autograd.grad(total, leaves, allow_unused=True)
        slopes = [
            torch.zeros_like(leaf) if grad is None else grad.nan_to_num(0.0, 0.0, 0.0)
            for leaf, grad in zip(leaves, grads, strict=True)
        ]
        better = values.detach() < best[0]
        met = [values, *others, *slopes[len(parameters) :]]
        best = [
            torch.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new.detach(), old)
            for new, old in zip(met, best, strict=True)
        ]
        if not total.requires_grad or not bool(values.isfinite().any()):
            break
        for parameter, slope in zip(parameters, slopes, strict=False):
            parameter.grad = slope
        adam.step()
        adam.param_groups[0]["lr"] *= decay
    return tuple(best)
