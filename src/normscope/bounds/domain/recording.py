"""One pass over data that keeps the largest figures of every condition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..balls.unrolled import Steps
from .conditions import Condition
from .feed import chunks, walk


class Watcher:
    """Computes the figures of a network's conditions at points."""

    def __init__(self, steps: Steps, conditions: Sequence[Condition]) -> None:
        self.steps, self.conditions = steps, tuple(conditions)
        self.by_step: dict[str, list[Condition]] = {}
        for condition in conditions:
            self.by_step.setdefault(condition.at, []).append(condition)
        self.reads = {at: [name for c in group for name in c.reads] for at, group in self.by_step.items()}

    def figures(self, points: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the figures `[B, k]` of every condition at flat points, by key, and the network's output there."""
        parts: list[dict[str, Tensor]] = []
        outputs = []
        for chunk in chunks(self.steps, points):
            found: dict[str, Tensor] = {}

            def visit(name: str, values: Mapping[str, Tensor], found: dict[str, Tensor] = found) -> None:
                for condition in self.by_step.get(name, ()):
                    figures = condition.figures(values)
                    found[condition.key] = figures.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)

            outputs.append(walk(self.steps, chunk, visit, self.reads))
            parts.append(found)
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, torch.cat(outputs)


class Extremes:
    """The largest figures seen, as many of each as a quantile may drop.

    Args:
        most: how many samples there are at most; only read where `quantile` is above 0.
        quantile: the share of samples that each limit may leave outside.
    """

    def __init__(self, quantile: float, most: int) -> None:
        self.quantile, self.kept = quantile, 1 + math.floor(quantile * most)
        self.samples = 0
        self.seen: dict[str, Tensor] = {}

    def add(self, figures: Mapping[str, Tensor], samples: int) -> None:
        """Take the figures of some samples into account."""
        self.samples += samples
        for key, rows in figures.items():
            known = torch.cat([self.seen[key], rows]) if key in self.seen else rows
            self.seen[key] = known.topk(min(self.kept, len(known)), dim=0).values

    def settled(self, conditions: Sequence[Condition], margin: float) -> dict[str, Tensor]:
        """Return the limits of every condition."""
        dropped = min(math.floor(self.quantile * self.samples), self.kept - 1)
        return {c.key: c.settled(self.seen[c.key][dropped], margin) for c in conditions}
