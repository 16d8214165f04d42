"""The growth function of piecewise linear networks, after Bartlett, Harvey, Liaw and Mehrabian 2019.

Fix m inputs. On a region of weights where no unit before it changes its side of a kink, a unit's input is a polynomial
in the weights, whose degree is the number of weight layers up to it. By Warren's theorem t polynomials of degree d in W
variables have at most `2 (2 e t d/W)^W` sign patterns if `t >= W`, and at most 2^t in any case. The product over the
layers bounds the number of patterns of the whole network (the proof of Theorem 7 there). The last polynomials are the
differences of two outputs: their signs decide which class wins, so that the number of ways to classify m samples is
bounded for any number of classes, and shared weights count once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Units with kinks.

    Attributes:
        count: how many units there are.
        bends: how many kinks each has.
        weights: how many weights their input depends on.
        degree: the degree of their input as a polynomial in these weights.
    """

    count: int
    bends: int
    weights: int
    degree: int


def log_growth(layers: Sequence[Units], samples: int) -> float:
    """Return the natural logarithm of an upper bound on the number of ways to classify m samples."""
    total = 0.0
    for layer in layers:
        if not layer.weights:
            continue  # A unit without weights before it has one pattern.
        signs = layer.count * layer.bends * samples
        most = signs * math.log(2.0)
        if signs >= layer.weights:
            warren = math.log(2.0) + layer.weights * math.log(2.0 * math.e * signs * layer.degree / layer.weights)
            most = min(most, warren)
        total += most
    return total


def vc_dimension(layers: Sequence[Units]) -> int:
    """Return an upper bound on the VC dimension: the largest m for which the growth function allows 2^m ways."""

    def shattered(m: int) -> bool:
        return log_growth(layers, m) >= m * math.log(2.0)

    high = 1
    while shattered(high):
        high *= 2
        if high > 2**80:
            return high
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if shattered(middle) else (low, middle)
    return low


def growth_bound(log_count: float, samples: int, delta: float, nats: float = 0.0) -> tuple[float, float]:
    """Return the two terms that, added to the error on D, bound the error on fresh data.

    They are `sqrt(2 ln Pi(m)/m)` and `sqrt(ln(1/delta)/(2 m))`, by Massart's lemma for losses that are 0 or 1.
    What constants cost that may have been taken from D (`description.py`), `nats`, is added to `ln(1/delta)`.

    Reference: Mohri, Rostamizadeh and Talwalkar 2018, Corollary 3.9.
    """
    return math.sqrt(2.0 * log_count / samples), math.sqrt((math.log(1.0 / delta) + nats) / (2.0 * samples))


def slides_bound(dimension: float, samples: int, delta: float) -> float:
    """Return the right side that the Slides print: `sqrt((2/m) d ln(2 e m/d) + (1/m) ln(2/delta))`.

    Where d is above 2 e m the logarithm is negative and the formula says nothing: infinity is returned.
    """
    if dimension == 0:
        return math.sqrt(math.log(2.0 / delta) / samples)
    inner = 2.0 * math.e * samples / dimension
    if inner <= 1.0:
        return math.inf
    return math.sqrt(2.0 * dimension * math.log(inner) / samples + math.log(2.0 / delta) / samples)
