"""What one step of the optimizer does to scale-invariant weights: how fast they turn, how their norm moves.

Three numbers per group are taken on the device; the figures are made of them on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....core.whole_weights import gather_whole
from ....listening.calls import Site
from ..layer_record import Numbers
from ..schedule import Turns
from ..transfer import Arriving
from ..watched_layers import effective_power
from .quantity import ArraySegments, Probe, Quantity, RecordDraft

EFFECTIVE_RATE = Quantity(
    "weight",
    "log10_effective_lr",
    "mean over the groups of lr/norm^2 (SGD), lr/norm (optimizers that rescale gradients) or lr (on a sphere)",
    optional=True,
)


def unscheduled_rates(record: Any) -> Numbers:
    """Return the effective learning rates of a record over the largest rate of its groups."""
    rate = max(record.lr, default=math.nan)
    scale = math.log10(rate) if 0.0 < rate < math.inf else math.nan
    rates = record.of("weight", EFFECTIVE_RATE.name) if math.isfinite(scale) else ()
    return tuple(None if value is None else value - scale for value in rates)


UNSCHEDULED_RATE = Quantity(
    "weight", "log10_unscheduled_lr", "what the weights did to the effective rate, without the schedule",
    derive=unscheduled_rates,
)  # fmt: skip


class Turning(Probe):
    """Measures scale-invariant weights, over their groups: channels, groups of channels, or the layer.

    Layers take turns where there is no time for all: its memory says whose turn it is.
    """

    quantities = (
        Quantity("weight", "log10_group", "mean over the groups of the norm of a group, bias included"),
        Quantity("weight", "log10_group_min", "the least norm of a group"),
        Quantity("weight", "log10_group_max", "the largest norm of a group"),
        Quantity("weight", "rotation", "mean angle between a group before and after the step, in radians"),
        Quantity("weight", "rotation_max", "the largest of these angles"),
        Quantity("weight", "radial", "mean part of the update along the group (signed), over its norm"),
        Quantity("weight", "tangential", "mean part of the update across the group, over its norm"),
        EFFECTIVE_RATE,
        Quantity("weight", "zero", "share of the groups that are exactly zero"),
        UNSCHEDULED_RATE,
    )
    Memory = Turns
    _sites: Sequence[Site] = ()  # whose turn it is
    _rows: StepRows | None = None  # these weights in front of the step
    _sent: Sequence[tuple[Sequence[Site], Arriving, Arriving]] = ()
    _rates: Sequence[float | Arriving] = ()
    _powers: Sequence[int | None] = ()

    def before_step(self) -> None:
        step, turns = self.step, self.memory
        rows = step.subject.rows
        places = [site for site, (names, *_) in rows.items() if all(name in step.parameters for name in names)]
        count, self._sites, self._rows = len(places), (), None
        while count and not step.budget.affords("update", count):
            count //= 2
        if not count:
            return
        with step.budget.watching("update"):
            self._sites = turns.order(places)[:count] if count < len(places) else places
            for site in self._sites:
                turns.serve(site)
            self._rows = StepRows(self._rows_now())

    def _rows_now(self) -> dict[Site, Tensor]:
        """Return the scale-invariant weights as they are now, one row per group that has a scale of its own."""
        rows = {}
        for site in self._sites:
            names, groups, axis = self.step.subject.rows[site]
            rows[site] = group_rows([gather_whole(self.step.parameters[name]) for name in names], groups, axis)
        return rows

    def after_step(self) -> None:
        step, rows, self._rows = self.step, self._rows, None
        if rows is None:
            return
        with step.budget.watching("update"):
            parts = zip(rows.stacks, rows.split(self._rows_now()), strict=True)
            self._sent = [(stack, step.send(norms), step.send(products)) for stack, (norms, products) in parts]
        step.budget.end_task("update", len(self._sites))
        by_parameter = {id(p): group for group in step.optimizer.param_groups for p in group["params"]}
        groups = [by_parameter.get(id(step.parameters[step.subject.rows[site][0][0]])) for site in self._sites]
        self._rates = [step.send_rate(group) for group in groups]
        self._powers = [None if group is None else effective_power(step.optimizer, group) for group in groups]

    def fill(self, record: RecordDraft) -> None:
        numbers: dict[Site, np.ndarray] = {}
        for stack, norms, products in self._sent:
            table = np.concatenate([norms.numbers, products.numbers[None]])
            numbers |= dict(zip(stack, table.swapaxes(0, 1), strict=True))
        sites = self._sites if self._sent else ()
        rates = list(map(float, self._rates))
        rows = dict(zip(sites, measure_all([numbers[site] for site in sites], lr=rates, powers=self._powers)))
        record.columns(self.quantities[:-1], [rows.get(site) for site in self.step.subject.places["weight"]])


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
    """Return the quantities of several weights, one row each.

    Args:
        many: the norms of the rows of each, those of their updates, and the products, `[3, groups]`.
        lr: the learning rate of each.
        powers: the power of the norm in each effective learning rate: 2 for SGD, 1 for Adam and its like,
            0 on a sphere, None where unknown.
    """
    if not many:
        return np.zeros((0, len(Turning.quantities) - 1))
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
