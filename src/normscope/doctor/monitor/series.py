"""The figures of a run over its steps, as alarms compare them: those at the start, those of late, spikes of the loss.

All of it is bounded, however long the run is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .record import Record

FIRST = 3
"""Figures at the start that say where a run came from."""
LASTING_RECORDS = 5
"""Figures that show a lasting state: the median of five is not moved by two odd batches."""
LASTING_STEPS = 40
"""Steps that a lasting state spans at least, however often is looked: four times the memory of momentum 0.9."""
FEW_LASTING_RECORDS, MANY_LASTING_STEPS = 4, 80
"""Where records are far apart, four of them over twice as many steps show a lasting state too."""
PLAIN_STEPS = 10
"""Steps over which two records show what no batch can cause by chance: no gradient, a rate of zero, a wrong mode."""
APART_STEPS = 4
"""Steps between two figures that are both kept: ten gaps make a lasting state."""
KEPT_FIGURES = LASTING_STEPS // APART_STEPS + 2
"""The latest figures that are kept: a lasting state, and one that the next may replace."""


class LayerSeries:
    """The figures of a quantity, of layers that were measured at the same steps.

    Attributes:
        places: which layers.
        first: of each layer the first figures that are numbers.
        recent: pairs (step, figures of all layers) of the latest, without the very first, which is of an untrained
            model. Of those that lie close the last stands for all.
    """

    __slots__ = ("_begun", "_lasting", "_opening", "first", "places", "recent")

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places
        self.first: list[list[float]] = [[] for _ in places]
        self.recent: deque[tuple[int, Sequence[float]]] = deque(maxlen=KEPT_FIGURES)
        self._begun, self._opening = False, True  # _opening: the first figures of some layer are not complete
        self._lasting: int | None = None

    def add(self, step: int, row: Sequence[float]) -> None:
        """Add the figures of a step, one for each layer."""
        if self._opening:
            for first, value in zip(self.first, row, strict=True):
                if len(first) < FIRST and not math.isnan(value):
                    first.append(value)
            self._opening = any(len(first) < FIRST for first in self.first)
        if not self._begun:
            self._begun = True
            return
        recent, self._lasting = self.recent, None
        if len(recent) > 1 and recent[-1][0] - recent[-2][0] < APART_STEPS:
            recent[-1] = (step, row)
        else:
            recent.append((step, row))

    @property
    def has_opened(self) -> bool:
        """Whether the first figures of all layers are complete."""
        return not self._opening

    def forget(self, step: int) -> None:
        """Drop what is known of the steps from one on: they are done again."""
        self._lasting = None
        while self.recent and self.recent[-1][0] >= step:
            self.recent.pop()

    def take_out(self, positions: Sequence[int]) -> LayerSeries:
        """Return the series of some of the layers alone, by their places in this one."""
        series = LayerSeries([self.places[i] for i in positions])
        series.first = [list(self.first[i]) for i in positions]
        series.recent.extend((step, [row[i] for i in positions]) for step, row in self.recent)
        series._begun = self._begun
        return series

    def lasting_rows(self) -> list[tuple[int, Sequence[float]]]:
        """Return the fewest of the last pairs that are enough records over enough steps; empty while too few are."""
        if self._lasting is None:  # several alarms ask for it at one look
            self._lasting = 0
            steps = [step for step, _ in self.recent]
            for count in range(FEW_LASTING_RECORDS, len(steps) + 1):
                span = steps[-1] - steps[-count]
                if span >= (LASTING_STEPS if count >= LASTING_RECORDS else MANY_LASTING_STEPS):
                    self._lasting = count
                    break
        return list(self.recent)[-self._lasting :] if self._lasting else []

    def last_rows(self, count: int = 2, steps: int = PLAIN_STEPS) -> list[tuple[int, Sequence[float]]]:
        """Return the last pairs that are so many and span so many steps, without the very first; or none.

        Where records are far apart, two are enough, or one far behind the first.
        """
        pairs = list(self.recent)
        if len(pairs) == 1 and pairs[0][0] >= LASTING_STEPS:
            return pairs
        if len(pairs) > 1 and pairs[-1][0] - pairs[-2][0] >= max(LASTING_STEPS, steps):
            return pairs[-2:]
        for begin in range(len(pairs) - count, -1, -1):
            if pairs[-1][0] - pairs[begin][0] >= steps:
                return pairs[begin:]
        return []


class ValueSeries:
    """One figure of one layer over a run: what the series of its layers says of it.

    Example:
        >>> series = SeriesByLayer()
        >>> for step in range(0, 100, 10):
        ...     series.add(step, [step / 10])
        >>> series.of(0).first, series.of(0).lasting()
        ([0.0, 1.0, 2.0], [5.0, 6.0, 7.0, 8.0, 9.0])
    """

    __slots__ = ("_place", "_series")

    def __init__(self, series: LayerSeries, place: int) -> None:
        self._series, self._place = series, place

    @property
    def first(self) -> list[float]:
        """The first figures that are numbers."""
        return self._series.first[self._place]

    @property
    def recent(self) -> list[tuple[int, float]]:
        """Pairs (step, figure) of the latest, without the very first."""
        return [(step, row[self._place]) for step, row in self._series.recent]

    def latest(self) -> list[tuple[int, float]]:
        """Return the last pairs that show a lasting state; empty while there are too few of them."""
        return [(step, row[self._place]) for step, row in self._series.lasting_rows()]

    def lasting(self) -> list[float]:
        """Return the figures of a lasting state; empty where there is none, or one of them is no number."""
        values = [row[self._place] for _, row in self._series.lasting_rows()]
        return [] if any(map(math.isnan, values)) else values

    def last(self, count: int = 2, steps: int = PLAIN_STEPS) -> list[float]:
        """Return the last figures that are so many and span so many steps, as `LayerSeries.last_rows` has them."""
        return [row[self._place] for _, row in self._series.last_rows(count, steps)]

    @property
    def start(self) -> float | None:
        """The median of the first figures; None before there is one."""
        return median(self.first) if self.first else None

    @property
    def now(self) -> float | None:
        """The median of a lasting state, without what is no number; None where there is none."""
        return _median_of_numbers([row[self._place] for _, row in self._series.lasting_rows()])


class SeriesByLayer:
    """The series of one quantity of all layers. Layers that were measured at the same steps are kept as one."""

    def __init__(self) -> None:
        self._groups: list[LayerSeries] = []
        self._where: dict[int, tuple[LayerSeries, int]] = {}
        self._cached: dict[str, dict[int, Any]] = {}  # what several alarms ask for at one look

    def add(self, step: int, column: Sequence[float | None]) -> None:
        """Add the figures of a step; what was not measured leaves no trace."""
        starts = self._cached.get("starts")
        self._cached = {}
        if len(self._groups) == 1 and len(column) == len(self._where) and None not in column:
            if starts is not None and self._groups[0].has_opened:  # the first figures are complete
                self._cached["starts"] = starts
            self._groups[0].add(step, column)  # type: ignore[arg-type]
            return
        measured = {place: value for place, value in enumerate(column) if value is not None}
        groups = [LayerSeries([place for place in measured if place not in self._where])]
        for group in self._groups:
            inside: tuple[list[int], list[int]] = ([], [])  # positions of those that were not measured, and that were
            for position, place in enumerate(group.places):
                inside[place in measured].append(position)
            groups += [group] if not all(inside) else [group.take_out(positions) for positions in inside]
        self._groups = [group for group in groups if group.places]
        self._where = {place: (group, i) for group in self._groups for i, place in enumerate(group.places)}
        for group in self._groups:
            if group.places[0] in measured:
                group.add(step, [measured[place] for place in group.places])

    def forget(self, step: int) -> None:
        """Drop what is known of the steps from one on."""
        self._cached = {}
        for group in self._groups:
            group.forget(step)

    def of(self, place: int) -> ValueSeries:
        """Return the series of one layer."""
        where = self._where.get(place)
        return NEVER_MEASURED if where is None else ValueSeries(*where)

    def starts(self) -> dict[int, float]:
        """Return the median of the first figures of every layer that has any."""
        if "starts" not in self._cached:
            firsts = ((place, first) for group in self._groups for place, first in zip(group.places, group.first))
            self._cached["starts"] = {place: median(first) for place, first in firsts if first}
        return self._cached["starts"]

    def nows(self) -> dict[int, float]:
        """Return the median of a lasting state of every layer that is in one, without what is no number."""
        if "nows" not in self._cached:
            medians = ((place, _median_of_numbers(values)) for place, values in self._lasting_figures())
            self._cached["nows"] = {place: value for place, value in medians if value is not None}
        return self._cached["nows"]

    def lasting(self) -> dict[int, list[float]]:
        """Return the figures of a lasting state of every layer that is in one, where all of them are numbers."""
        if "lasting" not in self._cached:
            figures = self._lasting_figures()
            self._cached["lasting"] = {place: list(v) for place, v in figures if not any(map(math.isnan, v))}
        return self._cached["lasting"]

    def _lasting_figures(self) -> Iterator[tuple[int, Sequence[float]]]:
        for group in self._groups:
            yield from zip(group.places, zip(*(row for _, row in group.lasting_rows())))

    def last(self) -> dict[int, tuple[float, ...]]:
        """Return the last figures of every layer that are two and span enough steps (`LayerSeries.last_rows`)."""
        if "last" not in self._cached:
            rows = ((group.places, [row for _, row in group.last_rows()]) for group in self._groups)
            self._cached["last"] = {p: figures for places, many in rows for p, figures in zip(places, zip(*many))}
        return self._cached["last"]


def _median_of_numbers(values: Sequence[float]) -> float | None:
    """Return the median of those that are numbers; None where there are none."""
    if math.isnan(sum(values)):  # of infinities too, perhaps
        values = [value for value in values if not math.isnan(value)]
    count, ordered = len(values), sorted(values)
    if count % 2:
        return ordered[count // 2]
    return (ordered[count // 2 - 1] + ordered[count // 2]) / 2 if count else None


NEVER_MEASURED = ValueSeries(LayerSeries([0]), 0)
"""The series of a figure that was never measured."""
NO_SERIES = SeriesByLayer()
"""Those of a quantity that was never measured."""

# ---- spikes of the loss

SPIKE_WINDOW_RECORDS = 64
"""How many of the latest records say what is usual."""
SPIKE_MIN_RECORDS, SPIKE_MIN_LOSSES = 3, 100
"""How many records, and how many losses, there must be before anything counts as usual."""
SPIKE_MIN_SHARE = 0.5
"""A jump is at least this share of the first loss, or of the present level if that is larger: a lower one is soon made
good."""
SPIKE_MIN_SPREADS = 10.0
"""A jump is at least this many times the usual distance between the mean and the largest of the losses of a record."""
SPIKE_MIN_RATIO = 1.5
"""A jump is at least this many times the largest one in the window: losses that often jump do so in healthy runs
too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss far above those around it: its step, itself, and the usual loss before."""

    step: int
    loss: float
    level: float


class Spikes:
    """Finds the first spike of a run, record by record.

    Attributes:
        first: the spike; None while there is none.
        count: how many records have one.
    """

    def __init__(self) -> None:
        self.first: Spike | None = None
        self.count = 0
        self._start: float | None = None
        self._losses = 0.0
        self._window: deque[tuple[float, float]] = deque(maxlen=SPIKE_WINDOW_RECORDS)

    def add(self, record: Record) -> None:
        """Look at the losses of one more record."""
        middle, largest = (record.metrics.get(name, record.loss) for name in ("loss_mean", "loss_largest"))
        if middle is None or largest is None or not math.isfinite(middle) or not math.isfinite(largest):
            return
        self._start = middle if self._start is None else self._start
        if len(self._window) >= SPIKE_MIN_RECORDS and self._losses >= SPIKE_MIN_LOSSES:
            level = median(pair[0] for pair in self._window)
            usual = median(pair[1] - pair[0] for pair in self._window)
            top = max(pair[1] for pair in self._window)
            start = max(abs(self._start), abs(level))
            if largest - level > max(
                SPIKE_MIN_SHARE * start, SPIKE_MIN_SPREADS * usual, SPIKE_MIN_RATIO * (top - level)
            ):
                self.count += 1
                step = int(record.metrics.get("loss_largest_at") or record.step)
                self.first = self.first or Spike(step=step, loss=largest, level=level)
        self._window.append((middle, largest))
        self._losses += record.metrics.get("loss_count") or 1.0
