"""Models against their figures: the slope that a model is seen to have, and whether a bound is above it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import normscope as ns


def slope(model: nn.Module, batch: Tensor) -> float:
    """The largest Jacobian norm seen of the map of the whole batch, each from the state as found."""
    seen = 0.0
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 1.0, 10.0):
        point = batch + scale * torch.randn(batch.shape, generator=generator)
        jacobian = torch.autograd.functional.jacobian(copy.deepcopy(model), point)
        seen = max(seen, float(torch.linalg.matrix_norm(jacobian.reshape(-1, batch.numel()), ord=2)))
    return seen


def bounded(model: nn.Module, batch: Tensor, **options: Any) -> ns.Bracket:
    """The bracket of a model, which must hold its slopes; for one sample it must hold those of the batch too."""
    bracket = ns.lipschitz(model, batch, max_seconds=0.2, **options)
    truth = slope(model, batch)
    assert bracket.upper >= truth * (1 - 1e-3), f"{bracket.upper} is below {truth}"
    return bracket
