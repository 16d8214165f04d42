"""Norms of the normalizers' Jacobians at a point: a proven upper side, and a witness below.

On a normalized set the Jacobian is diag(gamma) (P - y y^T/(n s^2))/s with P the centring (for RMSNorm P is the identity
and y is x): applying it costs O(n). Rounding needs care in one place only, a variance that drowns in a large mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.core import rounding
from normscope.core.bracket import Bracket, Evidence, Scope
from normscope.core.log10 import log10
from normscope.core.rounding import UNIT, Upper
from normscope.theory.normalizers import centred_gain, scales_of

from .normalizer_oracles import sets_of

_DENSE = 256
"""Sets up to this size get their lower side from a dense SVD, larger ones from Lanczos."""


_SMALLEST, _LARGEST = 1e-140, 1e140
"""Between these, squares neither underflow nor overflow."""


def layer_norm_at(x: Tensor, gamma: Tensor | None, eps: float) -> Bracket:
    """Bracket the norm of LayerNorm's Jacobian at one normalized set.

    Above: norm(diag(gamma)(I - 11^T/n))/s, at most max abs(gamma)/s, with s from below. Below: a unit vector. Both
    meet where gamma is constant over the set, and for n <= 2.

    Args:
        x: the n entries of the set, in any shape.
        gamma: as many scales, or one; None for ones.
        eps: the stabiliser.

    Returns:
        A bracket of scope POINT, PROVEN, its witness in the shape of `x`.

    Example:
        >>> bracket = layer_norm_at(torch.tensor([1.0, 2.0, 4.0]), None, 0.0)
        >>> f"{bracket.lower:.6f} {bracket.upper:.6f}"
        '0.801784 0.801784'
    """
    return _blocks(x.reshape(1, -1), scales_of(gamma, x.numel())[None], eps, x.shape, centred=True)


def group_norm_at(x: Tensor, gamma: Tensor | None, groups: int, eps: float) -> Bracket:
    """Bracket the norm of GroupNorm's Jacobian at one sample `[channels, *positions]`: the largest over groups."""
    return _blocks(*sets_of(x, gamma, groups), eps, x.shape, centred=True)


def rms_norm_at(x: Tensor, gamma: Tensor | None, eps: float) -> Bracket:
    """Bracket the norm of RMSNorm's Jacobian at one vector; above it is max abs(gamma)/r."""
    return _blocks(x.reshape(1, -1), scales_of(gamma, x.numel())[None], eps, x.shape, centred=False)


def _blocks(sets: Tensor, scales: Tensor, eps: float, shape: torch.Size, *, centred: bool) -> Bracket:
    """Bracket a block-diagonal Jacobian, one block per row of `sets`: the largest block."""
    if not eps >= 0.0 or not bool(sets.isfinite().all()):
        raise ValueError("a normalizer's input is NaN or infinite, or its eps is negative")
    if float(sets.abs().max()) > _LARGEST:
        raise ValueError(f"a normalizer's input has entries above {_LARGEST:g}: their squares overflow")
    blocks = [_Set(x, scale, eps, centred=centred) for x, scale in zip(sets, scales)]
    uppers = [block.upper() for block in blocks]
    best, where, witness = -1.0, 0, torch.zeros(sets.shape[1], dtype=torch.float64)
    for index in sorted(range(len(blocks)), key=lambda index: -uppers[index].log10):
        if best > 0.0 and uppers[index].log10 <= log10(best):
            break
        value, vector = blocks[index].lower()
        if value > best:
            best, where, witness = value, index, vector
    top = rounding.largest(uppers)
    whole = torch.zeros(sets.shape, dtype=torch.float64)
    whole[where] = witness
    low = log10(best) - 8.0 * UNIT * max(1.0, abs(log10(best))) if best > 0.0 else -math.inf
    closed = low == top.log10 or top.log10 - low < 5e-4
    return Bracket(
        log10_lower=low,
        log10_upper=top.log10,
        evidence=top.evidence,
        method=top.method,
        scope=Scope.POINT,
        witness=whole.reshape(shape),
        reason=top.reason,
        converged=closed,
        advice=None if closed else "the upper side ignores the direction of the input: nothing to raise",
        input_shape=tuple(shape),
    )


