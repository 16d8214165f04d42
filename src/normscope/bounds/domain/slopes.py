"""Slopes entry by entry as one slope interval and a diagonal map behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...rules.effects import Elementwise

ROUNDING = 1e-12


def sloped(a: Tensor, b: Tensor, *, exact: bool) -> tuple[Elementwise | None, Tensor | None]:
    """Split a diagonal matrix with entries in [a_i, b_i] into s_i t_i, t in one interval.

    With A the least a_i and B the largest b_i, s_i is the smallest scale with [a_i, b_i] inside s_i [A, B], at most 1:
    entries that never move have the scale 0, and the interval is not wider than [A, B].

    Args:
        a: the least slope of every entry, finite.
        b: the largest.
        exact: whether the slopes are exact; otherwise (and where they had to be divided) the evidence is NUMERICAL.

    Returns:
        The effect with the interval of t, None where every t is 1; and the scales, as small a tensor as broadcasts to
        the shape, None where all are 1.
    """
    if bool((a == b).all()):
        return None, None if bool((a == 1).all()) else narrowed(a)
    low, high = float(a.amin()), float(b.amax())
    up = b / high if high > 0 else torch.zeros_like(b)
    down = a / low if low < 0 else torch.zeros_like(a)
    scale = torch.maximum(up, down)
    whole = bool(((scale == 0) | (scale == 1)).all())
    if not whole:
        scale = torch.where(scale > 0, scale * (1 + ROUNDING), 0.0)
    if low > 0 or high < 0:  # the end nearer to 0 is not scaled with the other one
        kept = scale > 0
        near = a if low > 0 else b
        ratio = (near[kept] / scale[kept]).abs().amin() * (1 - ROUNDING)
        low, high = (float(ratio), high) if low > 0 else (low, -float(ratio))
    evidence = Evidence.PROVEN if exact and whole else Evidence.NUMERICAL
    core = Elementwise(slope=(low, high), evidence=evidence)
    return core, None if bool((scale == 1).all()) else narrowed(scale)


def narrowed(scale: Tensor) -> Tensor:
    """Return a tensor that broadcasts to the same entries, one entry wide where they do not differ."""
    for dim in range(scale.ndim):
        first = scale.narrow(dim, 0, 1)
        if scale.shape[dim] > 1 and bool((scale == first).all()):
            scale = first
    return scale.contiguous()
