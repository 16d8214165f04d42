"""Linear maps between arrays: how they are read, applied, written out, and their norms."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import Array, Enclosure, Unproven, require
from .reading import MOST_ENTRIES, Reader

Shape = tuple[int, ...]
DENSE_SIDE, DENSE_ENTRIES, DENSE_WORK, TORUS_WORK = 2000, 8e6, 1e11, 5e10
"""Maps are written out up to this short side, this many entries and multiplications; one torus may take so many."""
MOST_CHAINED, AT_ONCE, EACH = 1000, 10**6, 1e6
"""Maps in a chain, entries that are mapped at once, and multiplications that any map counts for."""


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


@dataclass(frozen=True)
class Axis:
    """One axis of a convolution: output o reads the entries o stride - left + tap dilation; outside are zeros."""

    size: int
    kernel: int
    stride: int
    dilation: int
    left: int
    right: int

    @property
    def extent(self) -> int:
        """Width of the dilated kernel."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return (self.size + self.left + self.right - self.extent) // self.stride + 1

    def reads(self, tap: int) -> slice:
        """Return where a tap reads the padded input."""
        start = tap * self.dilation
        return slice(start, start + (self.outputs - 1) * self.stride + 1, self.stride)


class Convolution(Map):
    """A convolution with zero padding, stride, dilation and groups."""

    def __init__(self, weight: Array, axes: Sequence[Axis], groups: int) -> None:
        require(weight.size and weight.ndim == len(axes) + 2 and weight.shape[0] % groups == 0, "a kernel is unfit")
        for axis, taps in zip(axes, weight.shape[2:]):
            require(axis.kernel == taps and axis.outputs > 0, "a kernel does not fit its input")
        self.weight, self.axes, self.groups, self.fan = weight, tuple(axes), groups, weight[0].size + weight[0, 0].size
        self.inside = (weight.shape[1] * groups, *(axis.size for axis in axes))
        self.outside = (weight.shape[0], *(axis.outputs for axis in axes))
        self.wide = max(math.prod(axis.size + axis.left + axis.right for axis in axes) * self.inside[0], *self.sizes)
        require(self.wide <= MOST_ENTRIES, "a convolution is too large")

    @functools.cached_property
    def work(self) -> float:
        return EACH + float(self.weight.size) * math.prod(self.outside[1:])

    def apply(self, x: Array, absolute: bool = False) -> Array:
        batch, count, everything = len(x), math.prod(self.outside[1:]), (slice(None), slice(None))
        padded = np.zeros((batch, len(x[0]), *(axis.size + axis.left + axis.right for axis in self.axes)), x.dtype)
        padded[(*everything, *(slice(axis.left, axis.left + axis.size) for axis in self.axes))] = x
        found = np.zeros((batch, self.groups, self.outside[0] // self.groups, count), x.dtype)
        for place in np.ndindex(*self.weight.shape[2:]):
            matrix = self.weight[(*everything, *place)].reshape(self.groups, -1, self.weight.shape[1])
            part = padded[(*everything, *(axis.reads(tap) for axis, tap in zip(self.axes, place)))]
            matrix = np.abs(matrix) if absolute else matrix
            found = found + ar.dot(matrix, part.reshape(batch, self.groups, -1, count))
        return found.reshape(batch, *self.outside)

    def scaled(self, scale: Array, *, outputs: bool) -> Convolution | None:
        """Return the convolution with one factor per output (or input) channel multiplied in; None if that underflows.

        Each weight is off by UNIT, which moves the norm by at most that times the number of weights.
        """
        ones, rows = (1,) * len(self.axes), len(self.weight) // self.groups
        factor = scale.reshape(-1, 1, *ones)
        if not outputs:
            factor = scale.reshape(self.groups, 1, -1).repeat(rows, axis=1).reshape(*self.weight.shape[:2], *ones)
        weight = self.weight * factor
        fits = (np.abs(weight) < 1e300) & (np.abs(weight) > 1e-290) | (self.weight == 0.0) | (factor == 0.0)
        return Convolution(weight, self.axes, self.groups) if fits.all() else None

    def rough(self, loose: dict[str, None]) -> arb:
        """Bound the norm by the least of those on a few tori."""
        tori = [self._on_torus(extra, twist) for extra in (0, 1) for twist in (0, 1)]
        return functools.reduce(lambda a, b: b if b < a else a, tori)

    def _on_torus(self, extra: int, twist: int) -> arb:
        """Bound the norm by that on a torus of N >= size + max(left, right) places along each axis.

        Reads left of the input wrap onto the zeros on its right and the other way round, so every output is one of the
        torus. Turning once around may multiply by -1 (twist 1), which changes zeros only. The stride folds the
        frequencies nu + a N/s onto one another: their matrices stand side by side, over sqrt(s).
        """
        sizes = [max(axis.size + max(axis.left, axis.right, 0), axis.extent) for axis in self.axes]
        sizes = [n + (-n % axis.stride) + extra * axis.stride for n, axis in zip(sizes, self.axes)]
        rows, columns = self.weight.shape[0] // self.groups, self.weight.shape[1]
        if 60.0 * math.prod(sizes) * self.groups * min(rows, columns) ** 2 * max(rows, columns) > TORUS_WORK:
            raise Unproven(f"a convolution from {list(self.inside)} to {list(self.outside)} is too large")
        ar.reserve(40.0 * max(sizes))
        exponent = math.frexp(float(np.abs(self.weight).max()))[1]
        symbol = np.ldexp(self.weight, -exponent).astype(complex)
        heavy = ar.lengths(np.abs(symbol).sum(tuple(range(2, symbol.ndim))).reshape(1, -1), 1)[0]
        strides = [axis.stride for axis in self.axes]
        step = max(1, AT_ONCE // (self.weight.shape[0] * columns * strides[0] * math.prod(sizes[1:])))
        ar.reserve(6.0 * self.weight.shape[0] * columns * strides[0] * step, *sizes[1:])
        most = 0.0
        for start in range(0, sizes[0] // strides[0], step):  # a few frequencies of the first axis at a time
            grids = [np.arange(start, min(start + step, sizes[0] // strides[0]))]
            grids += [np.arange(size // stride) for size, stride in zip(sizes[1:], strides[1:])]
            part, shape = symbol, [self.groups, rows, columns]
            for number, (axis, size, grid) in reversed(list(enumerate(zip(self.axes, sizes, grids), start=2))):
                turns = (np.arange(axis.stride)[:, None] * (size // axis.stride) + grid).reshape(-1)  # the aliases
                places = np.outer(np.arange(axis.kernel) * axis.dilation, 2 * turns + twist) % (2 * size)
                wave = roots_of_unity(2 * size)[places]
                part = np.moveaxis(np.tensordot(part, wave, axes=([number], [0])), -1, number)
            for stride, grid in zip(strides, grids):
                shape += [stride, len(grid)]
            order = [0, *range(4, len(shape), 2), 1, 2, *range(3, len(shape), 2)]
            part = part.reshape(shape).transpose(order).reshape(-1, rows, columns * math.prod(strides))
            most = max(most, ar.stack_norm(part))
        # rounding of the symbol: a product of up to three roots, each off by a unit, and a sum over the taps
        noise = heavy * 4.0 * ar.gamma(self.weight[0, 0].size + 16.0) * math.sqrt(math.prod(strides))
        return ((arb(most) + arb(noise)) * arb(2) ** exponent / arb(math.prod(strides)).sqrt()).upper()


@functools.lru_cache(maxsize=8)
def roots_of_unity(count: int) -> Array:
    """Return exp(-2 pi i k/count), each part within a unit of rounding."""
    angles = (arb(2 * k) / count for k in range(count))
    return np.fromiter((complex(float(angle.cos_pi()), -float(angle.sin_pi())) for angle in angles), complex, count)


class Repeated(Map):
    """One map on every slice of some leading dimensions."""

    def __init__(self, inner: Map, leading: Shape) -> None:
        self.inner, self.leading = inner, leading
        self.inside, self.outside = (*leading, *inner.inside), (*leading, *inner.outside)
        self.work, self.wide = (amount * math.prod(leading) for amount in (inner.work, inner.wide))
        require(len(self.inside) <= 32 and len(self.outside) <= 32, "a map of too many dimensions")

    def apply(self, x: Array, absolute: bool = False) -> Array:
        return self.inner.apply(x.reshape(-1, *self.inner.inside), absolute).reshape(len(x), *self.outside)

    def carry(self, x: Enclosure) -> Enclosure:
        return self.inner.carry(x.reshape(-1, *self.inner.inside)).reshape(len(x.mid), *self.outside)

    def _norm(self, loose: dict[str, None]) -> arb:
        return self.inner.norm(loose)

    def touched(self) -> Array:
        return np.broadcast_to(self.inner.touched(), self.outside)


class Chain(Map):
    """Maps one after the other, the first one first."""

    def __init__(self, parts: Sequence[Map]) -> None:
        if len(parts) > MOST_CHAINED:
            raise Unproven(f"more than {MOST_CHAINED} maps one after the other")
        for first, second in itertools.pairwise(parts):
            require(first.outside == second.inside, f"a map to {first.outside} before one from {second.inside}")
        self.parts, self.inside, self.outside = tuple(parts), parts[0].inside, parts[-1].outside
        self.work, self.wide = sum(part.work for part in parts), max(part.wide for part in parts)

    def apply(self, x: Array, absolute: bool = False) -> Array:
        return functools.reduce(lambda value, part: part.apply(value, absolute), self.parts, x)

    def carry(self, x: Enclosure) -> Enclosure:
        return functools.reduce(lambda value, part: part.carry(value), self.parts, x)

    def rough(self, loose: dict[str, None]) -> arb:
        """Multiply the parts' norms; one factor per channel (a BatchNorm) is taken into the convolution beside it."""
        found, lost = [self.parts[0]], arb(1)
        for part in self.parts[1:]:
            outputs, both = isinstance(found[-1], Convolution), None
            conv, diagonal = (found[-1], part) if outputs else (part, found[-1])
            if isinstance(conv, Convolution) and isinstance(diagonal, Diagonal) and diagonal.channels is not None:
                both = conv.scaled(diagonal.channels, outputs=outputs)
            if both is None:
                found.append(part)
            else:
                found[-1], lost = both, lost * (1 + 4 * both.weight.size * ar.UNIT)
        return ar.times(lost, *(part.norm(loose) for part in found))

    def touched(self) -> Array:
        return self.parts[-1].touched()


class Total(Map):
    """Maps whose outputs are added."""

    def __init__(self, terms: Sequence[Map]) -> None:
        self.terms, self.inside, self.outside = tuple(terms), terms[0].inside, terms[0].outside
        require(len({(term.inside, term.outside) for term in terms}) == 1, "a sum of maps of different shapes")
        self.work, self.wide = sum(term.work for term in terms), max(term.wide for term in terms)

    def apply(self, x: Array, absolute: bool = False) -> Array:
        return functools.reduce(lambda a, b: a + b, (term.apply(x, absolute) for term in self.terms))

    def carry(self, x: Enclosure) -> Enclosure:
        return functools.reduce(lambda a, b: a + b, (term.carry(x) for term in self.terms))

    def rough(self, loose: dict[str, None]) -> arb:
        return sum((term.norm(loose) for term in self.terms), arb(0)).upper()


def chained(first: Map, second: Map) -> Map:
    """Return two maps one after the other; equal slices stay slices."""
    if isinstance(first, Identity) and first.inside == first.outside:
        return second
    if isinstance(second, Identity) and second.inside == second.outside:
        return first
    if isinstance(first, Repeated) and isinstance(second, Repeated):
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first.leading, second.leading))
        shared = tuple(n for n, _ in pairs)
        inner = [Repeated(side.inner, rest) if (rest := side.leading[len(shared) :]) else side.inner
                 for side in (first, second)]  # fmt: skip
        if shared:
            return Repeated(chained(*inner), shared)
    sides = [side.parts if isinstance(side, Chain) else (side,) for side in (first, second)]
    return Chain([*sides[0], *sides[1]])


def added(terms: Sequence[Map]) -> Map:
    """Return the sum of maps; equal slices stay slices."""
    if len(terms) == 1:
        return terms[0]
    slices = [term for term in terms if isinstance(term, Repeated) and term.leading == getattr(terms[0], "leading", 0)]
    if len(slices) == len(terms):
        return Repeated(added([term.inner for term in slices]), slices[0].leading)
    return Total(terms)


def broadcasts(small: Shape, large: Shape) -> bool:
    """Say whether an array of one shape can be spread out to another."""
    return len(small) <= len(large) and all(n in (1, m) for n, m in zip(small[::-1], large[::-1]))


def parse_map(data: Any, inside: Shape, reader: Reader, depth: int = 0) -> Map:
    """Read a linear map that takes values of shape `inside`."""
    require(isinstance(data, dict) and depth <= 20, "a map is no object, or maps are nested too deeply")
    kind, again = data.get("map"), functools.partial(parse_map, reader=reader, depth=depth + 1)
    if kind == "identity":
        return Identity(inside, reader.shape(data.get("shape")))
    if kind == "diagonal":
        return Diagonal(reader.array(data.get("scale")), inside)
    if kind == "index":  # every output entry copies one input entry, or is zero (-1)
        index = reader.array(data.get("index"), "i")
        require(index.min(initial=-1) >= -1, "an index out of place")
        reader.spend(index.size)
        rows = np.flatnonzero(index.reshape(-1) >= 0)
        return Sparse(rows, index.reshape(-1)[rows], np.ones(len(rows)), inside, index.shape)
    if kind == "dense":
        return Dense(reader.array(data.get("entries")), inside, reader.shape(data.get("shape")))
    if kind == "sparse":
        rows, columns = reader.array(data.get("rows"), "i"), reader.array(data.get("columns"), "i")
        reader.spend(rows.size)
        return Sparse(rows, columns, reader.array(data.get("entries")), inside, reader.shape(data.get("shape")))
    if kind == "centering":
        view = reader.shape(data.get("view"))
        return Centering(inside, view, reader.axes(data.get("axes"), view))
    if kind == "convolution":
        return _parse_convolution(data, inside, reader)
    if kind == "repeated":
        leading = reader.shape(data.get("leading"))
        require(inside[: len(leading)] == leading, "a repeated map does not fit its input")
        return Repeated(again(data.get("inner"), inside[len(leading) :]), leading)
    listed = reader.listed(data.get("parts"), "parts of a map", 1000)
    require(kind in ("chain", "total") and listed, f"a map of unknown kind {kind!r}")
    if kind == "total":
        return added([again(item, inside) for item in listed])
    return functools.reduce(lambda found, item: chained(found, again(item, found.outside)), listed,
                            Identity(inside, inside))  # fmt: skip


def _parse_convolution(data: dict[str, Any], inside: Shape, reader: Reader) -> Convolution:
    least = {"size": 1, "kernel": 1, "stride": 1, "dilation": 1, "left": 0, "right": 0}
    axes = []
    for item in reader.listed(data.get("axes"), "the axes of a convolution", 3):
        require(isinstance(item, dict) and set(item) == set(least), "an axis of a convolution is incomplete")
        axes.append(Axis(**{name: reader.whole(item[name], low, 10**6) for name, low in least.items()}))
    found = Convolution(reader.array(data.get("weight")), axes, reader.whole(data.get("groups"), 1, 10**6))
    require(found.inside == inside, f"a convolution from {found.inside} on {inside}")
    return found
