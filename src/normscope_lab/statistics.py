"""Means with intervals over seeds, slopes and rank correlations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from normscope.toolkit import half_width

LEVEL = 0.95
"""The confidence level of intervals."""


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a mean and half of its 95 % interval, which is infinite for fewer than two values."""
    half = half_width(values)
    return (fmean(values) if values else math.nan), math.inf if half is None else half


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return the slope and R squared of a straight line through points; NaN for fewer than three points.

    Example:
        >>> [round(value, 9) for value in line([0, 1, 2], [1.0, 3.0, 5.0])]
        [2.0, 1.0]
    """
    kept = [(x, y) for x, y in zip(xs, ys) if math.isfinite(y)]
    if len(kept) < 3:
        return math.nan, math.nan
    x, y = np.array(kept, dtype=float).T
    slope, offset = np.polyfit(x, y, 1)
    spread = float(np.sum((y - y.mean()) ** 2))
    return float(slope), 1.0 - float(np.sum((y - slope * x - offset) ** 2)) / spread if spread else math.nan


def kendall(xs: Sequence[float] | np.ndarray, ys: Sequence[float] | np.ndarray) -> float:
    """Return Kendall's tau-b; NaN where either side does not vary, or holds no number.

    Infinite values are tied with each other and above all others.

    Example:
        >>> round(kendall([1, 2, 3], [1, 3, 2]), 6)  # two of three pairs are in order
        0.333333
        >>> kendall([1, 1], [1, 2])
        nan
    """
    if np.isnan(xs).any() or np.isnan(ys).any():
        return math.nan
    return float(weighted_kendall(signs(xs), signs(ys), np.ones((1, len(xs))))[0])


def signs(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the sign of every difference of two values; it is 0 for equal infinities."""
    column = np.asarray(values, dtype=np.float64)
    return np.greater.outer(column, column).astype(np.float64) - np.less.outer(column, column)


def weighted_kendall(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return tau-b of weighted items, for every row of weights; NaN where it is not defined."""

    def total(signs: np.ndarray) -> np.ndarray:
        return np.einsum("...bi,...bi->...b", weights @ signs, weights)

    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total(x * y) / np.sqrt(total(np.abs(x)) * total(np.abs(y))))


def resampled(statistic: Callable[[np.ndarray], float], count: int, *, times: int = 1000) -> tuple[float, float]:
    """Return the 95 % interval of a statistic of `count` samples by resampling them with replacement."""
    draws = np.random.default_rng(0)
    values = [statistic(draws.integers(0, count, count)) for _ in range(times)]
    kept = [value for value in values if math.isfinite(value)]
    low, high = np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if kept else (math.nan, math.nan)
    return float(low), float(high)
