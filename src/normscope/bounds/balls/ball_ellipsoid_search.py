"""Better multipliers for the reachable ellipsoid: Adam on shares and weights, every iterate feasible as it stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.budget import Budget
from ..ellipsoids.ellipsoid import image_above
from .ball_ellipsoid import Carried, moved, multipliers, shares_of
from .ball_ellipsoid_state import Reach
from .expansion import largest_eigenvalue

RATE = 0.2


def search(reach: Reach, budget: Budget) -> None:
    """Run the moves of a state again with better multipliers, and leave in it the best state found for every centre.

    Args:
        reach: the state behind its last move.
        budget: of the search; a step runs all moves once, with gradients.
    """
    form = reach.form(reach.unrolled.output)
    carried = [move for move in reach.moves if isinstance(move, Carried)]
    settled = not any(bool((piece.ratio > 0).any()) for move in carried for piece in move.pieces)
    if form is None or settled or form.shape[0] > reach.widest:
        return
    chosen = _BallMultipliers(carried)
    best, state = largest_eigenvalue(image_above(reach.q, form)).nan_to_num(nan=torch.inf), reach.q
    while budget.spend():
        with torch.enable_grad():
            q = _run(reach, chosen)
            top = largest_eigenvalue(image_above(q, form))
            usable = top.isfinite() & (top > 0)
            loss = torch.where(usable, top, 1.0).log().sum()
        better = usable & (top.detach() < best)
        best = torch.where(better, top.detach(), best)
        state = torch.where(better[:, None, None], q.detach(), state)
        if not loss.requires_grad or not bool(usable.any()):
            break
        chosen.descend(loss)
    reach.q = state


class _BallMultipliers:
    """The shares and weights of every move, which Adam moves."""

    def __init__(self, carried: Sequence[Carried]) -> None:
        starts = [[torch.logit(share.clamp(1e-6, 1 - 1e-6)) for share in shares_of(move)] for move in carried]
        self.shares = [[start.clone().requires_grad_(True) for start in pieces] for pieces in starts]
        self.tilts = [[torch.zeros_like(start).requires_grad_(True) for start in pieces] for pieces in starts]
        self.free = [value for pieces in (*self.shares, *self.tilts) for value in pieces]
        self.adam = torch.optim.Adam(self.free, lr=RATE, betas=(0.9, 0.99))

    def descend(self, loss: Tensor) -> None:
        """Take one step; gradients that are not finite count as zero."""
        self.adam.zero_grad()
        loss.backward()
        for value in self.free:
            if value.grad is not None:
                value.grad.nan_to_num_(0.0, 0.0, 0.0)
        self.adam.step()


def _run(reach: Reach, chosen: _BallMultipliers) -> Tensor:
    """Return the last state with given multipliers."""
    q = reach.start
    pairs = iter(zip(chosen.shares, chosen.tilts, strict=True))
    for move in reach.moves:
        if isinstance(move, Carried):
            share, tilt = next(pairs)
            sigmas = multipliers(image_above(q, move.form), move, [torch.sigmoid(value) for value in share], tilt)
            q = moved(q, move, sigmas)
        else:
            q = moved(q, move)
    return q
