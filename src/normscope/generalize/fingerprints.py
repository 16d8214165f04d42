"""Which samples two parts of the data share: exact fingerprints of their bytes, eight bytes a sample."""

from __future__ import annotations

import torch
from torch import Tensor

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers by how many bytes they have."""


def fingerprints(points: Tensor, keys: Tensor) -> Tensor:
    """Return a whole number for each row, the same for the same bytes whatever the batch it comes in.

    Sums of whole numbers do not depend on their order, so that batches of other sizes give the same number. Two
    different rows share one with a probability of about 2^-40.

    Args:
        points: `[B, n]`.
        keys: `[n]`, random int64 numbers, the same for all rows that are compared.
    """
    words = points.contiguous().view(WORDS[points.element_size()]).long()
    mixed = words * -7046029254386353131
    mixed = mixed ^ (mixed >> 29)
    return (mixed * keys).sum(1)


def random_keys(features: int, generator: torch.Generator) -> Tensor:
    """Return odd int64 numbers."""
    return torch.randint(-(2**62), 2**62, (features,), generator=generator) * 2 + 1


def identical(first: Tensor, second: Tensor) -> int:
    """Return how many entries of `first` also stand in `second`."""
    return int(torch.isin(first, second).sum())
