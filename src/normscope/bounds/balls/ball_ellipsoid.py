"""Reachable ellipsoids over a ball: the engine of `ellipsoid.py` for what primitives do there, for all centres at once.

The state is a matrix Q over the stacked *sources* still needed (inputs and primitives) with dg dg^T <= norm(dx)^2 Q for
any two inputs of the ball. A primitive u with du = sum of M dv + dw, norm(dw/o) <= norm(dv) on every block, carries it
on: with multipliers sigma per block, S = diag(sigma)^(1/2) and v = F g the stacked operands,

    T = S (I - S Q_vv S)^-1 S,   Qhat = Q + Q_gv T Q_vg,   Q_uu = M Qhat_vv M^T + diag(o^2/sigma),   Q_gu = Qhat_gv M^T.

Moves are kept, so that the state can be run again with other multipliers (`ball_ellipsoid_search.py`).

Squares of values that cancel lose twice the digits that the values do: where a product is taken the diagonal is raised
over what rounding may have taken. An error of at most c r_i r_j in entry (i, j) of n x n is below c n diag(r^2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.rounding import gamma
from ...rules.local.local import OperandShare, flat, wide
from ..ellipsoids.ellipsoid import raised, reach, roots
from .expansion import largest_eigenvalue

SHRUNK = 1e-9
"""How far below the edge of feasibility multipliers stay, relatively."""


@dataclass(frozen=True, slots=True)
class EllipsoidOperand:
    """One operand of a primitive.

    Attributes:
        centre: the centre map, `[B, m]` if it is diagonal, `[B, m, n]` otherwise.
        weight: o, `[B, m]`.
        inner, outer: the block of every entry of the operand `[n]` and of the value `[m]`.
        ratio: `[B, blocks]`, o/(o + size of the centre map): what the best multiplier of a single block is made of.
    """

    centre: Tensor
    weight: Tensor
    inner: Tensor
    outer: Tensor
    ratio: Tensor

    @classmethod
    def of(cls, part: OperandShare, operand: tuple[int, ...], value: tuple[int, ...]) -> EllipsoidOperand:
        """Return the piece of a primitive's part; `operand` and `value` are the shapes."""
        batch, size = len(part.weight), math.prod(value)
        device = part.weight.device
        blocks = math.prod(operand[: part.blocks])
        inner = torch.arange(blocks, device=device).repeat_interleave(math.prod(operand[part.blocks :]))
        outer = torch.arange(blocks, device=device).repeat_interleave(math.prod(value[part.blocks :]))
        weight = flat(part.weight)
        if part.slopes is not None:
            centre = flat(part.slopes[0] + part.slopes[1]) / 2
            steep = centre.abs()
        else:
            eye = torch.eye(size, dtype=torch.float64, device=device).reshape(1, size, *value)
            centre = flat(part.pull(eye.expand(batch, size, *value)), 2)
            steep = wide(part.gain, weight).expand_as(weight)
        ratio = (weight / (weight + steep).clamp(min=1e-300)).reshape(batch, blocks, -1).amax(-1)
        return cls(centre, weight, inner, outer, ratio)

    def pushed(self, right: Tensor) -> Tensor:
        """Return M times matrices `[B, n, k]`."""
        return self.centre[..., None] * right if self.centre.ndim == 2 else self.centre @ right


@dataclass(frozen=True, slots=True)
class Carried:
    """A primitive: its stacked operands as a matrix over the state, what is kept of the state, and its pieces."""

    form: Tensor
    kept: Tensor
    pieces: tuple[EllipsoidOperand, ...]


