"""What one step of the optimizer does to scale-invariant weights: how fast they turn, how their norm moves.

Three numbers per group are taken on the device; the figures are made of them on the host. Of every weight and gradient
there is a histogram too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import ArraySegments

QUANTITIES = (
    "log10_group", "log10_group_min", "log10_group_max", "rotation", "rotation_max", "radial", "tangential",
    "log10_effective_lr", "zero",
)  # fmt: skip
"""What is measured of a scale-invariant weight, over its groups (channels, groups of channels, or the layer).

- `log10_group`: mean of log10 of the groups' norms, bias included; `log10_group_min`, `log10_group_max`: the extremes.
- `rotation`, `rotation_max`: mean and largest angle between a group before and after the step, in radians.
- `radial`, `tangential`: means of the parts of the update along the group (signed) and across it, over its norm.
- `log10_effective_lr`: mean of log10 of lr/norm^2 (SGD), lr/norm (optimizers that rescale gradients) or lr
  (`normscope.optim`, on a sphere).
- `zero`: share of the groups that are exactly zero.
"""
OPTIONAL = ("log10_effective_lr",)
"""Quantities that are not known of every optimizer: NaN there says so."""
HISTOGRAM_BINS = 33
"""Bins of equal width, the middle one around 0."""
HISTOGRAM_SPAN = 4.0
"""Root mean squares that the bins reach on either side; the outermost hold what is beyond."""
HISTOGRAM_MAX_ENTRIES = 1 << 16
"""Entries that are looked at, at most, evenly spaced."""


def group_rows(parts: Sequence[Tensor], groups: int, axis: int) -> Tensor:
    """Return a weight and its bias as rows `[groups, entries]`.

    Args:
        parts: the weight, and its bias if it has one.
        groups: how many groups of consecutive output channels there are.
        axis: the dimension of the weight that counts output channels.
    """
    rows = [part.detach().transpose(0, axis if part.ndim > 1 else 0).reshape(groups, -1) for part in parts]
    rows = [row if row.dtype in (torch.float32, torch.float64) else row.float() for row in rows]
    return rows[0] if len(rows) == 1 else torch.cat([row.to(rows[0]) for row in rows], 1)


HALF_PRECISION = (torch.float16, torch.bfloat16)
SAMPLED_PARAMETERS, SAMPLED_ENTRIES = 64, 256
"""Of how many parameters, and of how many entries each, a step is measured in every tier."""


class WeightSample:
    """Some entries of the weights that are trained: how far a step moves them, and how far many steps do.

    They are copied all at once into rows that end with zeros, which costs one call however many layers there are: in
    turn into the first and the second table of rows in front of a measured step, into the third behind it.
    """

    def __init__(self) -> None:
        self._places: list[int] = []  # where the parameters lie that the tables are of
        self._views: list[Tensor] = []  # their sampled entries
        self._tables = torch.zeros(3, 0, SAMPLED_ENTRIES)
        self._heads: list[list[Tensor]] = []  # of every table the parts of its rows that are written to
        self._copies = 0  # how often the weights in front of a step were kept
        self._narrow: Tensor | None = None  # which entries of the tables are of weights in half precision

    def before(self, parameters: Sequence[Tensor]) -> None:
        """Keep the weights in front of a step."""
        chosen = self._choose(parameters)
        places = [parameter.data_ptr() for parameter in chosen]
        if places != self._places:
            self._places, self._copies = places, 0
            self._views = [parameter.detach().view(-1)[:SAMPLED_ENTRIES] for parameter in chosen]
            like = max(self._views, key=lambda view: torch.finfo(view.dtype).bits, default=torch.zeros(0))
            self._tables = like.new_zeros(
                (3, len(chosen), SAMPLED_ENTRIES), dtype=torch.promote_types(like.dtype, torch.float32)
            )
            self._heads = [
                [row[: len(view)] for row, view in zip(table, self._views, strict=True)] for table in self._tables
            ]
            self._narrow = None
            if any(view.dtype in HALF_PRECISION for view in self._views):
                self._narrow = torch.zeros_like(self._tables[0])
                for row, view in zip(self._narrow, self._views, strict=True):
                    row[: len(view)] = view.dtype in HALF_PRECISION
        if chosen:
            self._copies += 1
            torch._foreach_copy_(self._heads[self._copies % 2], self._views)

    def after(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """Return as rows the norms of the sampled weights, of their moves in the step, and of those since the last."""
        if not self._copies or [parameter.data_ptr() for parameter in self._choose(parameters)] != self._places:
            return None
        torch._foreach_copy_(self._heads[2], self._views)
        before, last, now = (self._tables[index] for index in (self._copies % 2, 1 - self._copies % 2, 2))
        moves = [now - before, before - last][: self._copies]  # none since the last at the first time
        return torch.linalg.vector_norm(torch.stack([before, *moves]), dim=-1)

    def share_lost(self) -> Tensor | None:
        """Return the share of the weights in half precision that the last step left as they were to the last bit."""
        if self._narrow is None:
            return None
        same = self._tables[2] == self._tables[self._copies % 2]
        return (same * self._narrow).sum() / self._narrow.sum()

    def _choose(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters of which entries are kept."""
        chosen = parameters[:: -(-len(parameters) // SAMPLED_PARAMETERS)] if parameters else []
        return [p for p in chosen if p.device == chosen[0].device and p.is_contiguous() and p.numel()]


class StepRows:
    """Weights as rows `[groups, entries]` and what a step adds to them, in few calls: those of one shape are one stack.

    Args:
        rows: by name, in front of the step.

    Attributes:
        stacks: the names of the weights of every stack.
    """

    def __init__(self, rows: Mapping[Any, Tensor]) -> None:
        alike: dict[Any, list[Any]] = {}
        for name, row in rows.items():
            alike.setdefault((row.shape, row.dtype, row.device), []).append(name)
        self.stacks = list(alike.values())
        # each in front of the step, and behind it
        self._tables = [rows[names[0]].new_empty((2, len(names), *shape)) for (shape, *_), names in alike.items()]
        self._write(0, rows)

    def _write(self, place: int, rows: Mapping[Any, Tensor]) -> None:
        targets = [row for table in self._tables for row in table[place].unbind()]
        torch._foreach_copy_(targets, [rows[name] for names in self.stacks for name in names])

    def split(self, rows: Mapping[Any, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return of every stack the norms of its rows and of their updates `[2, weights, groups]`, and the products.

        Args:
            rows: behind the step.
        """
        self._write(1, rows)
        torch._foreach_sub_([table[1] for table in self._tables], [table[0] for table in self._tables])
        return [(torch.linalg.vector_norm(table, dim=-1), torch.linalg.vecdot(*table)) for table in self._tables]


def measure_all(many: Sequence[np.ndarray], *, lr: Sequence[float], powers: Sequence[int | None]) -> np.ndarray:
    """Return `QUANTITIES` of several weights, one row each.

    Args:
        many: the norms of the rows of each, those of their updates, and the products, `[3, groups]`.
        lr: the learning rate of each.
        powers: the power of the norm in each effective learning rate: 2 for SGD, 1 for Adam and its like,
            0 on a sphere, None where unknown.
    """
    if not many:
        return np.zeros((0, len(QUANTITIES)))
    groups = ArraySegments([numbers[0] for numbers in many])
    norm, moved, product = np.concatenate(many, axis=1)
    alive = norm > 0
    with np.errstate(all="ignore"):
        living = groups.mean(alive)
        along = np.where(alive, product / norm, 0.0)
        across = np.where(alive, np.sqrt(np.maximum(moved**2 - along**2, 0.0)), 0.0)
        angle = np.where(alive, np.arctan2(across, norm + along), 0.0)
        logs = np.log10(norm)
        size = groups.mean(np.where(alive, logs, 0.0)) / living
        size[living == 0] = -math.inf
        taken = np.array([math.nan if power is None else power for power in powers], dtype=float)
        rate = np.log10(np.array(lr)) - np.where(taken == 0.0, 0.0, taken * size)
        rate[~np.isfinite(rate)] = math.nan

        def mean(values: np.ndarray) -> np.ndarray:
            result: np.ndarray = np.nan_to_num(groups.mean(np.where(alive, values, 0.0)) / living)
            return result

        return np.column_stack(
            [
                size, groups.of(np.minimum, logs), groups.of(np.maximum, logs), mean(angle),
                groups.of(np.maximum, angle), mean(along / norm), mean(across / norm), rate, 1.0 - living,
            ]
        )  # fmt: skip


def histogram(tensor: Tensor) -> Tensor:
    """Return the root mean square of a tensor's entries, then the share of them in each bin; nothing waits.

    Example:
        >>> size, *shares = histogram(torch.tensor([-2.0, 2.0, 2.0, 2.0])).tolist()
        >>> size, shares[HISTOGRAM_BINS // 2 + 4], sum(shares)
        (2.0, 0.75, 1.0)
    """
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(-(-flat.numel() // HISTOGRAM_MAX_ENTRIES), 1)].float()
    size = torch.linalg.vector_norm(some) / max(some.numel(), 1) ** 0.5
    relative = torch.where((size > 0) & size.isfinite(), some / size, torch.zeros_like(some)).sort().values
    edges = torch.linspace(-HISTOGRAM_SPAN, HISTOGRAM_SPAN, HISTOGRAM_BINS + 1, device=some.device)[1:-1]
    below = torch.searchsorted(relative, edges).float() / max(some.numel(), 1)
    shares = torch.diff(below, prepend=below.new_zeros(1), append=below.new_ones(1))
    return torch.cat([size[None], shares])
