"""Watching inside of trainers: import the callback of yours.

`from normscope.doctor.monitor.callbacks.lightning import NormscopeCallback` for Lightning (`lightning` or
`pytorch_lightning`), `from normscope.doctor.monitor.callbacks.huggingface import NormscopeCallback` for the Trainer of
transformers. Each of the two files imports the package it is for; this one, which has what they share, imports neither.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ....core.finding import Finding
from ..record import Record
from ..schedule import Schedule, TierName
from ..watching import Sink, Watch, watch


class Watched:
    """Opens and closes a `Watch` with given options, and gathers the losses of a step's batches.

    Attributes:
        run: the `Watch` of the present fit, or of the last; None before the first.
    """

    run: Watch | None = None

    def __init__(
        self,
        every: int | Mapping[str, int] = 50,
        *,
        tier: TierName = "economy",
        log: str | os.PathLike[str] | None = None,
        sinks: Sequence[Sink] = (),
        panel: bool | None = False,
    ) -> None:
        Schedule.of(every, tier)  # intervals that are not valid raise here, not in the middle of a fit
        self._options: dict[str, Any] = {"every": every, "tier": tier, "log": log, "sinks": sinks, "panel": panel}
        self._losses: list[Tensor] = []
        self._open = False

    @property
    def records(self) -> tuple[Record, ...]:
        """What was measured so far and has arrived."""
        return () if self.run is None else self.run.records

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The alarms so far."""
        return () if self.run is None else self.run.findings

    def open(self, model: nn.Module, optimizer: Optimizer, step: int) -> Watch:
        """Begin to watch at a step of the trainer."""
        self.close()
        self._losses = []
        run = watch(model, optimizer, **self._options)
        run.__enter__()
        run.step = step
        self.run, self._open = run, True
        return run

    def close(self, error: BaseException | None = None) -> None:
        """End watching: hooks are removed, everything is written. A trainer that is stopped by an error may need it."""
        if self._open and self.run is not None:
            self._open = False
            self.run.__exit__(None if error is None else type(error), error, None)

    def gather(self, loss: Any) -> None:
        """Keep the loss of one batch."""
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach().reshape(()))

    def settle(self, *, summed: bool = False) -> None:
        """Give the step its loss: the mean over its batches, or their sum where each is a part already."""
        losses, self._losses = self._losses, []
        if losses and self._open and self.run is not None:
            stacked = torch.stack([loss.float() for loss in losses])
            self.run.observe(loss=stacked.sum() if summed else stacked.mean())
