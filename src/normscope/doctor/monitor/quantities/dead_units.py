"""Units that fire for no sample of a batch, behind each ReLU that runs as a function or module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ....core.whole_weights import gather_whole
from ....listening.calls import Site
from ..distributed import sum_over
from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft, read_number

DEAD = Quantity("units", "dead", "share of the units behind a ReLU that fire for no sample of the batch")


class DeadUnits(Probe):
    """Sends the shares of dead units, above the economy tier."""

    quantities = (DEAD,)
    _sent: Mapping[Site, Arriving] = {}

    def finish(self) -> None:
        if self.step.forward is not None and self.step.is_rich:
            self._sent = {site: self.step.send(share) for site, share in self.step.forward.dead.items()}

    def fill(self, record: RecordDraft) -> None:
        record.column(DEAD, [read_number(self._sent.get(site)) for site in self.step.subject.places["units"]])


def measure_dead_units(made: Tensor, axis: int, cut_over: Sequence[Any]) -> Tensor:
    """Return the share of the units of a ReLU that fired for no sample.

    Args:
        made: what the ReLU made.
        axis: the dimension of it that counts units.
        cut_over: groups of processes with parts of what the last layer made.
    """
    if is_functorch_wrapped_tensor(made):
        raise TypeError("values inside of torch.vmap cannot be kept")
    others = [dim for dim in range(made.ndim) if dim != axis]
    dead = (gather_whole(made).amax(others) <= 0).float()
    if not cut_over or hasattr(made, "full_tensor"):
        return dead.mean()
    silent, units = sum_over(cut_over, torch.stack([dead.sum(), torch.ones_like(dead).sum()]))
    return silent / units
