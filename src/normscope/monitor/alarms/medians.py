"""What alarms compare: a run's first figures with its latest, as medians, so that one odd batch is no alarm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from ..history import History
from ..record import Kind, LayerRecord, Record


def number(record: Record, kind: Kind, quantity: str, index: int) -> float | None:
    """Return one figure of one layer in one record; None if it was not measured."""
    column = record.of(kind, quantity)
    return column[index] if index < len(column) else None


def steepest(history: History, record: Record) -> int | None:
    """Return the weight layer with the largest gradient relative to its weights; None if none has one."""
    found = []
    for index in range(len(history.of("weight"))):
        gradient, size = (number(record, "weight", q, index) for q in ("log10_gradient", "log10_size"))
        if gradient is not None and size is not None and math.isfinite(gradient) and math.isfinite(size):
            found.append((gradient - size, index))
    return max(found)[1] if found else None


def typical(values: Sequence[float]) -> float | None:
    """Return the median; None of nothing."""
    return median(values) if values else None


def then_and_now(history: History, kind: Kind, quantity: str) -> Iterator[tuple[int, LayerRecord, float, float]]:
    """Yield for every layer of a kind its place, itself, and a quantity's median at the start and now."""
    for index, layer in enumerate(history.of(kind)):
        course = history.course(kind, quantity, index)
        past, present = course.start, course.now
        if past is not None and present is not None:
            yield index, layer, past, present


def lasting(history: History, kind: Kind, quantity: str) -> Iterator[tuple[int, LayerRecord, list[float]]]:
    """Yield for every layer of a kind its place, itself, and the latest figures of a quantity, all of them numbers."""
    for index, layer in enumerate(history.of(kind)):
        values = history.course(kind, quantity, index).lasting()
        if values:
            yield index, layer, values


def current(history: History, kind: Kind, quantity: str, index: int) -> float | None:
    """Return the latest median of one layer; None if it was not measured lately."""
    return history.course(kind, quantity, index).now


def told(history: History, code: str) -> bool:
    """Return whether an alarm of this code was raised already, at any layer: naming another layer would be no news."""
    return any(finding.code == code for finding in history.findings)


def step(history: History) -> int:
    """Return the step of the last record."""
    return history.records[-1].step
