"""Linear maps between arrays: how they are applied and written out, and their norms."""

from __future__ import annotations

import functools
import math

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import Array, Enclosure, Unproven, require

Shape = tuple[int, ...]
DENSE_SIDE, DENSE_ENTRIES, DENSE_WORK = 2000, 8e6, 1e11
"""Maps are written out up to this short side, this many entries and multiplications."""
AT_ONCE, EACH = 10**6, 1e6
"""Entries that are mapped at once, and multiplications that any map counts for."""


class Map:
    """A linear map from arrays of shape `inside` to arrays of shape `outside`.

    Attributes:
        fan: how many products one entry of the output is the sum of, at most; 0 if entries are copied.
        work: about how many multiplications one application takes.
        wide: entries of the largest array on the way.
    """

    inside: Shape
    outside: Shape
    fan = 0

    @functools.cached_property
    def work(self) -> float:
        return EACH + sum(self.sizes)

    @functools.cached_property
    def wide(self) -> int:
        return max(self.sizes)

    def apply(self, x: Array, absolute: bool = False) -> Array:
        """Map `[b, *inside]`, floats or balls, to `[b, *outside]`; `absolute`: by the absolute entries of the map."""
        raise NotImplementedError

    def carry(self, x: Enclosure) -> Enclosure:
        """Map an enclosure."""
        if not self.fan:
            return Enclosure(self.apply(x.mid), self.apply(x.rad))
        rad = ar.raised(x.rad + ar.gamma(self.fan) * np.abs(x.mid))
        return Enclosure(self.apply(x.mid), ar.raised(self.apply(rad, absolute=True), self.fan))

    @property
    def sizes(self) -> tuple[int, int]:
        """Entries of the output and of the input."""
        return math.prod(self.outside), math.prod(self.inside)

    @property
    def small(self) -> bool:
        """Whether the map may be written out."""
        (rows, columns), short = self.sizes, min(self.sizes)
        heavy = columns * self.work + float(short) ** 2 * max(rows, columns)
        return short <= DENSE_SIDE and rows * columns <= DENSE_ENTRIES and heavy <= DENSE_WORK

    def matrix(self) -> Enclosure:
        """Write the map out, `[outputs, inputs]`."""
        rows, columns = self.sizes
        ar.reserve(rows, columns)
        mid, rad = np.empty((rows, columns)), np.empty((rows, columns))
        step = max(1, AT_ONCE // self.wide)
        for start in range(0, columns, step):
            basis = np.zeros((min(step, columns - start), columns))
            basis[np.arange(len(basis)), start + np.arange(len(basis))] = 1.0
            found = self.carry(Enclosure.exact(basis.reshape(-1, *self.inside))).reshape(len(basis), rows)
            mid[:, start : start + len(basis)], rad[:, start : start + len(basis)] = found.mid.T, found.rad.T
        return Enclosure(mid, rad)

    def norm(self, loose: dict[str, None]) -> arb:
        """Bound the norm, once; what size kept from being exact is noted in `loose`."""
        if not hasattr(self, "known"):
            noted: dict[str, None] = {}
            self.known = self._norm(noted), noted
        loose.update(self.known[1])
        return self.known[0]

    def _norm(self, loose: dict[str, None]) -> arb:
        exact, what = ar.INF, "is too large to be written out"
        if self.small:
            try:
                matrix, what = self.matrix(), "cannot be bounded closely in float64"
                exact = ar.matrix_norm(matrix)
                if matrix.rad.max() <= 1e-9 * np.abs(matrix.mid).max():
                    return exact
            except Unproven:
                pass
        loose[f"a map from {list(self.inside)} to {list(self.outside)} {what}"] = None
        other = self.rough(loose)
        return other if other < exact else exact

    def rough(self, loose: dict[str, None]) -> arb:
        """Bound the norm without writing the map out."""
        raise Unproven(f"a map from {list(self.inside)} to {list(self.outside)} is too large")

    def touched(self) -> Array:
        """Return which output entries the map can write to."""
        return np.full(self.outside, True)


class Identity(Map):
    """The same entries in the same order, perhaps in another shape."""

    def __init__(self, inside: Shape, outside: Shape) -> None:
        require(math.prod(inside) == math.prod(outside), f"no identity from {inside} to {outside}")
        self.inside, self.outside = inside, outside

    def apply(self, x: Array, absolute: bool = False) -> Array:
        return x.reshape(len(x), *self.outside)

    def _norm(self, loose: dict[str, None]) -> arb:
        return arb(1)


class Diagonal(Map):
    """Entrywise multiplication."""

    fan = 1

    def __init__(self, scale: Array, shape: Shape) -> None:
        require(broadcasts(scale.shape, shape), f"a scale of shape {scale.shape} on {shape}")
        self.scale, self.inside, self.outside = scale, shape, shape

    def apply(self, x: Array, absolute: bool = False) -> Array:
        return x * (np.abs(self.scale) if absolute else self.scale)

    def _norm(self, loose: dict[str, None]) -> arb:
        return arb(float(np.abs(self.scale).max()))

    @property
    def channels(self) -> Array | None:
        """The factors by channel (the first dimension); None if they vary within one."""
        scale = self.scale.reshape((1,) * (len(self.inside) - self.scale.ndim) + self.scale.shape)
        return None if math.prod(scale.shape[1:]) != 1 else np.broadcast_to(scale.reshape(-1), self.inside[:1])


class Dense(Map):
    """A matrix between two shapes."""

    def __init__(self, entries: Array, inside: Shape, outside: Shape) -> None:
        require(entries.shape == (math.prod(outside), math.prod(inside)), "a matrix does not fit its shapes")
        self.entries, self.inside, self.outside, self.fan = entries, inside, outside, entries.shape[1]

    def apply(self, x: Array, absolute: bool = False) -> Array:
        entries = np.abs(self.entries) if absolute else self.entries
        return ar.dot(entries, x.reshape(len(x), -1).T).T.reshape(len(x), *self.outside)

    @functools.cached_property
    def work(self) -> float:
        return EACH + self.entries.size

    def matrix(self) -> Enclosure:
        return Enclosure.exact(self.entries)


class Sparse(Map):
    """A matrix with few entries, listed by row; a permutation, a slice or a padding has one a row, and it is 1."""

    def __init__(self, row: Array, column: Array, entry: Array, inside: Shape, outside: Shape) -> None:
        require(row.ndim == 1 and row.size and row.shape == column.shape == entry.shape, "a sparse matrix is unfit")
        require(
            row.min() >= 0 and row.max() < math.prod(outside) and (np.diff(row) >= 0).all(), "sparse rows are unfit"
        )
        require(column.min() >= 0 and column.max() < math.prod(inside), "sparse columns are unfit")
        require(len(np.unique(row * math.prod(inside) + column)) == len(row), "a sparse matrix names a place twice")
        self.row, self.column, self.entry, self.inside, self.outside = row, column, entry, inside, outside
        self.filled, self.starts, counts = np.unique(row, return_index=True, return_counts=True)
        self.single, self.fan = counts.max() == 1, 0 if counts.max() == 1 and (entry == 1.0).all() else counts.max()

    def apply(self, x: Array, absolute: bool = False) -> Array:
        found = np.zeros((len(x), math.prod(self.outside)), x.dtype)
        products = x.reshape(len(x), -1)[:, self.column]
        if self.fan:
            products = products * (np.abs(self.entry) if absolute else self.entry)
        found[:, self.filled] = products if self.single else np.add.reduceat(products, self.starts, axis=1)
        return found.reshape(len(x), *self.outside)

    def _norm(self, loose: dict[str, None]) -> arb:
        if not self.single:
            return super()._norm(loose)
        top = float(np.abs(self.entry).max()) or 1.0  # one entry a row: columns are orthogonal, the longest counts
        squares = ar.raised(np.bincount(self.column, (self.entry / top) ** 2), len(self.entry))
        return (arb(float(squares.max())).sqrt() * top).upper()

    def rough(self, loose: dict[str, None]) -> arb:
        sums = [float(np.bincount(place, np.abs(self.entry)).max()) for place in (self.row, self.column)]
        return (arb(sums[0]) * sums[1] * (1 + ar.gamma(len(self.entry))) + arb(ar.TINY)).sqrt().upper()

    def touched(self) -> Array:
        return np.isin(np.arange(math.prod(self.outside)), self.filled).reshape(self.outside)


class Centering(Map):
    """Subtract the mean over some axes of a view of the value."""

    def __init__(self, shape: Shape, view: Shape, axes: Shape) -> None:
        require(math.prod(shape) == math.prod(view), f"no view of {shape} as {view}")
        self.inside, self.outside, self.view, self.axes = shape, shape, view, axes
        self.count = math.prod(view[axis] for axis in axes)
        self.fan = self.count + 4

    def apply(self, x: Array, absolute: bool = False) -> Array:
        seen = x.reshape(len(x), *self.view)
        mean = seen.sum(tuple(a + 1 for a in self.axes), keepdims=True) / self.count
        return (seen + mean if absolute else seen - mean).reshape(x.shape)

    def _norm(self, loose: dict[str, None]) -> arb:
        return arb(1 if self.count > 1 else 0)


def broadcasts(small: Shape, large: Shape) -> bool:
    """Say whether an array of one shape can be spread out to another."""
    return len(small) <= len(large) and all(n in (1, m) for n, m in zip(small[::-1], large[::-1]))
