"""One pass over data that keeps the largest figures of every condition."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import InputError
from ...core.progress import Progress
from ...graph.call import batches_of
from ...graph.capturing import capture
from ..captured import float64_graph
from ..segments import segment
from ..unrolled import GraphSteps
from .conditions import DomainCondition, Enough
from .derivative import treatments
from .feed import Feed, chunks, walk
from .gains import block_gains


class Watcher:
    """Computes the figures of a network's conditions at points."""

    def __init__(self, steps: GraphSteps, conditions: Sequence[DomainCondition]) -> None:
        self.steps, self.conditions = steps, tuple(conditions)
        self.by_step: dict[str, list[DomainCondition]] = {}
        for condition in conditions:
            self.by_step.setdefault(condition.at, []).append(condition)
        self.reads = {at: [name for c in group for name in c.reads] for at, group in self.by_step.items()}

    def figures(self, points: Tensor, enough: Mapping[str, Enough] | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """Return the figures `[B, k]` of every condition at flat points, by key, and the network's output there.

        `enough`: how closely they are asked for, by key; without it as closely as they can be had.
        """
        parts: list[dict[str, Tensor]] = []
        outputs = []
        for chunk in chunks(self.steps, points):
            found: dict[str, Tensor] = {}

            def visit(name: str, values: Mapping[str, Tensor], found: dict[str, Tensor] = found) -> None:
                for condition in self.by_step.get(name, ()):
                    asked = None if enough is None else enough.get(condition.key)
                    earlier = [part[condition.key] for part in parts]
                    figures = condition.figures(values, asked and partial(_beside, asked, earlier))
                    found[condition.key] = figures.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)

            outputs.append(walk(self.steps, chunk, visit, self.reads))
            parts.append(found)
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, torch.cat(outputs)


def _beside(enough: Enough, earlier: Sequence[Tensor], least: Tensor) -> Tensor:
    """Ask what is enough for some figures where those of earlier samples of the batch are known."""
    return enough(torch.cat([*earlier, least]))


class Extremes:
    """The largest figures seen, as many of each as a quantile may drop.

    Args:
        dropped: how many samples a limit may leave outside, at most.
    """

    def __init__(self, dropped: float) -> None:
        self.kept = 1 + math.floor(dropped)
        self.samples = 0
        self.seen: dict[str, Tensor] = {}

    def add(self, figures: Mapping[str, Tensor], samples: int) -> None:
        """Take the figures of some samples into account."""
        self.samples += samples
        for key, rows in figures.items():
            known = torch.cat([self.seen[key], rows]) if key in self.seen else rows
            self.seen[key] = known.topk(min(self.kept, len(known)), dim=0).values

    def enough(self, conditions: Sequence[DomainCondition]) -> dict[str, Enough]:
        """Return how closely the next figures are asked for: one that cannot be among the largest needs no more."""
        return {condition.key: partial(self._least, condition.key) for condition in conditions}

    def _least(self, key: str, figures: Tensor) -> Tensor:
        """Return the least of the figures that would be kept if these were added."""
        known = torch.cat([self.seen[key], figures]) if key in self.seen else figures
        if len(known) < self.kept:
            return known.new_full((known.shape[1],), -torch.inf)
        return known.topk(self.kept, dim=0).values[-1]

    def settled(self, conditions: Sequence[DomainCondition], margin: float, quantile: float) -> dict[str, Tensor]:
        """Return the limits of every condition, widened, each of which leaves out a share of the samples."""
        dropped = min(math.floor(quantile * self.samples), self.kept - 1)
        return {c.key: c.settled(self.seen[c.key][dropped], float(margin)) for c in conditions}


def prepared(
    model: nn.Module,
    batch: Any,
    record: str,
    mode: str | None,
    output: str | int | None,
    known: Mapping[str, float] | None,
) -> tuple[Feed, Watcher]:
    """Capture a model and set up what is recorded of it."""
    graph = capture(model, batch, mode=mode, output=output)
    with torch.no_grad():
        double = float64_graph(graph, known)
        if any(p.dtype == torch.float64 for p in model.parameters()):
            double = copy.deepcopy(double)  # it holds the model's own weights, and a domain outlives them
        steps = GraphSteps(double, segment(double).effects)
    return Feed(model, graph, mode, output), watcher_of(steps, record)


@torch.no_grad()
def watcher_of(steps: GraphSteps, record: str) -> Watcher:
    """Return what computes the figures of a network: of its operators, and of its blocks where gains are asked for."""
    conditions = [c for treatment in treatments(steps)[0].values() for c in treatment.conditions]
    return Watcher(steps, [*conditions, *(block_gains(steps) if record == "gains" else ())])


def samples_of(loader: Any, feed: Feed, first: Any) -> int:
    """Return how many points a loader gives at most, for quantiles."""
    loader = batches_of(loader, model=feed.model)
    if not isinstance(loader, Sized):
        raise InputError("quantile needs a loader with a length: pass a DataLoader or a list of batches")
    found = feed.points(first)
    return len(loader) * (1 if found is None else len(found[0]))


def stream(
    feed: Feed, watcher: Watcher, batches: Iterable[Any], enough: Mapping[str, Enough], progress: Progress
) -> Iterator[tuple[dict[str, Tensor], int]]:
    """Yield the figures of every batch, as closely as `enough` asks, and how many points it has.

    A batch of another size has none.
    """
    for number, batch in enumerate(batches, 1):
        progress.step(f"batch {number}")
        found = feed.points(batch)
        if found is None:
            yield {}, 0
            continue
        points, expected = found
        figures, computed = watcher.figures(points, enough)
        feed.check(computed, expected)
        yield figures, len(points)
