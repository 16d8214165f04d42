"""Maps made of maps: on every slice, one after the other, added up; and how any map is read."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import Array, Enclosure, Unproven, require
from .convolution import Convolution, parse_convolution
from .maps import Centering, Dense, Diagonal, Identity, Map, Shape, Sparse
from .reading import Reader

MOST_CHAINED = 1000
"""Maps one after the other."""


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
        return parse_convolution(data, inside, reader)
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
