"""One measured step: what was seen of its forward, its gradients and its update, on the way to a `Record`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..listening.normalizer_seen import NormalizerSeen
from .composing import Key, Known, Sent, compose
from .forward_record import ForwardRecord
from .observed import Taken
from .optimizer_step import AfterStep, BeforeStep
from .parameter_follower import Clearing
from .probes import normalizer_probe
from .record import Record
from .schedule import Tier
from .step_losses import StepLosses
from .time_share import TimeShare
from .transfer import Transfer
from .watched_layers import Subject

TENSORS = ("variance", "gamma", "running_variance")
"""What a normalizer showed that is sent to the host."""


class Measurement:
    """Collects small tensors of one step; nothing is read from the device before the record is made.

    It has four phases: the forward (`seen`, `clearing`, losses), `before` and `after` the optimizer's step, and `send`.

    Args:
        step: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        optimizer: the optimizer of the run.

    Attributes:
        seen: what the forward showed.
        clearing: whether gradients are cleared in front of the backward, where that is listened to.
    """

    def __init__(self, step: int, tier: Tier, subject: Subject, optimizer: Optimizer) -> None:
        self.step, self.tier, self.subject, self.optimizer = step, tier, subject, optimizer
        self.seen: ForwardRecord | None = None
        self.clearing: Clearing | None = None
        self._losses = StepLosses()
        self._before: BeforeStep | None = None
        self._after = AfterStep()

    @property
    def abandoned(self) -> bool:
        """Whether the batch of the forward that was seen was left out: it has a loss but left no gradient."""
        groups = self.optimizer.param_groups
        return self._losses.unused and all(p.grad is None for g in groups for p in g["params"])

    @property
    def lost(self) -> list[str]:
        """The layers whose parameters have been replaced since the first forward."""
        return [] if self._before is None else self._before.lost

    def observe(self, loss: Tensor | float) -> None:
        """Add the loss of a batch; not once the optimizer has its gradients and there is one."""
        if not (self._losses and self._before is not None and "size" in self._before.contents):
            self._losses.add(loss)

    def before(self, parameters: Mapping[str, nn.Parameter], known: Known, budget: TimeShare) -> None:
        """Measure gradients and weights in front of the optimizer's step.

        Args:
            parameters: the parameters of the model.
            known: what earlier steps found of its layers.
            budget: the time for what can wait its turn.
        """
        self._before = BeforeStep(
            step=self.step, tier=self.tier, subject=self.subject, parameters=parameters, known=known, budget=budget
        )
        if self.clearing is not None:
            self.clearing.close()
        self._before.measure(self.optimizer, self.seen)

    def after(self) -> None:
        """Measure what the optimizer's step did, and keep no parameter any longer."""
        if self._before is not None:
            self._after.measure(self._before, self.optimizer)
            self._before = replace(self._before, parameters={}, rows={}, copies={})

    def send(self, seconds: float, observed: Mapping[str, Taken]) -> StepInTransit:
        """Send everything to the host, with what the loop observed since the last record."""
        before, after, seen = self._before, self._after, self.seen or ForwardRecord()
        contents = {} if before is None else before.contents
        contents |= after.contents
        left = None if self.clearing is None else self.clearing.close()
        contents |= {} if left is None else {"left": left}
        contents |= {"loss": self._losses.mean()} if self._losses else {}
        lr = [] if before is None else before.lr
        contents |= {("lr", i): rate for i, rate in enumerate(lr) if isinstance(rate, Tensor)}
        contents |= {("rate", site): rate for site, rate in after.rates.items() if isinstance(rate, Tensor)}
        contents |= _of_normalizers(seen) | _of_blocks(seen)
        small = {site: one for site, one in seen.normalizers.items() if not _is_large(one)}
        running = seen.batch_norms
        sent = Sent(
            step=self.step,
            tier=self.tier,
            subject=self.subject,
            known=Known() if before is None else before.known,
            lost=self.lost,
            ran=set() if before is None else before.ran,
            lr=lr,
            rates=after.rates,
            powers=after.powers,
            names=({} if before is None else before.names) | after.names,
            normalizers={
                site: replace(one, variance=None, gamma=None, running_variance=None) for site, one in small.items()
            },
            widths={site: one.variance.shape[-1] for site, one in small.items()},
            batch_norms=None if running is None else (running[0], running[1].norms, running[1].momenta),
            seconds=seconds,
            observed=observed,
        )
        return StepInTransit(sent, Transfer(contents))


@dataclass(frozen=True, slots=True)
class StepInTransit:
    """A measured step on its way from the device: what the host keeps of it, and what is still to arrive."""

    sent: Sent
    transfer: Transfer

    def arrived(self) -> bool:
        """Say whether `record` would not wait."""
        return self.transfer.arrived() and all(taken.arrived() for taken in self.sent.observed.values())

    def record(self) -> Record:
        """Return what was measured, as numbers."""
        return compose(self.sent, self.transfer.open())


def _is_large(seen: NormalizerSeen) -> bool:
    """Say whether the figures of a normalizer are taken on the device: its variances are too many to send."""
    return seen.variance.numel() > normalizer_probe.MOST


def _of_normalizers(seen: ForwardRecord) -> dict[Key, Tensor]:
    """Return what is sent of the normalizers of a forward."""
    contents: dict[Key, Tensor] = {}
    if seen.batch_norms is not None:
        _, moved = seen.batch_norms
        contents |= {name: getattr(moved, name) for name in ("before", "after", "gamma", "calls")}
    for site, normalizer in seen.normalizers.items():
        if _is_large(normalizer):
            contents[("normalizer", site)] = normalizer_probe.measure(_alike(normalizer))
            continue
        values: dict[str, Any] = {name: getattr(normalizer, name) for name in TENSORS}
        contents |= {(name, site): value for name, value in values.items() if value is not None}
    return contents


def _of_blocks(seen: ForwardRecord) -> dict[Key, Tensor]:
    """Return what is sent of the blocks, the units and the batch of a forward."""
    contents: dict[Key, Tensor] = {("activation", path): value for path, value in seen.activations.items()}
    for path, (out, inner) in seen.gradients.items():
        if out is not None and inner is not None:
            contents[("backward", path)] = inner / out
    along = [size for pair in seen.gradients.values() for size in pair[::-1] if size is not None]
    if len(along) > 1:  # from the first place on the way to the last, whatever runs between
        contents["backward"] = along[0] / along[-1]
    contents |= {("dead", site): value for site, value in seen.dead.items()}
    contents |= {} if seen.domain is None else {"domain": seen.domain}
    contents |= {} if seen.spread is None else {"spread": seen.spread}
    return contents


def _alike(seen: NormalizerSeen) -> NormalizerSeen:
    """Return a normalizer whose scales and running variances have the precision of the variances."""
    gamma, running = (None if t is None else t.to(seen.variance) for t in (seen.gamma, seen.running_variance))
    return replace(seen, gamma=gamma, running_variance=running)
