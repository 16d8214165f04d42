"""Which of the directions that the graph shows move neither the outputs nor the loss.

The gradient is checked first, group by group, then the outputs (`moves.py`). A direction that fails is not projected
out, and a note says so.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .directions import Directions
from .moves import with_moves
from .objective import Objective

SLACK = 1e-2
"""The largest <w, grad>, relative to the product of the norms, that passes: eps in a normalizer leaves a little."""
STILL = 0.1
"""How far scalings or shifts may move the outputs, relative to a random change: eps leaves a little."""


def verified(objective: Objective, found: Directions, gradient: Tensor) -> Directions:
    """Return the directions that move neither the loss nor the outputs; notes name those that were left out.

    The gradient is checked first, group by group; then the model is run with the remaining groups scaled.

    Args:
        objective: the model and its batches, being measured.
        found: the directions that the graph shows.
        gradient: the gradient of the loss at the present parameters.
    """
    if not found.dimensions:
        return found
    found = with_moves(objective, _orthogonal(found, gradient))
    defect = _shift_defect(found, gradient)
    return _still_shifts(_still_scalings(found), defect)


def _still_scalings(found: Directions) -> Directions:
    """Return the directions without the layers whose scaling moves the outputs."""
    notes = list(found.notes)
    moving = [not layer.moves <= STILL for layer in found.layers]
    for layer in (one for one, moves in zip(found.layers, moving) if moves):
        notes.append(
            f"scaling {layer.kept} of {layer.groups} groups of `{layer.name}` moves the outputs, by {layer.moves:.2g} "
            "of what a random change does (large eps, or no invariance): they are not taken out"
        )
    left_out = [moves for layer, moves in zip(found.layers, moving) for _ in range(layer.kept)]
    layers = [replace(layer, kept=0, verified=False) if moves else layer for layer, moves in zip(found.layers, moving)]
    kept = ~torch.tensor(left_out, dtype=torch.bool, device=found.group.device)
    return replace(_only(found, kept), layers=tuple(layers), notes=tuple(notes))


def _still_shifts(found: Directions, defect: float) -> Directions:
    """Return the directions without all shifts if these have a part in the gradient, or move the outputs."""
    if defect <= SLACK and found.shift_moves <= STILL:
        return found
    number = len(found.dead) + sum(index.shape[1] for index in found.centred)
    note = (
        f"the gradient has a share of {defect:.2g} along {number} shifts that should have no effect, and the "
        f"outputs move by {found.shift_moves:.2g} of what a random change does: none of these is taken out"
    )
    return replace(found, centred=(), dead=found.dead[:0], notes=(*found.notes, note))


def _orthogonal(found: Directions, gradient: Tensor) -> Directions:
    """Return the directions without the groups whose weight is not orthogonal to the gradient."""
    inner = found.along(gradient).double().abs()
    limit = torch.finfo(gradient.dtype).eps ** 0.5 * float(gradient.double().norm())
    share = inner / found.lengths(gradient).clamp(min=max(limit, 1e-300))
    layers, notes, start = [], list(found.notes), 0
    for layer in found.layers:
        own = share[start : start + layer.groups]
        defect = float(own.max()) if len(own) else 0.0
        failed = int((~(own <= SLACK)).sum())
        layers.append(replace(layer, kept=layer.groups - failed, defect=defect, verified=not failed))
        if failed:
            notes.append(
                f"the gradient is not orthogonal to {failed} of {layer.groups} groups of `{layer.name}` "
                f"(a cosine of {defect:.2g}; eps counts there): they are not taken out"
            )
        start += layer.groups
    return replace(_only(found, share <= SLACK), layers=tuple(layers), notes=tuple(notes))


def _only(found: Directions, kept: Tensor) -> Directions:
    """Return the directions with the scalings of the kept groups alone."""
    number = torch.where(kept, torch.cumsum(kept, 0) - 1, -1)
    group = torch.cat([torch.full((1,), -1, device=kept.device), number])[found.group + 1]
    return replace(
        found,
        group=group,
        count=int(kept.sum()),
        radial=torch.where(group >= 0, found.radial, 0.0),
        norms=found.norms[kept],
    )


def _shift_defect(found: Directions, gradient: Tensor) -> float:
    """Return the length of the gradient's component along the shifts, relative to the gradient."""
    size = float(gradient.double().norm())
    return float((gradient - found._shifted(gradient)).double().norm()) / size if size else 0.0
