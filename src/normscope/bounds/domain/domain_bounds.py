"""The bound of every method over a domain, and the points inside it that the lower side rests on."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...core.bracket import Bracket, Scope
from ...core.errors import InputError
from ..balls.unrolled import GraphSteps
from ..captured import Captured
from .derivative_graph import derivative
from .domain import Domain
from .part_gains import product
from .steep_points import steepest


class CapturedDomain(Captured):
    """The work on a captured graph, over a domain instead of all inputs.

    Args:
        work: over all inputs; its captured graph and norms are taken over, and no bound here exceeds its own.
        domain: recorded with the same network.
        everywhere: the bound over all inputs of the same effort, if it has been taken.
    """

    terms = True

    def __init__(self, work: Captured, domain: Domain, everywhere: Bracket | None = None) -> None:
        self.__dict__.update(work.__dict__)
        self.__dict__.pop("ceilings", None)  # of other segments
        self.work, self.domain, self.everywhere = work, domain, everywhere
        domain.check(work.double)
        with torch.no_grad():
            self.segments = derivative(GraphSteps(work.double, work.segments.effects), domain.limits)

    def _formulas(self) -> dict[str, Bracket]:
        """The paper's formulas speak of all inputs."""
        return {}

    def rungs(self, effort: str = "fast") -> dict[str, Bracket]:
        """Return the upper side of every method, of the blocks' gains, and of all inputs."""
        if effort == "exact":
            raise InputError('effort="exact" is for scope="global": domains take "fast" or "tight"')
        note = f"over all inputs whose inner values stay in the ranges seen at {self.domain.samples} samples"
        found = {name: self._inside(rung, note) for name, rung in super().rungs(effort).items()}
        best = found.pop("best")
        gains = product(self.domain.conditions, self.domain.limits)
        if gains is not None:
            found["gains"] = self._inside(self._bracket(gains, "gains"), note)
        everywhere = self.everywhere or self.work.rungs(effort)["best"]
        found["global"] = self._inside(replace(everywhere, method=f"global {everywhere.method}"), note)
        smallest = min(found.values(), key=lambda rung: (rung.log10_upper, -rung.evidence))
        found["best"] = best if best.log10_upper <= smallest.log10_upper else smallest
        return found

    def _inside(self, rung: Bracket, note: str) -> Bracket:
        return replace(rung, scope=Scope.DOMAIN, proof=None, notes=(*rung.notes, note))

    def with_lower(self, bracket: Bracket, observed: Bracket | None, seed: int, *, search: bool = True) -> Bracket:
        """Complete the bracket with the largest Jacobian norm found at a point inside."""
        points = self.graph.samples if self.graph.samples is not None else self.graph.flat()[None]
        value, witness = steepest(self.domain, self.double, points.double(), budget=self.budget, seed=seed)
        return replace(bracket, log10_lower=value, witness=witness)
