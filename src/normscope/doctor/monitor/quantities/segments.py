"""`ArraySegments`: figures of many layers are made at once, on arrays of different lengths as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class ArraySegments:
    """Several arrays behind each other.

    Args:
        parts: none of them empty.

    Attributes:
        values: all entries.
        counts: how many each part has.

    Example:
        >>> parts = ArraySegments([np.array([1.0, 3.0]), np.array([5.0])])
        >>> parts.mean(parts.values), parts.of(np.maximum, parts.values)
        (array([2., 5.]), array([3., 5.]))
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.values = np.concatenate([part.reshape(-1) for part in parts])
        self.counts = np.array([part.size for part in parts])
        self._first = np.concatenate([[0], np.cumsum(self.counts)[:-1]])

    def of(self, function: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Return a function such as `np.maximum` over each part of some values."""
        result: np.ndarray = function.reduceat(values, self._first)
        return result

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of each part of some values."""
        result: np.ndarray = np.add.reduceat(values, self._first, dtype=float) / self.counts
        return result
