"""Proofs that linear inequalities contradict each other, checked without trust in the solver that proposed them.

Farkas: G z <= h (some rows with equality) has no solution if multipliers y, positive on the inequalities, have y G = 0
and y h < 0. The zero must be exact, since z may be arbitrarily large. A solver's multipliers are therefore only taken
for which rows contradict each other. Where these are one more than the variables they read, y is the only solution of
a square system, and an enclosure of it shows the signs (Rump 2010, section 10: norm(I - R A) < 1). Otherwise a few rows
that depend on each other, such as parallel ones, are solved in rational numbers.

Solutions without an interior do not count: a row of the inputs alone that is not constant is strict inside, so that
y h = 0 is enough where its multiplier is positive (Motzkin).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...core.rounding import UNIT, gamma

ENTRIES = 8.0 * UNIT
"""How far entries of a system may be off, relatively: each is a product of up to three numbers."""
ROUNDING = 1e-13
"""How far maps and constants made of several may be off once they are written out, relative to their size."""
RATIONAL = 3000
"""At most this many products of rational numbers are spent on proving one contradiction."""
FAINT = (0.0, 1e-9)
"""Multipliers up to this fraction of the largest one are taken for rounding: first none are, then these."""
ROOM = 1.0 + 1e-9
"""A factor that is larger than the rounding of any sum of positive numbers taken here."""


@dataclass(frozen=True, slots=True)
class System:
    """G z <= h, the last rows with equality: `G = left * rows * right + own`, entry by entry, and `h = left * last`.

    Attributes:
        left: `[R]`.
        rows: `[R, N]`.
        right: `[N]`.
        own: `[R, N]`, with entries -1, 0 and 1 where `rows` has none.
        last: `[R]`.
        doubt: `[R, N]`, how far `rows` may be off; not at all where nothing was multiplied out.
        equal: how many rows are equalities.
        sizes: `[R]`, of the rows, to measure distances in.
        inputs: how many variables, the first ones, are inputs.
    """

    left: np.ndarray
    rows: np.ndarray
    right: np.ndarray
    own: np.ndarray
    last: np.ndarray
    doubt: np.ndarray
    equal: int
    sizes: np.ndarray
    inputs: int = 0

    @property
    def matrix(self) -> np.ndarray:
        """G, rounded."""
        return self.left[:, None] * self.rows * self.right + self.own

    @property
    def off(self) -> np.ndarray:
        """How far G may be off."""
        return np.abs(self.left[:, None] * self.right) * self.doubt + ENTRIES * np.abs(self.matrix)

    @property
    def sides(self) -> np.ndarray:
        """h, rounded."""
        return self.left * self.last


def contradictory(system: System, multipliers: np.ndarray) -> bool:
    """Say whether the rows that a solver's multipliers `[R]` point at are proven to contradict each other."""
    sizes = np.abs(multipliers)
    for faint in FAINT:
        chosen = np.flatnonzero(sizes > faint * sizes.max(initial=0.0))
        if _proven(system, chosen, multipliers[chosen]):
            return True
    return False


def _proven(system: System, chosen: np.ndarray, multipliers: np.ndarray) -> bool:
    if not len(chosen):
        return False
    matrix, sides = system.matrix[chosen], system.sides[chosen]
    unequal = chosen < len(system.left) - system.equal
    read = np.flatnonzero((matrix != 0.0).any(axis=0))
    off, doubtful = system.off[chosen], system.doubt[chosen].any(axis=1)
    sides_off = ENTRIES * np.abs(sides) + np.where(doubtful, ROUNDING * np.abs(system.left * system.sizes)[chosen], 0.0)
    known = len(chosen) == len(read) + 1
    if known and enclosed(matrix[:, read], off[:, read], sides, sides_off, unequal, multipliers):
        return True
    if len(chosen) ** 2 * len(read) > RATIONAL or bool(doubtful.any()):
        return False
    return rational(system, chosen, read, unequal)


