"""Random maps with entries from 1e-300 to 1e300, and their norms in many digits."""

from __future__ import annotations

import math
import random

import mpmath
import torch
from flint import fmpq, fmpq_mat
from torch import Tensor

from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.folding import add, compose
from normscope.bounds.linalg.linear_map import (
    Centering,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
)

RANGES = {
    "ordinary": (0, 0),
    "tiny": (-300, -150),
    "huge": (150, 300),
    "below the square root": (-175, -145),
    "above the square root": (145, 175),
    "everything": (-300, 300),
    "around one": (-20, 20),
    "vanishing": (-323, -300),
}
"""Powers of ten of the entries."""


def entries(rng: random.Random, kind: str, *shape: int) -> Tensor:
    """Random entries, a fifth of them zero."""
    low, high = RANGES[kind]
    values = [
        0.0 if rng.random() < 0.2 else rng.choice((-1, 1)) * rng.uniform(1, 2) * 10.0 ** rng.uniform(low, high)
        for _ in range(math.prod(shape))
    ]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def simple(rng: random.Random, kind: str, size: int) -> LinearMap:
    """One map of flat vectors."""
    match rng.randrange(5):
        case 0:
            return Matrix(entries(rng, kind, size, size))
        case 1:
            return Diagonal(entries(rng, kind, size), (size,))
        case 2:
            return Centering((size,), 1)
        case 3:
            return Reindex(torch.tensor([rng.randrange(-1, size) for _ in range(size)]), (size,))
    return Identity((size,), (size,))


def image_map(rng: random.Random, kind: str) -> LinearMap:
    """A convolution of two channels, or a scale of its channels."""
    if rng.random() < 0.3:
        return Diagonal(entries(rng, kind, 2, 1), (2, 4))
    return Convolution(entries(rng, kind, 2, 2, 3), (4,), padding=1)


def drawn(seed: int) -> LinearMap:
    """A random map: one alone, or some folded, composed or added."""
    rng = random.Random(seed)
    kinds = list(RANGES)
    images = rng.random() < 0.35
    parts = []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(kinds)
        parts.append(image_map(rng, kind) if images else simple(rng, kind, 3))
    result = parts[0]
    for part in parts[1:]:
        match rng.randrange(4):
            case 0:
                result = compose(part, result)
            case 1:
                result = add(part, result)
            case 2:
                result = Composite([result, part])
            case 3:
                result = Sum([result, part])
    return Repeated(result, (2,)) if not images and rng.random() < 0.1 else result


def exact(linear: LinearMap) -> mpmath.matrix:
    """The matrix of a map, computed in fractions, in many digits."""
    found = _fractions(linear)
    rows, columns = found.nrows(), found.ncols()
    return mpmath.matrix(
        [[mpmath.mpf(int(found[i, j].p)) / mpmath.mpf(int(found[i, j].q)) for j in range(columns)] for i in range(rows)]
    )


def _fractions(linear: LinearMap) -> fmpq_mat:
    match linear:
        case Matrix(weight=weight):
            return _blocks(_written(weight), linear.in_size // weight.shape[1])
        case Diagonal():
            return _written(torch.diag(linear.scale.expand(linear.in_shape).reshape(-1)))
        case Centering():
            size = linear.in_size
            return fmpq_mat(size, size, [fmpq(size * (i == j) - 1, size) for i in range(size) for j in range(size)])
        case Convolution():
            found = fmpq_mat(linear.out_size, linear.in_size)
            for place in torch.nonzero(linear.weight).tolist():
                one = torch.zeros_like(linear.weight)
                one[tuple(place)] = 1.0
                found += _fraction(float(linear.weight[tuple(place)])) * _written(
                    write_out(linear._with_weight(one, 0.0))
                )
            return found
        case Composite(parts=parts):
            found = _fractions(parts[0])
            for part in parts[1:]:
                found = _fractions(part) * found
            return found
        case Sum(terms=terms):
            return sum((_fractions(term) for term in terms[1:]), _fractions(terms[0]))
        case Repeated(inner=inner):
            return _blocks(_fractions(inner), linear.in_size // inner.in_size)
    return _written(write_out(linear))


def _fraction(value: float) -> fmpq:
    return fmpq(*value.as_integer_ratio())


def _written(matrix: Tensor) -> fmpq_mat:
    return fmpq_mat(*matrix.shape, [_fraction(value) for value in matrix.reshape(-1).tolist()])


def _blocks(matrix: fmpq_mat, count: int) -> fmpq_mat:
    rows, columns = matrix.nrows(), matrix.ncols()
    found = fmpq_mat(rows * count, columns * count)
    for block in range(count):
        for i in range(rows):
            for j in range(columns):
                found[block * rows + i, block * columns + j] = matrix[i, j]
    return found


def log10_norm(matrix: mpmath.matrix) -> float:
    """log10 of the largest singular value; of a zero matrix -inf."""
    top = max((abs(value) for value in matrix), default=mpmath.mpf(0))
    if top == 0:
        return -math.inf
    scaled = matrix / top
    gram = scaled.T * scaled if matrix.cols <= matrix.rows else scaled * scaled.T
    return float(mpmath.log10(top) + mpmath.log10(_largest_eigenvalue(gram)) / 2)


def _largest_eigenvalue(gram: mpmath.matrix) -> mpmath.mpf:
    """By squaring: trace(G^(2^k)) to the power 1/2^k, less than one part in 1e17 above the truth."""
    log, power = mpmath.mpf(0), gram
    for k in range(60):
        size = sum(power[i, i] for i in range(gram.rows))
        log += mpmath.log(size) / mpmath.mpf(2) ** k
        power = power / size
        power = power * power
    return mpmath.exp(log)
