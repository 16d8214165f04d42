"""When a step is measured, and how much of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import InputError


class Tier(enum.StrEnum):
    """How much is measured on a step; each tier adds to the one before."""

    ECONOMY = "economy"
    """Normalizers, weights, products, gradients, updates of scale-invariant groups, loss."""
    STANDARD = "standard"
    """Also gains of activations and gradients by block, dead units, updates of every weight."""
    FULL = "full"
    """Also histograms of weights and gradients, and every norm searched for from the start."""

    @property
    def rank(self) -> int:
        """0, 1, 2 for economy, standard, full."""
        return list(Tier).index(self)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps are due.

    Attributes:
        every: the interval of each tier that is used, in steps of the optimizer.

    Example:
        >>> schedule = Schedule.of(10, "economy")
        >>> [step for step in range(25) if schedule.due(step)]
        [0, 10, 20]
        >>> Schedule.of({"economy": 10, "full": 20}).due(40)
        <Tier.FULL: 'full'>
    """

    every: Mapping[Tier, int]

    @classmethod
    def of(cls, every: int | Mapping[str, int], tier: str = "economy") -> Schedule:
        """Read what the user gave: one interval for one tier, or an interval for each of several.

        Args:
            every: the interval, or intervals by tier.
            tier: what one interval is of.

        Raises:
            InputError: a tier that does not exist, or an interval that is not a positive whole number.
        """
        given = dict(every) if isinstance(every, Mapping) else {str(tier): every}
        if not given:
            raise InputError("every={} measures nothing: give an interval, for instance every=50")
        for name, interval in given.items():
            if name not in list(Tier):
                raise InputError(f"there is no tier {name!r}: the tiers are {', '.join(Tier)}")
            if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
                raise InputError(f"every is a number of steps, 1 or more, not {interval!r} (tier {name})")
        return cls({Tier(name): interval for name, interval in given.items()})

    def due(self, step: int) -> Tier | None:
        """Return the richest tier that is due at a step, or None."""
        found = [tier for tier, interval in self.every.items() if step % interval == 0]
        return max(found, key=lambda tier: tier.rank, default=None)
