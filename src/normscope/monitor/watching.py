"""`watch`: measures a training loop while it runs; a thin shell around the probes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..bounds.domain.domain import Domain
from ..core.errors import InputError, said
from ..core.finding import Finding
from ..report.words import counted
from .clock import Clock
from .composing import Known
from .distributed import agreed, is_sharded, rank
from .forward_record import ForwardRecord
from .history import History
from .hooking import Ear, after_closure, around_forward, steps_under_way
from .listening import Listener
from .locating import Locator
from .measuring import Measurement
from .observed import Observed, checked
from .probes.domains import DomainProbe
from .probes.inputs import spread
from .probes.sharpness import SharpnessProbe
from .record import Record
from .recording import Recorder, Sink
from .schedule import Schedule, Tier
from .time_share import TimeShare
from .unseen import Sight
from .watched_layers import Subject, describe, metadata, trained_by, unwrapped

SHARE = 0.0025
"""Of the run's time, for operator norms and updates in the economy tier; as much for alarms. Beyond it they wait."""


def watch(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    every: int | Mapping[str, int] = 50,
    tier: str = "economy",
    log: str | os.PathLike[str] | None = None,
    sinks: Sequence[Sink] = (),
    panel: bool | None = None,
    domain: Domain | None = None,
    sharpness: tuple[Any, Any] | None = None,
) -> Watch:
    """Watch a training loop: capacity, normalizers, effective learning rates, and what goes wrong.

    Steps are those of the optimizer. On a measured step the forward is listened to, norms of gradients and weights are
    taken before the optimizer's step and the update after it; other steps cost a counter. Nothing waits for the device:
    figures are read once they have arrived, at a later step.

    Args:
        model: as it is called in the loop: compiled, or wrapped for several processes, or plain.
        optimizer: that trains it.
        every: measure each so many steps; or an interval for each tier, `{"economy": 10, "full": 500}`.
        tier: what `every` is of, if it is one number: `"economy"`, `"standard"` or `"full"`.
        log: a folder for the log; an existing log is continued. Without it nothing is written.
        sinks: called with every `Record` and its findings: `normscope.monitor.sinks` has those for TensorBoard and W&B.
        panel: show a live panel in the terminal; None shows it where standard error is a terminal and there is a log.
        domain: what `normscope.domain` recorded: measured steps also tell how many samples of the batch are outside of
            it, and how far each operator is from its edges. The network as it was recorded is run on them.
        sharpness: a loss function of outputs and targets, and a batch `(input, target)`: steps of the full tier also
            tell the largest eigenvalue of the Hessian at that batch (`sharpness`), and that times the learning rate
            (`effective_sharpness`). Some 10 passes forward and back at the first such step, a few at later ones.

    Returns:
        A context manager; inside it `run.observe(loss=...)` adds the loss, `run.log_metrics(...)` writes figures of a
        validation down, `run.findings` are the alarms so far.

    Raises:
        InputError: the model is none, the optimizer trains none of its parameters, an interval or the folder is wrong.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with ns.watch(model, optimizer, every=2) as run:
        ...     for _ in range(5):
        ...         optimizer.zero_grad()
        ...         loss = model(torch.ones(3, 4) * torch.arange(3.0)[:, None]).square().mean()
        ...         run.observe(loss=loss)
        ...         loss.backward()
        ...         optimizer.step()
        >>> [record.step for record in run.records]
        [0, 2, 4]
    """
    return Watch(
        model,
        optimizer,
        schedule=Schedule.of(every, tier),
        log=log,
        sinks=sinks,
        panel=panel,
        domain=domain,
        sharpness=sharpness,
    )


