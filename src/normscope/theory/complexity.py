"""Counts of iterations and samples that follow from a Lipschitz constant, as the papers print them.

Every count is an order (Omega or O without its constant), kept as log10: it can compare two networks, but it is not a
number of steps. The constants of single factors depend on the gauge: scaling the weights in front of a normalizer by c
leaves the network as it is, multiplies the product of weight norms by c and divides the constant of the normalizer by
c. Only the product of both has a meaning of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.errors import InputError
from ..core.log10 import log10
from .sample_sizes import sample_size

GAUGE = (
    "multiplying the weights in front of a normalizer by c leaves the network as it is, multiplies the product of "
    "weight norms by c and divides the normalizer's constant by c: the ratio can be made anything without changing the "
    "network"
)
"""The warning that belongs to every ratio of the two corollaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The number of iterations to reach an accuracy alpha with a constant L: `L^constant / alpha^accuracy`.

    Attributes:
        name: the name of the rate.
        side: `"lower"` (every method needs at least so many, Omega) or `"upper"` (some method needs no more, O).
        constant, accuracy: the exponents.
        source: the paper and section that print it.
        remark: what is wrong with the rate, if anything.
    """

    name: str
    side: Literal["lower", "upper"]
    constant: float
    accuracy: float
    source: str
    remark: str = ""

    def log10_iterations(self, log10_constant: float, alpha: float) -> float:
        """Return log10 of the order of the count.

        Raises:
            InputError: alpha is not above 0.

        Example:
            >>> RATES["nonconvex, Slides"].log10_iterations(2.0, 0.1)  # (100)^2 / 0.1^3
            7.0
        """
        if not 0.0 < alpha < math.inf:
            raise InputError(f"alpha is a number above 0, not {alpha!r}")
        return self.constant * log10_constant - self.accuracy * math.log10(alpha)


RATES = {
    rate.name: rate
    for rate in (
        Rate(
            name="nonconvex, at least",
            side="lower",
            constant=1.0,
            accuracy=1.0,
            source="Than, section 5.1 and Corollary 18, from Zhang et al. 2020",
        ),
        Rate(
            name="nonconvex, Than",
            side="upper",
            constant=1.0,
            accuracy=2.0,
            source="Than, section 5.1 and Corollary 19, from Davis et al. and Tian et al. 2022",
            remark="not the rate that the Slides quote from the same paper",
        ),
        Rate(
            name="nonconvex, Slides",
            side="upper",
            constant=2.0,
            accuracy=3.0,
            source="Slides, Optimization: error (L^2/T)^(1/3), from Davis et al. 2022",
            remark="not the rate that Than quotes from the same paper",
        ),
        Rate(
            name="convex, at least",
            side="lower",
            constant=2.0,
            accuracy=2.0,
            source="Than, section 5.1, from Bubeck 2015 (distance to the optimum 1)",
        ),
        Rate(
            name="convex, Slides",
            side="upper",
            constant=2.0,
            accuracy=2.0,
            source="Slides, Optimization: error L/sqrt(T)",
        ),
        Rate(
            name="strongly convex, as printed",
            side="lower",
            constant=1.0,
            accuracy=1.0,
            source="Than, section 5.1",
            remark="Bubeck 2015, Theorem 3.13, has L^2/(mu alpha) with the strength mu of convexity",
        ),
        Rate(
            name="strongly convex, corrected",
            side="lower",
            constant=2.0,
            accuracy=1.0,
            source="Bubeck 2015, Theorem 3.13, for a strength of convexity mu = 1",
        ),
    )
}
"""The printed rates by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """The counts of Corollaries 18 and 19 for the weights of one layer; all figures are log10 of an order.

    Attributes:
        layer: the number of the layer, from 1.
        log10_behind: log10 of the product of the weight norms behind it, `s_{i+1} ... s_K`.
        log10_normalizers: log10 of the product of the constants of its own and all later normalizers.
        log10_at_least: Corollary 18 for the unnormalized network.
        log10_unnormalized, log10_normalized: Corollary 19 for the unnormalized and the normalized network.
    """

    layer: int
    log10_behind: float
    log10_normalizers: float
    log10_at_least: float
    log10_unnormalized: float
    log10_normalized: float

    @property
    def log10_ratio(self) -> float:
        """log10 of the evaluations of the normalized network over those of its unnormalized twin (see `GAUGE`)."""
        return self.log10_normalizers


def corollaries(log10_norms: Sequence[float], log10_constants: Sequence[float], alpha: float) -> tuple[LayerCost, ...]:
    """Return the counts of Corollaries 18 and 19 for every layer but the last.

    Corollary 18: at least `s_{i+1} ... s_K / alpha` iterations for the weights of layer i of an unnormalized network;
    Corollary 19: `s_{i+1} ... s_K / alpha^2` evaluations suffice, and with normalizers that times the product of their
    constants from layer i on (`sigma^(-K+i-1)` where all are `1/sigma`).

    Assumes: a chain of layers `h_k = g_k(NO_k(W_k h_{k-1}))` with slopes of at most 1.

    Args:
        log10_norms: log10 of the weights' operator norms `s_1, ..., s_K`.
        log10_constants: log10 of the normalizers' constants, one per layer; 0 for a layer without normalizer.
        alpha: the accuracy.

    Raises:
        InputError: there are fewer than two layers, or not one constant each.

    Example:
        >>> first, _ = corollaries([1.0, 1.0, 1.0], [-0.5, -0.5, -0.5], alpha=0.1)
        >>> first.log10_at_least, first.log10_unnormalized, first.log10_normalized, first.log10_ratio
        (3.0, 4.0, 2.5, -1.5)

    Reference: Than, Corollaries 18 and 19.
    """
    if len(log10_norms) < 2 or len(log10_norms) != len(log10_constants):
        raise InputError(
            f"the corollaries speak of two or more layers with a constant each, not of {len(log10_norms)} norms and "
            f"{len(log10_constants)} constants"
        )
    lower, upper = RATES["nonconvex, at least"], RATES["nonconvex, Than"]
    found = []
    for layer in range(1, len(log10_norms)):
        behind, reduced = math.fsum(log10_norms[layer:]), math.fsum(log10_constants[layer - 1 :])
        found.append(
            LayerCost(
                layer=layer,
                log10_behind=behind,
                log10_normalizers=reduced,
                log10_at_least=lower.log10_iterations(behind, alpha),
                log10_unnormalized=upper.log10_iterations(behind, alpha),
                log10_normalized=upper.log10_iterations(behind + reduced, alpha),
            )
        )
    return tuple(found)


def log10_data_ratio(
    gap: float, normalized: float, unnormalized: float, *, cells: int, partition: int, delta: float
) -> float:
    """Return log10 of the samples of a normalized network over those of its twin; -inf if the twin never suffices.

    Args:
        gap: the wanted gap, as in `sample_size`.
        normalized: the sensitivity of the normalized network.
        unnormalized: the sensitivity of its unnormalized twin.
        cells: as in `sample_size`.
        partition: as in `sample_size`.
        delta: as in `sample_size`.

    Raises:
        InputError: neither reaches the gap with any number of samples.
    """
    ours, theirs = (
        sample_size(gap, sensitivity=value, cells=cells, partition=partition, delta=delta)
        for value in (normalized, unnormalized)
    )
    if math.inf in (ours, theirs):
        if ours == theirs:
            raise InputError("neither network reaches the gap with any number of samples")
        return -math.inf if theirs == math.inf else math.inf
    return log10(ours) - log10(theirs)
