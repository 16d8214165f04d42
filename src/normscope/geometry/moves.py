"""How far the outputs move along scalings and shifts that should have no effect, relative to a random change.

The gradient alone cannot tell a false direction from a true one: among thousands of weights most directions are nearly
orthogonal to it. Moving the weights and running the model tells them apart.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .directions import Directions
from .objective import Objective

TOGETHER = 1e-2
"""Layers are tried one by one only if all scalings together move the outputs by more than this."""
RAISED = 4.0
"""The factor on the weights before their scale is changed."""
ROUNDING = 16.0
"""A move of at most this many units of rounding of the outputs counts as none."""


def with_moves(objective: Objective, found: Directions) -> Directions:
    """Return the directions with how far each layer's scalings, and all shifts, move the outputs of the first batch.

    It takes seven forward passes, and four more per layer if the scalings of all layers together move the outputs.
    """
    mover, layers, start = _Mover(objective), [], 0
    together, random = mover.scalings(found, found.group >= 0)
    shifts = _ratio(mover.change(mover.start, mover.shifted(found)), random, mover.rounding)
    for layer in found.layers:
        moves = together
        if not together <= TOGETHER:
            moves, _ = mover.scalings(found, (found.group >= start) & (found.group < start + layer.kept))
        layers.append(replace(layer, moves=moves))
        start += layer.kept
    return replace(found, layers=tuple(layers), shift_moves=shifts)


class _Mover:
    """Moves the weights and compares the outputs."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.start = objective, objective.vector()
        self.generator = torch.Generator().manual_seed(0)
        self.rounding = ROUNDING * max((torch.finfo(out.dtype).eps for out in self._outputs(self.start)), default=0.0)

    def scalings(self, found: Directions, chosen: Tensor) -> tuple[float, float]:
        """Return how far scaling the chosen groups moves the outputs, relative to a random change, and the latter.

        Both start from larger weights, where eps matters less; whether eps matters is checked with the gradient.
        """
        raised = torch.where(chosen, RAISED * self.start, self.start)
        by_group, by_entry = (self._factors(number) for number in (found.count + 1, len(raised)))
        random = self.change(raised, torch.where(chosen, raised * by_entry, raised))
        scaled = self.change(raised, torch.where(chosen, raised * by_group[found.group + 1], raised))
        return _ratio(scaled, random, self.rounding), random

    def shifted(self, found: Directions) -> Tensor:
        """Return the weights moved along all shifts, by about their size."""
        moved, size = self.start.clone(), self.start.square().mean().sqrt()
        moved[found.dead] += size * self._normal(len(found.dead))
        for index in found.centred:
            moved[index] += size * self._normal(index.shape[1])
        return moved

    def change(self, before: Tensor, after: Tensor) -> float:
        """Return by how much the outputs differ between two states of the weights, relative to their largest entry."""
        pairs = zip(self._outputs(after), self._outputs(before), strict=True)
        shares = [_ratio(float((a - b).abs().amax()), float(b.abs().amax()), 0.0) for a, b in pairs if b.numel()]
        self.objective.place(self.start)
        return max(shares, default=0.0)

    def _factors(self, number: int) -> Tensor:
        return 1.0 + torch.rand(number, generator=self.generator).to(self.start)

    def _normal(self, count: int) -> Tensor:
        return torch.randn(count, generator=self.generator).to(self.start)

    def _outputs(self, weights: Tensor) -> list[Tensor]:
        self.objective.place(weights)
        output, _ = next(self.objective.outputs())
        return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _ratio(change: float, base: float, rounding: float) -> float:
    """Return a change relative to another; 0 if it is rounding."""
    if change <= rounding:
        return 0.0
    return change / base if base else float("inf")
