"""Functions of sets of entries near a point: normalizers, softmax, norms, log-sum-exp, the largest of a window.

Every primitive here but the last takes `[B, sets, n]`. Its Jacobian is block diagonal, one block per set, symmetric and
positive semidefinite for normalizers and softmax: there a block that can vary between 0 and g is within g/2 of g/2
times the identity, which is the better centre map once the ball is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ....core.log10 import norm as l2
from .local import CentredValue, Enclosure, LocalForm, OperandShare, Primitive, flat, times

_CURVATURE = 2.0 / math.sqrt(3.0)
"""Largest second derivative of w/sqrt(norm(w)^2 + eps) at norm(w)^2 + eps = 1: 3 t (1 - t^2) at t = 1/sqrt(3)."""


def _nearer(moved: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Choose per set between the Jacobian at the centre and half the largest one: (take the centre, uncertainty)."""
    near = moved <= top / 2
    return near, torch.where(near, moved, top / 2) * (1 + 1e-12)


def _sets(x: Enclosure) -> Tensor:
    """Return the constant of every set `[B, sets]`."""
    constants = torch.minimum(x.constant[:, None], l2(x.entries, -1) * (1 + 1e-12))
    return constants if x.sets is None else torch.minimum(constants, x.sets)


@dataclass(frozen=True, slots=True)
class Normalize(Primitive):
    """y/s with s = sqrt(norm(y)^2/n + eps) over every set.

    The Jacobian (I - y y^T/(n s^2))/s lies between 0 and 1/s, and moves by at most 2/sqrt(3 n)/s^2 per unit of y.
    """

    eps: float

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Divide every set by its root mean square."""
        (y,) = values
        return y / self.deviation(l2(y, -1, keepdim=True), y.shape[-1])

    def deviation(self, norm: Tensor, n: int) -> Tensor:
        """Return sqrt(norm^2/n + eps), also where the square leaves the range of floats."""
        root = norm / math.sqrt(n)
        return torch.hypot(root, torch.full_like(root, math.sqrt(self.eps)))

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """The root mean square over the ball is at least the centre's less the distance."""
        (y,) = operands
        n = y.centre.shape[-1]
        norm, distance = l2(y.centre, -1), y.distance(1)
        backward, forward = y.along()
        nearest = torch.maximum((norm * (1 - 1e-12) + backward).clamp(min=0.0), _smallest(y))
        farthest = torch.hypot(norm.sqrt() * (norm + 2 * forward).sqrt(), distance)  # no square leaves the floats
        farthest = torch.minimum(farthest * (1 + 1e-12), l2(y.size, -1))
        least, most = (
            self.deviation(nearest, n) * (1 - 1e-12),
            self.deviation(farthest, n) * (1 + 1e-12),
        )
        middle = self.deviation(norm, n)
        top = least.reciprocal()
        moved = _CURVATURE * times(times(distance, top), top) / math.sqrt(n)
        near, radius = _nearer(moved, top)
        direction = y.centre / (middle * math.sqrt(n))[..., None]
        direction = torch.where(direction.isfinite(), direction, 0.0)

        limit = math.sqrt(n) * (1 + 1e-12)
        corners = torch.stack([edge / scale[..., None] for edge in (y.low, y.high) for scale in (least, most)])
        low, high = corners.amin(0).clamp(min=-limit), corners.amax(0).clamp(max=limit)
        size = torch.maximum(low.abs(), high.abs())
        whole = _sets(y)
        entries = times(top[..., None], y.entries + times(size, whole[..., None]) / math.sqrt(n))
        radii, sets = (value[..., None].expand_as(y.centre) for value in (radius, whole))
        pull = _normalizer_pull(near, direction, middle, top)
        part = OperandShare(pull, radii, top.amax(-1), entries, operand=sets, blocks=1)
        broken = bool(top.isinf().any())
        reason = "a variance that can vanish within the ball, with eps 0" if broken else None
        around = cache(lambda: _straightened(y, middle, top, most, direction, self.eps))
        return LocalForm(low, high, (part,), reason=reason, around=around)


