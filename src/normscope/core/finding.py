"""`Finding`: something wrong or worth knowing, where it is, why it matters and what to do."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from .codec import JsonForm, Part
from .errors import card, visible
from .log10 import power10


class Severity(enum.StrEnum):
    """How much a finding matters; a more serious severity compares as larger."""

    INFO = "info"
    """A fact the reader may want to know; the model may well be healthy."""
    WARNING = "warning"
    """Something that usually costs accuracy, stability or compute."""
    ERROR = "error"
    """Something that makes the model useless as it stands."""

    @property
    def rank(self) -> int:
        """0, 1, 2 for info, warning, error."""
        return list(Severity).index(self)

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, Severity) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.rank <= other.rank if isinstance(other, Severity) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.rank > other.rank if isinstance(other, Severity) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.rank >= other.rank if isinstance(other, Severity) else NotImplemented


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Part):
    """One thing found in a model.

    Attributes:
        code: a name in kebab-case, from one list for audits and training runs (`dead-layer`, `redundant-bias`, ...).
        severity: info, warning or error.
        where: the module path, or the parameter's name.
        seen: what was measured, in one sentence with its figures.
        why: why it matters.
        advice: what to do.
        numbers: the figures by name; `None` stands for a figure that was not measured.
        step: the training step at which it was raised; `None` in audits.
        others: further places that show the same, where one finding stands for all of them.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("step", "others"))

    code: str
    severity: Severity
    where: str
    seen: str
    why: str
    advice: str
    numbers: Mapping[str, float | int | None] = field(default_factory=dict, hash=False)
    step: int | None = None
    others: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The code, and the place if there is one: a finding about a whole run has none."""
        return f"{self.code} in `{self.where}`" if self.where else self.code

    def __str__(self) -> str:
        when = "" if self.step is None else f" at step {self.step}"
        return visible(f"{self.severity.value}: {self.title}{when}: {self.seen} {self.why} {self.advice}")

    def _repr_html_(self) -> str:
        when = "" if self.step is None else f" at step {self.step:,}"
        where = f"`{self.where}`{when}" if self.where else f"the run{when}"
        lines = {"where": where, "seen": self.seen, "why it matters": self.why, "advice": self.advice}
        return card(f"{self.severity.value}: {self.code}", lines)


def figure(value: float) -> str:
    """Write a number with two digits: 0.031, 4.2e+06."""
    return f"{value:.2g}"


def power(exponent: float) -> str:
    """Write the number whose log10 is given; beyond the floats as a power of ten."""
    if math.isinf(exponent):
        return "0" if exponent < 0 else "infinity"
    return figure(power10(exponent)) if abs(exponent) < 300 else f"10^{exponent:.0f}"


def percent(share: float) -> str:
    """Write a share: 12 %, and less than 1 % as such."""
    return "less than 1 %" if 0.0 < share < 0.01 else f"{100 * share:.0f} %"


def figures(**numbers: float | int | None) -> dict[str, float | int | None]:
    """Return raw figures; what is not a number was not measured."""
    return {name: None if isinstance(n, float) and math.isnan(n) else n for name, n in numbers.items()}
