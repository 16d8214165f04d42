"""Arithmetic that is sure of its rounding: floats with error radii (NumPy), and balls of any precision (Arb).

What is trusted here of floating point: sums, products, quotients and roots of float64 are correctly rounded, so a
computed sum of n products x_i y_i is off by at most gamma(n) sum abs(x_i y_i) + n TINY, in whatever order it was taken;
and that is at most gamma(n) norm(x) norm(y) + n TINY. Factorizations and eigenvalues are guesses, checked afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
from flint import arb

Array = np.ndarray
UNIT, TINY = 2.0**-53, 2.0**-1040
"""Relative rounding of one operation, and (much) more than what underflow can take from one product."""
MOST_BYTES = 128 << 20
"""Memory that one array may take."""


class BadFile(Exception):
    """The file is damaged, or says something that cannot be read as a network and claims."""


class Unproven(Exception):
    """A claim could not be checked; nothing speaks against it."""


def require(condition: Any, text: str) -> None:
    """Raise `BadFile` unless the condition holds; a comparison with NaN does not."""
    if not bool(condition):
        raise BadFile(text)


def reserve(*sizes: float, most: float = MOST_BYTES) -> None:
    """Refuse an array of these sizes before its memory is taken."""
    if not math.prod(sizes) * 8 <= most:
        raise Unproven(f"an array of {' by '.join(f'{size:.0f}' for size in sizes)} numbers is too large")


def gamma(terms: float) -> float:
    """Bound the relative rounding of a sum of products."""
    return 1.01 * (terms + 2.0) * UNIT


def raised(values: Array, terms: float = 1.0) -> Array:
    """Return computed sums of non-negative numbers, rounded up."""
    return values * (1.0 + 4.0 * gamma(terms)) + (terms + 1.0) * TINY


def lengths(matrix: Array, axis: int) -> Array:
    """Return upper bounds on the norms along an axis; scaled first, so that no square under- or overflows."""
    top = np.abs(matrix).max(axis=axis, keepdims=True, initial=0.0)
    scaled = matrix / np.where(top > 0.0, top, 1.0)
    return raised(np.sqrt((scaled * scaled).sum(axis)) * np.squeeze(top, axis), matrix.shape[axis])


@dataclass(frozen=True)
class Enclosure:
    """Numbers that are known to lie within `rad` of `mid`, entry by entry."""

    mid: Array
    rad: Array

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mid).all() and np.isfinite(self.rad).all()):
            raise Unproven("numbers leave the range of float64")

    @classmethod
    def exact(cls, values: Array) -> Enclosure:
        """Return floats as they are."""
        return cls(values, np.zeros(np.shape(values)))

    @property
    def T(self) -> Enclosure:
        """The transpose."""
        return Enclosure(self.mid.T, self.rad.T)

    @property
    def most(self) -> Array:
        """Upper bounds on the absolute values."""
        return raised(np.abs(self.mid) + self.rad)

    def reshape(self, *shape: int) -> Enclosure:
        """Return the same numbers in another shape."""
        return Enclosure(self.mid.reshape(shape), self.rad.reshape(shape))

    def __add__(self, other: Enclosure) -> Enclosure:
        mid = self.mid + other.mid
        return Enclosure(mid, raised(self.rad + other.rad + UNIT * np.abs(mid)))

    def __sub__(self, other: Enclosure) -> Enclosure:
        return self + Enclosure(-other.mid, other.rad)

    def __mul__(self, other: Enclosure | Array | float) -> Enclosure:
        if not isinstance(other, Enclosure):
            mid = self.mid * other
            return Enclosure(mid, raised(self.rad * np.abs(other) + UNIT * np.abs(mid)))
        mid, far = self.mid * other.mid, np.abs(self.mid) * other.rad
        return Enclosure(mid, raised(far + self.rad * (np.abs(other.mid) + other.rad) + UNIT * np.abs(mid), 3.0))

    def __matmul__(self, other: Enclosure) -> Enclosure:
        terms = self.mid.shape[1]
        reserve(self.mid.shape[0], other.mid.shape[1])
        rows, columns = lengths(self.mid, 1), lengths(other.mid, 0)
        rad = gamma(terms) * np.outer(rows, columns)
        if other.rad.any():
            rad += np.outer(rows, lengths(other.rad, 0))
        if self.rad.any():
            rad += np.outer(lengths(self.rad, 1), raised(columns + lengths(other.rad, 0)))
        return Enclosure(self.mid @ other.mid, raised(rad, terms))


Blocks = dict[tuple[int, int], Enclosure]
"""A symmetric matrix in blocks (i, j), i <= j; absent ones are zero, and a vector stands for a diagonal block."""


def plus(first: Enclosure | None, second: Enclosure) -> Enclosure:
    """Add two blocks; a vector that a matrix is added to is written out."""
    if first is None or first.mid.ndim == second.mid.ndim:
        return second if first is None else first + second
    pair = [side if side.mid.ndim == 2 else Enclosure(np.diag(side.mid), np.diag(side.rad)) for side in (first, second)]
    return pair[0] + pair[1]


def positive(blocks: Blocks, count: int) -> bool:
    """Say whether a symmetric matrix M of `count` by `count` blocks is proven positive semidefinite.

    It is scaled to a diagonal near 1 first, by powers of two, which round nothing.
    """
    scales = []
    for i in range(count):
        diagonal = blocks[i, i].mid if blocks[i, i].mid.ndim == 1 else np.diagonal(blocks[i, i].mid)
        if not (diagonal > 0.0).all():
            return False
        scales.append(np.exp2(-np.round(np.log2(diagonal) / 2.0)))
    scaled = {
        (i, j): block * (scales[i][:, None] if block.mid.ndim == 2 else scales[i]) * scales[j]
        for (i, j), block in blocks.items()
    }
    usual = 16.0 * UNIT * max(len(scale) + 8.0 for scale in scales) ** 2
    return any(_factored(dict(scaled), count, usual * factor) for factor in (1.0, 64.0, 4096.0, 2.0**20))


def _factored(blocks: Blocks, count: int, shift: float) -> bool:
    """Say whether M is proven positive semidefinite by factors R of M - shift I, whatever they are.

    With the enclosed remainder E = M - shift I - R^T R, M is semidefinite if all row sums of abs(E) are within `shift`.
    """
    sizes = [len(blocks[i, i].mid) for i in range(count)]
    over = [np.zeros(size) for size in sizes]
    for i in range(count):
        own = plus(blocks.pop((i, i)), Enclosure.exact(np.full(sizes[i], -shift)))
        ahead = {j: blocks.pop((i, j)) for j in range(i + 1, count) if (i, j) in blocks}
        plain = own.mid.ndim == 1
        if not ((own.mid if plain else np.diagonal(own.mid)) > 0.0).all():
            return False
        try:
            root = np.sqrt(own.mid) if plain else np.linalg.cholesky(own.mid)
        except np.linalg.LinAlgError:
            return False
        factor = Enclosure.exact(root)
        left = (own - factor * root).most if plain else (own - factor @ factor.T).most.sum(1)
        over[i] = raised(over[i] + left, sizes[i])
        pushed = {}
        for j, block in ahead.items():
            found = block.mid / root[:, None] if plain else np.linalg.solve(root, block.mid)
            pushed[j] = Enclosure.exact(found)
            left = block - (pushed[j] * root[:, None] if plain else factor @ pushed[j])
            over[i] = raised(over[i] + left.most.sum(1), sizes[j])
            over[j] = raised(over[j] + left.most.sum(0), sizes[i])
        for j, first in pushed.items():
            for k, second in pushed.items():
                if j <= k:
                    moved = first.T @ second
                    blocks[j, k] = plus(blocks.get((j, k)), Enclosure(-moved.mid, moved.rad))
    return all((row <= shift).all() for row in over)


def matrix_norm(matrix: Enclosure) -> arb:
    """Return a proven bound on the largest singular value of every matrix within an enclosure."""
    if matrix.mid.shape[0] > matrix.mid.shape[1]:
        matrix = matrix.T
    top = float(np.abs(matrix.mid).max(initial=0.0))
    noise = norm_of(lengths(matrix.rad, 1)) if matrix.rad.any() else arb(0)
    if top == 0.0:
        return noise
    exponent = -math.floor(math.log2(top))
    half = exponent // 2  # in two steps: 2^-exponent itself may leave the range
    scaled = Enclosure.exact(matrix.mid) * 2.0**half * 2.0 ** (exponent - half)
    gram = scaled @ scaled.T
    guess = float(np.linalg.eigvalsh(gram.mid)[-1])
    identity, sizes = Enclosure.exact(np.eye(len(gram.mid))), sum(matrix.mid.shape) + 16.0
    for shift in (sizes * sizes * UNIT * more for more in (1.0, 64.0, 4096.0)):
        factor = 1.0 / (guess * (1.0 + 4.0 * shift))
        if factor > 0.0 and _factored({(0, 0): identity - gram * factor}, 1, shift):
            return (arb(factor).rsqrt() * arb(2) ** -exponent + noise).upper()
    raise Unproven("the norm of a matrix is not confirmed")


def stack_norm(matrices: Array) -> float:
    """Return a proven bound on the largest singular value of complex matrices, far from under- and overflow."""
    if matrices.shape[1] > matrices.shape[2]:
        matrices = np.conj(np.swapaxes(matrices, 1, 2))
    size, terms = matrices.shape[1:]
    gram = matrices @ np.conj(np.swapaxes(matrices, 1, 2))
    heavy = float(np.diagonal(gram, axis1=1, axis2=2).real.max())
    guess = float(np.linalg.eigvalsh(gram)[:, -1].max())
    for more in (1e-10, 1e-8, 1e-6, 1e-3):
        level = guess * (1.0 + more) + 1e-30
        shift = level * more / 4.0
        rest = (level - shift) * np.eye(size) - gram
        try:
            root = np.linalg.cholesky(rest)
        except np.linalg.LinAlgError:
            continue
        over = rest - root @ np.conj(np.swapaxes(root, 1, 2))
        most = float(raised(np.sqrt((np.abs(over) ** 2).sum((1, 2))), size * size).max())
        # a product of complex numbers rounds up to three times as much; rows of both factors are that long at most
        if most + size * 4.0 * (gamma(terms + 4.0) * heavy + gamma(size + 4.0) * level) <= shift:
            return math.sqrt(level) * (1.0 + 4.0 * UNIT)
    raise Unproven("the norm of a convolution is not confirmed")


# ------------------------------------------------------------------------------------------------ balls


def each(function: Callable[..., Any], *arrays: Any) -> Array:
    """Apply a function of numbers entry by entry; the result holds objects."""
    shape = np.broadcast_shapes(*(np.shape(array) for array in arrays))
    found = np.empty(shape, object)
    found[...] = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return found


def balls(values: Array) -> Array:
    """Return floats as exact balls."""
    return each(lambda value: arb(float(value)), np.asarray(values))


def dot(matrix: Array, columns: Array) -> Array:
    """Multiply a matrix of floats by columns of floats or of balls; leading dimensions are those of a stack."""
    if columns.dtype != object:
        return matrix @ columns
    shape = np.broadcast_shapes(matrix.shape[:-2], columns.shape[:-2])
    matrix, columns = (np.broadcast_to(x, (*shape, *x.shape[-2:])) for x in (matrix, columns))
    found = np.empty((*shape, matrix.shape[-2], columns.shape[-1]), object)
    for place in np.ndindex(*shape):
        found[place] = ball_product(matrix[place], columns[place])
    return found


def ball_product(left: Array, right: Array) -> Array:
    """Multiply two matrices of floats or balls."""
    pair = [flint.arb_mat(*side.shape, side.reshape(-1).tolist()) for side in (left, right)]
    found = np.empty(left.shape[0] * right.shape[1], object)
    found[:] = (pair[0] * pair[1]).entries()
    return found.reshape(left.shape[0], right.shape[1])


def above(value: Any) -> float:
    """Return a float that is at least the value, perhaps infinity."""
    found = float(arb(value).upper())  # the nearest float: 0 and infinity too stand for what lies beside them
    if math.isnan(found):
        raise Unproven("a value is not a number")
    return math.nextafter(found, math.inf)


def below(value: Any) -> float:
    """Return a float that is at most the value, perhaps minus infinity."""
    return -above(-arb(value))


def norm_of(values: Any) -> arb:
    """Return the l2 norm of numbers as a ball."""
    flat = [arb(value) for value in np.asarray(values, object).reshape(-1)]
    if any(value.is_nan() for value in flat):
        raise Unproven("a value is not a number")
    return sum((value * value for value in flat), arb(0)).nonnegative_part().sqrt()


INF = arb.pos_inf()
"""A bound that says nothing."""


def times(*bounds: arb) -> arb:
    """Return a product of upper bounds, rounded up; infinity wins over zero."""
    return INF if any(bound == INF for bound in bounds) else math.prod(bounds, start=arb(1)).upper()


def root_of_squares(bounds: Sequence[arb]) -> arb:
    """Return the root of the sum of squares of upper bounds, rounded up."""
    return INF if any(bound == INF for bound in bounds) else norm_of(list(bounds)).upper()


def power10(exponent: float) -> arb:
    """Return 10^exponent as a ball."""
    return arb(10) ** arb(exponent)


def written(value: arb) -> str:
    """Return a number for people."""
    if not value.is_finite():
        return str(float(value.upper()))
    if value == 0 or 1e-4 < abs(value) < 1e6:
        return f"{float(value.mid()):.9g}"
    return f"10^{float((abs(value).log() / arb(10).log()).mid()):.6f}"
