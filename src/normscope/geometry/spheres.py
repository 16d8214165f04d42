"""Parameter groups for optimisers on spheres: which weights move on which spheres."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .candidate import Candidate


def sphere_groups(model: nn.Module, scales: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    """Return one parameter group per kind of sphere and one for all other parameters; frozen ones are left out."""
    named = dict(model.named_parameters())
    spheres: dict[tuple[int | str, int], list[Tensor]] = {}
    on_spheres: set[int] = set()
    for scale in scales:
        term = scale.action.terms[0]  # type: ignore[union-attr]
        weight = named[term.piece.name]
        layout = blocks(term.units, tuple(weight.shape), term.piece.size, scale.action.units)
        if layout is not None and weight.requires_grad and id(weight) not in on_spheres:
            spheres.setdefault(layout, []).append(weight)
            on_spheres.add(id(weight))
    groups: list[dict[str, Any]] = [
        {"params": params, "units": units, "axis": axis, "weight_decay": 0.0}
        for (units, axis), params in spheres.items()
    ]
    rest = [p for p in named.values() if p.requires_grad and id(p) not in on_spheres]
    return [*groups, {"params": rest, "units": None, "axis": 0}] if rest else groups


def blocks(units: Tensor, shape: tuple[int, ...], part: tuple[int, ...], count: int) -> tuple[int | str, int] | None:
    """Return how a weight's entries lie on spheres: `"channel"` or a number of blocks, and the axis that counts them.

    Return None where the layer uses only a part of the parameter, or its units are no equal blocks along one axis.
    """
    if part != shape:
        return None
    axes = [dim for dim, size in enumerate(units.shape) if size > 1] or [0]
    if len(axes) != 1:
        return None
    [axis] = axes
    channels = shape[axis]
    expected = torch.arange(channels) * count // channels
    if channels % count or not torch.equal(units.reshape(-1).expand(channels), expected):
        return None
    return ("channel" if count == channels and count > 1 else count), axis
