"""`Effort`: how hard a bound is worked at."""

from __future__ import annotations

import enum

from .errors import InputError


class Effort(enum.StrEnum):
    """How hard a bound is worked at, from the least to the most."""

    FAST = "fast"
    """Closed forms: products, single passes; norms of maps as they come."""
    TIGHT = "tight"
    """Also searches for the free parameters of a bound; norms of maps are tightened where it takes little time."""
    THOROUGH = "thorough"
    """All that there is: every part of an audit; norms of maps also where one takes seconds."""

    @classmethod
    def of(cls, effort: str, *allowed: Effort, hint: str = "") -> Effort:
        """Return the effort of a name; refuse those that are not `allowed`."""
        if effort not in allowed:
            names = " or ".join(f'"{one}"' for one in allowed)
            raise InputError(f"effort is {names}, not {effort!r}{hint}")
        return cls(effort)


SEARCHING = (Effort.FAST, Effort.TIGHT)
"""The efforts of a bound over inputs."""
