"""What healthy networks of others show: a warning that rests on a size must lie beyond nearly all of them.

`population.json` has, for each size (`sizes.py`), how many networks of other people's packages have it, fresh and in
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
from .sizes import SIZES, Size, measure_size

RARE_SHARE = 0.005
"""The share of the healthy networks that may lie beyond a size from which on it is a warning."""
FRESH, ANY_STATE = "fresh", "any state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a size lies among those of healthy networks.

    Attributes:
        size: its name.
        value: the size of the model.
        networks: how many healthy networks there are.
        beyond: how many of them are as extreme as this model, or more.
    """

    size: str
    value: float
    networks: int
    beyond: int

    @property
    def rare(self) -> bool:
        """Whether hardly any healthy network shows as much."""
        return self.beyond <= RARE_SHARE * self.networks

    def __str__(self) -> str:
        shown = f"{self.beyond} shows" if self.beyond == 1 else f"{self.beyond or 'none'} show"
        return f"Of {self.networks:,} healthy networks of others {shown} as much."


def demote_usual(found: Sequence[Finding], examined: Examined) -> list[Finding]:
    """Return findings, of which those that rest on a size that healthy networks show as well are mere notes."""
    told = list[Finding]()
    for finding in found:
        standing = find_standing(finding, examined) if finding.severity > Severity.INFO else None
        if standing is None:
            told.append(finding)
        elif standing.rare:
            told.append(replace(finding, seen=f"{finding.seen} {standing}"))
        else:
            told.append(replace(finding, severity=Severity.INFO))
    return told


def find_standing(finding: Finding, examined: Examined) -> Standing | None:
    """Return the rarest of the sizes on which a finding rests; None where it rests on none that the population has."""
    standings = [_stand(name, finding, examined) for name, size in SIZES.items() if _shows(finding, size)]
    known = (standing for standing in standings if standing is not None)
    return min(known, key=lambda standing: standing.beyond / standing.networks, default=None)


def _shows(finding: Finding, size: Size) -> bool:
    return size.codes.get(finding.code) in finding.numbers


def _stand(name: str, finding: Finding, examined: Examined) -> Standing | None:
    """Return where a size of a model lies, or that of the layer of the finding, where it tells it."""
    size, known = SIZES[name], _population()["sizes"].get(name)
    value = finding.numbers[size.codes[finding.code]] if size.told else measure_size(name, examined)
    if value is None or known is None:
        return None
    state = FRESH if is_fresh(examined.model) and FRESH in known else ANY_STATE
    extremes = [float(figure) for figure in known[state]["extremes"]]
    beyond = sum(figure >= value if size.worst == "largest" else figure <= value for figure in extremes)
    return Standing(size=name, value=value, networks=_population()["networks"][state], beyond=beyond)


@functools.cache
def _population() -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath("population.json").read_text())
