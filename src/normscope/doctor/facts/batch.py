"""`BatchFacts`: what the batch itself shows: columns that stand out, and how padding is read."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...calls.call import Call
from ...core.codec import JsonForm, Part
from .collector import Collector
from .layers import Layers, fetch_all, is_input

FEW_VALUES = 4
"""Integers with no more values than this are hardly words: kinds of segments, and masks."""

FEWEST_SAMPLES = 8
"""Rows of a table from which a column that goes with the labels, or is the same in all, is no chance."""
CHANCE_LOG = 14.0
"""Of the number of tables of labels for each one that a column agrees with by chance: one in a million."""
MAX_REST = 1e-10
"""The share of the variance of a target that rounding leaves where a column is a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidestColumn(Part):
    """The column of an input with the largest values: its number and root mean square, and that of a usual column."""

    index: int
    size: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingRead(Part):
    """How a model reads rows that are filled up at their ends with one value.

    Attributes:
        path: the embedding or the input.
        share: of all positions, those that are filled up.
        pads_read, words_read: the shares of the filled positions, and of the others, that a gradient comes back to.
    """

    path: str
    share: float
    pads_read: float
    words_read: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts(Part):
    """What the batch shows.

    Attributes:
        telling: the input, by name, and its column that is a name or a measure of the label, sample by sample.
        constant: inputs that are tables, by name, each with the columns that hold one value other than zero.
        columns: for each input that is a table, its widest column.
        padding: how inputs that are filled up at their ends are read.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    columns: tuple[WidestColumn | None, ...] = ()
    padding: PaddingRead | None = None
    telling: tuple[str, int] | None = None
    constant: tuple[tuple[str, tuple[int, ...]], ...] = ()


@torch.no_grad()
def find_telling_column(tables: Sequence[tuple[str, Tensor]], labels: Any) -> tuple[str, int] | None:
    """Return the input and its column that give the label of each sample away; None where no column does.

    Each class has one value of its own there, or the column is a multiple of the target plus a number.
    """
    if not isinstance(labels, Tensor) or labels.is_complex():
        return None
    for name, table in tables:
        if table.ndim != 2 or len(table) < FEWEST_SAMPLES or labels.numel() != len(table) or table.shape[1] < 2:
            continue
        target, values = labels.flatten(), table.detach().double()
        kinds, codes = target.unique(return_inverse=True)
        if 1 < len(kinds) <= len(target) // 4:
            if (len(target) - len(kinds)) * math.log(len(kinds)) < math.log(values.shape[1]) + CHANCE_LOG:
                continue
            places, empty = codes[:, None].expand_as(values), values.new_zeros(len(kinds), values.shape[1])
            low, high = (empty.scatter_reduce(0, places, values, how, include_self=False) for how in ("amin", "amax"))
            tells = (low == high).all(0) & (low.sort(0).values.diff(dim=0) > 0).all(0)
        elif target.is_floating_point():
            values, target = values - values.mean(0), target.double() - target.double().mean()
            sizes = values.square().sum(0) * target.square().sum()
            tells = (sizes > 0) & ((values * target[:, None]).sum(0).square() > (1.0 - MAX_REST) * sizes)
        else:
            continue
        if bool(tells.any()):
            return name, int(tells.nonzero()[0])
    return None


@torch.no_grad()
def find_constant_columns(tables: Sequence[tuple[str, Tensor]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the inputs that are tables with columns of one value other than zero, and these columns."""
    flat = [(name, table.detach()) for name, table in tables if table.ndim == 2 and len(table) >= FEWEST_SAMPLES]
    alike = ((name, (table == table[:1]).all(0) & (table[0] != 0)) for name, table in flat)
    found = [(name, tuple(columns.nonzero().flatten().tolist())) for name, columns in alike]
    return tuple((name, columns) for name, columns in found if columns)


@torch.no_grad()
def widest_column(values: Tensor) -> Tensor | None:
    """Return the column of a table with the largest values, their size and that of a usual column; None for others."""
    if values.ndim not in (2, 3) or values.shape[-1] < 2:
        return None
    sizes = values.detach().double().flatten(0, -2).square().mean(0).sqrt()
    usual = torch.where(sizes > 0, sizes, math.nan).nanmedian()
    return torch.stack([sizes.argmax().double(), sizes.max(), usual])


def fetch_columns(columns: Sequence[Tensor | None]) -> tuple[WidestColumn | None, ...]:
    """Fetch what `widest_column` returned for several inputs."""
    fetched = iter(fetch_all([column for column in columns if column is not None]))
    return tuple(
        None if column is None or math.isnan(usual) else WidestColumn(index=int(index), size=size, usual=usual)
        for column in columns
        for index, size, usual in [(0.0, 0.0, 0.0) if column is None else next(fetched)]
    )


def runs_to_the_end(entries: Tensor) -> Tensor:
    """Return which entries of each row lie in a run without a gap up to its end."""
    return entries.flip(1).long().cumprod(1).flip(1).bool()


@torch.no_grad()
def find_padding(leaves: Sequence[Any], samples: int) -> Tensor | None:
    """Return which positions of rows of ids, or of sequences of vectors, are filled up at the end with one value.

    Of vectors that value is zero, and how many are filled up differs from row to row.
    """
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.is_nested or leaf.is_complex():
            continue
        if leaf.shape[:1] != (samples,) or samples < 2:
            continue
        if leaf.ndim == 2 and not leaf.is_floating_point() and leaf.dtype != torch.bool and leaf.shape[1] > 1:
            filled = runs_to_the_end(leaf == leaf[:, -1].mode().values)
            likely = len(leaf.unique()) > FEW_VALUES
        elif leaf.ndim == 3 and leaf.is_floating_point() and leaf.shape[1] > 1:
            filled = runs_to_the_end((leaf == 0).all(2))
            likely = bool((filled.sum(1) != filled[0].sum()).any())
        else:
            continue
        if likely and bool((filled.sum(1) > 1).double().mean() > 0.5) and not bool(filled.all(1).any()):
            return filled
    return None


class PaddingCollector(Collector):
    """Notes what a forward and a backward make of positions that are filled up."""

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self._pads: Tensor | None = None
        self._path = ""
        self._shares: Tensor | None = None

    def begin(self, call: Call) -> None:
        """Look for padding in the arguments of a model."""
        self._pads = find_padding(call.leaves, self.layers.samples)

    def heard(self, number: int, made: Tensor) -> None:
        """Follow the gradient of an input or an embedding, if it is the first with these positions."""
        pads = self._pads if is_input(self.layers, number, made) and not self._path else None
        if pads is not None and made.shape[:-1] == pads.shape:
            self._path = self.layers.heard[number].path
            self.layers.follow(made, functools.partial(self._returned, pads))

    def _returned(self, pads: Tensor, gradient: Tensor) -> None:
        read = (gradient.detach() != 0).any(-1)
        self._shares = torch.stack([own.double().mean() for own in (pads, read[pads], read[~pads])])

    def facts(self) -> PaddingRead | None:
        """Fetch what was noted; None where nothing is filled up, or no gradient came back."""
        if self._shares is None:
            return None
        share, pads_read, words_read = self._shares.tolist()
        return PaddingRead(path=self._path, share=share, pads_read=pads_read, words_read=words_read)
