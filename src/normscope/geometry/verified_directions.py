"""Which of the directions that the graph shows move neither the outputs nor the loss.

The gradient is looked at first, group by group, then the outputs (`moves.py`). What does not hold is left in, with a
note.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .directions import Directions
from .moves import with_moves
from .objective import Objective

SLACK = 1e-2
"""How large <w, grad> may be, relative to the product of the norms: eps in a normalizer leaves a little."""
STILL = 0.1
"""How far scalings or shifts may move the outputs, relative to a change by chance: eps leaves a little."""


def verified(objective: Objective, found: Directions, gradient: Tensor) -> Directions:
    """Return the directions that move neither the loss nor the outputs; the others are left in, with a note.

    The gradient is looked at first, group by group; then the model is run with the groups that are left scaled.

    Args:
        objective: the model and its batches, being measured.
        found: what the graph shows.
        gradient: of the loss, at the parameters as they stand.
    """
    if not found.dimensions:
        return found
    found = with_moves(objective, _orthogonal(found, gradient))
    notes = list(found.notes)
    moving = [not layer.moves <= STILL for layer in found.layers]
    for layer in (one for one, moves in zip(found.layers, moving) if moves):
        notes.append(
            f"scaling {layer.kept} of {layer.groups} groups of `{layer.name}` moves the outputs, by {layer.moves:.2g} "
            "of what a change by chance does (large eps, or no invariance): they are not taken out"
        )
    wrong = [moves for layer, moves in zip(found.layers, moving) for _ in range(layer.kept)]
    layers = [replace(layer, kept=0, verified=False) if moves else layer for layer, moves in zip(found.layers, moving)]
    shifts = _shift_defect(found, gradient)
    kept = ~torch.tensor(wrong, dtype=torch.bool, device=gradient.device)
    found = replace(_only(found, kept), layers=tuple(layers))
    if not (shifts <= SLACK and found.shift_moves <= STILL):
        number = len(found.dead) + sum(index.shape[1] for index in found.centred)
        notes.append(
            f"the gradient has a share of {shifts:.2g} along {number} shifts that should have no effect, and the "
            f"outputs move by {found.shift_moves:.2g} of what a change by chance does: none of these is taken out"
        )
        found = replace(found, centred=(), dead=found.dead[:0])
    return replace(found, notes=tuple(notes))


def _orthogonal(found: Directions, gradient: Tensor) -> Directions:
    """Return the directions without the groups whose weight the gradient is not orthogonal to."""
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
    """Return the directions with the scalings of some groups alone."""
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
    """Return the share of the gradient along shifts."""
    size = float(gradient.double().norm())
    return float((gradient - found._shifted(gradient)).double().norm()) / size if size else 0.0