def enclosed(
    matrix: np.ndarray,
    off: np.ndarray,
    sides: np.ndarray,
    sides_off: np.ndarray,
    unequal: np.ndarray,
    guess: np.ndarray,
) -> bool:
    """Enclose the y with y G = 0, for `[k, k - 1]` G: say whether it is surely positive and y h surely negative.

    G and h may be off by `off` and `sides_off`. Unknowns are y in powers of two near the guess, equations those of the
    columns, likewise scaled, and one that fixes the length of y.
    """
    count = len(matrix)
    if not (np.isfinite(guess).all() and np.isfinite(matrix).all() and (guess != 0.0).all()):
        return False
    powers = np.exp2(np.rint(np.log2(np.abs(guess))))
    square = np.vstack([matrix.T * powers, np.sign(guess)])
    lengths = np.exp2(np.rint(np.log2(np.abs(square[:-1]).max(axis=1, keepdims=True).clip(min=1e-300))))
    square[:-1] /= lengths
    off = np.vstack([off.T * powers / lengths, np.zeros(count)]) + 1e-290
    target = np.zeros(count)
    target[-1] = float(np.abs(guess / powers).sum())
    try:
        inverse = np.linalg.inv(square)
        found = np.linalg.solve(square, target)
    except np.linalg.LinAlgError:
        return False
    step = gamma(count + 4.0)
    with np.errstate(all="ignore"):
        size = np.abs(inverse)
        apart = np.abs(np.eye(count) - inverse @ square) + step * (size @ np.abs(square)) + size @ off
        factor = float(apart.sum(axis=1).max()) * ROOM
        residual = np.abs(target - square @ found)
        residual += step * (np.abs(square) @ np.abs(found) + np.abs(target)) + off @ np.abs(found)
        radius = float((size @ residual).max()) * ROOM / (1.0 - factor) * ROOM
    if not (factor < 0.5 and math.isfinite(radius)):
        return False
    if not bool((np.where(unequal, found, math.inf) > radius).all()):
        return False
    scaled, weight = sides * powers, (np.abs(sides) + sides_off) * powers
    slack = float(weight.sum()) * radius + step * float(weight @ np.abs(found))
    slack = (slack + float((sides_off * powers) @ np.abs(found))) * ROOM + 1e-290
    return bool(np.isfinite(scaled).all()) and math.fsum(scaled * found) + slack < 0.0


def rational(system: System, chosen: np.ndarray, read: np.ndarray, unequal: np.ndarray) -> bool:
    """Solve y G = 0 without rounding: say whether y is unique but for its length, has the signs, and y h < 0."""
    columns = [[_entry(system, i, j) for i in chosen] for j in read]
    y = _kernel(columns, len(chosen))
    if y is None:
        return False
    bent = [value for value, strict in zip(y, unequal, strict=True) if strict]
    if any(value < 0 for value in bent):
        y, bent = [-value for value in y], [-value for value in bent]
    if any(value < 0 for value in bent):
        return False
    sides = [Fraction(float(system.left[i])) * Fraction(float(system.last[i])) for i in chosen]
    total = sum((value * side for value, side in zip(y, sides, strict=True)), Fraction(0))
    if total < 0 or (not any(bent) and total != 0):
        return True
    matrix = system.matrix[chosen]
    strict = unequal & matrix[:, : system.inputs].any(axis=1) & ~matrix[:, system.inputs :].any(axis=1)
    return total == 0 and any(value > 0 for value, inside in zip(y, strict, strict=True) if inside)


def _entry(system: System, i: int, j: int) -> Fraction:
    product = Fraction(float(system.left[i])) * Fraction(float(system.rows[i, j])) * Fraction(float(system.right[j]))
    return product + Fraction(float(system.own[i, j]))


def _kernel(rows: list[list[Fraction]], size: int) -> list[Fraction] | None:
    """Return the y with every row times y = 0 if it is unique but for its length, else None."""
    pivots: list[int] = []
    done: list[list[Fraction]] = []
    for row in rows:
        for pivot, other in zip(pivots, done, strict=True):
            if row[pivot]:
                row = [a - row[pivot] * b for a, b in zip(row, other, strict=True)]
        place = next((i for i, value in enumerate(row) if value), None)
        if place is None:
            continue
        row = [value / row[place] for value in row]
        done = [
            [a - other[place] * b for a, b in zip(other, row, strict=True)] if other[place] else other for other in done
        ]
        pivots.append(place)
        done.append(row)
    if len(pivots) != size - 1:
        return None
    free = next(i for i in range(size) if i not in pivots)
    y = [Fraction(0)] * size
    y[free] = Fraction(1)
    for pivot, row in zip(pivots, done, strict=True):
        y[pivot] = -row[free]
    return y
