"""The inputs of a layer at every position: the matrix H such that the layer's output is W H.

A layer with weight W applied at T positions has the output W H, so a change dW of its weight moves the output by dW H:
by at most norm(H) (spectral) times the Frobenius norm of dW, and by exactly this much for some dW. For a convolution
the columns of H are its patches, padding included; with groups every group has its own H, and the largest counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ...core.budget import Budget
from ...core.rounding import ZERO, Upper, largest, numerical
from .convolution_map import Convolution, combine_axes
from .linear_map import Matrix
from .operator_norms import upper

SIDE = 1024
"""Gram matrices up to this order are diagonalized; larger ones are bounded by a Cholesky certificate."""
PIECE = 20_000_000
"""How many entries of H are written out at a time."""
ALLOWANCE = 1e-10
"""An allowance for the rounding of a Gram matrix and of its largest eigenvalue, relative to the norm."""


@dataclass(frozen=True, slots=True)
class Read:
    """The transpose of H, which holds what a layer reads, for each group and in pieces of some rows each.

    Attributes:
        pieces: tensors `[groups, rows, columns]`, each the next rows of every group's matrix.
        rows, columns: the size of a group's matrix: positions, and the entries that one output reads.
        largest: the largest absolute value among the entries.
    """

    pieces: Iterator[Tensor]
    rows: int
    columns: int
    largest: float

    @classmethod
    def of(cls, matrix: Tensor) -> Read:
        """Return what a layer reads from a matrix `[positions, entries]`, or `[groups, positions, entries]`."""
        whole = matrix if matrix.ndim == 3 else matrix[None]
        return cls(iter([whole]), whole.shape[1], whole.shape[2], _largest(whole))

    @classmethod
    def together(cls, reads: Sequence[Read]) -> Read:
        """Return what several calls with one weight read together; their groups and columns must be the same."""
        pieces = chain.from_iterable(read.pieces for read in reads)
        largest = max(read.largest for read in reads)
        return cls(pieces, sum(read.rows for read in reads), reads[0].columns, largest)

    def norm(self, *, rtol: float = 1e-3, budget: Budget | None = None) -> Upper:
        """Bound the largest spectral norm over the groups; exact up to rounding unless both sides are large.

        The bound is NUMERICAL at best, since the inputs of a layer are themselves computed.
        """
        if self.largest == 0.0:
            return ZERO
        scaled = (piece.double() / self.largest for piece in self.pieces)
        if self.rows < self.columns:
            whole = torch.cat(list(scaled), dim=1)
            gram = whole @ whole.mT
        else:
            first = next(scaled)
            gram = first.mT @ first
            for piece in scaled:
                gram += piece.mT @ piece
        if gram.shape[-1] <= SIDE:
            square = numerical(float(torch.linalg.eigvalsh(gram)[..., -1].amax()) * (1.0 + ALLOWANCE))
        else:
            square = largest([upper(Matrix(one), rtol=rtol, budget=budget) for one in gram])
            square = square.times(numerical(1.0 + ALLOWANCE))
        root = Upper(square.log10 / 2.0, square.evidence)
        return root.times(numerical(self.largest)).named("Gram matrix of the inputs")


def _largest(x: Tensor) -> float:
    return float(x.double().abs().amax()) if x.numel() else 0.0


def patches(conv: Convolution, x: Tensor) -> Read:
    """Return what a convolution (or its transpose) reads of inputs `[*leading, channels, *spatial]` for its outputs.

    Pieces are `[groups, positions, channels per group * taps]`; every leading index adds positions.
    """
    channels = conv.in_shape[0]
    padded = x.reshape(-1, channels, math.prod(conv.in_shape[1:]))
    padded = torch.cat([padded, padded.new_zeros(*padded.shape[:2], 1)], dim=2)  # entry -1: the zero of the padding
    mode, device = conv.padding_mode, x.device
    axes = [axis.reads_transposed(device) if conv.transposed else axis.reads(mode, device) for axis in conv.axes]
    read = combine_axes(axes, conv.in_shape[1:])
    taps, positions = read.shape
    groups, samples = conv.groups, padded.shape[0]
    columns = channels // groups * taps
    step = max(1, PIECE // max(1, channels * taps * samples))

    def pieces() -> Iterator[Tensor]:
        for start in range(0, positions, step):
            index = read[:, start : start + step]
            entries = padded[:, :, index.reshape(-1)].reshape(samples, groups, channels // groups, taps, -1)
            yield entries.permute(1, 0, 4, 2, 3).reshape(groups, -1, columns)

    return Read(pieces(), samples * positions, columns, _largest(padded))
