"""Golowich, Rakhlin and Shamir 2020: the Rademacher complexity of networks with bounded Frobenius norms.

Theorem 1: networks of depth d with scalar output and homogeneous 1-Lipschitz activations of single entries have `Rad
<= prod norm(W_j)_F (sqrt(2 ln(2) d) + 1) norm(X)_F/m`. For K classes the ramp loss of the margin is
sqrt(2)/gamma-Lipschitz in the outputs, and Maurer's vector contraction gives `sqrt(2) sqrt(2)/gamma K Rad`; the error
is at most the margin loss on D plus twice that plus `3 sqrt(ln(2/delta)/(2 m))`. Only `prod/gamma` matters: it is
rounded up to a power of two, and delta is shared over the powers of two.
"""

from __future__ import annotations

import math

from .stratum import power_of_two


def margin_bound(
    log10_frobenius: float,
    *,
    depth: int,
    classes: int,
    square_norms: float,
    samples: int,
    margin: float,
    delta: float,
    nats: float = 0.0,
) -> tuple[float, float]:
    """Return log10 of the complexity term, and the confidence term; the bound adds both to the margin loss on D.

    Reference: Golowich, Rakhlin and Shamir 2020, Theorem 1; Maurer 2016, Corollary 4.
    """
    scale, factor = power_of_two(log10_frobenius - math.log10(margin))
    root = 0.5 * math.log10(square_norms) - math.log10(samples)
    term = scale + root + math.log10(4.0 * classes * (math.sqrt(2.0 * math.log(2.0) * depth) + 1.0))
    return term, 3.0 * math.sqrt((math.log(2.0 * factor / delta) + nats) / (2.0 * samples))
