"""How far a step, and all steps since the record before, move the weights over their size: of a sample of entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft, log10_of

STEP = Quantity("network", "log10_step", "how far the step moves the weights, over their size")
DRIFT = Quantity("network", "log10_drift", "how far all steps since the record before do")
LOST = Quantity("network", "share_lost", "of the weights in half precision that the step leaves to the last bit")
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


class SampledSteps(Probe):
    """Measures the moves of a sample of the weights, which its memory keeps from record to record."""

    quantities = (STEP, DRIFT, LOST)
    Memory = WeightSample
    _norms: Arriving | None = None
    _lost: Arriving | None = None

    def before_step(self) -> None:
        self.memory.before(self.step.trained())

    def after_step(self) -> None:
        norms = self.memory.after(self.step.trained())
        self._norms = self.step.send_any(norms)
        self._lost = self.step.send_any(None if norms is None else self.memory.share_lost())

    def fill(self, record: RecordDraft) -> None:
        record.arrived(LOST, self._lost)
        if self._norms is not None:
            size, *moves = np.linalg.norm(self._norms.numbers.astype(float), axis=1).tolist()
            for quantity, move in zip((STEP, DRIFT), moves, strict=False):  # the first has no record before it
                record.network(quantity, log10_of(move / size if size else math.nan))
