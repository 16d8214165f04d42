"""Linear relaxation over a ball: values bounded by affine functions of the input, carried back through lines.

Every primitive lies between two affine functions of its operands over the ball (`Lines`), or within a remainder of its
centre map. A combination of values is bounded from below by taking the lower line where its weight is positive and the
upper one where it is negative, back to the input, where an affine function of slope s is least at - radius norm(s).

Reference: Zhang et al. 2018 (CROWN); Singh et al. 2018 (DeepZ).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...core.budget import Budget, check_time
from ...core.sizes import norm as l2
from ...rules.local.local import Affine, Enclosure, Lines, Step, flat, times
from .enclosure import Enclosures, tidy
from .expansion import accumulate, adjoint

ROWS = 1024
"""At most this many entries of one value are relaxed, those that could gain most."""
LARGEST = 1e60
"""Where sums get beyond this, their rounding may hide what matters."""
AT_ONCE = 1e7
"""Entries of the largest tensor carried backwards at once."""


def lowest(seen: Enclosures, name: str, rows: Tensor) -> Tensor:
    """Bound combinations of a value's entries over the balls from below, relative to the centre.

    Args:
        seen: every value over the balls, up to that one.
        name: the value.
        rows: `[B, K, *shape]`, the combinations.

    Returns:
        `[B, K]`: rows (value - centre) is nowhere less.
    """
    gradients = {name: rows}
    total = torch.zeros(rows.shape[:2], dtype=rows.dtype, device=rows.device)
    for step in reversed(seen.unrolled.before(name)):
        check_time()
        found = gradients.pop(step.name, None)
        if found is None:
            continue
        if isinstance(step.operation, Affine):
            for linear, operand in zip(step.operation.maps, step.operands, strict=True):
                accumulate(gradients, operand, adjoint(linear.adjoint, found))
            continue
        local, operands = seen.locals[step.name], [seen.known[operand] for operand in step.operands]
        if local.lines is None:
            for part, operand, x in zip(local.parts, step.operands, operands, strict=True):
                accumulate(gradients, operand, part.pull(found))
                total = total - _remainder(found, part.weight, part.blocks, x)
            continue
        low, high = found.clamp(min=0.0), found.clamp(max=0.0)
        lines = local.lines()
        offsets = _offsets(lines, operands, seen.known[step.name])
        for weights, offset in zip((low, high), offsets, strict=True):
            total = total + flat(times(weights, offset[:, None]), 2).sum(2)
        for j, operand in enumerate(step.operands):
            slopes = lines.low_slopes[j], lines.high_slopes[j]
            accumulate(gradients, operand, low * slopes[0][:, None] + high * slopes[1][:, None])
    names = [item.name for item in seen.unrolled.graph.inputs]
    first = [flat(gradients[name], 2) for name in names if name in gradients]
    if first:
        total = total - l2(torch.cat(first, 2), 2) * seen.radius[:, None]
    # every term is negative: nothing cancels, so that rounding is relative; beyond LARGEST nothing can be said
    return torch.where(total > -LARGEST, total * (1 + 1e-11), -torch.inf)


def _offsets(lines: Lines, operands: list[Enclosure], value: Enclosure) -> tuple[Tensor, Tensor]:
    """Return how far the lines are from the value at the centre: at most 0 below, at least 0 above."""
    low, high = lines.low_offset - value.centre, lines.high_offset - value.centre
    for x, slope in zip(operands, lines.low_slopes, strict=True):
        low = low + slope * x.centre
    for x, slope in zip(operands, lines.high_slopes, strict=True):
        high = high + slope * x.centre
    return torch.where(low > -LARGEST, low.clamp(max=0.0), -torch.inf), torch.where(
        high < LARGEST, high.clamp(min=0.0), torch.inf
    )


def _remainder(found: Tensor, weight: Tensor, blocks: int, x: Enclosure) -> Tensor:
    """Bound a combination of what is left beside the centre map, `[B, K]`: all blocks together, or one by one."""
    scaled = times(found, weight[:, None])
    inner = x.centre.ndim - 1 - blocks
    distance = x.distance(inner) if inner else x.deviation
    each = l2(flat(scaled, 2 + blocks), -1)
    apart = flat(times(each, distance[:, None]), 2).sum(2)
    whole = times(
        l2(flat(scaled, 2), 2), x.distance(x.centre.ndim - 1)[:, None] if x.centre.ndim > 1 else distance[:, None]
    )
    return torch.minimum(apart, whole) * (1 + 1e-12)


class Relaxation:
    """Tightens the limits of every value that a primitive is about to read, where the primitive is still open.

    Args:
        budget: nothing is relaxed any more once its clock has run out.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def look(self, seen: Enclosures, name: str, step: Step | None = None) -> Enclosure | None:
        """Return the enclosure within relaxed limits; None where nothing can be gained."""
        x = seen.known[name]
        inputs = {item.name for item in seen.unrolled.graph.inputs}
        if inputs.issuperset(seen.unrolled.forms[name]) or not bool((seen.radius > 0).any()) or self.budget.late:
            return None
        chosen = _open(seen, name, step)
        if chosen.shape[1] == 0:
            return None
        low, high = flat(x.low).clone(), flat(x.high).clone()
        size, centre = low.shape[1], flat(x.centre)
        step_rows = max(1, int(AT_ONCE / (len(low) * seen.unrolled.largest * 2)))
        for some in chosen.split(step_rows, 1):
            if self.budget.late:
                break
            rows = torch.zeros(len(low), some.shape[1], size, dtype=low.dtype, device=low.device)
            rows.scatter_(2, some[..., None], 1.0)
            rows = rows.reshape(*rows.shape[:2], *x.centre.shape[1:])
            bounds = lowest(seen, name, torch.cat([rows, -rows], 1))
            below, above = bounds[:, : some.shape[1]], -bounds[:, some.shape[1] :]
            here = centre.gather(1, some)
            low.scatter_(1, some, torch.maximum(low.gather(1, some), here + below))
            high.scatter_(1, some, torch.minimum(high.gather(1, some), here + above))
        shape = x.centre.shape
        return replace(
            tidy(x.centre, low.reshape(shape), high.reshape(shape), x.constant, x.entries, x.radius), sets=x.sets
        )

    def learn(self, seen: Enclosures, index: int, step: Step) -> None:
        """Nothing is kept between primitives."""


def _open(seen: Enclosures, name: str, step: Step | None) -> Tensor:
    """Return `[B, K]` entries of a value worth relaxing: those that the primitive is not sure of, the widest first."""
    x = seen.known[name]
    width = flat(x.high - x.low).nan_to_num(posinf=1e300)
    if step is not None and not isinstance(step.operation, Affine):
        parts = step.operation.local([seen.known[operand] for operand in step.operands]).parts
        for part, operand in zip(parts, step.operands, strict=True):
            if operand == name and part.slopes is not None and len(step.operands) == 1:
                width = times(width, flat(part.weight).clamp(max=1e300))
    count = min(int((width > 0).sum(1).amax()), ROWS)
    return width.topk(count, dim=1).indices
