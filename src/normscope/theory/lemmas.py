"""The normalizers' constants as the papers print them, each beside the exact one.

Than is "The Hidden Power of Normalization Layers in Neural Networks", section 3 and appendix A; the Slides and the
digest go back to an earlier version. A printed value is a float without rounding allowance. Whether it is a bound is
computed, never asserted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.log10 import log10
from ..core.rounding import Upper
from .normalizers import batch_norm_eval, batch_norm_eval_global, group_norm_global, layer_norm_global


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A Lipschitz constant as it is and as it is printed.

    Attributes:
        exact: the exact constant, rounded outward.
        as_printed: the printed value.
        reference: where it is printed.
    """

    exact: Upper
    as_printed: float
    reference: str

    @property
    def printed_is_bound(self) -> bool:
        """Whether the printed value is at least the exact constant (to 1e-12, the rounding of both)."""
        return log10(self.as_printed) >= self.exact.log10 - 1e-12

    @property
    def log10_excess(self) -> float:
        """log10 of printed over exact: how loose the printed value is, or below 0 how wrong."""
        printed = log10(self.as_printed)
        return 0.0 if printed == self.exact.log10 else printed - self.exact.log10


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
        >>> lemma1(torch.zeros(4), 1.0)
        2.0

    Reference:
        Than, Lemma 1 and appendix A.1; with gamma: Slides, "Normalization: Lipschitz continuity".
    """
    return float(batch_norm_eval(gamma, running_var, eps).norm())


def lemma2(eps: float, variance: float = 0.0) -> float:
    """Return LayerNorm's bound as printed, 1/sqrt(sigma_n^2 + eps), without gamma.

    A bound at every point, exact for n >= 3. Over all inputs the printed sigma = min over R^n is sqrt(eps), always.

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

    A bound, loose by up to the number of groups: a block-diagonal map has the norm of its largest block.

    Args:
        eps: the stabiliser.
        variances: one variance per group; zeros for the bound over all inputs.

    Returns:
        The printed value.

    Example:
        >>> lemma3(1e-4, torch.zeros(8))
        800.0

    Reference:
        Than, Lemma 3 and equation (26).
    """
    return float((variances.double() + eps).rsqrt().sum())


def slides_layer_norm(n: int, variance: float, eps: float, gamma: Tensor | None = None) -> float:
    """Return LayerNorm's bound of the digest, (1 - 1/n)/s, or with gamma that of the Slides, (1 - 1/n) norm(gamma/s).

    Not a bound. (1 - 1/n)/s is below the exact 1/s for every n >= 3, and for n = 2 below eps/s^3 where var < eps. The
    Slides take the l2 norm of the vector gamma/s, sqrt(n)/s for gamma = 1: that is a bound for n >= 3 while all scales
    are equal, and none if one dominates (gamma = e_1, zero variance: exact sqrt(1 - 1/n)/s).

    Args:
        n: the number of normalized entries.
        variance: the variance at the point; 0 for all inputs.
        eps: the stabiliser.
        gamma: the n scales, for the form of the Slides; None for that of the digest.

    Returns:
        The printed value.

    Example:
        >>> slides_layer_norm(4, 0.0, 1.0), slides_layer_norm(4, 0.0, 1.0, torch.ones(4))
        (0.75, 1.5)

    Reference:
        Slides, "Normalization: Lipschitz continuity", other normalizers; digest, LN.
    """
    size = 1.0 if gamma is None else float(gamma.detach().double().norm())
    return (1.0 - 1.0 / n) * size * _inverse_root(variance + eps)


def slides_group_norm(n_g: int, variances: Tensor, eps: float, gamma: Tensor | None = None) -> float:
    """Return GroupNorm's bound of the Slides, (1 - 1/n_g) norm(gamma/sigma), l2 over all entries.

    Not a bound, as `slides_layer_norm`. Without gamma the largest group's (1 - 1/n_g)/s_k is returned.

    Args:
        n_g: the number of entries of a group.
        variances: one variance per group; zeros for all inputs.
        eps: the stabiliser.
        gamma: one scale per entry, group by group; None for the form without.

    Returns:
        The printed value.

    Example:
        >>> slides_group_norm(2, torch.zeros(3), 1.0), slides_group_norm(2, torch.zeros(2), 1.0, torch.ones(4))
        (0.5, 1.0)

    Reference:
        Slides, "Normalization: Lipschitz continuity", other normalizers.
    """
    inverse = (variances.double() + eps).rsqrt()
    if gamma is None:
        return (1.0 - 1.0 / n_g) * float(inverse.max())
    return (1.0 - 1.0 / n_g) * float((gamma.detach().double().reshape(-1, n_g) * inverse[:, None]).norm())


def batch_norm_constants(gamma: Tensor | None, running_var: Tensor, eps: float) -> tuple[Constant, ...]:
    """Return eval-mode BatchNorm's constant beside Lemma 1 and the Slides' form (the first without gamma)."""
    plain, affine = lemma1(running_var, eps), lemma1(running_var, eps, gamma)
    return (
        Constant(exact=batch_norm_eval_global(None, running_var, eps), as_printed=plain, reference="Than, Lemma 1"),
        Constant(exact=batch_norm_eval_global(gamma, running_var, eps), as_printed=affine, reference="Slides, BN"),
    )


def layer_norm_constants(gamma: Tensor | None, n: int, eps: float) -> tuple[Constant, ...]:
    """Return LayerNorm's constant over all inputs beside Lemma 2, the digest (without gamma) and the Slides.

    Example:
        >>> [row.printed_is_bound for row in layer_norm_constants(None, 8, 1e-5)]
        [True, False, True]
    """
    plain, scales = layer_norm_global(None, n, eps), torch.ones(n) if gamma is None else gamma
    digest, slides = slides_layer_norm(n, 0.0, eps), slides_layer_norm(n, 0.0, eps, scales)
    return (
        Constant(exact=plain, as_printed=lemma2(eps), reference="Than, Lemma 2"),
        Constant(exact=plain, as_printed=digest, reference="digest, LN"),
        Constant(exact=layer_norm_global(gamma, n, eps), as_printed=slides, reference="Slides, LN"),
    )


def group_norm_constants(gamma: Tensor | None, groups: int, set_size: int, eps: float) -> tuple[Constant, ...]:
    """Return GroupNorm's constant over all inputs beside Lemma 3 (without gamma) and the Slides.

    Example:
        >>> [round(row.log10_excess, 3) for row in group_norm_constants(None, 10, 8, 1e-5)]
        [1.0, 0.894]
    """
    zeros = torch.zeros(groups)
    scales = torch.ones(groups, 1) if gamma is None else gamma.detach().reshape(groups, -1)
    entries = scales.repeat_interleave(set_size // scales.shape[1], dim=1)
    slides = slides_group_norm(set_size, zeros, eps, entries)
    return (
        Constant(
            exact=group_norm_global(None, groups, set_size, eps),
            as_printed=lemma3(eps, zeros),
            reference="Than, Lemma 3",
        ),
        Constant(exact=group_norm_global(gamma, groups, set_size, eps), as_printed=slides, reference="Slides, GN"),
    )


def _inverse_root(square: float) -> float:
    return 1.0 / math.sqrt(square) if square > 0.0 else math.inf
