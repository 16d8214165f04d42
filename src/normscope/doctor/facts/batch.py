"""`BatchFacts`: what the batch itself shows: columns that stand out, and how padding is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...core.codec import JsonForm, Part
from .layers import fetch_all
from .padding import PaddingRead


@dataclass(frozen=True, slots=True, kw_only=True)
class WidestColumn(Part):
    """The column of an input with the largest values: its number and root mean square, and that of a usual column."""

    index: int
    size: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts(Part):
    """What the batch shows.

    Attributes:
        columns: for each input that is a table, its widest column.
        padding: how inputs that are filled up at their ends are read.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    columns: tuple[WidestColumn | None, ...] = ()
    padding: PaddingRead | None = None


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
