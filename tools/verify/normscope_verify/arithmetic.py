"""Arithmetic that is sure of its rounding: floats with error radii (NumPy), and balls of any precision (Arb).

What is trusted here of floating point: sums, products, quotients and roots of float64 are correctly rounded, so a
computed sum of n products x_i y_i is off by at most gamma(n) sum abs(x_i y_i) + n TINY, in whatever order it was taken;
and that is at most gamma(n) norm(x) norm(y) + n TINY. Factorizations and eigenvalues are guesses, checked afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
from flint import arb

Array = np.ndarray
UNIT, TINY = 2.0**-53, 2.0**-1040
"""Relative rounding of one operation, and (much) more than what underflow can take from one product."""
MOST_ENTRIES, MOST_SIDE, USUAL_WORK = 1 << 24, 2000, 1e12
"""Numbers in one array, the short side of a matrix whose norm is taken, and multiplications that one file may take."""
BALL = 500  # multiplications of floats that one of balls is counted as


class BadFile(Exception):
    """The file is damaged, or says something that cannot be read as a network and claims."""


class Unproven(Exception):
    """A claim could not be checked; nothing speaks against it."""


def require(condition: Any, text: str) -> None:
    """Raise `BadFile` unless the condition holds; a comparison with NaN does not."""
    if not bool(condition):
        raise BadFile(text)


@dataclass
class Work:
    """Multiplications that are allowed and that have been counted, before they were done."""

    most: float = USUAL_WORK
    done: float = 0.0

    def spend(self, amount: float) -> None:
        """Count some more; refuse to go on if they are too many."""
        self.done += amount
        if not self.done <= self.most:
            raise Unproven(f"it takes more than {self.most:.3g} multiplications: --work allows for more")


WORK = Work()


def reserve(*sizes: float, most: float = MOST_ENTRIES) -> None:
    """Refuse an array of these sizes before its memory is taken."""
    if not math.prod(sizes) <= most:
        raise Unproven(f"an array of {' by '.join(f'{size:.0f}' for size in sizes)} numbers is too large")


def gamma(terms: float) -> float:
    """Bound the relative rounding of a sum of products."""
    return 1.01 * (terms + 2.0) * UNIT


def raised(values: Array, terms: float = 1.0) -> Array:
    """Return computed sums of non-negative numbers, rounded up."""
    return values * (1.0 + 4.0 * gamma(terms)) + (terms + 1.0) * TINY


def lengths(matrix: Array, axis: int) -> Array:
    """Return upper bounds on the norms along an axis; scaled first, so that no square under- or overflows."""
    sizes = np.abs(matrix)
    top = sizes.max(axis=axis, keepdims=True, initial=0.0)
    scaled = sizes / np.where(top > 0.0, top, 1.0)
    return raised(np.sqrt((scaled * scaled).sum(axis)) * np.squeeze(top, axis), matrix.shape[axis])


@dataclass(frozen=True)
class Enclosure:
    """Numbers that are known to lie within `rad` of `mid`, entry by entry."""

    mid: Array
    rad: Array

    def __post_init__(self) -> None:
        WORK.spend(10.0 * self.mid.size)
        if not (np.isfinite(self.mid).all() and np.isfinite(self.rad).all()):
            raise Unproven("numbers leave the range of float64")

    @classmethod
    def exact(cls, values: Any) -> Enclosure:
        """Return floats as they are."""
        return cls(np.asarray(values), np.zeros(np.shape(values)))

    @property
    def T(self) -> Enclosure:
        """The transpose of a matrix, or of each matrix of a stack."""
        return Enclosure(np.swapaxes(self.mid, -1, -2), np.swapaxes(self.rad, -1, -2))

    @property
    def most(self) -> Array:
        """Upper bounds on the absolute values."""
        return raised(np.abs(self.mid) + self.rad)

    def __neg__(self) -> Enclosure:
        return Enclosure(-self.mid, self.rad)

    def __add__(self, other: Enclosure) -> Enclosure:
        mid = self.mid + other.mid
        return Enclosure(mid, raised(self.rad + other.rad + UNIT * np.abs(mid)))

    def __mul__(self, other: Enclosure | Array | float) -> Enclosure:
        other = other if isinstance(other, Enclosure) else Enclosure.exact(other)
        mid = self.mid * other.mid
        rad = np.abs(self.mid) * other.rad + self.rad * (np.abs(other.mid) + other.rad) + UNIT * np.abs(mid)
        return Enclosure(mid, raised(rad, 3.0))

    def __matmul__(self, other: Enclosure) -> Enclosure:
        terms, shape = self.mid.shape[-1], (*self.mid.shape[:-1], other.mid.shape[-1])
        reserve(*shape)
        WORK.spend(terms * math.prod(shape))
        rows, columns = lengths(self.mid, -1)[..., None], lengths(other.mid, -2)[..., None, :]
        rad = gamma(terms) * rows * columns
        if other.rad.any():
            rad = rad + rows * lengths(other.rad, -2)[..., None, :]
        if self.rad.any():
            rad = rad + lengths(self.rad, -1)[..., None] * raised(columns + lengths(other.rad, -2)[..., None, :])
        return Enclosure(self.mid @ other.mid, raised(rad, terms))


Blocks = dict[tuple[int, int], Enclosure]
"""A symmetric matrix in blocks (i, j), i <= j; absent ones are zero."""


def positive(blocks: Blocks, count: int) -> bool:
    """Say whether a symmetric matrix M of `count` by `count` blocks is proven positive semidefinite.

    It is scaled to a diagonal near 1 first, by powers of two, which round nothing.
    """
    diagonals = [np.diagonal(blocks[i, i].mid) for i in range(count)]
    if not diagonals or not all(diagonal.size and (diagonal > 0.0).all() for diagonal in diagonals):
        return False  # of no rows nothing is proven
    scales = [np.exp2(-np.round(np.log2(diagonal) / 2.0)) for diagonal in diagonals]
    scaled = {(i, j): block * scales[i][:, None] * scales[j] for (i, j), block in blocks.items()}
    usual = 16.0 * UNIT * max(len(scale) + 8.0 for scale in scales) ** 2
    return any(factored(dict(scaled), count, usual * factor) for factor in (1.0, 64.0, 4096.0, 2.0**20))


def factored(blocks: Blocks, count: int, shift: float) -> bool:
    """Say whether M is proven positive semidefinite by factors R of M - shift I, whatever they are.

    With the enclosed remainder E = M - shift I - R^T R, M is semidefinite if all row sums of abs(E) are within `shift`.
    """
    sizes = [blocks[i, i].mid.shape[-1] for i in range(count)]
    over = [np.zeros(size) for size in sizes]
    for i in range(count):
        own = blocks.pop((i, i)) + Enclosure.exact(-shift * np.eye(sizes[i]))
        ahead = {j: blocks.pop((i, j)) for j in range(i + 1, count) if (i, j) in blocks}
        WORK.spend(sizes[i] ** 2.0 * (math.prod(own.mid.shape[:-1]) + sum(sizes[j] for j in ahead)))
        try:
            root = Enclosure.exact(np.linalg.cholesky(own.mid))
            pushed = {j: Enclosure.exact(np.linalg.solve(root.mid, block.mid)) for j, block in ahead.items()}
        except np.linalg.LinAlgError:
            return False
        over[i] = raised(over[i] + (own + -(root @ root.T)).most.sum(-1), sizes[i])
        for j, block in ahead.items():
            left = (block + -(root @ pushed[j])).most
            over[i], over[j] = raised(over[i] + left.sum(-1), sizes[j]), raised(over[j] + left.sum(-2), sizes[i])
            for k in (k for k in ahead if j <= k):
                moved = -(pushed[j].T @ pushed[k])
                blocks[j, k] = blocks[j, k] + moved if (j, k) in blocks else moved
    return all((row <= shift).all() for row in over)


def matrix_norm(matrix: Enclosure) -> arb:
    """Return a proven bound on the largest singular value of every matrix within an enclosure, or within a stack."""
    if matrix.mid.shape[-2] > matrix.mid.shape[-1]:
        matrix = matrix.T
    short, long = matrix.mid.shape[-2:]
    if short > MOST_SIDE:
        raise Unproven(f"a matrix of {short} by {long} is too large for its norm to be taken")
    top = float(np.abs(matrix.mid).max(initial=0.0))
    noise = arb(float(lengths(lengths(matrix.rad, -1), -1).max())) if matrix.rad.any() else arb(0)
    if top == 0.0:
        return noise
    exponent = -math.floor(math.log2(top))
    half = exponent // 2  # in two steps: 2^-exponent itself may leave the range
    scaled = Enclosure.exact(matrix.mid) * 2.0**half * 2.0 ** (exponent - half)
    gram = scaled @ scaled.T
    WORK.spend(20.0 * gram.mid.size * short)
    guess = float(np.linalg.eigvalsh(gram.mid)[..., -1].max())
    for shift in ((short + long + 16.0) ** 2 * UNIT * more for more in (1.0, 64.0, 4096.0)):
        factor = 1.0 / (guess * (1.0 + 4.0 * shift))
        rest = Enclosure.exact(np.eye(short)) + gram * -factor
        if factor > 0.0 and factored({(0, 0): rest}, 1, shift):
            return (arb(factor).rsqrt() * arb(2) ** -exponent + noise).upper()
    raise Unproven("the norm of a matrix is not confirmed")


def each(function: Callable[..., Any], *arrays: Any) -> Array:
    """Apply a function of numbers entry by entry; the result holds objects."""
    found = np.empty(np.broadcast_shapes(*(np.shape(array) for array in arrays)), object)
    WORK.spend(10.0 * BALL * found.size)
    found[...] = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return found


def balls(values: Array) -> Array:
    """Return floats as exact balls."""
    return each(lambda value: arb(float(value)), np.asarray(values))


def dot(matrix: Array, columns: Array) -> Array:
    """Multiply (stacks of) matrices of floats or of balls; leading dimensions are those of the stack."""
    shape = np.broadcast_shapes(matrix.shape[:-2], columns.shape[:-2])
    rows, terms, width = *matrix.shape[-2:], columns.shape[-1]
    if columns.dtype != object:
        WORK.spend(1e4 + math.prod(shape) * rows * width * terms)
        return matrix @ columns
    WORK.spend(math.prod(shape) * (1e4 + rows * width * terms * BALL))
    matrix, columns = (np.broadcast_to(x, (*shape, *x.shape[-2:])) for x in (matrix, columns))
    found = np.empty((*shape, rows * width), object)
    for place in np.ndindex(*shape):
        pair = (flint.arb_mat(*side.shape, side.reshape(-1).tolist()) for side in (matrix[place], columns[place]))
        found[place] = (next(pair) * next(pair)).entries()
    return found.reshape(*shape, rows, width)


def above(value: Any) -> float:
    """Return a float that is at least the value, perhaps infinity."""
    found = float(arb(value).upper())  # the nearest float: 0 and infinity too stand for what lies beside them
    if math.isnan(found):
        raise Unproven("a value is not a number")
    return math.nextafter(found, math.inf)


def norm_of(values: Any) -> arb:
    """Return the l2 norm of numbers as a ball."""
    flat = [arb(value) for value in np.asarray(values, object).reshape(-1)]
    WORK.spend(10.0 * BALL * len(flat))
    if any(value.is_nan() for value in flat):
        raise Unproven("a value is not a number")
    return sum((value * value for value in flat), arb(0)).nonnegative_part().sqrt()


def written(value: arb) -> str:
    """Return a number for people."""
    return str(value.mid().str(9, radius=False)) if value.is_finite() else "no number"
