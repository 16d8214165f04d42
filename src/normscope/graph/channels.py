"""Follow the output channels of a weight layer to the normalizer that reads them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .ir import Node
from .regions import SAME


def channel_numbers(weight: Node, axis: int, moves: tuple[Node, ...]) -> Tensor:
    """Return, for every entry after some moves, the output channel of the weight that it comes from.

    Dimensions along which the channel does not change have size 1: the numbers start as one expanded row, and most
    moves keep them so.
    """
    shape = [1] * len(weight.shape)
    shape[axis] = weight.shape[axis]
    numbers = torch.arange(weight.shape[axis]).reshape(shape).expand(weight.shape)
    for move in moves:
        numbers = numbers if move.op in SAME else move.evaluate([numbers])
    return numbers[tuple(slice(None) if stride else slice(0, 1) for stride in numbers.stride())]


def aligned(numbers: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether position k on axis 1 is always channel k."""
    positions = torch.arange(shape[1]).reshape(1, -1, *(1,) * (len(shape) - 2))
    return bool((numbers == positions).all())


def single_channels(numbers: Tensor, dims: tuple[int, ...]) -> bool:
    """Whether every set over `dims` holds entries of one channel."""
    return bool((numbers.amin(dims) == numbers.amax(dims)).all())


def _rows(numbers: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the channels of every normalized set, one row per set; a repeated channel may be listed once."""
    outer = [dim for dim in range(numbers.ndim) if dim not in dims]
    size = math.prod(numbers.shape[dim] for dim in dims)
    return numbers.permute(*outer, *dims).reshape(-1, size).unique(dim=0)


def parts(numbers: Tensor, dims: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """Return each channel's part, of the finest partition in which each set over `dims` lies in one part."""
    rows, part = _rows(numbers, dims), torch.arange(channels)
    while True:
        least = part[rows].amin(1, keepdim=True).expand(rows.shape)
        joined = part.scatter_reduce(0, rows.reshape(-1), least.reshape(-1), "amin")
        if torch.equal(joined, part):
            return tuple(part.unique(return_inverse=True)[1].tolist())
        part = joined


def once_each(numbers: Tensor, dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether every set over `dims` of a value of that shape holds as many entries as different channels."""
    size = math.prod(shape[dim] for dim in dims)
    rows = _rows(numbers, dims).sort(1).values
    return rows.shape[1] == size and bool((rows[:, 1:] > rows[:, :-1]).all())
