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
    decay: float = 1.0,
) -> tuple[Tensor, ...]:
    """Return the smallest values met, with the tensors that belong to them.

    `evaluate` returns values `[*]`, and tensors `[*, ...]` that belong to each; `best` is what to begin with.
    There are as many evaluations as `turns` has items; each step is `decay` times as long as the one before.
    """
    adam = torch.optim.Adam(parameters, lr=rate, betas=betas)
    for _ in turns:
        with torch.enable_grad():
            values, *others = evaluate()
            total = torch.where(values.isfinite(), values, 0.0).sum()
        better = values.detach() < best[0]
        best = [
            torch.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new.detach(), old)
            for new, old in zip((values, *others), best, strict=True)
        ]
        if not total.requires_grad or not bool(values.isfinite().any()):
            break
        for parameter, grad in zip(parameters, torch.autograd.grad(total, parameters, allow_unused=True), strict=True):
            parameter.grad = torch.zeros_like(parameter) if grad is None else grad.nan_to_num(0.0, 0.0, 0.0)
        adam.step()
        adam.param_groups[0]["lr"] *= decay
    return tuple(best)