@dataclass(frozen=True, slots=True)
class Afresh:
    """A value known by its constant `[B]` alone, of `size` entries, beside what is kept of the state."""

    constant: Tensor
    size: int
    kept: Tensor


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is added; some of the state is kept."""

    kept: Tensor


Move = Carried | Afresh | Forget


def moved(q: Tensor, move: Move, sigmas: Sequence[Tensor] | None = None) -> Tensor:
    """Return the state behind a move: `[B, N, N]`, NaN where the multipliers are not feasible.

    Args:
        q: the state before.
        move: what happens.
        sigmas: multipliers `[B, blocks]` for every piece of a primitive; a good start (`multipliers`) if absent.
    """
    if isinstance(move, Forget):
        return q[:, move.kept][:, :, move.kept]
    if isinstance(move, Afresh):
        eye = torch.eye(move.size, dtype=q.dtype, device=q.device) * move.constant.square()[:, None, None]
        if not move.kept.numel():
            return eye
        # two ellipsoids side by side hold together with shares that sum to 1
        return _joined(2 * q[:, move.kept][:, :, move.kept], None, 2 * eye)
    crossed = q @ move.form.mT
    own = move.form @ crossed
    kept, size = move.kept, move.kept.numel() + len(move.form)
    rounded = size * gamma(2.0 * q.shape[-1] + 16.0)
    own = raised((own + own.mT) / 2, rounded * reach(move.form, q).square())
    before = raised(q[:, kept][:, :, kept], rounded * roots(q)[:, kept].square())
    chosen = multipliers(own, move) if sigmas is None else sigmas
    inner = torch.cat([s[:, p.inner] for s, p in zip(chosen, move.pieces, strict=True)], 1)
    spreads = [
        torch.where(p.weight > 0, p.weight.square() / s[:, p.outer].clamp(min=1e-300), 0.0)
        for s, p in zip(chosen, move.pieces, strict=True)
    ]
    middle = _middle(own, inner)
    across, rounded = crossed[:, kept], size * gamma(2.0 * len(move.form) + 16.0)
    hat = own + own @ middle @ own
    hat = raised((hat + hat.mT) / 2, rounded * reach(own, middle).square())
    rest = raised(before + across @ middle @ across.mT, rounded * reach(across, middle).square())
    value = _pushed(move, _pushed(move, hat).mT) + torch.diag_embed(torch.stack(spreads).sum(0))
    beside = _pushed(move, (across + across @ middle @ own).mT).mT
    rounded = (kept.numel() + value.shape[-1]) * gamma(2.0 * len(move.form) + 16.0)
    there = _pushed(move, roots(hat)[..., None], absolute=True)[..., 0]
    value = raised((value + value.mT) / 2, rounded * there.square())
    return _joined(raised(rest, rounded * roots(rest).square()), beside, value)


def multipliers(
    own: Tensor, move: Carried, shares: Sequence[Tensor] | None = None, tilts: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Choose feasible multipliers, `[B, blocks]` for every piece.

    With one open block of variance q, sigma = ratio/q is the best there is; several blocks share the largest eigenvalue
    of their correlations. Any `shares` in (0, 1) and any `tilts` (logarithms of weights) are feasible.
    """
    variance = own.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
    variance = torch.maximum(variance, 1e-12 * variance.amax(-1, keepdim=True)).clamp(min=1e-300)
    start, scales, opened = 0, [], []
    for k, piece in enumerate(move.pieces):
        part = variance[:, start : start + len(piece.inner)]
        start += len(piece.inner)
        mean = part.new_zeros(piece.ratio.shape).index_add(1, piece.inner, part)
        mean = mean / torch.bincount(piece.inner, minlength=mean.shape[1]).clamp(min=1)
        scales.append(mean.detach() if tilts is None else mean.detach() * torch.exp(-tilts[k]))
        opened.append(piece.ratio > 0)
    roots = [torch.where(o, s.rsqrt(), 0.0)[:, p.inner] for o, s, p in zip(opened, scales, move.pieces, strict=True)]
    root = torch.cat(roots, 1)
    top = largest_eigenvalue(root[:, :, None] * own * root[:, None, :]).clamp(min=1e-300)[:, None]
    taken = shares_of(move) if shares is None else shares
    return [
        torch.where(o, (1 - SHRUNK) * share / (scale * top), 0.0)
        for o, share, scale in zip(opened, taken, scales, strict=True)
    ]


def shares_of(move: Carried) -> list[Tensor]:
    """Return a good share in (0, 1] for every block; at its edge what is kept beside the value blows up."""
    return [piece.ratio.clamp(max=0.5 if move.kept.numel() else 1.0) for piece in move.pieces]


def _middle(own: Tensor, inner: Tensor) -> Tensor:
    """Return T, computed on the entries that are open for some centre."""
    chosen = (inner > 0).any(0).nonzero()[:, 0]
    root = torch.where(inner > 0, inner.clamp(min=1e-300).sqrt(), 0.0)[:, chosen]
    pairs = root[:, :, None] * root[:, None, :]
    eye = torch.eye(len(chosen), dtype=own.dtype, device=own.device)
    factor, info = torch.linalg.cholesky_ex(eye - pairs * own[:, chosen][:, :, chosen])
    safe = torch.where((info == 0)[:, None, None], factor, eye)
    block = torch.where((info == 0)[:, None, None], pairs * torch.cholesky_inverse(safe), math.nan)
    if len(chosen) == own.shape[-1]:
        return block
    whole = torch.zeros_like(own)
    batch = torch.arange(len(own), device=own.device)[:, None, None]
    return whole.index_put((batch, chosen[:, None], chosen[None, :]), block)


def _pushed(move: Carried, right: Tensor, *, absolute: bool = False) -> Tensor:
    """Return the centre maps of all operands, side by side, or their absolute values, times matrices `[B, n, k]`."""
    start, total = 0, None
    for piece in move.pieces:
        piece = replace(piece, centre=piece.centre.abs()) if absolute else piece
        part = piece.pushed(right[:, start : start + len(piece.inner)])
        total = part if total is None else total + part
        start += len(piece.inner)
    assert total is not None
    return total


def _joined(first: Tensor, across: Tensor | None, second: Tensor) -> Tensor:
    if across is None:
        across = first.new_zeros(len(second), first.shape[-1], second.shape[-1])
    return torch.cat([torch.cat([first, across], -1), torch.cat([across.mT, second], -1)], -2)
