"""`watch`: measures a training loop while it runs; a thin shell around the probes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ...core.errors import InputError
from ...core.shown import Shown
from ...core.untouched import unwrapped
from ...report.words import pluralise
from ..checking.verdict import Findings
from ..symptoms.validation import is_held_out, watch_validation
from .distributed import ProcessRole, agree_with_first
from .history import History
from .hooks import TrainingHooks
from .quantities.losses import check_figure
from .quantities.sharpness import SharpnessProbe
from .record import Record
from .record_writer import Recorder, Sink, check_destination
from .schedule import Schedule, Tier, TierName, TimeBudget
from .unseen_training import UnseenTrainingDetector
from .watched_layers import innermost_optimizer

NOT_ENTERED = (
    "normscope: the optimizer steps, but the run that ns.watch returned was not entered, and nothing is recorded: "
    "write `with ns.watch(model, optimizer) as run:` around the loop"
)


def watch(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    every: int | Mapping[str, int] = 50,
    tier: TierName = "economy",
    overhead: float | None = 0.02,
    log: str | os.PathLike[str] | None = None,
    sinks: Sequence[Sink] = (),
    panel: bool | None = None,
    sharpness: tuple[Any, Any] | None = None,
) -> Watch:
    """Watch a training loop: capacity, normalizers, effective learning rates, and what goes wrong.

    Steps are those of the optimizer. On a measured step the forward is listened to, norms of gradients and weights are
    taken before the optimizer's step and the update after it; other steps cost a counter. Nothing waits for the device:
    figures are read once they have arrived, at a later step.

    Watching takes `overhead` of the time, over every minute. Losses, gradients, sizes of weights and normalizers are
    measured at every step that is due. Operator norms and updates of layers wait for their turn (`norm_age` says how
    old a norm is), and a richer tier comes once there is time for it. Where that share is not enough for the records
    themselves, of small networks with steps of a millisecond, up to seven of eight steps that are due are left out; the
    records say how many (`left_out`). Above `every=10` less of the time is taken: at `every=50` a quarter, of which
    norms get a fifth of their share.

    Args:
        model: as it is called in the loop: compiled, or wrapped for several processes, or plain.
        optimizer: the optimizer that trains it.
        every: measure each so many steps, at most; or an interval for each tier, `{"economy": 10, "full": 500}`.
        tier: what `every` is of, if it is one number: `"economy"`, `"standard"` or `"full"`.
        overhead: the share of the run's time that watching may take: of wall-clock time, on a GPU of what its kernels
            are held up. The first records, half a second of them (an eighth at `every=50`) or those of 800 steps,
            are made as often as asked; what follows pays for them. None for no limit: every step that is due is
            measured, and all of its layers. Models in shards have none, for their processes must agree.
        log: a folder for the log; an existing log is continued. Without it nothing is written.
        sinks: called with every `Record` and its findings: `normscope.doctor.monitor.sinks` has those for TensorBoard
            and W&B.
        panel: show a live panel in the terminal; None shows it where standard error is a terminal and there is a log.
        sharpness: a loss function of outputs and targets, and a batch `(input, target)`: steps of the full tier also
            tell the largest eigenvalue of the Hessian at that batch (`sharpness`), and that times the learning rate
            (`effective_sharpness`). Some 10 passes forward and back at the first such step, a few at later ones.

    Returns:
        A context manager; inside it `run.observe(loss=...)` adds the loss, `run.log_metrics(...)` writes figures of a
        validation down, `run.findings` are the alarms so far.

    Raises:
        InputError: the model is none, the optimizer trains none of its parameters, an interval, the overhead or the
            folder is wrong.

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
    schedule = Schedule.of(every, tier)
    trained = innermost_optimizer(model, optimizer)
    check_destination(log, sinks)
    if overhead is not None and (isinstance(overhead, bool) or not 0.0 < overhead <= 1.0):
        raise InputError(f"overhead is a share of the time, above 0 and at most 1, or None; it is {overhead!r}")
    role = ProcessRole.of(unwrapped(model))
    curvature = None if sharpness is None else SharpnessProbe(sharpness)
    if curvature is not None and (role.sharded or Tier.FULL not in schedule.every):
        raise InputError(
            'sharpness= is measured at steps of the full tier, of models in one piece: every={"full": 500, ...}'
        )
    device = next((p.device for p in model.parameters()), None)
    share = None if role.sharded else overhead  # all processes have to measure the same layers
    budget = TimeBudget(share, device, every=min(schedule.every.values()))
    hooks = TrainingHooks(
        model,
        trained,
        schedule=schedule,
        role=role,
        recorder=Recorder(budget),
        budget=budget,
        sharpness=curvature,
    )
    return Watch(hooks, log, sinks, panel=panel if panel is not None else log is not None)


