"""Bartlett, Foster and Telgarsky 2017: the margin bound with the spectral complexity of the network.

Theorem 3.3 bounds the covering numbers of the networks with `norm(A_i) <= s_i` and `norm(A_i^T)_(2,1) <= b_i` on a
sample X: `ln N(eps) <= R/eps^2` with `sqrt(R) = norm(X)_F sqrt(ln(2 W^2)) prod s_i (sum (b_i/s_i)^(2/3))^(3/2)`. The
margin loss is 2/gamma-Lipschitz, Dudley's integral from 1/n on gives a Rademacher complexity of
`4/n^(3/2) + 36 sqrt(R) ln(n)/(gamma n)`, and the error is at most the margin loss on D plus twice that plus
`3 sqrt(ln(2/delta)/(2 n))`.

Norms and margin depend on the data. With homogeneous activations, factors can be moved between layers without effect,
and scaling the last layer scales the margins: so only `prod s_i/gamma` and the ratios `b_i/s_i`, from 1 to W, matter.
They are rounded up to members of a fixed list (powers of two, and of 2^(1/L)), and delta is shared over the list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .stratum import power_of_two


def margin_bound(
    log10_spectral: Sequence[float],
    log10_rows: Sequence[float],
    *,
    square_norms: float,
    width: int,
    samples: int,
    margin: float,
    delta: float,
    nats: float = 0.0,
) -> tuple[float, float]:
    """Return log10 of the complexity term, and the confidence term; the bound adds both to the margin loss on D.

    Reference: Bartlett, Foster and Telgarsky 2017, Theorem 3.3, Lemmas A.5 and A.8.
    """
    layers, log2 = len(log10_spectral), math.log10(2.0)
    scale, factor = power_of_two(math.fsum(log10_spectral) - math.log10(margin))
    if math.isinf(scale):
        return scale, 0.0
    ratios = [rows - spectral for rows, spectral in zip(log10_rows, log10_spectral, strict=True)]
    step = log2 / layers
    rounded = [max(0, math.ceil(ratio / step - 1e-12)) * step for ratio in ratios]
    choices = math.ceil(2.0 * math.log10(width) / step) + 2  # The list of each layer: ratios from 1 to beyond W.
    log_cost = math.log(factor) + layers * math.log(choices)
    top = max(rounded)
    together = top + 1.5 * math.log10(math.fsum(10.0 ** ((one - top) * 2.0 / 3.0) for one in rounded))
    root = 0.5 * math.log10(square_norms * math.log(2.0 * width**2)) + scale + together
    main = math.log10(72.0 * math.log(samples) / samples) + root
    small = math.log10(8.0) - 1.5 * math.log10(samples)
    confidence = 3.0 * math.sqrt((math.log(2.0 / delta) + log_cost + nats) / (2.0 * samples))
    return main + math.log10(1.0 + 10.0 ** min(300.0, small - main)), confidence
