"""Lipschitz constants of softmax, of its logarithm, and of gated linear units."""

from __future__ import annotations

import math

from ..core import rounding
from ..core.bracket import Evidence
from ..core.rounding import ZERO, Upper


def softmax_norm(n: int) -> Upper:
    """Return the Lipschitz constant of softmax over n entries, 1/2 (0 for n = 1).

    The Jacobian diag(p) - p p^T has norm at most 1/2, reached in the limit p = (1/2, 1/2, 0, ..., 0).

    Args:
        n: the number of entries.

    Returns:
        The constant.

    Example:
        >>> round(10 ** softmax_norm(3).log10, 12)
        0.5
    """
    return Upper.of(0.5, Evidence.PROVEN, "softmax") if n > 1 else ZERO.named("softmax")


def log_softmax_norm(n: int) -> Upper:
    """Return the Lipschitz constant of log-softmax over n entries, sqrt(n) (0 for n = 1).

    The Jacobian I - 1 p^T is an oblique projection (p sums to 1). For n >= 2 it has the norm of its complement 1 p^T,
    which is sqrt(n) norm(p): sqrt(n) in the limit where p is a vertex of the simplex, 1 where p is uniform.
    """
    if n <= 1:
        return ZERO.named("log_softmax")
    return Upper.of(math.sqrt(n), Evidence.PROVEN, "log_softmax", allowance=rounding.gamma(1))


def glu_norm(radius: float = math.inf) -> Upper:
    """Return the Lipschitz constant of the gated linear unit a sigmoid(b) for abs(a) <= radius.

    sup over t = sigmoid(b) of t sqrt(1 + radius^2 (1 - t)^2): 1, or its value at t = (3 - sqrt(1 - 8/radius^2))/4.
    """
    if math.isnan(radius):
        raise ValueError("glu: the radius is NaN")
    if math.isinf(radius):
        return Upper.infinite("glu multiplies two unbounded halves")
    size = 1.0
    if radius * radius > 8.0:
        t = (3.0 - math.sqrt(1.0 - 8.0 / radius / radius)) / 4.0
        size = max(1.0, t * math.hypot(1.0, radius * (1.0 - t)))
    # At a maximum the rounding of t has a quadratic effect; where t is ill-conditioned (radius^2 near 8), size is 1.
    return Upper.of(size, Evidence.PROVEN, "glu", allowance=0.0 if size == 1.0 else rounding.gamma(32))
