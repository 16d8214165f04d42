"""The conditional independence test of Jiang et al. 2020 (section 2.2.3): what a measure says beyond hyperparameters.

Of two networks, does knowing which has the larger measure say which has the larger gap, once some hyperparameters of
both are known? For a set S of hyperparameters that is the mutual information of two signs, of the difference of the
measure and of that of the gap, given the values in S of both networks, over the entropy of the sign of the gap given
the same: 1 if the measure decides it, 0 if it says nothing. The share reported is the least over all sets of at most
two hyperparameters, so that a measure that only tells the values of one of them apart scores 0.

An estimate from counted signs is never below 0, and chance makes it larger the fewer pairs there are. `chance` says by
how much: it is the 95 % quantile of what is estimated after the measure's values are shuffled among the networks. The
interval comes from resampled configurations, as in `kendall.py`, and is too high by chance in the same way.

Pairs of networks with one configuration, which differ by their seed alone, count as all other pairs do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..statistics import LEVEL, signs
from .kendall import Array, Sample, Tau, draw_counts

DRAWS = 200
"""The number of resamples, and of shuffles: ten shuffles lie beyond the 95 % quantile."""
LARGEST_SET = 2
"""At most so many hyperparameters are known, as in the paper."""
SIGNS = 3
"""A sign is -1, 0 or 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """What a measure says about the order of gaps beyond hyperparameters, over the entropy of that order.

    Attributes:
        share: the least share over the sets of hyperparameters, with its interval.
        chance: the share that one in twenty shuffles of the measure's values exceeds.
        known: the set of hyperparameters given which the share is least.
    """

    share: Tau
    chance: float | None
    known: tuple[str, ...] = ()


def information(
    values: Sequence[float], sample: Sample, axes: Sequence[str], *, generator: np.random.Generator
) -> Information:
    """Return what a measure says about the order of gaps, given any two hyperparameters or fewer."""
    count = len(values)
    if count < 2 or len(set(sample.gaps)) < 2:
        return Information(share=Tau(value=None), chance=None)
    rows, columns = np.triu_indices(count, 1)
    gaps = signs(sample.gaps)[rows, columns].astype(np.int64)
    order = signs(values).astype(np.int64)
    cells = list(_cells(sample.configurations, axes, rows, columns))
    numbers, counts = draw_counts(sample.configurations, generator, DRAWS)
    equal_weights = np.ones(len(rows))

    def shares(pair_order: Array, weights: Array) -> list[float]:
        return [_share(pair_order * turned, gaps * turned, cell, size, weights) for cell, turned, size in cells]

    measured = order[rows, columns]
    by_set = shares(measured, equal_weights)
    resampled = [min(shares(measured, row[numbers[rows]] * row[numbers[columns]])) for row in counts]
    shuffled = []
    for _ in range(DRAWS):
        places = generator.permutation(count)
        shuffled.append(min(shares(order[places[rows], places[columns]], equal_weights)))
    low, high = np.nanquantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    sets = list(_sets(sample.configurations, axes))
    return Information(
        share=Tau(value=min(by_set), low=float(low), high=float(high)),
        chance=float(np.quantile(shuffled, LEVEL)),
        known=tuple(axes[index] for index in sets[int(np.argmin(by_set))]),
    )


def _sets(configurations: Sequence[tuple[Hashable, ...]], axes: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Yield the sets of hyperparameters that vary, by their places."""
    varying = [index for index in range(len(axes)) if len({one[index] for one in configurations}) > 1]
    for size in range(LARGEST_SET + 1):
        yield from combinations(varying, size)


def _cells(
    configurations: Sequence[tuple[Hashable, ...]], axes: Sequence[str], rows: Array, columns: Array
) -> Iterator[tuple[Array, Array, int]]:
    """Yield for each set of hyperparameters what `_share` sorts pairs by.

    Yields:
        The cell of every pair, a number for the values of both its networks; -1 where they change places, so that the
        network with the earlier value comes first, else 1; and how many values there are.
    """
    for chosen in _sets(configurations, axes):
        keys = [tuple(one[index] for index in chosen) for one in configurations]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        numbers = np.array([places[key] for key in keys])
        first, second = numbers[rows], numbers[columns]
        cell = np.minimum(first, second) * len(places) + np.maximum(first, second)
        yield cell, np.where(first <= second, 1, -1), len(places)


def _share(order: Array, gaps: Array, cell: Array, size: int, weights: Array) -> float:
    """Return the information of weighted pairs about the order of the gaps, over the entropy of that order."""
    code = (cell * SIGNS + order + 1) * SIGNS + gaps + 1
    table = np.bincount(code, weights, size * size * SIGNS * SIGNS).reshape(size, size, SIGNS, SIGNS)
    same = np.arange(size)  # a pair of equal values has no first network: it counts in both directions
    table[same, same] = (table[same, same] + table[same, same, ::-1, ::-1]) / 2.0
    both = _entropy(table, (2, 3))
    gap, measure = (_entropy(table.sum(axis), (2,)) for axis in (2, 3))
    return float((gap + measure - both) / gap) if gap > 0.0 else np.nan


def _entropy(table: Array, axes: tuple[int, ...]) -> float:
    """Return the entropy of what a table counts along some axes, given its place on the others."""
    cells = table.sum(axes)
    return float(_xlogx(cells).sum() - _xlogx(table).sum()) / float(cells.sum() or 1.0)


def _xlogx(x: Array) -> Array:
    return x * np.log(np.where(x > 0.0, x, 1.0))
