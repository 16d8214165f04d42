"""`BoundRow`: the value of a generalization bound, its terms, its conditions, and the evidence that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from normscope import Graph
from normscope.toolkit import Traces, log10, log10_sum, power10

MET, NOT_MET, UNKNOWN = "met", "not met", "unknown"
"""The status of a condition."""
CAPTURED = 8
"""A model is captured with at most this many samples."""
INDEPENDENT = "the samples are independent draws from one distribution"
CERTIFIED, ESTIMATED, RATE = "certified", "estimated", "rate without constants"
"""The evidence of a row: all conditions hold; some fail, or are not known to hold; only the order is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of a bound, whether it holds here (`met`, `not met`, `unknown`), and why.

    Raises:
        ValueError: the status is none of the three.
    """

    what: str
    status: str
    why: str

    def __post_init__(self) -> None:
        if self.status not in (MET, NOT_MET, UNKNOWN):
            raise ValueError(f"a condition is met, not met or unknown, not {self.status!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTerm:
    """One summand of a bound, stored as log10."""

    name: str
    log10: float

    @property
    def value(self) -> float:
        """The summand itself, which may overflow to infinity."""
        return power10(self.log10)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRow:
    """One row of the table.

    Attributes:
        name: the name of the bound.
        source: where it is stated.
        speaks_of: the quantity that the value bounds, such as the error of the model on fresh data.
        log10_value: log10 of the value, the sum of the terms unless `note` says otherwise.
        most: the largest value that this quantity can have: a bound of `most` or more says nothing.
        terms: the summands.
        conditions: the conditions of the bound, and whether they hold here.
        evidence: `certified`, `estimated` or `rate without constants`.
        vacuous: whether the value is at least `most`.
        log10_as_printed: log10 of the formula as a paper prints it, where that formula is another one.
        note: what the reader must know.

    Raises:
        ValueError: `evidence` or `vacuous` contradict the conditions or the value.
    """

    name: str
    source: str
    speaks_of: str
    log10_value: float
    most: float
    terms: tuple[BoundTerm, ...]
    conditions: tuple[Condition, ...]
    evidence: str
    vacuous: bool
    log10_as_printed: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.evidence == CERTIFIED and self.missing:
            raise ValueError(f"{self.name} cannot be certified: {self.missing[0].what}")
        if self.evidence not in (CERTIFIED, ESTIMATED, RATE):
            raise ValueError(f"evidence of {self.name} is {self.evidence!r}")
        if self.vacuous is not bool(self.log10_value >= log10(self.most)):
            raise ValueError(f"{self.name} is said to be {'' if self.vacuous else 'not '}vacuous, which it is not")

    @property
    def value(self) -> float:
        """The value itself, which may overflow to infinity."""
        return power10(self.log10_value)

    @property
    def missing(self) -> tuple[Condition, ...]:
        """The conditions that are not met, or not known to be met."""
        return tuple(condition for condition in self.conditions if condition.status != MET)

    def term(self, name: str) -> float:
        """Return the value of a term by its name."""
        return next(term.value for term in self.terms if term.name == name)


def term(name: str, value: float) -> BoundTerm:
    """Return a summand from its plain value."""
    return BoundTerm(name=name, log10=log10(value))


def row(
    name: str,
    *,
    source: str,
    speaks_of: str,
    most: float,
    terms: Sequence[BoundTerm],
    conditions: Sequence[Condition],
    rate: bool = False,
    log10_value: float | None = None,
    log10_as_printed: float | None = None,
    note: str = "",
) -> BoundRow:
    """Return a row whose evidence and vacuity follow from its conditions and its value."""
    value = log10_sum(one.log10 for one in terms) if log10_value is None else log10_value
    met = all(condition.status == MET for condition in conditions)
    return BoundRow(
        name=name,
        source=source,
        speaks_of=speaks_of,
        log10_value=value,
        most=most,
        terms=tuple(terms),
        conditions=tuple(conditions),
        evidence=RATE if rate else CERTIFIED if met else ESTIMATED,
        vacuous=bool(value >= log10(most)),
        log10_as_printed=log10_as_printed,
        note=note,
    )


def alone(graph: Graph, model: nn.Module, batch: Tensor, output: str | int | None) -> Condition:
    """Return the condition that samples of a batch do not influence each other and are treated alike."""
    why: str | None = "samples of a batch meet, or are treated differently"
    if graph.per_sample:
        traces = Traces(model, mode="eval", output=output)
        why = traces.what_joins(batch, traces.at(batch)) if len(batch) > 1 else None
    return condition(
        "the loss of a sample depends on that sample alone", why is None, why or "read off the graph in eval mode"
    )


def condition(what: str, holds: bool | None, why: str) -> Condition:
    """Return a condition from a truth value; None stands for unknown."""
    return Condition(what=what, status=UNKNOWN if holds is None else MET if holds else NOT_MET, why=why)
