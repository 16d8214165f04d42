"""Gram matrices of real matrices on a CPU: BLAS' symmetric update does half the multiplications of a plain product.

Float32 takes half the time of float64 and loses little as long as its sums are short: it adds `PIECE` products at a
time, and after `PIECES` such sums float64 takes over (`core.rounding.narrow_gram_allowance`). SciPy's BLAS is used
instead of torch's, because torch can be set to multiply float32 numbers in bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.budget import check_time
from ..core.rounding import narrow_gram_allowance

PIECE, PIECES = 64, 16
"""How many products float32 adds at a time, and how many such sums it adds before float64 takes over."""
NARROW_RTOL = 5e-3
"""From this tolerance on float32 is good enough: its rounding costs a few thousandths of the norm at most."""
_WIDE = 2048
"""How many products float64 adds at a time."""


@functools.cache
def _blas() -> Any:
    """Return SciPy's BLAS, which loads when it is first needed."""
    from scipy.linalg import blas

    return blas


def narrow_share(terms: int) -> float:
    """Return the rounding error of a float32 Gram matrix over `terms` products, per squared tap sum."""
    return narrow_gram_allowance(min(terms, PIECE), min(-(-terms // PIECE), PIECES))


def gram_matrix(matrix: Tensor, *, narrow: bool = False) -> Tensor:
    """Return A A^T of a real matrix `[m, terms]` in CPU memory as a full float64 matrix.

    Args:
        matrix: the matrix A; in float32 its entries should not be much larger than 1.
        narrow: whether to multiply in float32 (`narrow_share` bounds the rounding error).

    Example:
        >>> gram_matrix(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        tensor([[5., 2.],
                [2., 1.]], dtype=torch.float64)
    """
    step = PIECE if narrow else _WIDE
    pieces = (matrix[:, first : first + step].T for first in range(0, matrix.shape[1], step))
    return gram_of_rows(pieces, matrix.shape[0], narrow=narrow)


def gram_of_rows(pieces: Iterable[Tensor], order: int, *, narrow: bool = False) -> Tensor:
    """Return the sum of P^T P over pieces P `[rows, order]` as a full float64 matrix.

    Args:
        pieces: the rows of a real matrix; with `narrow` at most `PIECE` at a time.
        order: the order of the result.
        narrow: whether to multiply in float32.
    """
    total = np.zeros((order, order), dtype=np.float64, order="F")
    if narrow:
        for part in _narrow_sums(pieces, order):
            total += part
    else:
        for piece in pieces:
            check_time()
            rows = piece.double().contiguous().numpy()
            _blas().dsyrk(1.0, rows.T, beta=1.0, c=total, overwrite_c=1, lower=1)
    upper = torch.from_numpy(
        total.T
    ).triu_()  # BLAS stores by columns, and read by rows the lower triangle is the upper one
    return upper.add_(upper.triu(1).T)


def narrow_products(blocks: Tensor) -> Iterator[Tensor]:
    """Yield, for every block of a real tensor `[blocks, m, terms]` in CPU memory, A_i [A_0^T .. A_i^T] from float32.

    Yields:
        Products `[m, (i + 1) m]` in float32, or in float64 where the sums are too long for float32.
    """
    count, order, terms = blocks.shape
    rows = blocks.reshape(count * order, terms).float()
    pieces = [rows[:, first : first + PIECE].contiguous().numpy() for first in range(0, terms, PIECE)]
    for i in range(count):
        own, known = slice(i * order, (i + 1) * order), slice(0, (i + 1) * order)
        total: Tensor | None = None
        for begin in range(0, len(pieces), PIECES):
            part = None
            for piece in pieces[begin : begin + PIECES]:  # BLAS stores by columns, so that this is the transpose
                beta = 0.0 if part is None else 1.0
                part = _blas().sgemm(1.0, piece[known].T, piece[own].T, beta=beta, c=part, trans_a=1, overwrite_c=1)
            done = torch.from_numpy(part.T)  # type: ignore[union-attr]
            total = done if total is None else total.double().add_(done)
        assert total is not None
        yield total


def _narrow_sums(pieces: Iterable[Tensor], order: int) -> Iterator[np.ndarray]:
    """Yield lower triangles in float32, each the sum over `PIECES` pieces."""
    part = np.zeros((order, order), dtype=np.float32, order="F")
    count = 0
    for piece in pieces:
        assert piece.shape[0] <= PIECE, "the allowance is for short sums"
        check_time()
        rows = piece.float().contiguous().numpy()
        _blas().ssyrk(1.0, rows.T, beta=1.0 if count else 0.0, c=part, overwrite_c=1, lower=1)
        count += 1
        if count == PIECES:
            yield part
            count = 0
    if count:
        yield part
