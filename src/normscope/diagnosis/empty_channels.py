"""Which channels of a layer carry nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.ir import Node, Unit
from .examined import NormalizerOverData

RELATIVE_CHANNEL = 1e-4
"""A channel against the largest of its layer; trained layers stay above a hundredth."""
CONSTANT = 1e-6
"""A share of eps: below it the deviation is under a thousandth of what the normalizer divides by."""


def dead_scales(seen: NormalizerOverData) -> Tensor | None:
    """Return which scales of a normalizer are negligible beside its largest; None if it has none."""
    if seen.weight is None or not seen.weight.numel():
        return None
    size = seen.weight.abs().flatten()
    return size <= RELATIVE_CHANNEL * size.max()


def constant_inputs(seen: NormalizerOverData) -> Tensor | None:
    """Return which channels of BatchNorm saw a constant; None for the other normalizers."""
    return None if seen.channel_variance is None else seen.channel_variance <= CONSTANT * seen.eps


def dead_filters(node: Node, *, normalized: bool) -> Tensor | None:
    """Return which filters of a weight layer are negligible; None where the layout of its weight is not known.

    Args:
        node: a linear layer or a convolution.
        normalized: whether a normalizer follows, which makes up for a small filter, but not for a zero one.
    """
    if node.is_transposed_convolution:
        return None
    if isinstance(node.op, Unit):
        weight, axis = (node.args[1] if len(node.args) > 1 else None), 0
    else:
        given = node.bound()
        weight, axis = given.get("weight"), 0
        if given.get("transposed"):
            return None
        if weight is None:  # x @ W: the channels are columns
            weight, axis = given.get("mat2", given.get("other")), 1
    if not isinstance(weight, Tensor) or weight.ndim < 2 or (axis == 1 and weight.ndim > 2) or not weight.numel():
        return None
    size = torch.linalg.vector_norm(weight.detach().double().transpose(0, axis).flatten(1), dim=1).cpu()
    return size <= (0.0 if normalized else RELATIVE_CHANNEL) * size.max()
