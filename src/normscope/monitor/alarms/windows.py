"""What alarms compare: a run's first records with its latest, as medians, so that one odd batch is no alarm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..record import Kind, Layer, Record

if TYPE_CHECKING:
    from ..history import History

RECORDS = 5
"""Records that show a lasting state: the median of five is not moved by two odd batches."""
STEPS = 40
"""Steps that a lasting state spans at least, however often is measured: four times the memory of momentum 0.9."""
REACH = 400
"""Records that are looked through for those of a layer that has waited its turn."""
FIRST = 3
"""Records at the start that say where a run came from."""


def latest(records: Sequence[Record]) -> Sequence[Record]:
    """Return the last records that show a lasting state; empty while there are too few of them.

    The first record, an untrained model, never belongs to it. Of records that lie close a few are taken.

    Args:
        records: in the order of their steps.
    """
    if len(records) <= RECORDS:
        return ()
    end, start = records[-1].step, len(records) - RECORDS
    while start > 1 and end - records[start].step < STEPS:
        start -= 1
    if end - records[start].step < STEPS:
        return ()
    return records[len(records) - 1 : start - 1 : -max(1, (len(records) - start) // RECORDS)][::-1]


def first(records: Sequence[Record]) -> Sequence[Record]:
    """Return the first records of a run."""
    return records[:FIRST]


def numbers(records: Sequence[Record], kind: Kind, quantity: str, index: int) -> list[float]:
    """Return what was measured of one layer; NaN and what was not measured are left out."""
    return [v for record in records if (v := number(record, kind, quantity, index)) is not None and not math.isnan(v)]


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


def window(history: History, kind: Kind, quantity: str, index: int) -> Sequence[Record]:
    """Return the last records with a figure of one layer that show a lasting state; layers may take turns."""
    records = history.having(kind, quantity)
    now = latest(records)
    if all(number(record, kind, quantity, index) is not None for record in now):
        return now
    own: list[Record] = []
    for record in reversed(records[-REACH:]):
        if number(record, kind, quantity, index) is not None:
            own.append(record)
            if len(own) > RECORDS and own[0].step - record.step >= STEPS:
                break
    return latest(own[::-1])


def then_and_now(history: History, kind: Kind, quantity: str) -> Iterator[tuple[int, Layer, float, float]]:
    """Yield for every layer of a kind its place, itself, and a quantity's median at the start and now."""
    records = history.having(kind, quantity)
    for index, layer in enumerate(history.of(kind)) if latest(records) else ():
        past = typical(numbers(first(records), kind, quantity, index))
        present = current(history, kind, quantity, index)
        if past is not None and present is not None:
            yield index, layer, past, present


def lasting(history: History, kind: Kind, quantity: str) -> Iterator[tuple[int, Layer, list[float]]]:
    """Yield for every layer of a kind its place, itself, and the latest figures of a quantity, all of them numbers."""
    for index, layer in enumerate(history.of(kind)) if latest(history.having(kind, quantity)) else ():
        now = window(history, kind, quantity, index)
        values = numbers(now, kind, quantity, index)
        if now and len(values) == len(now):
            yield index, layer, values


def current(history: History, kind: Kind, quantity: str, index: int) -> float | None:
    """Return the latest median of one layer; None if it was not measured lately."""
    return typical(numbers(window(history, kind, quantity, index), kind, quantity, index))


def step(history: History) -> int:
    """Return the step of the last record."""
    return history.records[-1].step