class Watch:
    """A run that is being watched; made by `watch`.

    Attributes:
        step: how many steps the optimizer has taken. A log that goes on counts from its last record: a run that starts
            from a checkpoint sets `run.step` to its step, right after entering.
        records: what was measured so far and has arrived; of more than 1,000 the first, the latest and a selection of
            those between (the log has all).
        findings: the alarms so far, in the order they were raised.
        overhead: the share of the run's time that watching took, without the first measured step.
        busy: whether the model is run by the watcher just now, not by the loop.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        schedule: Schedule,
        log: str | os.PathLike[str] | None,
        sinks: Sequence[Sink],
        panel: bool | None,
        domain: Domain | None = None,
        sharpness: tuple[Any, Any] | None = None,
    ) -> None:
        self.optimizer = trained_by(model, optimizer)
        self.outer, self.model = model, unwrapped(model)
        if not isinstance(sinks, Sequence) or not all(map(callable, sinks)):
            raise InputError("sinks is a list of functions of a record and its findings, as in normscope.monitor.sinks")
        if log is not None and not isinstance(log, str | os.PathLike):
            raise InputError(f"log is a {type(log).__name__}: pass the path of a folder")
        if log is not None and not os.fspath(log):
            raise InputError('log is an empty path: pass that of a folder, "." for the present one, or None for no log')
        self.schedule = schedule
        self._sharded = is_sharded(self.model.parameters())
        self._writes = rank() == 0
        self._idle = not self._writes and not self._sharded
        self.step = 0
        self._folder, self._sinks = log, sinks
        self._panel = panel if panel is not None else log is not None
        self._observed: dict[str, Observed] = {}
        self._budget = TimeShare(None if self._sharded else SHARE)  # all processes have to measure the same layers
        self._recorder = Recorder(None, (), panel=False, budget=TimeShare(SHARE))
        self._subject: Subject | None = None
        self._probe = None if domain is None else DomainProbe(domain)
        self._sharpness = None if sharpness is None else SharpnessProbe(sharpness)
        if self._sharpness is not None and (self._sharded or Tier.FULL not in schedule.every):
            raise InputError(
                'sharpness= is measured at steps of the full tier, of models in one piece: every={"full": 500, ...}'
            )
        self._standing: Tensor | None = None
        self._spread: Tensor | None = None
        self._known = Known()
        self._pending: Measurement | None = None
        self._hooks: list[Any] = []
        self._ears: list[Any] = []
        self._listener = Listener(self.outer, self.model)
        self._stepping = 0
        self.busy, self._entered = False, False
        self._locator, self._sight = Locator(), Sight(self.optimizer)
        self._clock = Clock()

    @property
    def history(self) -> History:
        """The layers, records and alarms so far."""
        return self._recorder.history

    @property
    def records(self) -> tuple[Record, ...]:
        """What was measured so far and has arrived."""
        return tuple(self.history.records)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The alarms so far."""
        return tuple(self.history.findings)

    @property
    def overhead(self) -> float:
        """The share of the run's time that watching took; the first measured step, which finds the layers, left out."""
        return self._clock.overhead

    def __repr__(self) -> str:
        seen = f"{self.step:,} steps, {counted(len(self.history.records), 'record')}"
        return f"<Watch: {seen}, {counted(len(self.findings), 'alarm')}, overhead {100 * self.overhead:.2f} %>"

    def __enter__(self) -> Watch:
        if self._entered:
            raise InputError("this run has been watched already: call ns.watch again, with the same log to go on")
        self._entered = True
        self._clock.restart()
        if self._idle:
            self._hooks = [self.optimizer.register_step_post_hook(Ear(self._after_step))]
            return self
        self._ears = self._listen_to(self.outer)
        try:
            if self._writes:
                self._recorder = Recorder(self._folder, self._sinks, panel=self._panel, budget=TimeShare(SHARE))
        except BaseException:
            self._unhook()
            raise
        step = self._recorder.history.next_step
        self.step = agreed(step) if self._sharded else step
        self._sight = Sight(self.optimizer)
        self._hooks = [
            self.optimizer.register_step_pre_hook(Ear(self._before_step)),
            self.optimizer.register_step_post_hook(Ear(self._after_step)),
            register_optimizer_step_post_hook(Ear(self._after_any_step)),
        ]
        return self

    def _listen_to(self, module: nn.Module) -> list[Any]:
        return around_forward(module, Ear(self._before_forward, module), Ear(self._after_forward, module))

    def _unhook(self) -> None:
        for hook in (*self._hooks, *self._ears):
            hook.remove()
        self._hooks, self._ears = [], []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._hooks and not self._idle:
            self._say(self._sight.missed(self.optimizer, self.step))
        self._unhook()
        self._listener.close()
        self.flush()
        ended = "finished" if kind is None else f"stopped by {kind.__name__}"
        seconds = round(self._clock.passed, 3)
        self._recorder.close({"step": self.step, "how": ended, "seconds": seconds, "overhead": self.overhead})
        self._probe, self._standing, self._known, self._locator = None, None, Known(), Locator()
        self.history.standing.let_go()
        for name in ("outer", "model", "optimizer"):  # who keeps the run for its findings does not keep them alive
            self.__dict__.pop(name, None)

    def turn_to(self, model: nn.Module, call: tuple[Any, Any] | None = None) -> None:
        """Watch another module instead, before the first forward is measured; `call` has one that has begun."""
        if self._subject is None and not self._idle:
            for hook in self._ears:
                hook.remove()
            self.outer, self.model = model, unwrapped(model)
            self._listener = Listener(self.outer, self.model)
            self._ears = self._listen_to(model)
            if call is not None:
                self._before_forward(model, *call)

    def observe(self, **figures: Tensor | float) -> None:
        """Add figures of the present step, after its forward: `loss`, and others by their names.

        Call it at every step: the records have mean, least and largest of all losses since the one before. Nothing is
        read from the device; a figure there costs one small copy.

        Args:
            **figures: each a tensor with one entry, or a number. Of several losses in one step (accumulated gradients)
                the mean is kept, less those that no gradient came from (batches left out); of the runs of a closure the
                first. Of other figures, `accuracy` say, a record has the mean since the one before.

        Raises:
            InputError: one is something else.

        Example:
            `run.observe(loss=loss, accuracy=(output.argmax(1) == y).float().mean())`
        """
        for name, value in figures.items():
            checked(name, value)
        if self._pending is not None and "loss" in figures:
            self._pending.observe(figures["loss"])
        if self._writes and self._hooks:
            self._say(self._sight.observed(self.optimizer, self.step))
            found = {n: self._observed.setdefault(n, Observed()).add(self.step, v) for n, v in figures.items()}
            if self._locator.is_asked(found.get("loss")):
                self._locate()

    def _locate(self) -> None:
        """Find where a loss broke that is not finite."""
        self.busy = True
        with self._clock.watching():
            try:
                self.history.broken = self._locator.look(self.model, self.step)
            except Exception as error:
                self._recorder.complain("locate", f"where the loss broke is not known: {said(error)}")
            finally:
                self.busy = False

    def log_metrics(self, **figures: Tensor | float) -> None:
        """Write figures down as they are, at the present step: those of a validation, say.

        Args:
            **figures: each a tensor with one entry, or a number. They go to the log and the sinks; the page of the run
                draws them.

        Raises:
            InputError: one is something else.

        Example:
            `run.log_metrics(val_loss=val_loss, val_accuracy=0.93)`
        """
        for name, value in figures.items():
            checked(name, value)
        if self._writes and self._hooks:
            found = {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in figures.items()}
            self._recorder.note(self.step, found)

    def skip(self, seconds: float) -> None:
        """Leave out time in which the loop stood still (an evaluation, another run)."""
        self._clock.skip(seconds)
        self._budget.skip(seconds)
        self._recorder.budget.skip(seconds)

    def flush(self) -> None:
        """Wait for everything that was measured, write it down and look for alarms."""
        self._send(wait=True)

    # hooks: each does nothing but look at a counter unless its step is due

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.busy or torch.compiler.is_compiling():
            return
        stuck = self._sight.forward(training=self.model.training)
        if not self.model.training or self._listener.listens:
            return
        self._locator.batch = (args, kwargs)
        if stuck is not None:
            self._recorder.complain("stuck", stuck)
        if self._pending is not None and self._pending.step != self.step:
            self._send()
        tier = self.schedule.due(self.step)
        heard = self._pending is not None and self._pending.seen is not None and not self._pending.abandoned
        if tier is None or heard:
            return
        with self._clock.watching():
            try:
                self._listen(tier, args, kwargs)
            except Exception as error:
                self._recorder.complain("forward", f"this step's forward is not measured: {said(error)}")
            finally:
                self.busy = False

    def _listen(self, tier: Tier, args: Any, kwargs: Any) -> None:
        """Listen to the forward that begins, in the first one as the richest tier asks for."""
        self._standing, self._spread = self._stand(args, kwargs), spread(args, kwargs)
        first = self._subject is None
        tier = max(self.schedule.every, key=lambda tier: tier.rank) if first else tier
        self.busy = True  # it may be run aside
        seen = self._listener.begin(tier, args, kwargs, first=first)
        if seen is not None:
            self._heard(seen)

    def _after_forward(self, module: nn.Module, args: Any, made: Any) -> None:
        if not self._listener.listens:
            return
        seen = None
        with self._clock.watching():
            try:
                seen = self._listener.end()
                raised = made is None and sys.exc_info()[0] is not None
                if seen is not None and not raised:
                    self._heard(seen)
            except Exception as error:
                self._recorder.complain("forward", f"this step's forward is not measured: {said(error)}")
        self._clock.spend(0.0 if seen is None else seen.seconds)

    def _heard(self, seen: ForwardRecord) -> None:
        """Take what was seen of a forward; the first one says what there is to watch."""
        if self._subject is None:
            self._subject = describe(self.model, seen, self.optimizer)
            self._subject.layers += () if self._probe is None else self._probe.layers
            self._listener.learn(seen)
            self._recorder.begin(
                self._subject.layers, metadata(self._subject, self.model, self.optimizer, self.schedule, self.step)
            )
        tier, seen.domain, seen.spread = self.schedule.due(self.step), self._standing, self._spread
        if tier is not None:
            self._pending = self._pending or Measurement(self.step, tier, self._subject, self.optimizer)
            self._pending.seen = seen
            if not (self._sharded or self._pending.clearing or self._listener.apart):
                self._pending.clearing = self.history.standing.clearing()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._stepping = steps_under_way(optimizer) if self._stepping else 1  # one that raised has not ended
        tier = self.schedule.due(self.step)
        self.history.standing.pass_by()
        if tier is None or self._stepping > 1:  # a step that calls that of its base class
            return None
        changed = after_closure(args, kwargs, lambda: self._measure_before(optimizer, tier))
        if changed is None:
            self._measure_before(optimizer, tier)
        return changed

    def _measure_before(self, optimizer: Optimizer, tier: Tier) -> None:
        with self._clock.watching():
            try:
                if self._pending is not None and self._pending.step != self.step:
                    self._send()
                if self._pending is None and self._subject is not None:
                    self._pending = Measurement(self.step, tier, self._subject, optimizer)
                if self._pending is not None:
                    budget = self._budget if tier is Tier.ECONOMY else TimeShare(None)
                    parameters = self._listener.parameters()
                    self._pending.before(parameters, self._known, budget)
                    if tier is Tier.FULL:
                        self._look_at_curvature(optimizer)
                    if not self._sharded:
                        self.history.standing.look(parameters, optimizer, self.step)
                    if self._pending.lost:
                        names = ", ".join(self._pending.lost[:3])
                        self._recorder.complain("lost", f"{names}: other parameters than at first, not followed there")
            except Exception as error:
                self._recorder.complain("step", f"this step's gradients are not measured: {said(error)}")

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping = max(0, self._stepping - 1)
        if self._stepping:
            return
        self._locator.batch, pending = None, self._pending
        if pending is not None and pending.step == self.step:
            with self._clock.watching():
                try:
                    pending.after()
                except Exception as error:
                    self._recorder.complain("update", f"this step's update is not measured: {said(error)}")
        self.step += 1
        if not self._idle:
            self._say(self._sight.stepped(self.step))

    def _after_any_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is self.optimizer or self._stepping:  # or one that ours is made of
            return
        self._say(self._sight.stepped_by(optimizer, self.optimizer, self.step))

    # what the hooks call

    def _say(self, blind: Finding | None) -> None:
        """Warn that nothing is seen, and raise it as an alarm: no record will."""
        if blind is not None:
            self._recorder.complain("blind", f"{blind.seen[0].lower()}{blind.seen[1:]} {blind.advice}")
            self._recorder.raise_now(blind)

    def _stand(self, args: Any, kwargs: Any) -> Tensor | None:
        """Return where a batch stands in the domain that is followed; None where there is none."""
        try:
            return None if self._probe is None else self._probe.measure(args, kwargs)
        except Exception as error:
            self._recorder.complain("domain", f"where the data stand in the domain is not measured: {said(error)}")
            return None

    def _look_at_curvature(self, optimizer: Optimizer) -> None:
        """Measure the largest curvature, where that is asked for, and what the learning rate makes of it."""
        if self._sharpness is None or not self._writes:
            return
        self.busy = True
        try:
            value = self._sharpness.measure(self.model)
        except Exception as error:
            self._sharpness = None
            self._recorder.complain("sharpness", f"the largest curvature is not measured: {said(error)}")
            return
        finally:
            self.busy = False
        if value is not None:
            rate = max(float(group["lr"]) for group in optimizer.param_groups)
            self._observed.setdefault("sharpness", Observed()).add(self.step, value)
            self._observed.setdefault("effective_sharpness", Observed()).add(self.step, rate * value)

    def _send(self, *, wait: bool = False) -> None:
        """Send what was measured of a step on its way to the host, and hand on what has arrived."""
        pending, self._pending = self._pending, None
        if pending is None and not wait:
            return
        with self._clock.watching():
            if pending is not None and self._writes:
                observed = {name: held.take() for name, held in self._observed.items()}
                self._recorder.send(pending, self._clock.passed, observed)
            self._recorder.collect(self.overhead, wait=wait)
        self._clock.settle()
