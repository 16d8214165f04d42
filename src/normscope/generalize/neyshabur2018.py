"""Neyshabur, Bhojanapalli and Srebro 2018: the PAC-Bayesian margin bound, with the constants of its proof.

With the layers scaled to one norm beta (activations are homogeneous) and noise of deviation
`sigma = gamma/(42 d B b^(d-1) sqrt(h ln(4 d h)))` on all weights, where b is the member of a list nearest to beta,
outputs move by less than gamma/4 with probability 1/2, and Lemma 1 gives
`error <= margin loss on D + 4 sqrt((KL + ln(6 m/delta'))/(m-1))`,
`KL = sum norm(W_i)_F^2/(2 sigma^2)`, at most
`42^2 d^2 B^2 h ln(4 d h) e^2 prod norm(W_i)^2 sum (norm(W_i)_F/norm(W_i))^2/(2 gamma^2)`.
The list has at most `d m^(1/(2d))` members, by which delta is divided; for other values of beta the statement is
trivial. Only beta^d/gamma matters, so that the margin may be chosen after the data are seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def margin_bound(
    log10_spectral: Sequence[float],
    log10_frobenius: Sequence[float],
    *,
    radius: float,
    width: int,
    samples: int,
    margin: float,
    delta: float,
    nats: float = 0.0,
) -> tuple[float, float]:
    """Return log10 of KL, and log10 of the complexity term; the bound adds the latter to the margin loss on D.

    Reference: Neyshabur, Bhojanapalli and Srebro 2018, Theorem 1 and its proof, Lemmas 1 and 2.
    """
    depth = len(log10_spectral)
    ratios = [2.0 * (f - s) for f, s in zip(log10_frobenius, log10_spectral, strict=True)]
    product = 2.0 * (math.fsum(log10_spectral) - math.log10(margin))
    if not all(map(math.isfinite, (product, *ratios))):
        return math.inf, math.inf
    top = max(ratios)
    spread = top + math.log10(math.fsum(10.0 ** (one - top) for one in ratios))
    fixed = 42.0**2 * depth**2 * radius**2 * width * math.log(4.0 * depth * width) * math.e**2 / 2.0
    kl = math.log10(fixed) + product + spread
    listed = nats + math.log(6.0 * samples / delta) + math.log(depth) + math.log(samples) / (2.0 * depth)
    inside = max(kl, math.log10(listed)) + math.log10(1.0 + 10.0 ** -abs(kl - math.log10(listed)))
    return kl, math.log10(4.0) + 0.5 * (inside - math.log10(samples - 1))
