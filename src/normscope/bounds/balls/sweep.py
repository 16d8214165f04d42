"""Linear bounds over a ball, backwards: combinations of a value's entries bounded by affine functions of the input.

Every primitive lies between two affine functions of its operands over the ball (`Lines`), or within a rest of a map
(`CentredValue`), or within a remainder of its centre map. A combination of values is bounded from below by taking the
lower line where its weight is positive and the upper one where it is negative, back to the input, where an affine
function of slope s is least at - radius norm(s). Everything is relative to the centre.

Reference: Zhang et al. 2018 (CROWN); Xu et al. 2020 (general graphs).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.budget import Budget, check_time
from ...core.log10 import SMALLEST
from ...core.log10 import norm as l2
from ...core.rounding import gamma
from ..linalg.operator_norms import absolute_norm
from ..operators.local.entry_sets import Normalize
from ..operators.local.local import Affine, Enclosure, LocalForm, UnrolledStep, flat, times
from .enclosure import Enclosures, tidy
from .expansion import accumulate, adjoint, largest_singular

LARGEST = 1e60
"""Where sums get beyond this, their rounding may hide what matters."""
SLACK = 1e-11
"""Relative rounding allowance of a bound."""


@dataclass(frozen=True, slots=True)
class Below:
    """Affine functions below combinations of a value: rows (value - centre) >= slopes (x - centre) + offset.

    Attributes:
        slopes: `[B, K, n]`, in the flat inputs.
        offset: `[B, K]`, at most 0; rounding is counted.
    """

    slopes: Tensor
    offset: Tensor

    @property
    def rates(self) -> Tensor:
        """How fast each combination can fall, `[B, K]`: the norms of the slopes."""
        return l2(self.slopes, 2) * (1 + SLACK)

    def least(self, radius: Tensor) -> Tensor:
        """Return the least over balls of radii `[B]`, none larger than those of the enclosures, `[B, K]`."""
        total = self.offset - self.rates * radius[:, None]
        return torch.where(total > -LARGEST, total * (1 + SLACK), -torch.inf)


def below(enclosures: Enclosures, name: str, rows: Tensor) -> Below:
    """Bound combinations `rows` `[B, K, *shape]` of a value over the balls from below, relative to the centre."""
    gradients = {name: rows}
    offset = torch.zeros(rows.shape[:2], dtype=rows.dtype, device=rows.device)
    for step in reversed(enclosures.unrolled.before(name)):
        check_time()
        gradient = gradients.pop(step.name, None)
        if gradient is None:
            continue
        if isinstance(step.operation, Affine):
            for linear, operand in zip(step.operation.maps, step.operands, strict=True):
                accumulate(gradients, operand, adjoint(linear.adjoint, gradient))
                offset = offset - _rounded(gradient, absolute_norm(linear), enclosures.known[operand])
            continue
        offset = offset + _through(step, enclosures.locals[step.name], enclosures, gradient, gradients)
    inputs = enclosures.unrolled.graph.inputs
    empty = [rows.new_zeros(*rows.shape[:2], *item.shape) for item in inputs]
    first = [flat(gradients.get(item.name, zeros), 2) for item, zeros in zip(inputs, empty, strict=True)]
    return Below(torch.cat(first, 2), torch.where(offset > -LARGEST, offset * (1 + SLACK), -torch.inf))


def _through(
    step: UnrolledStep,
    local: LocalForm,
    enclosures: Enclosures,
    gradient: Tensor,
    gradients: dict[str, Tensor],
) -> Tensor:
    """Carry rows over a primitive to its operands; return what is lost, `[B, K]`, at most 0."""
    operands = [enclosures.known[operand] for operand in step.operands]
    if local.lines is not None:
        lines, size, value = local.lines(), gradient.abs(), enclosures.known[step.name]
        # limits of the offset relative to the centre, around the mean slope and half of low less high
        low, high = lines.low_offset - value.centre, lines.high_offset - value.centre
        for operand, x, first, second in zip(step.operands, operands, lines.low_slopes, lines.high_slopes, strict=True):
            low, high = low + first * x.centre, high + second * x.centre
            middle, tilt = (first + second)[:, None] / 2, (first - second)[:, None] / 2
            accumulate(gradients, operand, torch.addcmul(gradient * middle, size, tilt))
        low, high = torch.where(low > -LARGEST, low, -torch.inf), torch.where(high < LARGEST, high, torch.inf)
        return _between(gradient, size, low.clamp(max=0.0), high.clamp(min=0.0))
    around = None if local.around is None else local.around()
    if around is not None and (
        len(operands) > 1 or bool((around.low > -LARGEST).all() and (around.high < LARGEST).all())
    ):
        for operand, pull in zip(step.operands, around.pulls, strict=True):
            accumulate(gradients, operand, pull(gradient))
        low, high = around.low.clamp(max=0.0), around.high.clamp(min=0.0)
        if around.weight is None:
            return _between(gradient, gradient.abs(), low, high)
        # a rest whose sets are short, too: each set by whichever is less, or all together
        middle, half = (low + high)[:, None] / 2, (high - low)[:, None] / 2 * (1 + 1e-12)
        single = (gradient * middle - gradient.abs() * half).sum(-1)
        if around.balanced:  # the rest sums to zero, so that a constant may be taken off the gradient
            mean = (gradient * half).sum(-1, keepdim=True) / half.sum(-1, keepdim=True).clamp(min=SMALLEST)
            rounded = 1e-13 * mean[..., 0].abs() * (1 + operands[0].distance(1)[:, None])
            uneven = gradient - mean
            single = torch.maximum(single, (uneven * middle - uneven.abs() * half).sum(-1) - rounded)
        if around.multiple is not None:
            factor = (gradient * operands[0].centre[:, None]).sum(-1)
            single = single + torch.minimum(*(factor * edge[:, None] for edge in around.multiple))
        single = single.clamp(max=0.0)
        size = l2(times(gradient, around.weight[:, None]), -1) * (1 + 1e-12)
        apart = torch.maximum(single, -times(size, operands[0].distance(1)[:, None])).sum(-1)
        return torch.maximum(apart, -times(l2(size, -1), operands[0].distance(2)[:, None]) * (1 + 1e-12))
    lost = torch.zeros(gradient.shape[:2], dtype=gradient.dtype, device=gradient.device)
    for part, operand, x in zip(local.parts, step.operands, operands, strict=True):
        accumulate(gradients, operand, part.pull(gradient))
        lost = lost - _remainder(gradient, part.weight, part.blocks, x)
    return lost


def _between(gradient: Tensor, size: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Bound rows of what lies in [low, high], entry by entry, from below: `[B, K]`; `size` is abs(gradient)."""
    low, high, weights, sizes = flat(low), flat(high), flat(gradient, 2), flat(size, 2)
    unknown = (low <= -LARGEST) | (high >= LARGEST)
    middle, half = torch.where(unknown, 0.0, low + high) / 2, torch.where(unknown, 0.0, high - low) / 2
    # gradient > 0 takes low = middle - half and gradient < 0 takes high; half outweighs all rounding
    total = (weights @ middle[..., None] - sizes @ (half * (1 + 1e-12))[..., None])[..., 0].clamp(max=0.0)
    if not bool(unknown.any()):
        return total
    return torch.where((sizes @ unknown.to(sizes)[..., None])[..., 0] > 0, -torch.inf, total)


