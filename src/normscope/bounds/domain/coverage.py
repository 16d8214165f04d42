"""The share of a distribution that lies in a domain, from samples that did not define it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ...core.codec import JsonForm, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(Part):
    """How many fresh samples lie inside a domain.

    Attributes:
        inside: samples inside.
        samples: samples tried.
        confidence: of the lower limit.
        lower: with that confidence at least this share of the distribution lies inside (Clopper and Pearson).
    """

    JSON: ClassVar[JsonForm] = JsonForm(keys=("inside", "samples", "share", ...), unread=("lower",))

    inside: int
    samples: int
    confidence: float
    lower: float

    @property
    def share(self) -> float:
        """The share of the samples inside."""
        return self.inside / self.samples

    @property
    def at_least(self) -> str:
        """The lower limit as a percentage, rounded down: a limit must not be said larger than it is."""
        return f"{math.floor(1000 * self.lower) / 10:g} %"

    @classmethod
    def of_fields(cls, **given: Any) -> Coverage:
        """Return the coverage that was read; its lower limit is computed again.

        Raises:
            ValueError: its numbers are no counts, or no confidence.
        """
        if not 0 <= given["inside"] <= given["samples"] or not 0.0 < given["confidence"] < 1.0:
            raise ValueError("a coverage counts some of its samples, with a confidence between 0 and 1")
        return covered(**given)

    def __str__(self) -> str:
        return (
            f"{self.inside} of {self.samples} samples lie inside ({self.share:.1%}); with confidence "
            f"{self.confidence:.0%} at least {self.at_least} of the distribution does"
        )


def covered(inside: int, samples: int, confidence: float) -> Coverage:
    """Return the coverage with its lower limit, the share at which `inside` or more would be seen with 1 - confidence.

    Example:
        >>> round(covered(59, 59, 0.95).lower, 3)
        0.95
    """
    from scipy.special import betaincinv  # loads when first needed

    lower = float(betaincinv(inside, samples - inside + 1, 1.0 - confidence)) if inside else 0.0
    return Coverage(inside=inside, samples=samples, confidence=confidence, lower=lower)