def _straightened(
    y: Enclosure, middle: Tensor, top: Tensor, most: Tensor, direction: Tensor, eps: float
) -> CentredValue:
    """Return a normalizer's Jacobian at the centre and what is left; half the largest one where less is left of that.

    Let c be the centre, u the change, s and S the deviations at c and c + u, and a = <c, u>/n, so that
    S^2 = s^2 + 2 a + norm(u)^2/n. What is left of entry i is c_i h + u_i g with g = 1/S - 1/s and h = g + a/s^3.
    h is convex in a and falls in norm(u). It is least for the longest u at S = s, or at that end of the range of a that
    is nearer. It is largest for u along c, where norm(u)^2/n is least; as long as 2 (S^2 - eps) >= eps, 1/S is convex
    along c, and an end of the range gives the most.

    The norm over all entries is at most the weight times norm(u): the second derivative along u has a norm of at most
    2/sqrt(3 n) norm(u)^2/s^2, and s falls by at most norm(u)/sqrt(n) on the way: the mean of (1 - t)/(1 - r t)^2 over
    the way, r = norm(u)/(sqrt(n) s), stands for the half of Taylor's formula.
    """
    n, distance, norm = y.centre.shape[-1], y.distance(1), l2(y.centre, -1)
    share = distance / (math.sqrt(n) * middle)
    exact = (-torch.log1p(-share) - share) / share.square()
    mean = torch.where(share < 1e-2, 0.5 + share / 3 + share.square() / 2, exact) * (1 + 1e-9)
    bend = torch.where(share < 1, mean, torch.inf) / middle.square()
    weight = _CURVATURE * times(bend, distance) / math.sqrt(n) * (1 + 1e-12)

    def left(a: Tensor, squared: Tensor, other: Tensor) -> Tensor:
        """Return h, with norm(u)^2/n and S, up to rounding."""
        return a / middle**3 - (2 * a + squared) / (middle * other * (middle + other))

    along = y.along()
    ends, longest = [norm * t / n for t in along], distance.square() / n
    nearest = torch.minimum(torch.maximum(-longest / 2, ends[0]), ends[1])
    low = left(nearest, longest, (middle.square() + 2 * nearest + longest).sqrt())
    sizes = norm * (1 - 1e-12) + along[0], norm + along[1]  # a sum of squares would cancel where S almost vanishes
    convex = (sizes[0] > 0) & (2 * sizes[0].square() >= eps * n)
    others = [torch.hypot(size / math.sqrt(n), torch.full_like(size, math.sqrt(eps))) for size in sizes]
    high = torch.maximum(*(left(a, t.square() / n, other) for a, t, other in zip(ends, along, others, strict=True)))
    high = torch.where(convex, high, top - 1 / middle + ends[1] / middle**3)
    rounded = 1e-12 * (distance * norm + distance.square()) / (n * middle**3) + 1e-14 / middle
    low, high = low - rounded, high + rounded
    slower, faster = ((1 / edge - 1 / middle)[..., None] for edge in (most, 1 / top))
    before, after = y.low - y.centre, y.high - y.centre
    rounded = 1e-12 * y.centre.abs() * torch.maximum(-low, high)[..., None]
    under = torch.minimum(before * faster, after * slower) * (1 + 1e-12) - rounded
    over = torch.maximum(before * slower, after * faster) * (1 + 1e-12) + rounded
    near = (weight <= top / 2) & (middle > 1e-100) & (under - over).isfinite().all(-1) & (high - low).isfinite()
    half = times(top / 2, distance)[..., None] + 1e-15 / middle[..., None] * y.size
    under, over = torch.where(near[..., None], under, -half), torch.where(near[..., None], over, half)
    low, high = torch.where(near, low, 0.0), torch.where(near, high, 0.0)
    weight = torch.where(near, weight, top / 2)[..., None].expand_as(y.centre)
    return CentredValue((_normalizer_pull(near, direction, middle, top),), under, over, weight, (low, high))