def _rounded(gradient: Tensor, size: float, x: Enclosure) -> Tensor:
    """Bound what rounding of rows behind a map with entries of a norm does to the bound, `[B, K]`."""
    rows, count = torch.linalg.vector_norm(flat(gradient, 2), dim=2), float(flat(gradient, 2).shape[2])
    distance = times(x.constant, x.radius)
    if not bool(distance.isfinite().all()):
        distance = l2(flat(x.deviation), 1)
    return times(gamma(8.0 * count + 64.0) * size * rows, distance[:, None])


def _remainder(gradient: Tensor, weight: Tensor, blocks: int, x: Enclosure) -> Tensor:
    """Bound a combination of what is left beside the centre map, `[B, K]`: all blocks together, or one by one."""
    scaled = times(gradient, weight[:, None])
    inner = x.centre.ndim - 1 - blocks
    distance = x.distance(inner) if inner else x.deviation
    each = l2(flat(scaled, 2 + blocks), -1)
    apart = flat(times(each, distance[:, None]), 2).sum(2)
    whole = times(
        l2(flat(scaled, 2), 2), x.distance(x.centre.ndim - 1)[:, None] if x.centre.ndim > 1 else distance[:, None]
    )
    return torch.minimum(apart, whole) * (1 + 1e-12)


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

    def tighten_enclosure(
        self, enclosures: Enclosures, name: str, step: UnrolledStep | None = None
    ) -> Enclosure | None:
        """Return the enclosure within relaxed limits; None where nothing can be gained."""
        if step is None or not bool((enclosures.radius > 0).any()) or self.budget.late:
            return None
        assert not isinstance(step.operation, Affine)
        x = enclosures.known[name]
        local = step.operation.local([enclosures.known[operand] for operand in step.operands])
        slopes = local.parts[0].slopes if len(step.operands) == 1 else None
        inputs = sum(math.prod(item.shape) for item in enclosures.unrolled.graph.inputs)
        in_sets = x.centre.ndim == 3 and len(step.operands) == 1 and slopes is None
        sets = in_sets and 2 * x.centre.numel() * inputs <= KEPT
        linear = {item.name for item in enclosures.unrolled.graph.inputs}.issuperset(enclosures.unrolled.forms[name])
        if linear and not sets:
            return None
        # the entries worth relaxing: those that the primitive is not sure of, the widest first
        width = flat(x.high - x.low).nan_to_num(posinf=1e300)
        if slopes is not None:
            width = times(width, flat(local.parts[0].weight).clamp(max=1e300))
        count = min(int((width > 0).sum(1).amax()), ROWS)
        if count == 0:
            return None
        chosen = width.topk(count, dim=1).indices
        if count == width.shape[1]:
            chosen = torch.arange(count, device=width.device).expand(len(width), -1)
        low, high = flat(x.low).clone(), flat(x.high).clone()
        centre, relaxed = flat(x.centre), []
        step_rows = max(1, int(AT_ONCE / (len(low) * enclosures.unrolled.largest * 2)))
        for some in chosen.split(step_rows, 1):
            if self.budget.late:
                break
            rows = torch.zeros(len(low), some.shape[1], low.shape[1], dtype=low.dtype, device=low.device)
            rows.scatter_(2, some[..., None], 1.0)
            rows = rows.reshape(*rows.shape[:2], *x.centre.shape[1:])
            both = below(enclosures, name, torch.cat([rows, -rows], 1))
            bounds = both.least(enclosures.radius)
            under, over = bounds[:, : some.shape[1]], -bounds[:, some.shape[1] :]
            here = centre.gather(1, some)
            low.scatter_(1, some, torch.maximum(low.gather(1, some), here + under))
            high.scatter_(1, some, torch.minimum(high.gather(1, some), here + over))
            relaxed += [both] if sets else []
        shape = x.centre.shape
        tight = tidy(x.centre, low.reshape(shape), high.reshape(shape), x.constant, x.entries, x.radius)
        whole = sets and len(relaxed) == math.ceil(low.shape[1] / step_rows) and chosen.shape[1] == low.shape[1]
        apart = _apart(relaxed, enclosures.radius, x) if whole else None
        normalizes = in_sets and isinstance(step.operation, Normalize) and shape[1] <= step_rows
        ahead = _bound_along_centres(enclosures, name) if normalizes else None
        return replace(tight, sets=x.sets, apart=apart, ahead=ahead)

    def learn(self, enclosures: Enclosures, index: int, step: UnrolledStep) -> None:
        """Nothing is kept between primitives."""


