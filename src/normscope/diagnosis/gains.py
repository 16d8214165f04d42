"""What a normalizer does to the data it saw, alone and folded with the linear map before it.

Scaling the weights before a normalizer by c multiplies their norm by c and divides the normalizer's constant by c; the
gain of the two together, taken with the variance of the data, stays the same (up to eps). So this is the figure to
compare layers by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.log10 import log10
from ..graph.invariance import Feed
from ..graph.ir import Node
from ..linalg.folding import compose
from ..linalg.linear_map import Diagonal
from ..linalg.norms import estimate
from ..rules.effects import Effect, Gain, Linear
from .examined import NormalizerSeen


def at_data(seen: NormalizerSeen) -> float | None:
    """Return log10 of the largest constant a normalizer had at the data: max over its sets of abs(gamma)/s.

    BatchNorm in eval mode divides by its running variance, whatever the data; None if one of these is negative.
    """
    if seen.stored_variance is not None:
        return _largest(seen, seen.stored_variance)
    return alone_gain(seen)


def alone_gain(seen: NormalizerSeen) -> float | None:
    """Return log10 of the largest constant a normalizer has with the variances of the data."""
    if seen.channel_variance is not None:
        return _largest(seen, seen.channel_variance)
    scale = 1.0 if seen.weight is None else float(seen.weight.abs().max())
    if scale == 0.0:
        return -math.inf
    return log10(scale) - _log10_deviation(seen.variance.log10_min, seen.eps)


def _largest(seen: NormalizerSeen, variance: Tensor) -> float | None:
    scale = torch.ones(1, dtype=torch.float64) if seen.weight is None else seen.weight.abs()
    if bool((variance + seen.eps <= 0).any()):
        return math.inf if bool((variance + seen.eps == 0).any()) and not bool((variance < 0).any()) else None
    return log10(float((scale / (variance + seen.eps).sqrt()).max()))


def folded_gain(
    seen: NormalizerSeen,
    node: Node,
    effect: Effect,
    feed: Feed,
    effects: Mapping[str, Effect],
) -> float | None:
    """Return log10 of norm(diag(gamma/s) P W): the weight layer, its normalizer's centring P and scale.

    For BatchNorm s is each channel's deviation over the data, also in eval mode (where stored statistics disagree with
    it, a finding says so); for the others the smallest deviation of a set seen. The norm is a Lanczos estimate: the
    figure speaks of the data alone, so it needs no certificate.

    Args:
        seen: what the normalizer saw.
        node: the normalizer.
        effect: its effect.
        feed: the weight layer before it.
        effects: every node's effect by name.
    """
    first = effects[feed.weight.name]
    if not isinstance(first, Linear) or len(first.maps) != 1:
        return None
    folded = first.maps[0]
    for between in feed.between:
        step = effects[between.name]
        if not isinstance(step, Linear) or len(step.maps) != 1:
            return None
        folded = compose(step.maps[0], folded)
    if seen.channel_variance is not None:
        if bool((seen.channel_variance + seen.eps <= 0).any()):
            return None
        scale = 1.0 / (seen.channel_variance + seen.eps).sqrt()
        scale = scale if seen.weight is None else scale * seen.weight
        spread = scale.reshape(-1, *(1,) * (len(node.shape) - 2)).to(node.device)
        return estimate(compose(Diagonal(spread, node.shape), folded))
    if not isinstance(effect, Gain):
        return None
    for around in (effect.before, effect.after):
        folded = folded if around is None else compose(around, folded)
    return estimate(folded) - _log10_deviation(seen.variance.log10_min, seen.eps)


def _log10_deviation(log10_variance: float, eps: float) -> float:
    """log10 of sqrt(variance + eps)."""
    variance = 10.0**log10_variance if log10_variance < 300 else math.inf
    return log10(variance + eps) / 2 if variance < math.inf else log10_variance / 2
