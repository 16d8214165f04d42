"""Certificates for convolutions on small maps, by a Cholesky factorisation that goes from entry to entry of the map.

With zero padding few taps of a 3x3 kernel on a 4x4 map read padding at every place, and no torus is near. The Gram
matrix T T^* (or T^* T, whichever is smaller) has one block of channels for each pair of entries of the map that read a
common one, and t - T T^* is factored entry by entry, those with the fewest neighbours first: corners have few, and
entries far apart share no block. On a 4x4 map this takes two thirds of the work of a factorisation as one matrix.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import check_time, count
from ...core.rounding import UNIT, cholesky_allowance, gram_allowance
from .convolution_map import Convolution, combine_axes

_MAX_ENTRIES = 256
"""Maps of more entries are left to the torus, which bounds convolutions on large maps better."""
_MAX_MULTIPLICATIONS = 1e11
"""The most multiplications of a factorisation: some seconds of one core."""
_MAX_FLOATS = 1.5e8
"""The most float64 numbers that the blocks may hold: 1.2 GB."""


@dataclass(frozen=True, slots=True)
class Elimination:
    """The order in which the entries of a map are eliminated.

    Attributes:
        inputs: whether the blocks are those of the inputs, not of the outputs.
        reads: for each entry the entries of the other side that a tap joins it to, each with that tap.
        later: for each entry, in this order, those of its neighbours that are eliminated after it, in their order.
        channels: the number of rows of one block.
    """

    inputs: bool
    reads: tuple[dict[int, int], ...]
    later: dict[int, tuple[int, ...]]
    channels: int

    @property
    def multiplications(self) -> float:
        """About how many multiplications the factorisation takes, beside the products of taps."""
        degrees = [len(entries) for entries in self.later.values()]
        return sum(1 / 6 + k / 2 + k * (k + 1) / 2 for k in degrees) * float(self.channels) ** 3

    @property
    def affordable(self) -> bool:
        """Whether the factorisation takes seconds at most and fits into memory."""
        blocks = sum(1 + len(entries) for entries in self.later.values())
        return self.multiplications <= _MAX_MULTIPLICATIONS and blocks * float(self.channels) ** 2 <= _MAX_FLOATS


def plan_elimination(plain: Convolution) -> Elimination | None:
    """Order the entries of a plain convolution with zero padding; None where its map has too many."""
    sizes = tuple(axis.size for axis in plain.axes)
    reads = combine_axes([axis.reads("zeros", torch.device("cpu")) for axis in plain.axes], sizes)
    inputs = plain.in_size < plain.out_size
    table: list[dict[int, int]] = [{} for _ in range(int(torch.tensor(sizes).prod()) if inputs else reads.shape[1])]
    if len(table) > _MAX_ENTRIES:
        return None
    for tap, row in enumerate(reads.tolist()):
        for output, entry in enumerate(row):
            if entry >= 0:
                site, other = (entry, output) if inputs else (output, entry)
                table[site][other] = tap
    channels = plain.weight.shape[1] if inputs else plain.weight.shape[0] // plain.groups
    return Elimination(inputs, tuple(table), _least_degree_first(table), channels)


def _least_degree_first(table: list[dict[int, int]]) -> dict[int, tuple[int, ...]]:
    """Return an order of elimination, with the neighbours that are left when an entry's turn comes."""
    neighbours: dict[int, set[int]] = {a: set() for a in range(len(table))}
    for a, b in itertools.combinations(range(len(table)), 2):
        if not table[a].keys().isdisjoint(table[b]):
            neighbours[a].add(b)
            neighbours[b].add(a)
    later: dict[int, set[int]] = {}
    while neighbours:
        entry = min(neighbours, key=lambda a: (len(neighbours[a]), a))
        later[entry] = around = neighbours.pop(entry)
        for other in around:  # without the entry, its neighbours are all neighbours of each other
            neighbours[other] |= around
            neighbours[other] -= {entry, other}
    place = {entry: number for number, entry in enumerate(later)}
    return {entry: tuple(sorted(around, key=place.__getitem__)) for entry, around in later.items()}


def is_below(plain: Convolution, elimination: Elimination, bound: float) -> bool:
    """Whether the squared norm of a plain convolution with zero padding is proven to be at most `bound`.

    Args:
        plain: the convolution in float64 on a CPU, with weights of about 1.
        elimination: the order of its entries.
        bound: the bound t to prove.
    """
    taps = plain.weight.flatten(2).permute(2, 0, 1).unflatten(1, (plain.groups, -1))
    if elimination.inputs:
        taps = taps.mT
    size = len(elimination.reads) * elimination.channels
    absolute = float(taps.flatten(2).norm(dim=2).sum(dim=0).max()) * (1.0 + 1e-9)
    error = gram_allowance(taps.shape[3], len(taps), 0) * absolute**2
    shift = 8.0 * UNIT + cholesky_allowance(size, float(size), is_complex=False)
    threshold = (bound - error) * (1.0 - shift)
    return threshold > 0.0 and all(_is_definite(group, elimination, threshold) for group in taps.unbind(1))


def _is_definite(taps: Tensor, elimination: Elimination, threshold: float) -> bool:
    """Whether the factorisation of `threshold` - G runs to its end, for the Gram matrix G of taps `[t, m, n]`."""
    products: dict[tuple[int, int], Tensor] = {}
    for a, b in itertools.combinations_with_replacement(range(len(taps)), 2):
        check_time()
        products[a, b] = taps[a] @ taps[b].T
        products[b, a] = products[a, b].T
    m, reads = elimination.channels, elimination.reads
    columns: dict[int, Tensor] = {}
    for entry, later in elimination.later.items():
        column = columns[entry] = taps.new_zeros((1 + len(later)) * m, m)
        for block, other in zip(column.split(m), (entry, *later), strict=True):
            for met in reads[other].keys() & reads[entry].keys():
                block -= products[reads[other][met], reads[entry][met]]
        column[:m].diagonal().add_(threshold)
    products.clear()
    for entry, later in elimination.later.items():
        check_time()
        count("products", 1 + len(later))
        column = columns.pop(entry)
        factor, info = torch.linalg.cholesky_ex(column[:m])
        if int(info) or not bool(factor.diagonal().sum().isfinite()):  # LAPACK does not report NaN as a failure
            return False
        blocks = torch.linalg.solve_triangular(factor.mT, column[m:], upper=True, left=False).split(m)
        for number, other in enumerate(later):
            place = {name: row for row, name in enumerate((other, *elimination.later[other]))}
            target = columns[other].split(m)
            for block, name in zip(blocks[number:], later[number:], strict=True):
                target[place[name]].addmm_(block, blocks[number].T, alpha=-1.0)
    return True
