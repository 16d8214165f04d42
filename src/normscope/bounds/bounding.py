"""`Bounding`: what the bounds of a captured graph may cost, and how closely single norms are taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from ..core.bracket import Bracket
from ..core.budget import Budget
from ..core.rounding import Upper
from ..graph.capturing import warmed
from ..linalg.linear_map import LinearMap
from ..linalg.operator_norms import BOUNDING, upper

TINY = 4096
"""Whatever the clock says, maps with at most this many matrix entries are bounded tightly: they take a millisecond."""


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
        """The budget of the norms of single maps."""
        return self.budget.search(BOUNDING)

    @cached_property
    def chains(self) -> Budget:
        """The budget of closed forms."""
        return self.budget.search("the search for closed forms")

    def norm(self, linear: LinearMap) -> Upper:
        """Bound the norm of one linear map, within the tolerance and the budget."""
        return upper(linear, rtol=self.rtol, budget=self.share(linear, 0.7))

    def share(self, linear: LinearMap, part: float) -> Budget | None:
        """Return the budget of one norm, a share of the time that is left; None for maps that take none to speak of."""
        return None if linear.in_size * linear.out_size <= TINY else self.norms.share(part)


def cut_short(bracket: Bracket, *budgets: Budget) -> Bracket:
    """Return a bracket that says what the clock cut short, if anything."""
    for budget in budgets:
        if budget.cut:
            bracket = replace(bracket, converged=False, advice=budget.advice(bracket.advice))
    return bracket