class Watch(Shown):
    """A run that is being watched; made by `watch`. In a notebook it shows its alarms so far.

    Attributes:
        step: how many steps the optimizer has taken. A log that goes on counts from its last record: a run that starts
            from a checkpoint sets `run.step` to its step, right after entering.
        records: what was measured so far and has arrived; of more than 1,000 the first, the latest and a selection of
            those between (the log has all).
        findings: the alarms so far, in the order they were raised.
        overhead: the share of the run's time that watching took so far.
        busy: whether the model is run by the watcher just now, not by the loop.
    """

    page = "normscope.doctor.pages.run:watch_document"

    def __init__(
        self, hooks: TrainingHooks, log: str | os.PathLike[str] | None, sinks: Sequence[Sink], *, panel: bool
    ) -> None:
        self._hooks, self._log, self._sinks, self._panel = hooks, log, sinks, panel
        self._entered = False
        self._reminder: Any = hooks.optimizer.register_step_post_hook(lambda *_: remind())

        def remind(reminder: Any = self._reminder) -> None:
            reminder.remove()
            warnings.warn(NOT_ENTERED, stacklevel=3)

    def __getstate__(self) -> Any:
        """Refuse to be pickled or copied, and say what can be kept instead."""
        raise InputError(
            "a watch holds hooks on the model and the optimizer that it watches, so that it cannot be pickled or "
            "copied: keep run.records and run.findings, which can, or give ns.watch a log= and read it with ns.Run"
        )

    @property
    def optimizer(self) -> Optimizer:
        """The innermost optimizer, which is watched, until the run ends."""
        return self._hooks.optimizer

    @property
    def step(self) -> int:
        """How many steps the optimizer has taken."""
        return self._hooks.step

    @step.setter
    def step(self, step: int) -> None:
        self._hooks.count_from(step)

    @property
    def busy(self) -> bool:
        """Whether the model is run by the watcher just now, not by the loop."""
        return self._hooks.busy

    @property
    def history(self) -> History:
        """The layers, records and alarms so far."""
        return self._hooks.history

    @property
    def records(self) -> tuple[Record, ...]:
        """What was measured so far and has arrived."""
        return tuple(self.history.records)

    @property
    def measured(self) -> int:
        """How many steps were measured, of which `records` may be a selection."""
        return self.history.measured

    @property
    def left_out(self) -> int:
        """How many steps were due and not measured, because there was no time for them within `overhead`."""
        return self.history.left_out + self._hooks.budget.waiting

    @property
    def findings(self) -> Findings:
        """The alarms so far."""
        return Findings(self.history.findings)

    @property
    def seconds(self) -> float:
        """How long the run has lasted so far, in seconds."""
        return self._hooks.budget.passed

    @property
    def overhead(self) -> float:
        """The share of the run's time that watching took so far."""
        return self._hooks.budget.overhead

    def __repr__(self) -> str:
        measured = f"{self.step:,} steps, {pluralise(len(self.history.records), 'record')}"
        return f"<Watch: {measured}, {pluralise(len(self.findings), 'alarm')}, overhead {100 * self.overhead:.2f} %>"

    def __enter__(self) -> Watch:
        if self._entered:
            raise InputError("this run has been watched already: call ns.watch again, with the same log to go on")
        self._entered = True
        self._reminder.remove()
        hooks, role = self._hooks, self._hooks.role
        hooks.budget.restart()
        if not role.idle:
            hooks.attach_to_model()
            try:
                if role.writes:
                    hooks.recorder = Recorder(hooks.budget, self._log, self._sinks, panel=self._panel)
            except BaseException:
                hooks.detach()
                raise
            step = hooks.history.next_step
            hooks.count_from(agree_with_first(step) if role.sharded else step)
            hooks.sight = UnseenTrainingDetector(hooks.optimizer)
        hooks.attach_to_optimizer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hooks = self._hooks
        if kind is None:
            hooks.look_for_missed_training()
        hooks.detach()
        self.flush()
        ended = "finished" if kind is None else f"stopped by {kind.__name__}"
        seconds = round(hooks.budget.passed, 3)
        end = {"step": self.step, "how": ended, "seconds": seconds, "overhead": self.overhead}
        hooks.recorder.close({**end, "left_out": hooks.budget.waiting})
        hooks.let_go()  # the run may be kept for its findings

    def turn_to(self, model: nn.Module, call: tuple[Any, Any] | None = None) -> None:
        """Watch another module instead, before the first forward is measured; `call` has one that has begun."""
        self._hooks.turn_to(model, call)

    def observe(self, loss: Tensor | float | None = None, **figures: Tensor | float) -> None:
        """Add figures of the present step, after its forward: the loss, and others by their names.

        Call it at every step: the records have mean, least and largest of all losses since the one before. Nothing is
        read from the device; a figure there costs one small copy.

        Args:
            loss: a tensor with one entry, or a number. Of several losses in one step (accumulated gradients) the mean
                is kept, less those that no gradient came from (batches left out); of the runs of a closure the first.
            **figures: likewise. Of these, `accuracy` say, a record has the mean since the one before.

        Raises:
            InputError: one is something else.

        Example:
            `run.observe(loss, accuracy=(output.argmax(1) == y).float().mean())`
        """
        if loss is not None or not figures:  # nothing at all is refused as a loss that is no number
            figures["loss"] = loss  # type: ignore[assignment]
        for name, value in figures.items():
            check_figure(name, value)
        self._hooks.observe(figures)

    def log_metrics(self, *, step: int | None = None, **figures: Tensor | float) -> None:
        """Write figures down as they are, at the present step: those of a validation, say.

        A validation loss (`val_loss`, `valid_loss`, `eval_loss`, ...) that rises while the training loss falls, and a
        validation accuracy that falls, are alarms.

        Args:
            step: the step that they belong to, if that is not the present one.
            **figures: each a tensor with one entry, or a number. They go to the log and the sinks; the page of the run
                draws them.

        Raises:
            InputError: one is something else.

        Example:
            `run.log_metrics(val_loss=val_loss, val_accuracy=0.93)`
        """
        for name, value in figures.items():
            check_figure(name, value)
        if step is not None and (not isinstance(step, int) or step < 0):
            raise InputError(f"step is {step!r}: pass a number of steps, 0 or more")
        if self._hooks.role.writes and self._hooks.attached:
            numbers = {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in figures.items()}
            at = self.step if step is None else step
            self._hooks.recorder.note(at, numbers)
            self.history.note(at, numbers)
            if any(map(is_held_out, numbers)):
                self._hooks.validate()
            for finding in watch_validation(self.history, self.step):
                self._hooks.recorder.raise_now(finding)

    def skip(self, seconds: float) -> None:
        """Leave out time in which the loop stood still (an evaluation, another run)."""
        self._hooks.budget.skip(seconds)

    def flush(self) -> None:
        """Wait for everything that was measured, write it down and look for alarms."""
        self._hooks.send(wait=True)
