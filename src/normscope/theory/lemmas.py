"""The normalizers' constants as the papers print them.

Than is "The Hidden Power of Normalization Layers in Neural Networks", section 3 and appendix A; the Slides and the
digest go back to an earlier version. A printed value is a float without rounding allowance, and need not be a
bound.
"""

from __future__ import annotations

import math

from torch import Tensor

from .normalizers import batch_norm_eval


def lemma1(running_var: Tensor, eps: float, gamma: Tensor | None = None) -> float:
    """Return BatchNorm's constant as printed, the l2 norm of the vector gamma/sigma.

    norm(BN) = norm(1/sigma), 1/sigma = ((sigma_k^2 + eps)^(-1/2))_k. The norm of the operator diag(1/sigma) is its
    largest entry, so this is an upper bound, off by up to sqrt(n), and the printed equality fails for n >= 2.

    Args:
        running_var: the population variances sigma_k^2.
        eps: the stabiliser.
        gamma: the scales of the Slides' form; None for the lemma, which leaves them out.

    Returns:
        The printed value.

    Example:
        >>> import torch
        >>> lemma1(torch.zeros(4), 1.0)
        2.0

    Reference:
        Than, Lemma 1 and appendix A.1; with gamma: Slides, "Normalization: Lipschitz continuity".
    """
    return float(batch_norm_eval(gamma, running_var, eps).norm())


def lemma2(eps: float, variance: float = 0.0) -> float:
    """Return LayerNorm's bound as printed, 1/sqrt(sigma_n^2 + eps), without gamma.

    It is a bound at every point, exact for n >= 3. The printed sigma, a minimum over R^n, is always sqrt(eps).

    Args:
        eps: the stabiliser.
        variance: sigma_n^2 at the point; 0 for the bound over all inputs.

    Returns:
        The printed value.

    Example:
        >>> lemma2(1e-4), lemma2(0.0, 4.0)
        (100.0, 0.5)

    Reference:
        Than, Lemma 2 and Corollary 11.
    """
    return _inverse_root(variance + eps)


def lemma3(eps: float, variances: Tensor) -> float:
    """Return GroupNorm's bound as printed, the sum over groups of (sigma_k^2 + eps)^(-1/2), without gamma.

    It is a bound, loose by up to the number of groups, since a block-diagonal map has the norm of its largest block.

    Args:
        eps: the stabiliser.
        variances: one variance per group; zeros for the bound over all inputs.

    Returns:
        The printed value.

    Example:
        >>> import torch
        >>> lemma3(1e-4, torch.zeros(8))
        800.0

    Reference:
        Than, Lemma 3 and equation (26).
    """
    return float((variances.double() + eps).rsqrt().sum())


def slides_layer_norm(n: int, variance: float, eps: float, gamma: Tensor | None = None) -> float:
    """Return LayerNorm's bound of the digest, (1 - 1/n)/s, or with gamma that of the Slides, (1 - 1/n) norm(gamma/s).

    It is not a bound. (1 - 1/n)/s is below the exact 1/s for every n >= 3, and for n = 2 below eps/s^3 where var < eps.
    The Slides take the l2 norm of the vector gamma/s, sqrt(n)/s for gamma = 1: that is a bound for n >= 3 while all
    scales are equal, and none if one dominates (gamma = e_1, zero variance: exact sqrt(1 - 1/n)/s).

    Args:
        n: the number of normalized entries.
        variance: the variance at the point; 0 for all inputs.
        eps: the stabiliser.
        gamma: the n scales, for the form of the Slides; None for that of the digest.

    Returns:
        The printed value.

    Example:
        >>> import torch
        >>> slides_layer_norm(4, 0.0, 1.0), slides_layer_norm(4, 0.0, 1.0, torch.ones(4))
        (0.75, 1.5)

    Reference:
        Slides, "Normalization: Lipschitz continuity", other normalizers; digest, LN.
    """
    size = 1.0 if gamma is None else float(gamma.detach().double().norm())
    return (1.0 - 1.0 / n) * size * _inverse_root(variance + eps)


def slides_group_norm(n_g: int, variances: Tensor, eps: float, gamma: Tensor | None = None) -> float:
    """Return GroupNorm's bound of the Slides, (1 - 1/n_g) norm(gamma/sigma), l2 over all entries.

    Like `slides_layer_norm` it is not a bound. Without gamma the largest group's (1 - 1/n_g)/s_k is returned.

    Args:
        n_g: the number of entries of a group.
        variances: one variance per group; zeros for all inputs.
        eps: the stabiliser.
        gamma: one scale per entry, group by group; None for the form without.

    Returns:
        The printed value.

    Example:
        >>> import torch
        >>> slides_group_norm(2, torch.zeros(3), 1.0), slides_group_norm(2, torch.zeros(2), 1.0, torch.ones(4))
        (0.5, 1.0)

    Reference:
        Slides, "Normalization: Lipschitz continuity", other normalizers.
    """
    inverse = (variances.double() + eps).rsqrt()
    if gamma is None:
        return (1.0 - 1.0 / n_g) * float(inverse.max())
    return (1.0 - 1.0 / n_g) * float((gamma.detach().double().reshape(-1, n_g) * inverse[:, None]).norm())


def _inverse_root(square: float) -> float:
    return 1.0 / math.sqrt(square) if square > 0.0 else math.inf
