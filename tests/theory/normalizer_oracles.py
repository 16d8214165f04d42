"""Normalizers in closed form that the package itself does not need: Jacobians, their norms, and constants of groups.

They judge what the rules and the bounds say of these layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.core.rounding import Upper, largest
from normscope.theory.normalizers import layer_norm_global, layer_norm_jacobian, scales_of


def rms_norm_jacobian(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """Return the `[n, n]` Jacobian (1/r) diag(gamma) (I - x x^T/(n r^2)) of RMSNorm."""
    y, n = x.detach().to("cpu", torch.float64).flatten(), x.numel()
    square = y.square().mean() + eps
    matrix = torch.eye(n, dtype=torch.float64) - torch.outer(y, y) / (n * square)
    return scales_of(gamma, n)[:, None] * matrix / square.sqrt()


def group_norm_jacobian(x: Tensor, gamma: Tensor | None, groups: int, eps: float) -> Tensor:
    """Return the Jacobian of GroupNorm at one sample: one LayerNorm block per group.

    Args:
        x: one sample, `[channels, *positions]`.
        gamma: one scale per channel; None for ones.
        groups: the number of groups.
        eps: the stabiliser.

    Returns:
        A float64 matrix, block diagonal, with as many rows and columns as `x` has entries.
    """
    sets, scales = sets_of(x, gamma, groups)
    return torch.block_diag(*(layer_norm_jacobian(part, scale, eps) for part, scale in zip(sets, scales)))


def layer_norm_nonaffine(n: int, s: float, eps: float) -> float:
    """Return the exact norm of the Jacobian without gamma: 1/s for n >= 3, eps/s^3 for n = 2, 0 for n = 1.

    With three entries some direction is orthogonal to both 1 and y and passes at full gain; with two, the only
    direction that survives centring is y itself, and the output is nearly a sign: the set is degenerate.

    Args:
        n: the size of the normalized set (for train-mode BatchNorm the m values of a channel).
        s: sqrt(var + eps).
        eps: the stabiliser.

    Returns:
        The norm, as a float64 without rounding allowance.
    """
    return 1.0 / s if n >= 3 else eps / s / s / s if n == 2 else 0.0


def rms_norm_nonaffine(n: int, r: float, eps: float) -> float:
    """Return the exact norm of RMSNorm's Jacobian without gamma: 1/r for n >= 2, eps/r^3 for n = 1."""
    return 1.0 / r if n >= 2 else eps / r / r / r


def group_norm_global(gamma: Tensor | None, groups: int, set_size: int, eps: float) -> Upper:
    """Return the constant of GroupNorm over all inputs: the largest of its groups, each a LayerNorm.

    Args:
        gamma: one scale per channel; None for ones.
        groups: the number of groups.
        set_size: the entries of one group, channels per group times positions.
        eps: the stabiliser.
    """
    scales = torch.ones(groups, 1) if gamma is None else gamma.detach().reshape(groups, -1)
    entries = scales.repeat_interleave(set_size // scales.shape[1], dim=1)
    return largest([layer_norm_global(scale, set_size, eps) for scale in entries])


def batch_norm_train_global(gamma: Tensor | None, m: int, eps: float) -> Upper:
    """Return the constant of train-mode BatchNorm, m values per channel: the largest of its channels."""
    scales = torch.ones(1) if gamma is None else gamma.detach()
    return largest([layer_norm_global(scale, m, eps) for scale in scales])


def sets_of(x: Tensor, gamma: Tensor | None, groups: int) -> tuple[Tensor, Tensor]:
    """Return the normalized sets of a sample `[channels, *positions]` and their scales, both `[groups, set_size]`."""
    scales = scales_of(gamma, x.shape[0]).reshape(-1, 1).expand(x.shape[0], x[0].numel())
    return x.detach().to("cpu", torch.float64).reshape(groups, -1), scales.reshape(groups, -1)
