"""Better multipliers for the reachable ellipsoid: Adam on shares and weights, every iterate feasible as it stands."""

from __future__ import annotations

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
    starts = [[torch.logit(share.clamp(1e-6, 1 - 1e-6)) for share in shares_of(move)] for move in carried]
    shares = [[start.clone().requires_grad_(True) for start in pieces] for pieces in starts]
    tilts = [[torch.zeros_like(start).requires_grad_(True) for start in pieces] for pieces in starts]
    free = [value for pieces in (*shares, *tilts) for value in pieces]
    adam = torch.optim.Adam(free, lr=RATE, betas=(0.9, 0.99))
    best, state = largest_eigenvalue(image_above(reach.q, form)), reach.q
    best = best.nan_to_num(nan=torch.inf)
    while budget.spend():
        with torch.enable_grad():
            q = _run(reach, shares, tilts)
            top = largest_eigenvalue(image_above(q, form))
            usable = top.isfinite() & (top > 0)
            loss = torch.where(usable, top, 1.0).log().sum()
        better = usable & (top.detach() < best)
        best = torch.where(better, top.detach(), best)
        state = torch.where(better[:, None, None], q.detach(), state)
        if not loss.requires_grad or not bool(usable.any()):
            break
        adam.zero_grad()
        loss.backward()
        for value in free:
            if value.grad is not None:
                value.grad.nan_to_num_(0.0, 0.0, 0.0)
        adam.step()
    reach.q = state


def _run(reach: Reach, shares: list[list[Tensor]], tilts: list[list[Tensor]]) -> Tensor:
    """Return the last state with given multipliers."""
    q = reach.start
    chosen = iter(zip(shares, tilts, strict=True))
    for move in reach.moves:
        if isinstance(move, Carried):
            share, tilt = next(chosen)
            sigmas = multipliers(image_above(q, move.form), move, [torch.sigmoid(value) for value in share], tilt)
            q = moved(q, move, sigmas)
        else:
            q = moved(q, move)
    return q
