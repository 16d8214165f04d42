"""What a normalizer does to the data it saw, alone and folded with the linear map before it.

Scaling the weights before a normalizer by c multiplies their norm by c and divides the normalizer's constant by c; the
gain of the two together, taken with the variance of the data, stays the same (up to eps). So this is the figure to
compare layers by.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.log10 import log10
from ..graph.ir import Node
from ..linalg.folding import compose
from ..linalg.linear_map import Diagonal
from ..linalg.operator_norms import estimate
from ..rules.effects import Effect, Gain, Linear
from ..rules.invariance import FeedingLayer
from .examined import NormalizerOverData


def at_data(seen: NormalizerOverData) -> float | None:
    """Return log10 of the largest constant a normalizer had at the data: max over its sets of abs(gamma)/s.

    BatchNorm in eval mode divides by its running variance, whatever the data; None if one of these is negative.
    """
    if seen.stored_variance is not None:
        return _largest(seen, seen.stored_variance)
    return alone_gain(seen)


def alone_gain(seen: NormalizerOverData) -> float | None:
    """Return log10 of the largest constant a normalizer has with the variances of the data."""
    return None if seen.least_variance is None else _largest(seen, seen.least_variance)


def _largest(seen: NormalizerOverData, variance: Tensor) -> float | None:
    """Return log10 of max abs(gamma)/sqrt(variance + eps), each variance with the scales of its own set."""
    scales = torch.ones(len(variance), 1) if seen.weight is None else seen.weight.abs().reshape(len(variance), -1)
    largest, square = scales.double().amax(1), variance.double() + seen.eps
    if not bool(torch.isfinite(largest).all()) or bool((square < 0).any()) or bool(square.isnan().any()):
        return None
    quotient = torch.where(largest == 0, 0.0, largest / square.sqrt())
    return log10(float(quotient.max()))


def folded_gain(
    seen: NormalizerOverData,
    node: Node,
    effect: Effect,
    feed: FeedingLayer,
    effects: Mapping[str, Effect],
) -> float | None:
    """Return log10 of norm(diag(gamma/s) P W): the weight layer, its normalizer's centring P and scale.

    For BatchNorm in eval mode s is each channel's deviation over the data (where stored statistics disagree with it, a
    finding says so); otherwise the smallest deviation seen of each channel, group or set. The norm is an
    estimate from below: the figure speaks of the data alone, so it needs no certificate. A convolution with its
    BatchNorm is folded into one convolution, and one sample of it is measured.

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
    if seen.least_variance is None or bool((seen.least_variance + seen.eps <= 0).any()):
        return None
    if seen.channel_variance is not None:
        scale = 1.0 / (seen.least_variance + seen.eps).sqrt()
        scale = scale if seen.weight is None else scale * seen.weight
        spread = scale.reshape(-1, *(1,) * (len(node.shape) - 2)).to(node.device)
        return estimate(compose(Diagonal(spread, node.shape), folded))
    if not isinstance(effect, Gain):
        return None
    least = seen.least_variance
    deviation = (least + seen.eps).sqrt().repeat_interleave(node.shape[1] // len(least)) if len(least) > 1 else None
    for around in (effect.before, effect.after):
        folded = folded if around is None else compose(around, folded)
    if deviation is None:
        return estimate(folded) - log10(float(least[0]) + seen.eps) / 2
    spread = (1.0 / deviation).reshape(-1, *(1,) * (len(node.shape) - 2)).to(node.device)
    return estimate(compose(Diagonal(spread, node.shape), folded))
