"""Reachable ellipsoids over a ball: the engine of `ellipsoid.py` for what primitives do there, for all centres at once.

The state is a matrix Q over the stacked *sources* still needed (inputs and primitives) with dg dg^T <= norm(dx)^2 Q for
any two inputs of the ball. A primitive u with du = sum of M dv + dw, norm(dw/o) <= norm(dv) on every block, carries it
on as one step of that engine: v are the stacked operands, the multipliers are one number per block, and dw adds the sum
of o^2/sigma. Moves are kept, so that the state can be run again with other multipliers (`ball_ellipsoid_state.search`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...rules.local.local import OperandShare, flat, wide
from ..ellipsoids.ellipsoid import SHRUNK, advance, image_above, join_blocks
from .expansion import largest_eigenvalue


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


@dataclass(frozen=True, slots=True)
class Carried:
    """A primitive: its stacked operands as a matrix over the state, what is kept of the state, and its pieces."""

    form: Tensor
    kept: Tensor
    pieces: tuple[EllipsoidOperand, ...]

    @property
    def centre(self) -> Tensor:
        """The centre maps of all operands, side by side; one slope per entry if a single one is diagonal."""
        if len(self.pieces) == 1:
            return self.pieces[0].centre
        maps = [torch.diag_embed(p.centre) if p.centre.ndim == 2 else p.centre for p in self.pieces]
        return torch.cat(maps, -1)


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


Choose = Callable[[Tensor, Carried], Sequence[Tensor]]
"""Multipliers `[B, blocks]` for every piece of a primitive, from the ellipsoid of its operands."""


def moved(q: Tensor, move: Move, choose: Choose | None = None) -> Tensor:
    """Return the state behind a move: `[B, N, N]`, NaN where the multipliers (`multipliers` if absent) do not fit."""
    kept = move.kept
    if isinstance(move, Forget):
        return q[:, kept][:, :, kept]
    if isinstance(move, Afresh):
        eye = torch.eye(move.size, dtype=q.dtype, device=q.device) * move.constant.square()[:, None, None]
        # two ellipsoids side by side hold together with shares that sum to 1
        return join_blocks(2 * q[:, kept][:, :, kept], None, 2 * eye) if kept.numel() else eye
    joint = image_above(q, move.form, kept)
    own = joint[:, kept.numel() :, kept.numel() :]
    pairs = list(zip((choose or multipliers)(own, move), move.pieces, strict=True))
    sigma = torch.cat([chosen[:, piece.inner] for chosen, piece in pairs], 1)
    spreads = [
        torch.where(piece.weight > 0, piece.weight.square() / chosen[:, piece.outer].clamp(min=1e-300), 0.0)
        for chosen, piece in pairs
    ]
    return advance(joint, kept.numel(), move.centre, sigma, torch.stack(spreads).sum(0))


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
