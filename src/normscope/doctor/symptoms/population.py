"""Make notes of warnings that rest on a size which healthy networks show as well.

`population.json` has, for each size (`sizes.py`), how many networks that other people designed have it, fresh and in
any state of a healthy training, and the most extreme values, each that of the worst layer of a network. It is written
by `python -m benchmarks.population --merge --write` from one half of the families; the other half is for scoring.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from ...core.finding import Finding, Severity
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from .sizes import SIZES, measure_size

RARE_SHARE = 0.005
"""A size is rare, and a warning stays one, if at most this share of the healthy networks are as extreme."""
FRESH, ANY_STATE = "fresh", "any state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a size lies among those of healthy networks.

    Attributes:
        networks: how many healthy networks there are.
        beyond: how many of them are as extreme as the model that is checked, or more.
    """

    networks: int
    beyond: int

    @property
    def is_rare(self) -> bool:
        """Whether hardly any healthy network shows as much."""
        return self.beyond <= RARE_SHARE * self.networks

    def __str__(self) -> str:
        shown = f"{self.beyond} shows" if self.beyond == 1 else f"{self.beyond or 'none'} show"
        return f"Of {self.networks:,} healthy networks of others {shown} as much."


def demote_usual(found: Sequence[Finding], examined: Examined) -> list[Finding]:
    """Return the findings: a warning or an error that rests on a size becomes a note where the size is not rare."""
    graded = list[Finding]()
    for finding in found:
        standing = find_standing(finding, examined) if finding.severity > Severity.INFO else None
        if standing is None:
            graded.append(finding)
        elif standing.is_rare:
            graded.append(replace(finding, seen=f"{finding.seen} {standing}"))
        else:
            graded.append(replace(finding, severity=Severity.INFO))
    return graded


def find_standing(finding: Finding, examined: Examined) -> Standing | None:
    """Return where the rarest size lies on which a finding rests; None where the population has no such size."""
    names = (name for name, size in SIZES.items() if size.codes.get(finding.code) in finding.numbers)
    standings = (_compare_size(name, finding, examined) for name in names)
    compared = (standing for standing in standings if standing is not None)
    return min(compared, key=lambda standing: standing.beyond / standing.networks, default=None)


def _compare_size(name: str, finding: Finding, examined: Examined) -> Standing | None:
    """Return where a size of the model lies, or of the layer that the finding names; None without such a size."""
    size, healthy = SIZES[name], _load_population()["sizes"].get(name)
    value = finding.numbers[size.codes[finding.code]] if size.read_from_finding else measure_size(name, examined)
    if value is None or healthy is None:
        return None
    state = FRESH if is_fresh(examined.model) and FRESH in healthy else ANY_STATE
    extremes = map(float, healthy[state]["extremes"])
    beyond = sum(extreme >= value if size.worst == "largest" else extreme <= value for extreme in extremes)
    return Standing(networks=_load_population()["networks"][state], beyond=beyond)


@functools.cache
def _load_population() -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath("population.json").read_text())
