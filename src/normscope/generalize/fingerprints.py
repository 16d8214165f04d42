"""Which samples two parts of the data share: a fingerprint of eight bytes for the bytes of each sample."""

from __future__ import annotations

import torch
from torch import Tensor

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype by its number of bytes."""


def fingerprints(points: Tensor, keys: Tensor) -> Tensor:
    """Return an integer for each row: equal bytes have equal integers in every batch.

    Sums of integers do not depend on their order, so that batches of other sizes give the same integer. Two different
    rows have the same integer with a probability of about 2^-40.
    """
    words = points.contiguous().view(WORDS[points.element_size()]).long()
    mixed = words * -7046029254386353131
    mixed = mixed ^ (mixed >> 29)
    return (mixed * keys).sum(1)


def random_keys(features: int, generator: torch.Generator) -> Tensor:
    """Return random odd int64 numbers, one per entry of a sample."""
    return torch.randint(-(2**62), 2**62, (features,), generator=generator) * 2 + 1


def identical(first: Tensor, second: Tensor) -> int:
    """Return how many entries of `first` are also in `second`."""
    return int(torch.isin(first, second).sum())