class _Set:
    """One normalized set at a point: its centred entries and s between two floats."""

    def __init__(self, x: Tensor, scale: Tensor, eps: float, *, centred: bool) -> None:
        n = x.numel()
        self.n, self.scale, self.eps, self.centred, self.slack = n, scale, eps, centred, rounding.gamma(n + 16)
        self.gamma = float(scale.abs().max())
        y, self.shift, self.noise = x.double(), 0.0, 0.0
        if centred:
            # Twice: the first mean is off by its rounding, which the second removes. What is left: the rounding of
            # the first difference (`noise`) and of the second mean (`shift`).
            y = y - y.mean()
            self.noise = 3.0 * UNIT * float(y.square().mean().sqrt())
            self.shift = rounding.gamma(n + 2) * float(y.abs().mean())
            y = y - y.mean()
        if float(y.abs().max()) < _SMALLEST:  # squares would underflow: what is there counts as noise
            self.noise += _SMALLEST
            y = torch.zeros_like(y)
        self.y, square = y, float(y.square().mean())
        low = max(0.0, math.sqrt(max(0.0, square * (1.0 - self.slack) - 1.01 * self.shift**2)) - self.noise)
        high = math.sqrt(square * (1.0 + self.slack)) + self.noise
        self.low = math.sqrt(low * low + eps) * (1.0 - 8.0 * UNIT)
        self.high = math.sqrt(high * high + eps) * (1.0 + 8.0 * UNIT)

    @property
    def line(self) -> bool:
        """Whether one direction alone survives: the input itself."""
        return self.n == (2 if self.centred else 1)

    def upper(self) -> Upper:
        """Bound the norm from above."""
        gain = centred_gain(self.scale) if self.centred else self.gamma
        if gain == 0.0:
            return Upper.of(0.0, Evidence.PROVEN, "zero map")
        if self.low == 0.0:
            return Upper.infinite("eps is 0 and the variance of a set is 0, or cannot be told from 0")
        if self.line:
            size, method = gain * (self.eps / self.low / self.low) / self.low, "gain eps/s^3"
        else:
            size, method = gain / self.low, "gain/s"
        return Upper.of(size, Evidence.PROVEN, method, allowance=rounding.gamma(16))

    def lower(self) -> tuple[float, Tensor]:
        """Return a value that the norm reaches, and the unit vector that reaches it."""
        n, start = self.n, torch.zeros(self.n, dtype=torch.float64)
        if self.high == 0.0 or (self.centred and n == 1) or self.gamma == 0.0:
            return 0.0, start
        if self.line:
            start[:2] = torch.tensor([1.0, -1.0], dtype=torch.float64)[:n] / math.sqrt(n)
            value = float((self.scale * start).norm()) * (self.eps / self.high / self.high) / self.high
            return value * (1.0 - rounding.gamma(16)), start
        if bool((self.scale == self.scale[0]).all()):
            vector = _orthogonal(self.y, centred=self.centred)
        elif n <= _DENSE:
            vector = torch.linalg.svd(self.apply(torch.eye(n, dtype=torch.float64)).T)[2][0]
        else:
            vector = self.lanczos()
        vector = vector / vector.norm()
        error = 8.0 * (self.slack + (self.noise + self.shift) / self.high) * self.gamma / self.high
        return max(0.0, float(self.apply(vector[None]).norm()) - error), vector

    def apply(self, v: Tensor, *, transposed: bool = False) -> Tensor:
        """Apply the Jacobian, with s from above, to the rows of `v`."""
        v = v * self.scale if transposed else v
        u = v - v.mean(1, keepdim=True) if self.centred else v
        u = (u - (v @ self.y)[:, None] * self.y / (self.n * self.high * self.high)) / self.high
        return u if transposed else u * self.scale

    def lanczos(self, steps: int = 40) -> Tensor:
        """Return the best direction in a Krylov space of J^T J (any direction is a witness)."""
        vector = torch.cos(torch.arange(self.n, dtype=torch.float64) ** 2) / math.sqrt(self.n)
        vector[int(self.scale.abs().argmax())] += 1.0
        span = torch.zeros(steps, self.n, dtype=torch.float64)
        for step in range(steps):
            for _ in range(2):  # orthogonal to rounding: once is not enough
                vector = vector - (span[:step] @ vector) @ span[:step]
            size = float(vector.norm())
            if size < 1e-10:
                span = span[:step]
                break
            span[step] = vector / size
            vector = self.apply(self.apply(span[step : step + 1]), transposed=True)[0] * (self.high / self.gamma) ** 2
        return torch.linalg.svd(self.apply(span), full_matrices=False)[0][:, 0] @ span


def _orthogonal(y: Tensor, *, centred: bool) -> Tensor:
    """Return a vector on which P - c y y^T is the identity: orthogonal to y and, if centred, to the ones."""
    vector = torch.zeros_like(y)
    if centred:
        vector[:3] = torch.linalg.cross(torch.ones(3, dtype=y.dtype), y[:3] / y[:3].abs().max().clamp(min=1e-300))
        fallback = [1.0, -1.0, 0.0]
    else:
        vector[0], vector[1] = -y[1], y[0]
        fallback = [1.0, -1.0]
    if float(vector.abs().max()) == 0.0:
        vector[: len(fallback)] = torch.tensor(fallback, dtype=y.dtype)
    return vector
