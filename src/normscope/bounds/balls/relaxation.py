"""Linear bounds of the values inside the network: tighter limits for what a primitive is about to read.

Reference: Zhang et al. 2018 (CROWN).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...core.budget import Budget
from ...core.log10 import norm as l2
from ...rules.local.local import Affine, Enclosure, UnrolledStep, flat, times
from .enclosure import Enclosures, tidy
from .expansion import largest_singular
from .sweep import Below, below

ROWS = 1024
"""At most this many entries of one value are relaxed, those that could gain most."""
AT_ONCE = 1e7
"""Entries of the largest tensor carried backwards at once."""
KEPT = 5e7
"""Slopes of all entries of a value in all inputs that are kept at once, to bound how far sets of entries can move."""


class Relaxation:
    """Tightens the limits of every value that an open primitive is about to read, until the clock has run out."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def look(self, seen: Enclosures, name: str, step: UnrolledStep | None = None) -> Enclosure | None:
        """Return the enclosure within relaxed limits; None where nothing can be gained."""
        if step is None or not bool((seen.radius > 0).any()) or self.budget.late:
            return None
        x = seen.known[name]
        inputs = sum(math.prod(item.shape) for item in seen.unrolled.graph.inputs)
        sets = _in_sets(seen, name, step) and 2 * x.centre.numel() * inputs <= KEPT
        linear = {item.name for item in seen.unrolled.graph.inputs}.issuperset(seen.unrolled.forms[name])
        if linear and not sets:
            return None
        chosen = _open(seen, name, step)
        if chosen.shape[1] == 0:
            return None
        low, high = flat(x.low).clone(), flat(x.high).clone()
        centre, found = flat(x.centre), []
        step_rows = max(1, int(AT_ONCE / (len(low) * seen.unrolled.largest * 2)))
        for some in chosen.split(step_rows, 1):
            if self.budget.late:
                break
            rows = torch.zeros(len(low), some.shape[1], low.shape[1], dtype=low.dtype, device=low.device)
            rows.scatter_(2, some[..., None], 1.0)
            rows = rows.reshape(*rows.shape[:2], *x.centre.shape[1:])
            both = below(seen, name, torch.cat([rows, -rows], 1))
            bounds = both.least(seen.radius)
            under, over = bounds[:, : some.shape[1]], -bounds[:, some.shape[1] :]
            here = centre.gather(1, some)
            low.scatter_(1, some, torch.maximum(low.gather(1, some), here + under))
            high.scatter_(1, some, torch.minimum(high.gather(1, some), here + over))
            found += [both] if sets else []
        shape = x.centre.shape
        tight = tidy(x.centre, low.reshape(shape), high.reshape(shape), x.constant, x.entries, x.radius)
        whole = sets and len(found) == math.ceil(low.shape[1] / step_rows) and chosen.shape[1] == low.shape[1]
        return replace(tight, sets=x.sets, apart=_apart(found, seen.radius, x) if whole else None)

    def learn(self, seen: Enclosures, index: int, step: UnrolledStep) -> None:
        """Nothing is kept between primitives."""


def _in_sets(seen: Enclosures, name: str, step: UnrolledStep | None) -> bool:
    """Say whether a primitive reads a value in sets of several entries, `[B, sets, n]`."""
    if step is None or isinstance(step.operation, Affine) or seen.known[name].centre.ndim != 3:
        return False
    local = step.operation.local([seen.known[operand] for operand in step.operands])
    return len(step.operands) == 1 and local.parts[0].slopes is None


def _apart(found: list[Below], radius: Tensor, x: Enclosure) -> Tensor:
    """Bound how far every set can be from its centre: the norm of its mean slopes, and what is off beside them.

    A value between two affine functions is their mean, up to half their difference and the larger offset.
    """
    halves = [(b.slopes.chunk(2, 1), b.offset.chunk(2, 1)) for b in found]
    under, over = (torch.cat([slopes[k] for slopes, _ in halves], 1) for k in (0, 1))
    offsets = (torch.cat([offset[k] for _, offset in halves], 1) for k in (0, 1))
    batch, sets, n = x.centre.shape
    mean = ((under - over) / 2).reshape(batch * sets, n, -1)
    off = l2(under + over, 2) / 2 * radius[:, None] + torch.maximum(*(-offset for offset in offsets))
    turned = largest_singular(mean).reshape(batch, sets)
    return (turned * radius[:, None] + l2(off.reshape(batch, sets, n), 2)) * (1 + 1e-11)


def _open(seen: Enclosures, name: str, step: UnrolledStep) -> Tensor:
    """Return `[B, K]` entries of a value worth relaxing: those that the primitive is not sure of, the widest first."""
    x = seen.known[name]
    width = flat(x.high - x.low).nan_to_num(posinf=1e300)
    if not isinstance(step.operation, Affine):
        parts = step.operation.local([seen.known[operand] for operand in step.operands]).parts
        for part, operand in zip(parts, step.operands, strict=True):
            if operand == name and part.slopes is not None and len(step.operands) == 1:
                width = times(width, flat(part.weight).clamp(max=1e300))
    count = min(int((width > 0).sum(1).amax()), ROWS)
    if count == width.shape[1]:
        return torch.arange(count, device=width.device).expand(len(width), -1)
    return width.topk(count, dim=1).indices
