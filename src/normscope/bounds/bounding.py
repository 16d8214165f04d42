"""`Bounding`: what the bounds of a captured graph may cost, and how closely single norms are taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from ..core.bracket import Bracket
from ..core.budget import Budget
from ..core.rounding import Upper
from ..graph.capturing import warmed
from ..linalg.linear_map import LinearMap
from ..linalg.operator_norms import BOUNDING, bracket, upper


@dataclass(frozen=True, kw_only=True)
class Bounding:
    """What some bounds may cost together, and how closely single norms are taken.

    Attributes:
        budget: of all these bounds.
        rtol: how tight the norms of single maps are asked to be.
    """

    budget: Budget = field(default_factory=Budget)
    rtol: float = 1e-3

    @classmethod
    def within(cls, max_seconds: float | None, *, rtol: float = 1e-3) -> Bounding:
        """Return the bounding of a whole measurement, whose clock starts now where there is one."""
        return cls(budget=Budget(max_seconds=warmed(max_seconds), what="the measurement"), rtol=rtol)

    @cached_property
    def norms(self) -> Budget:
        """The budget of the norms of single maps, which come before the clock."""
        return self.budget.closed_forms(BOUNDING)

    @cached_property
    def closed_forms(self) -> Budget:
        """The budget of everything else that takes no search: it comes before the clock, too."""
        return self.budget.closed_forms("the evaluation of closed forms")

    def efforts(self, effort: str) -> tuple[tuple[str, Budget], ...]:
        """Return the efforts to make one after the other, each with its budget: closed forms, then searches.

        So the clock leaves at least the closed forms, and no effort gives less than a smaller one.
        """
        closed = ("fast", self.closed_forms)
        return (closed,) if effort == "fast" else (closed, (effort, self.budget))

    def norm(self, linear: LinearMap) -> Upper:
        """Bound the norm of one linear map, within the tolerance and the budget."""
        return upper(linear, rtol=self.rtol, budget=self.norms.share(0.7))

    def bracket(self, linear: LinearMap) -> Bracket:
        """Bound the norm of one linear map from both sides."""
        return bracket(linear, rtol=self.rtol, budget=self.budget.search(BOUNDING).share(1 / 3))


def cut_short(bracket: Bracket, *budgets: Budget) -> Bracket:
    """Return a bracket that says what the clock cut short, if anything."""
    for budget in budgets:
        if budget.cut:
            bracket = replace(bracket, converged=False, advice=budget.advice(bracket.advice))
    return bracket
