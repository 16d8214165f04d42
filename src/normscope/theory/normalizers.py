"""Exact Jacobians and Lipschitz constants of the normalizers, with their affine scale gamma.

Let s = sqrt(var + eps) over a normalized set of n entries (biased variance), y the centred input, r = sqrt(mean x^2 +
eps). LayerNorm, GroupNorm, InstanceNorm and train-mode BatchNorm are one function on each set, with Jacobian
(1/s) diag(gamma) (I - y y^T/(n s^2)) (I - 11^T/n); RMSNorm has (1/r) diag(gamma) (I - x x^T/(n r^2)); eval-mode
BatchNorm is diag(gamma/s) with s from the running variance.

`*_jacobian` writes the matrix out, `*_global` bounds its norm over all inputs.

Behind them come the constants as the papers print them: floats without rounding allowance that need not be bounds.
Than is "The Hidden Power of Normalization Layers in Neural Networks", section 3 and appendix A; the Slides and the
digest go back to an earlier version.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core import rounding
from ..core.bracket import Evidence
from ..core.rounding import ZERO, Upper


def layer_norm_jacobian(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """Return the Jacobian of LayerNorm at one normalized set (Than, Lemma 23, with gamma).

    (1/s) diag(gamma) (I - y y^T/(norm(y)^2 + n eps)) (I - 11^T/n)

    Args:
        x: the n entries of the set, in any shape.
        gamma: the scale, as many entries or one; None for ones.
        eps: the stabiliser.

    Returns:
        A float64 matrix `[n, n]`.

    Example:
        >>> layer_norm_jacobian(torch.tensor([1.0, 3.0]), None, 1.0)  # it is eps/s^3 along (1, -1)/sqrt(2)
        tensor([[ 0.1768, -0.1768],
                [-0.1768,  0.1768]], dtype=torch.float64)
    """
    n = x.numel()
    y = _float64(x).flatten()
    y = y - y.mean()
    square = y.square().mean() + eps
    matrix = torch.eye(n, dtype=torch.float64) - 1.0 / n - torch.outer(y, y) / (n * square)
    return scales_of(gamma, n)[:, None] * matrix / square.sqrt()


def rms_epsilon(eps: float | None, dtype: torch.dtype) -> float:
    """Return the eps of `torch.nn.RMSNorm`; where it is None, torch takes that of the dtype it computes in.

    Torch's documentation says `finfo(x.dtype).eps`, but float16 and bfloat16 are computed in float32, with its eps.
    """
    if eps is not None:
        return float(eps)
    return float(torch.finfo(torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype).eps)


def batch_norm_eval(gamma: Tensor | None, running_var: Tensor, eps: float) -> Tensor:
    """Return the diagonal gamma_k/sqrt(running_var_k + eps) of eval-mode BatchNorm, in float64 (off by at most 4 u)."""
    scale = 1.0 / (running_var.detach().double() + eps).sqrt()
    return scale if gamma is None else scale * gamma.detach().double()


def batch_norm_eval_global(gamma: Tensor | None, running_var: Tensor, eps: float) -> Upper:
    """Return max_k abs(gamma_k)/s_k, the exact constant of eval-mode BatchNorm (Than's Lemma 1 prints an l2 norm)."""
    top = float(batch_norm_eval(gamma, running_var, eps).abs().max())
    if math.isnan(top):
        raise ValueError("batch norm: a running variance + eps is negative or NaN, or gamma is NaN")
    if math.isinf(top):
        return Upper.infinite("batch norm: a running variance is 0 and so is eps")
    return Upper.of(top, Evidence.PROVEN, "max abs(gamma)/s", allowance=rounding.gamma(6))


def layer_norm_global(gamma: Tensor | None, n: int, eps: float) -> Upper:
    """Return the Lipschitz constant of LayerNorm over all inputs, norm(diag(gamma)(I - 11^T/n))/sqrt(eps); 0 for n = 1.

    It is attained at zero variance: the Jacobian at y is that at 0 times a contraction, divided by a larger s.

    Reference:
        Than, Lemma 2 (1/sigma, sigma = min over R^n, which is sqrt(eps)).
    """
    return _over_root(centred_gain(scales_of(gamma, n)), eps, "layer norm at zero variance")


def rms_norm_global(gamma: Tensor | None, n: int, eps: float) -> Upper:
    """Return max abs(gamma)/sqrt(eps), the constant of RMSNorm for every n >= 1, attained at x = 0."""
    return _over_root(_largest(scales_of(gamma, n)), eps, "RMS norm at zero")


def centred_gain(gamma: Tensor) -> float:
    """Bound norm(diag(gamma)(I - 11^T/n)) from above, tight to rounding.

    Its square is the largest root of the derivative of prod_i (z - gamma_i^2), and lies between the two largest
    gamma_i^2: there sum_i 1/(z - gamma_i^2) decreases through 0. A z at which the sum is below 0 by more than its
    rounding is above the root, and the norm grows with every abs(gamma_i), so squares may be rounded up.
    """
    top, n = _largest(gamma), gamma.numel()
    if n == 1:
        return 0.0
    if top < 1e-150:  # squares would underflow
        return top
    exponent = math.frexp(top)[1]
    scaled = _float64(gamma).flatten() * math.ldexp(1.0, -exponent)
    squares = torch.nextafter(scaled.square(), torch.tensor(math.inf, dtype=torch.float64)).sort(descending=True)[0]
    high, others = float(squares[0]), squares[1:]
    first, low, slack = high, float(others[0]), 1.0 + rounding.gamma(2 * n + 16)
    if low == high:
        return top
    while True:
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        if float((1.0 / (middle - others)).sum()) * slack <= 1.0 / (first - middle):
            high = middle
        else:
            low = middle
    return min(top, math.ldexp(math.nextafter(math.sqrt(high), math.inf), exponent))


def _float64(x: Tensor) -> Tensor:
    return x.detach().to("cpu", torch.float64)


def _largest(gamma: Tensor) -> float:
    top = float(gamma.detach().abs().max())
    if not math.isfinite(top):
        raise ValueError("a normalizer's gamma is NaN or infinite")
    return top


def scales_of(gamma: Tensor | None, n: int) -> Tensor:
    """Return gamma as n float64 entries."""
    if n < 1:
        raise ValueError(f"a normalized set of {n} entries")
    if gamma is None:
        return torch.ones(n, dtype=torch.float64)
    if gamma.numel() not in (1, n):
        raise ValueError(f"gamma has {gamma.numel()} entries, the normalized set {n}")
    return _float64(gamma).flatten().expand(n)


def _over_root(gain: float, eps: float, method: str) -> Upper:
    """Return gain/sqrt(eps), rounded outward."""
    if not eps >= 0.0:
        raise ValueError(f"{method}: eps is {eps}, must be >= 0")
    if eps == 0.0:
        return Upper.infinite(f"{method}: eps is 0, and the slope grows without bound as the variance tends to 0")
    inverse = Upper.of(1.0 / math.sqrt(eps), Evidence.PROVEN, allowance=rounding.gamma(2))
    return ZERO.named(method) if gain == 0.0 else Upper.of(gain, Evidence.PROVEN).times(inverse).named(method)


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


def _inverse_root(square: float) -> float:
    return 1.0 / math.sqrt(square) if square > 0.0 else math.inf