def _normalizer_pull(near: Tensor, direction: Tensor, middle: Tensor, top: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the transpose of the Jacobian at the centre, or half the largest one for sets that are not near."""

    def pull(rows: Tensor) -> Tensor:
        along = (rows * direction[:, None]).sum(-1, keepdim=True) * direction[:, None]
        straight = (rows - along) / middle[:, None, :, None]
        return torch.where(near[:, None, :, None], straight, rows * (top / 2)[:, None, :, None])

    return pull


def _smallest(y: Enclosure) -> Tensor:
    """Return the least norm of every set over its box."""
    inside = (y.low <= 0) & (y.high >= 0)
    return l2(torch.where(inside, 0.0, torch.minimum(y.low.abs(), y.high.abs())), -1) * (1 - 1e-12)


@dataclass(frozen=True, slots=True)
class _Simplex:
    """Softmax weights over the ball: limits, distance from the centre (l2), and the norm of diag(p) - p p^T."""

    centre: Tensor
    low: Tensor
    high: Tensor
    distance: Tensor
    top: Tensor


def _simplex(x: Enclosure) -> _Simplex:
    """Limit every weight by its own logit high and the others low, and the other way round."""
    shift = x.high.amax(-1, keepdim=True)
    shift = torch.where(shift.isfinite(), shift, 0.0)
    lows, highs = (x.low - shift).exp(), (x.high - shift).exp()
    high = (highs / (highs + _others(lows))).nan_to_num(nan=1.0)
    low = (lows / (lows + _others(highs))).nan_to_num(nan=0.0)
    low, high = (low * (1 - 1e-12)).clamp(min=0.0), (high * (1 + 1e-12)).clamp(max=1.0)
    centre = x.centre.softmax(-1)
    # 2 p (1 - p) bounds every row sum of absolute entries, p every diagonal entry: both bound the norm
    flattest = torch.where((low <= 0.5) & (high >= 0.5), 0.25, torch.maximum(low * (1 - low), high * (1 - high)))
    top = torch.minimum(2 * flattest.amax(-1), high.amax(-1)).clamp(max=0.5)
    if x.centre.shape[-1] == 1:
        top = torch.zeros_like(top)
    deviation = torch.maximum(high - centre, centre - low).clamp(min=0.0)
    distance = torch.minimum(l2(deviation, -1), times(top, x.distance(1)))
    return _Simplex(centre, low, high, distance * (1 + 1e-12), top * (1 + 1e-12))


def _others(x: Tensor) -> Tensor:
    """Return for every entry the sum of the others, without cancellation."""
    zero = torch.zeros_like(x[..., :1])
    before = torch.cat([zero, x.cumsum(-1)[..., :-1]], -1)
    after = torch.cat([x.flip(-1).cumsum(-1).flip(-1)[..., 1:], zero], -1)
    return before + after


class Softmax(Primitive):
    """Softmax over the last dimension; the Jacobian diag(p) - p p^T moves by norm(dp)(1 + 2 norm(p)) at most."""

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Apply softmax."""
        return values[0].softmax(-1)

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Weights limited by the logits' limits; their change moves the Jacobian."""
        (x,) = operands
        p = _simplex(x)
        size = p.centre.norm(dim=-1)
        worst = torch.maximum(p.high - p.centre, p.centre - p.low).amax(-1).clamp(min=0.0)
        largest = (size + p.distance).clamp(max=1.0)
        moved = torch.minimum(worst, p.distance) + p.distance * (size + largest)
        near, radius = _nearer(moved, p.top)
        entries = _row_entries(x, p)

        def pull(rows: Tensor) -> Tensor:
            weights = p.centre[:, None]
            exact = weights * (rows - (weights * rows).sum(-1, keepdim=True))
            return torch.where(near[:, None, :, None], exact, rows * (p.top / 2)[:, None, :, None])

        # from the centre the weights move by at most top times the way gone: half of that on average
        mean = torch.minimum(p.distance, times(p.top, x.distance(1)) / 2)
        mean = (torch.minimum(worst, mean) + mean * (size + largest)) * (1 + 1e-12)
        radii, sets, rest = (value[..., None].expand_as(x.centre) for value in (radius, _sets(x), mean))
        part = OperandShare(pull, radii, p.top.amax(-1), entries, operand=sets, blocks=1)
        return LocalForm(p.low, p.high, (part,), around=cache(lambda: _bent(x, p, rest)))


def _bent(x: Enclosure, p: _Simplex, weight: Tensor) -> CentredValue:
    """Return the Jacobian at the centre and the rest of Taylor's formula, entry by entry.

    The second derivative of p_i along u is p_i ((u_i - m)^2 - v) with mean m and variance v of u under the weights p.
    Weights sum to one, and columns of the Jacobian to zero: what is left sums to zero.
    """

    def pull(rows: Tensor) -> Tensor:
        weights = p.centre[:, None]
        return weights * (rows - (weights * rows).sum(-1, keepdim=True))

    moved, distance = x.deviation, x.distance(1)[..., None]
    largest, ceiling = moved.amax(-1, keepdim=True), p.high.amax(-1, keepdim=True)
    variance = torch.minimum(times(p.high, moved * moved).sum(-1, keepdim=True), largest * largest)
    variance = torch.minimum(variance, times(ceiling, distance * distance))
    others = torch.minimum(_others(times(p.high, moved)), (1 - p.low) * largest)
    off = times(1 - p.low, moved) + others
    row = ((1 - p.low).square() + _others(p.high.square())).sqrt()
    off = torch.minimum(off, times(row, distance))
    low, high = (times(p.high, half / 2) * (1 + 1e-9) for half in (variance, off * off))
    pad = 1e-15 * p.high
    return CentredValue((pull,), -low - pad, high + pad, weight, balanced=True)


def _row_entries(x: Enclosure, p: _Simplex) -> Tensor:
    """dp_i = p_i ((1 - p_i) dx_i - sum of p_j dx_j over the others), entry by entry or as a row of l2 norm."""
    moved = times(p.high, x.entries)
    single = times(p.high, times(1 - p.low, x.entries) + (moved.sum(-1, keepdim=True) - moved).clamp(min=0.0))
    single = torch.where(x.entries.isfinite().all(-1, keepdim=True), single * (1 + 1e-9), torch.inf)
    row = math.sqrt(2.0) * times(p.high * (1 - p.low) * (1 + 1e-12), _sets(x)[..., None])
    return torch.minimum(single, row)


class LogSoftmax(Primitive):
    """Log-softmax over the last dimension: the Jacobian I - 1 p^T."""

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Apply log-softmax."""
        return values[0].log_softmax(-1)

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """The Jacobian moves as the weights do, times sqrt(n)."""
        (x,) = operands
        p, n = _simplex(x), x.centre.shape[-1]
        root = math.sqrt(n)
        size = torch.minimum(p.high.norm(dim=-1), p.centre.norm(dim=-1) + p.distance).clamp(max=1.0)
        gain = root * size * (1 + 1e-12) if n > 1 else torch.zeros_like(size)
        entries = x.entries + times(p.high, x.entries).sum(-1, keepdim=True)

        def pull(rows: Tensor) -> Tensor:
            return rows - p.centre[:, None] * rows.sum(-1, keepdim=True)

        radii, sets = (value[..., None].expand_as(x.centre) for value in (root * p.distance, _sets(x)))
        part = OperandShare(pull, radii, gain.amax(-1), entries, operand=sets, blocks=1)
        pad = 1e-13 * (1 + x.size)
        return LocalForm(p.low.log() - pad, (p.high.log() + pad).clamp(max=0.0), (part,))


class LogSumExp(Primitive):
    """Log-sum-exp of every set, `[B, sets, n]` to `[B, sets]`: its gradient is the softmax."""

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Apply log-sum-exp."""
        return values[0].logsumexp(-1)

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """The gradient moves as the weights do."""
        (x,) = operands
        p = _simplex(x)
        gain = torch.minimum(p.high.norm(dim=-1), p.centre.norm(dim=-1) + p.distance).clamp(max=1.0)
        part = OperandShare(
            lambda rows: rows[..., None] * p.centre[:, None],
            p.distance,
            gain.amax(-1),
            torch.minimum(times(p.high, x.entries).sum(-1), times(gain, _sets(x))),
            operand=_sets(x),
            blocks=1,
        )
        pad = 1e-13 * (1 + x.size.amax(-1))
        return LocalForm(x.low.logsumexp(-1) - pad, x.high.logsumexp(-1) + pad, (part,))


class Norm(Primitive):
    """The l2 norm of every set, `[B, sets, n]` to `[B, sets]`: its gradient is the direction."""

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Take the norms."""
        return l2(values[0], -1)

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """A direction at distance d from a centre of norm c turns by at most d/(c - d)."""
        (x,) = operands
        norm, distance = l2(x.centre, -1), x.distance(1)
        nearest = torch.maximum((norm * (1 - 1e-12) - distance).clamp(min=0.0), _smallest(x))
        turned = torch.where(nearest > 0, distance / nearest, torch.inf)
        near = turned < 1.0
        direction = torch.where(near[..., None], x.centre / norm.clamp(min=1e-300)[..., None], 0.0)
        part = OperandShare(
            lambda rows: rows[..., None] * direction[:, None],
            turned.clamp(max=1.0),
            torch.ones_like(x.constant),
            _sets(x),
            operand=_sets(x),
            blocks=1,
        )
        high = torch.minimum(norm + distance, l2(x.size, -1)) * (1 + 1e-12)
        return LocalForm(nearest, high, (part,))


@dataclass(frozen=True, slots=True)
class WindowMaximum(Primitive):
    """The largest entry of every window: max pooling, max and min over dimensions.

    An entry that is below another one of its window over the whole ball is out of the race. Windows with one entry left
    are a fixed selection; otherwise the derivative is some point of the simplex over the entries left.

    Attributes:
        windows: `[outputs, width]` flat input indices, -1 where a window is shorter.
        shape: of the output.
    """

    windows: Tensor
    shape: tuple[int, ...]

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Take the largest entry of every window."""
        return self._seen(values[0], -torch.inf).amax(-1).reshape(-1, *self.shape)

    def _seen(self, x: Tensor, missing: float) -> Tensor:
        """Return `[B, outputs, width]`: what every window sees."""
        entries = flat(x)[:, self.windows.clamp(min=0)]
        return torch.where(self.windows >= 0, entries, missing)

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Keep the entries that can win; their mean is the centre map."""
        (x,) = operands
        lows, highs = self._seen(x.low, -torch.inf), self._seen(x.high, -torch.inf)
        floor = lows.amax(-1, keepdim=True)
        racing = (highs >= floor) & (self.windows >= 0)
        speeds = self._seen(x.entries, 0.0)
        moving = racing & (speeds > 0)
        count, fixed = moving.sum(-1).double(), (racing & (speeds == 0)).any(-1)
        # the derivative is a point of the simplex over the entries that move, or of its hull with 0 if one stands still
        corners = count + fixed
        share = moving / corners.clamp(min=1.0)[..., None]
        size = x.centre[0].numel()
        sharing = self._counted(moving, size).amax(-1).sqrt()
        disputed = self._counted(moving & (corners > 1)[..., None], size).amax(-1).sqrt()
        radius = torch.where(corners > 1, _reach(count, corners), 0.0) * disputed[:, None]
        index = self.windows.clamp(min=0).reshape(-1)
        shape, in_shape = self.shape, x.centre.shape[1:]

        def pull(rows: Tensor) -> Tensor:
            spread_out = flat(flat(rows, 2)[..., None] * share[:, None], 2)
            result = torch.zeros(*rows.shape[:2], size, dtype=rows.dtype, device=rows.device)
            return result.index_add_(2, index, spread_out).reshape(*rows.shape[:2], *in_shape)

        fastest = torch.where(racing, speeds, 0.0).amax(-1).reshape(-1, *shape)
        part = OperandShare(pull, (radius * (1 + 1e-12)).reshape(-1, *shape), sharing, fastest)
        return LocalForm(floor[..., 0].reshape(-1, *shape), highs.amax(-1).reshape(-1, *shape), (part,))

    def _counted(self, chosen: Tensor, size: int) -> Tensor:
        """Return `[B, inputs]`: how many windows have each input among the chosen."""
        index = self.windows.clamp(min=0).reshape(1, -1).expand(chosen.shape[0], -1)
        zeros = torch.zeros(chosen.shape[0], size, dtype=torch.float64, device=chosen.device)
        return zeros.scatter_add_(1, index, flat(chosen).double())


def _reach(count: Tensor, corners: Tensor) -> Tensor:
    """Return how far a corner e_j is from the point with all coordinates 1/corners (0 is nearer)."""
    return (
        (1 - 1 / corners.clamp(min=1.0)).square() + (count - 1).clamp(min=0.0) / corners.clamp(min=1.0).square()
    ).sqrt()
