"""What one step of the optimizer does to scale-invariant weights: how fast they turn, how their norm moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

QUANTITIES = (
    "log10_group", "log10_group_min", "log10_group_max", "rotation", "rotation_max", "radial", "tangential",
    "log10_effective_lr", "zero",
)  # fmt: skip
"""What is measured of a scale-invariant weight, over its groups (channels, groups of channels, or the layer).

- `log10_group`: mean of log10 of the groups' norms, bias included; `log10_group_min`, `log10_group_max`: the extremes.
- `rotation`, `rotation_max`: mean and largest angle between a group before and after the step, in radians.
- `radial`, `tangential`: means of the parts of the update along the group (signed) and across it, over its norm.
- `log10_effective_lr`: mean of log10 of lr/norm^2 (SGD) or lr/norm (optimizers that rescale gradients).
- `zero`: share of the groups that are exactly zero.
"""

OPTIONAL = ("log10_effective_lr",)
"""Quantities that are not known of every optimizer: NaN there says so."""


def grouped(parts: Sequence[Tensor], groups: int, axis: int) -> Tensor:
    """Return a weight and its bias as rows `[groups, entries]`.

    Args:
        parts: the weight, and its bias if it has one.
        groups: how many groups of consecutive output channels there are.
        axis: of the weight, counting output channels.
    """
    rows = [part.detach().transpose(0, axis if part.ndim > 1 else 0).reshape(groups, -1) for part in parts]
    rows = [row if row.dtype in (torch.float32, torch.float64) else row.float() for row in rows]
    return rows[0] if len(rows) == 1 else torch.cat([row.to(rows[0]) for row in rows], 1)


def measure(before: Tensor, after: Tensor, *, log10_lr: Tensor, power: int | None) -> Tensor:
    """Return `QUANTITIES` of the groups `[groups, entries]` before and after a step, as one vector.

    Args:
        before: the rows before the step.
        after: the rows after it.
        log10_lr: of the learning rate.
        power: of the norm in the effective learning rate: 2 for SGD, 1 for Adam and its like, None where unknown.
    """
    norm = torch.linalg.vector_norm(before, dim=1)
    alive = norm > 0
    safe = norm.clamp(min=1e-30)
    unit = before / safe[:, None]
    moved = after - before
    along = (moved * unit).sum(1)
    across = torch.linalg.vector_norm(moved - along[:, None] * unit, dim=1)
    angle = torch.atan2(across, norm + along)
    logs = norm.log10()
    living = alive.sum().clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return torch.where(alive, values, 0.0).sum() / living

    nothing = norm.new_full((), float("nan"))
    size = mean(logs)
    rate = nothing if power is None else log10_lr.to(size) - power * size
    return torch.stack(
        [
            size,
            logs.amin(),
            logs.amax(),
            mean(angle),
            torch.where(alive, angle, 0.0).amax(),
            mean(along / safe),
            mean(across / safe),
            rate,
            (~alive).float().mean().to(norm),
        ]
    )
