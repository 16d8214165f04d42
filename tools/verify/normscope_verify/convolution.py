"""Convolutions, and their norms on a torus."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import Array, Unproven, require
from .maps import AT_ONCE, EACH, Map, Shape
from .reading import MOST_ENTRIES, Reader

TORUS_WORK = 5e10
"""Multiplications that one torus may take."""


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


def parse_convolution(data: dict[str, Any], inside: Shape, reader: Reader) -> Convolution:
    """Read a convolution that takes values of shape `inside`."""
    least = {"size": 1, "kernel": 1, "stride": 1, "dilation": 1, "left": 0, "right": 0}
    axes = []
    for item in reader.listed(data.get("axes"), "the axes of a convolution", 3):
        require(isinstance(item, dict) and set(item) == set(least), "an axis of a convolution is incomplete")
        axes.append(Axis(**{name: reader.whole(item[name], low, 10**6) for name, low in least.items()}))
    found = Convolution(reader.array(data.get("weight")), axes, reader.whole(data.get("groups"), 1, 10**6))
    require(found.inside == inside, f"a convolution from {found.inside} on {inside}")
    return found
