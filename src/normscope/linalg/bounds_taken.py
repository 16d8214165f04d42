"""The bounds on a map's norm that were taken so far: the map keeps them, so that none is taken twice."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .kept import kept
from .linear_map import LinearMap
from .norm_formulas import NormBound


@dataclass(slots=True)
class BoundsTaken:
    """The bounds of one map that were taken so far.

    Attributes:
        found: the last bound that no clock cut short.
        rtol: the tolerance that it was asked for; infinite where there is none.
        tightened: whether it was tightened against a lower side.
        loose: a bound that takes next to no time, where one was needed.
    """

    found: NormBound | None = None
    rtol: float = math.inf
    tightened: bool = False
    loose: NormBound | None = None

    def keep(self, linear: LinearMap, rtol: float, tightened: bool, found: NormBound) -> None:
        """Keep a bound of the map; large vectors and what tightening needs are let go."""
        start = found.start if linear.in_size <= 1_000_000 else None
        self.found, self.rtol, self.tightened = NormBound(found.upper, start), rtol, tightened

    def within(self, rtol: float) -> NormBound | None:
        """Return the bound where it is as tight as asked for."""
        return self.found if self.rtol <= rtol else None


@kept
def taken(linear: LinearMap) -> BoundsTaken:
    """Return the bounds of a map that were taken so far, which the map keeps."""
    return BoundsTaken()
