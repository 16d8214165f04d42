"""`Finding`: something wrong or worth knowing, where it is, why it matters and what to do."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from .codec import JsonForm, Part
from .markup import card, visible


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
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("step",))

    code: str
    severity: Severity
    where: str
    seen: str
    why: str
    advice: str
    numbers: Mapping[str, float | int | None] = field(default_factory=dict, hash=False)
    step: int | None = None

    def __str__(self) -> str:
        when = "" if self.step is None else f" at step {self.step}"
        where = f"{self.code} in {self.where}{when}"
        return visible(f"{self.severity.value}: {where}: {self.seen} {self.why} {self.advice}")

    def _repr_html_(self) -> str:
        when = "" if self.step is None else f" at step {self.step:,}"
        lines = {"where": f"{self.where}{when}", "seen": self.seen, "why it matters": self.why, "advice": self.advice}
        return card(f"{self.severity.value}: {self.code}", lines)