def _bound_along_centres(enclosures: Enclosures, name: str) -> tuple[Tensor, Tensor]:
    """Bound how far every set can move along its centre, backwards and forwards, `[B, sets]` each."""
    centre = enclosures.known[name].centre
    unit = centre / l2(centre, -1)[..., None].clamp(min=SMALLEST)
    rows = torch.diag_embed(unit.mT, dim1=1, dim2=2)
    both = below(enclosures, name, torch.cat([rows, -rows], 1))
    low, high = both.least(enclosures.radius).chunk(2, 1)
    return low, -high


def _apart(relaxed: list[Below], radius: Tensor, x: Enclosure) -> Tensor:
    """Bound how far every set can be from its centre: the norm of its mean slopes, and what is off beside them.

    A value between two affine functions is their mean, up to half their difference and the larger offset.
    """
    halves = [(b.slopes.chunk(2, 1), b.offset.chunk(2, 1)) for b in relaxed]
    under, over = (torch.cat([slopes[k] for slopes, _ in halves], 1) for k in (0, 1))
    offsets = (torch.cat([offset[k] for _, offset in halves], 1) for k in (0, 1))
    batch, sets, n = x.centre.shape
    mean = ((under - over) / 2).reshape(batch * sets, n, -1)
    off = l2(under + over, 2) / 2 * radius[:, None] + torch.maximum(*(-offset for offset in offsets))
    turned = largest_singular(mean).reshape(batch, sets)
    return (turned * radius[:, None] + l2(off.reshape(batch, sets, n), 2)) * (1 + 1e-11)
