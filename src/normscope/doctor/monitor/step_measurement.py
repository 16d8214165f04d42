"""One measured step: its probes are told what happens, what they send goes to the host as one, and becomes a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .quantities import DECLARED, PROBES, check_declared
from .quantities.losses import Losses, Observed
from .quantities.quantity import MeasuredStep, Probe, RecordDraft
from .record import Record
from .schedule import Tier, TimeBudget
from .watched_layers import Subject

Memories = dict[type[Probe], Any]
"""What the probes of one step leave for those of the next, by probe."""


@cache
def _probes_told(moment: str) -> tuple[type[Probe], ...]:
    """Return the probes that have something to do at a moment."""
    return tuple(probe for probe in PROBES if getattr(probe, moment) is not getattr(Probe, moment))


class StepMeasurement(MeasuredStep):
    """Collects small tensors of one step; nothing is read from the device before the record is made.

    Should something fail at one of its moments, what was measured before it is kept.

    Args:
        number: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        optimizer: the optimizer of the run.
        memories: what earlier steps left.
    """

    def __init__(self, number: int, tier: Tier, subject: Subject, optimizer: Optimizer, memories: Memories) -> None:
        super().__init__(number, tier, subject, optimizer)
        for probe in PROBES:
            if probe not in memories:
                memories[probe] = probe.Memory()
            self._probes[probe] = probe(self, memories[probe])

    def tell(self, moment: Callable[..., None], *what: Any) -> None:
        """Tell all probes what happens: `moment` is the method of `Probe` that is for it."""
        for probe in _probes_told(moment.__name__):
            getattr(self._probes[probe], moment.__name__)(*what)

    @torch.no_grad()
    def before(self, parameters: Mapping[str, nn.Parameter], budget: TimeBudget) -> None:
        """Measure gradients and weights in front of the optimizer's step.

        Args:
            parameters: the parameters of the model.
            budget: the time for what can wait its turn.
        """
        self.parameters, self.budget = parameters, budget
        weights = self.subject.of("weight")
        self.lost = [layer.name for layer in weights if any(name not in parameters for name in layer.parameters)]
        self.tell(Probe.before_step)

    @torch.no_grad()
    def after(self) -> None:
        """Measure what the optimizer's step did, and keep no parameter any longer."""
        if self.parameters:
            self.tell(Probe.after_step)
            self.parameters = {}

    def send_all(self, seconds: float, observed: Mapping[str, Observed]) -> None:
        """Send everything to the host, with what the loop observed since the last record."""
        self.tell(Probe.finish)
        self.seconds, self.probe(Losses).observed = seconds, observed
        for figures in observed.values():
            figures.send()
        self.outbox.send()
        self.forward = None

    def arrived(self) -> bool:
        """Return whether `record` would not wait."""
        figures = self.probe(Losses).observed.values()
        return self.outbox.arrived() and all(one.arrived() for one in figures)

    def record(self) -> Record:
        """Return what was measured, as numbers; waits for those that have not arrived."""
        kinds = ("weight", "normalizer", "units", "block") if self.is_rich else ("weight", "normalizer")
        draft = RecordDraft(values={kind: {} for kind in kinds})
        for probe in _probes_told("fill"):
            self._probes[probe].fill(draft)
        tables: dict[str, Iterable[str]] = {**draft.values, "network": draft.total, "histograms": draft.histograms}
        for of, names in tables.items():
            for name in names:
                if (of, name) not in DECLARED:
                    check_declared(name, of)
        return Record(
            step=self.number,
            seconds=self.seconds,
            tier=self.tier.value,
            loss=draft.loss,
            lr=draft.lr,
            values=draft.values,
            histograms=draft.histograms,
            total=draft.total,
            metrics=draft.metrics,
        )
