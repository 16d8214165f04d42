"""Kendall's tau with ties, overall and along single axes, with bootstrap intervals that keep seeds together.

The overall figure is tau-b over all pairs of networks. The figure along an axis (the psi of Jiang et al. 2020) is tau-b
within each group of networks that differ on that axis alone (with the same seed), averaged over the groups. A measure
that is the same throughout a group counts as 0 there; a group whose gaps are all the same is left out. Psi is the mean
over the axes.

Intervals are percentiles over resamples. Networks that differ by their seed alone are not independent, so that whole
configurations are drawn, with all of their seeds. Along one axis the groups are the independent parts, and settings of
the other axes are drawn, with all seeds. In a simulation of 160 configurations with known noise the spread of
resampled figures was 0.05 for a true spread of 0.05 (mean over axes) and 0.09 for 0.09 (one axis); drawing the axes
independently of each other gave 0.036 for the mean over axes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..statistics import LEVEL, kendall, signs, weighted_kendall

Array = np.ndarray[Any, np.dtype[Any]]
DRAWS = 1000
"""The number of resamples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau:
    """A rank correlation with its 95 % interval; None where it is not defined."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Networks to be compared.

    Attributes:
        gaps: the generalization gap of each network.
        configurations: the values of each network on every axis.
        seeds: the seed of each network.
    """

    gaps: Sequence[float]
    configurations: Sequence[tuple[Hashable, ...]]
    seeds: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """How well one measure orders the gaps.

    Attributes:
        overall: tau over all pairs of networks.
        axes: tau along each axis.
        seed: tau among networks that differ by their seed alone; it is not part of the mean.
        mean: the mean over the axes, None where no axis varies.
        networks: the number of networks that were compared.
    """

    overall: Tau
    axes: Mapping[str, Tau]
    seed: Tau
    mean: Tau
    networks: int


def power(values: Sequence[float], sample: Sample, axes: Sequence[str], *, generator: np.random.Generator) -> Power:
    """Return how well a measure orders the gaps of networks."""
    if not len(values):
        nothing = Tau(value=None)
        return Power(overall=nothing, axes=dict.fromkeys(axes, nothing), seed=nothing, mean=nothing, networks=0)
    numbers, counts = draw_counts(sample.configurations, generator)
    weights = counts[:, numbers]
    overall = weighted_kendall(signs(values), signs(sample.gaps), np.vstack([np.ones(len(numbers)), weights]))
    along, by_axis = {}, _by_axis(values, sample, axes)
    for axis, (others, groups) in zip(axes, by_axis):
        along[axis] = _averaged(groups, others, generator)
    alike = _groups(list(sample.configurations), values, sample.gaps)
    return Power(
        overall=_interval(float(overall[0]), overall[1:]),
        axes=along,
        seed=_averaged(alike, sample.configurations, generator),
        mean=_interval(*_mean(by_axis, values, sample.gaps, weights)),
        networks=len(values),
    )


def advantage(
    first: Sequence[float],
    second: Sequence[float],
    sample: Sample,
    axes: Sequence[str],
    *,
    generator: np.random.Generator,
) -> Tau:
    """Return how much larger the mean over the axes is for one measure than for another, resampled together."""
    numbers, counts = draw_counts(sample.configurations, generator)
    sides = [
        _mean(_by_axis(values, sample, axes), values, sample.gaps, counts[:, numbers]) for values in (first, second)
    ]
    return _interval(sides[0][0] - sides[1][0], sides[0][1] - sides[1][1])


def draw_counts(
    clusters: Sequence[Hashable], generator: np.random.Generator, draws: int | None = None
) -> tuple[Array, Array]:
    """Return the number of each item's cluster, and how often each cluster occurs in every resample."""
    summary = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    counts = generator.multinomial(len(summary), np.full(len(summary), 1.0 / len(summary)), size=draws or DRAWS)
    return np.array([summary[cluster] for cluster in clusters], dtype=np.intp), counts.astype(np.float64)


Groups = list[tuple[list[int], float]]
"""Groups of networks that differ in one thing, each with its tau."""


def _by_axis(
    values: Sequence[float], sample: Sample, axes: Sequence[str]
) -> list[tuple[list[tuple[Hashable, ...]], Groups]]:
    """Return for each axis the values on the others, and the groups of networks that share those and the seed."""
    summary = []
    for index in range(len(axes)):
        others = [(*one[:index], *one[index + 1 :]) for one in sample.configurations]
        summary.append((others, _groups(list(zip(others, sample.seeds)), values, sample.gaps)))
    return summary


def _mean(
    by_axis: Sequence[tuple[Any, Groups]], values: Sequence[float], gaps: Sequence[float], weights: Array
) -> tuple[float, Array]:
    """Return the mean over the axes that vary, and in every resample; NaN where none does."""
    varying = [groups for _, groups in by_axis if groups]
    if not varying:
        return math.nan, np.empty(0)
    taus = [float(np.mean([tau for _, tau in groups])) for groups in varying]
    return float(np.mean(taus)), np.mean([_resampled(groups, values, gaps, weights) for groups in varying], axis=0)


def _groups(keys: Sequence[Hashable], values: Sequence[float], gaps: Sequence[float]) -> Groups:
    """Return the groups of networks that share a key, with their tau, where the gaps of a group differ."""
    members: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    entries = []
    for group in members.values():
        theirs = [gaps[index] for index in group]
        if len(set(theirs)) > 1:
            tau = kendall([values[index] for index in group], theirs)
            entries.append((group, 0.0 if math.isnan(tau) else tau))
    return entries


def _averaged(groups: Groups, clusters: Sequence[Hashable], generator: np.random.Generator) -> Tau:
    """Return the mean tau of groups, with an interval from resampling clusters of groups."""
    if not groups:
        return Tau(value=None)
    taus = np.array([tau for _, tau in groups])
    numbers, counts = draw_counts([clusters[group[0]] for group, _ in groups], generator)
    weights = counts[:, numbers]
    return _interval(float(taus.mean()), weights @ taus / weights.sum(1))


def _resampled(groups: Groups, values: Sequence[float], gaps: Sequence[float], weights: Array) -> Array:
    """Return the mean tau of groups in every resample; groups without two different gaps are left out."""
    total, present = np.zeros(len(weights)), np.zeros(len(weights))
    for size in {len(group) for group, _ in groups}:
        rows = np.array([group for group, _ in groups if len(group) == size])
        x, y = (np.stack([signs(side[row]) for row in rows]) for side in (np.asarray(values), np.asarray(gaps)))
        held = weights[:, rows].transpose(1, 0, 2)
        taus = weighted_kendall(x, y, held)
        ordered = np.einsum("gbi,gij,gbj->gb", held, np.abs(y), held) > 0.0
        total += np.where(ordered, np.nan_to_num(taus), 0.0).sum(0)
        present += ordered.sum(0)
    with np.errstate(invalid="ignore"):
        return total / present


def _interval(value: float, resampled: Array) -> Tau:
    """Return a figure with the interval of its resamples."""
    if math.isnan(value):
        return Tau(value=None)
    defined = resampled[~np.isnan(resampled)]
    if len(defined) < 2:
        return Tau(value=value)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Tau(value=value, low=float(low), high=float(high))
