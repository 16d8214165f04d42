"""What tells a batch from others: how far its samples differ, its mean and size, and whether the next is the same."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft

COLUMN = Quantity("network", "input_column", "the largest column of a table over the median one")
SPREAD = Quantity("network", "input_spread", "the largest difference between two samples of the batch in any entry")
MEAN = Quantity("network", "input_mean", "the mean of the entries of the batch")
SAMPLES = Quantity("network", "input_samples", "how many samples the batch has")
SIZE = Quantity("network", "input_size", "the root mean square of the entries of the batch")
REPEATS = Quantity("network", "input_repeats", "1 where the very next step saw the same batch, 0 where another one")
MARKED_ENTRIES = 1 << 16
"""Entries of a batch, at most and evenly spaced, that tell it from others."""
MARK_RTOL = 1e-12
"""Relative difference of sums over the same entries in another order."""
MIN_COLUMNS, MAX_COLUMNS, MARKED_ROWS = 4, 4096, 256
"""Columns of a table whose sizes are compared, and rows that say how large they are."""


class Batch(Probe):
    """Sends what `measure_batch` found of the batch of the forward, and the marks of the next one."""

    quantities = (COLUMN, SPREAD, MEAN, SAMPLES, SIZE, REPEATS)
    _batch: Arriving | None = None
    _next: Arriving | None = None

    def take_next_batch(self, args: Any, kwargs: Any) -> None:
        self._next = self.step.send_any(mark_batch(args, kwargs))

    def finish(self) -> None:
        self._batch = self.step.send_any(None if self.step.forward is None else self.step.forward.batch)

    def fill(self, record: RecordDraft) -> None:
        if self._batch is None:
            return
        spread, deviation, mean, samples, *column = self._batch.numbers.tolist()
        if column and not math.isnan(column[0]):
            record.network(COLUMN, column[0])
        size = math.hypot(mean, deviation)
        for quantity, number in ((SPREAD, spread), (MEAN, mean), (SAMPLES, samples), (SIZE, size)):
            record.network(quantity, number)
        if self._next is not None:
            next_deviation, next_mean = self._next.numbers.tolist()
            following = next_mean, math.hypot(next_mean, next_deviation)
            record.network(REPEATS, float(are_same((mean, size), following)))


@torch.no_grad()
def measure_spread(args: Any, kwargs: Any) -> Tensor | None:
    """Return the largest difference between two samples in any entry of the batch; of one sample between its entries.

    Args:
        args: the positional arguments of the forward.
        kwargs: the named arguments of the forward.

    Returns:
        A number on the device of the batch; None where it holds no tensor that could be compared.

    Example:
        >>> float(measure_spread((torch.tensor([[1.0, 5.0], [1.0, 7.0]]),), {}))
        2.0
    """
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if _is_compared(leaf)]
    spreads = []
    for leaf in leaves:
        if len(leaf) == len(leaves[0]):
            low, high = torch.aminmax(leaf, dim=0) if len(leaf) > 1 else torch.aminmax(leaf)
            apart = high - low if leaf.dtype in (torch.float32, torch.float64) else high.double() - low.double()
            spreads.append(apart.amax())
    if len(spreads) < 2:
        return spreads[0] if spreads else None
    return torch.stack([one.to(spreads[0].device, torch.float64) for one in spreads]).amax()


def _is_compared(leaf: Any) -> bool:
    return (
        isinstance(leaf, Tensor)
        and leaf.ndim > 0
        and leaf.numel() > 0
        and leaf.layout == torch.strided
        and not leaf.is_complex()
        and leaf.dtype is not torch.bool
    )


@torch.no_grad()
def measure_batch(args: Any, kwargs: Any) -> Tensor | None:
    """Return what tells a batch from others: how far its samples differ, its mean and size, and how many there are.

    Args:
        args: the positional arguments of the forward.
        kwargs: the named arguments of the forward.

    Returns:
        `measure_spread`, the standard deviation and the mean of its entries, the number of samples, and the largest
        column over the median one (left out where it is no table), of the first tensor that can be compared; None
        where there is none.
    """
    spread, leaf = measure_spread(args, kwargs), _first_compared(args, kwargs)
    if spread is None or leaf is None:
        return None
    deviation, mean = _mark(leaf)
    column: tuple[Tensor, ...] = ()
    if leaf.ndim == 2 and leaf.is_floating_point() and MIN_COLUMNS <= leaf.shape[1] <= MAX_COLUMNS and len(leaf) > 1:
        sizes = leaf[:MARKED_ROWS].abs().amax(0).to(mean)
        column = (sizes.amax() / sizes.median().clamp(min=1e-30),)
    return torch.stack([spread.to(mean), deviation, mean, torch.full_like(mean, len(leaf)), *column])


@torch.no_grad()
def mark_batch(args: Any, kwargs: Any) -> Tensor | None:
    """Return the standard deviation and the mean of the entries of a batch, as `measure_batch` has them."""
    leaf = _first_compared(args, kwargs)
    return None if leaf is None else torch.stack(_mark(leaf))


def _mark(leaf: Tensor) -> tuple[Tensor, Tensor]:
    """Return the standard deviation and the mean of the entries of a tensor."""
    entries = leaf.reshape(-1)
    entries = entries[:: entries.numel() // MARKED_ENTRIES] if entries.numel() > MARKED_ENTRIES else entries
    entries = entries.to(torch.float32 if entries.device.type == "mps" else torch.float64)
    deviation, mean = torch.std_mean(entries, correction=0)
    return deviation, mean


def _first_compared(args: Any, kwargs: Any) -> Tensor | None:
    """Return the first tensor of a call that can be compared; None where there is none."""
    return next((leaf for leaf in tree_leaves((args, kwargs)) if _is_compared(leaf)), None)


def are_same(marks: tuple[float, float], others: tuple[float, float]) -> bool:
    """Return whether two batches, each by the mean and the size of its entries, hold the same entries."""
    apart = sum(abs(one - other) for one, other in zip(marks, others, strict=True))
    return apart <= MARK_RTOL * sum(map(abs, marks))


MIN_COLUMNS, MAX_COLUMNS, MARKED_ROWS = 4, 4096, 256
"""Columns of a table whose sizes are compared, and rows that say how large they are."""
