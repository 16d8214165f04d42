"""The operator norm of a weight by warm power steps, of the layer alone and folded with its normalizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

FIRST = 12
"""Power steps when a layer is met for the first time."""
LATER = {"economy": 1, "standard": 2, "full": 12}
"""Power steps at each later measurement: the vectors are warm, the weights have moved little."""


@dataclass(slots=True)
class Power:
    """The warm vectors of one layer.

    A step goes from v to A^T A v/norm(A^T A v). norm(A^T A v)^(1/2) is between norm(A v) and norm(A): an estimate from
    below that is exact once v has settled.
    """

    bare: Tensor | None = field(default=None, repr=False)
    folded: Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCall:
    """A weight layer as it was called: a linear function of one sample.

    Attributes:
        function: from one sample `shape` to the output, without bias.
        shape: of the sample, with a leading dimension of 1.
        channels: of the output, along its second dimension.
        weight: where it runs and in which precision.
    """

    function: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    channels: int
    weight: Tensor


def power_norm(
    call: WeightCall, warm: Tensor | None, *, steps: int, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of a layer, its output channels scaled, and the vector it was found with.

    Args:
        call: the layer.
        warm: the vector of the last time; None to start from a fixed one.
        steps: how many to take from a warm start; at least `FIRST` without one.
        scale: one factor per output channel, or one for all.
    """
    vector = warm
    if vector is None or tuple(vector.shape) != call.shape:
        vector, steps = _start(call.shape, call.weight), max(steps, FIRST)
    size = vector.new_zeros(())
    for _ in range(steps):
        with torch.enable_grad(), torch.autocast(call.weight.device.type, enabled=False):
            moving = vector.requires_grad_(True)
            made = call.function(moving)
            if scale is not None:
                made = made * _along(scale.to(made), made.ndim)
            (back,) = torch.autograd.grad(made, moving, made.detach())
        size = torch.linalg.vector_norm(back)
        vector = back / size.clamp(min=1e-30)
    return size.sqrt(), vector.detach()


def _start(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return a fixed vector in general position; the generator of the user is left alone."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(shape, generator=generator).to(like)
    return vector / torch.linalg.vector_norm(vector)


def _along(scale: Tensor, rank: int) -> Tensor:
    return scale.reshape(1, -1, *(1,) * (rank - 2)) if scale.numel() > 1 else scale.reshape(())
