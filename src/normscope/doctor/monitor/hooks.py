"""How a training run is intercepted: the hooks around the forwards of a model and the steps of its optimizer.

A step is measured if it is due and there is time for it; in all others each hook only looks at a counter. In a measured
step the first forward in train mode is listened to, gradients and weights are measured before the optimizer's step and
the update after it, and what was measured is sent to the host when the next step begins. `TrainingHooks` does all of
that.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...core.errors import describe_error
from ...core.finding import Finding
from ...core.untouched import unwrapped
from ..symptoms.inputs import may_repeat_batches
from .distributed import ProcessRole, is_alone
from .forward_listening import StepListener
from .forward_record import ForwardRecord
from .history import History
from .locating import Locator
from .quantities.accumulation import Accumulation
from .quantities.batch import measure_batch
from .quantities.loss_parts import LossParts
from .quantities.losses import Losses, Observed
from .quantities.quantity import Probe
from .quantities.sharpness import EFFECTIVE_SHARPNESS, SHARPNESS, SharpnessProbe
from .record_writer import Recorder, describe_run
from .schedule import Schedule, Tier, TimeBudget
from .step_measurement import StepMeasurement
from .torch_hooks import BackwardListener, CompiledCallback, WeakHook, after_closure, steps_under_way
from .unseen_training import UnseenTrainingDetector
from .watched_layers import Subject, describe_layers


class TrainingHooks:
    """A watched run as it stands, and the hooks that move it on. Nothing here stops a training run.

    Args:
        outer: the model as it is called in the loop.
        optimizer: the optimizer that trains it.
        schedule: which steps are measured.
        role: what this process does.
        recorder: where records go; another one once the run is entered.
        budget: the time of the run, and what of it watching takes and may take.
        sharpness: measures the largest curvature, where that is asked for.

    Attributes:
        model: the one inside of `outer`.
        step: how many steps the optimizer has taken.
        busy: whether the model is run by the watcher just now, not by the loop.
        sight: what keeps the watcher from seeing; anew once the run is entered.
    """

    def __init__(
        self,
        outer: nn.Module,
        optimizer: Optimizer,
        *,
        schedule: Schedule,
        role: ProcessRole,
        recorder: Recorder,
        budget: TimeBudget,
        sharpness: SharpnessProbe | None,
    ) -> None:
        self.optimizer, self.schedule, self.role = optimizer, schedule, role
        self.recorder, self.budget, self.sharpness = recorder, budget, sharpness
        self.sight = UnseenTrainingDetector(optimizer)
        self.step, self.busy, self._idle = 0, False, role.idle
        self._decided: tuple[int, Tier | None] = -1, None  # a step, and how much of it is measured
        self._next_due = 0  # the next step that is due and not decided on
        self._charged = 0  # up to which step the time of steps that are not measured is counted
        self._owed: Tier | None = None  # one that was due when there was no time for it
        self._locator, self._memories = Locator(), dict[type[Probe], Any]()
        self._figures: dict[str, Observed] = {}  # what the loop has observed since the last record
        self._subject: Subject | None = None  # None before the first measured forward
        self._pending: StepMeasurement | None = None  # the step that is being measured
        self._batch: Tensor | None = None  # what tells it from others
        self._stepping = 0  # steps of the optimizer that have begun and not ended
        self._nests = False  # whether its step calls that of its base class
        self._forward_hooks: list[Any] = []
        self._backwards = BackwardListener(self._hear, self._hear_the_end)
        self._forwards = 0  # in train mode, in measured steps
        self._after_hook: Any = None  # behind the forward that was last listened to
        self._step_hooks: list[Any] = []
        self._before_hook: Any = None  # in front of a step of the optimizer, where there is something to do
        self._set_model(outer)
        self._whole: nn.Module | None = None  # the model of which only a part is called
        self._validates_in_train_mode = False  # whether the last forward was in train mode, without gradients

    def _set_model(self, outer: nn.Module) -> None:
        self.outer, self.model = outer, unwrapped(outer)
        self._listener = StepListener(self.outer, self.model, lambda: self.budget.watching(self._task))

    @property
    def _task(self) -> Hashable:
        """What the time of a measured step is spent on, norms and other things that can wait left out."""
        return "step", self._decided[1]

    def _decide(self) -> Tier | None:
        """Return how much of the present step is measured: what is due, as far as there is time for it."""
        if self.step < self._next_due:
            return self._decided[1] if self._decided[0] == self.step else None
        self._decided = self.step, self._choose_tier()
        self._next_due = self.schedule.next_due(self.step + 1)
        return self._decided[1]

    def _choose_tier(self) -> Tier | None:
        """Return how much of a step that is due is measured; a richer tier comes once there is time for it."""
        due = self.schedule.due(self.step)
        if due is None:
            return None
        wanted = max((due, self._owed or due), key=lambda tier: tier.rank)
        if wanted is not Tier.ECONOMY and not self.budget.affords(("step", wanted)):
            self._owed, wanted = wanted, Tier.ECONOMY
        else:
            self._owed = None
        self.budget.save_for(self._owed and ("step", self._owed))
        return wanted if self.budget.takes_record(("step", wanted)) else None

    @property
    def history(self) -> History:
        """The layers, records and alarms so far."""
        return self.recorder.history

    @property
    def attached(self) -> bool:
        """Whether steps are counted."""
        return bool(self._step_hooks)

    def count_from(self, step: int) -> None:
        """Count steps from another one on."""
        self.step = self._next_due = self._charged = step
        if self.attached:
            self._look_ahead()

    def attach_to_model(self) -> None:
        """Hook on to the model."""
        before = WeakHook(self._before_forward, self.outer)
        if getattr(self.outer, "_compiled_call_impl", None) is not None:
            after = WeakHook(self._after_forward, self.outer)
            self._forward_hooks = [CompiledCallback(self.outer, before, after)]
        else:  # that behind the forward is there while it is listened to
            self._forward_hooks = [self.outer.register_forward_pre_hook(before, with_kwargs=True, prepend=True)]

    def attach_to_optimizer(self) -> None:
        """Hook on to the optimizer; a process that measures nothing only counts its steps."""
        self._step_hooks = [register_optimizer_step_post_hook(WeakHook(self._after_any_step))]
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Hook on in front of the next step if it is due or parameters wait for a gradient; else take that hook off."""
        due = self.step >= self._next_due or self._nests or self.history.parameter_state.waits
        if due and self._before_hook is None and not self.role.idle:
            self._before_hook = self.optimizer.register_step_pre_hook(WeakHook(self._before_step))
        elif not due and self._before_hook is not None:
            self._before_hook.remove()
            self._before_hook = None

    def turn_to(self, outer: nn.Module, call: tuple[Any, Any] | None) -> None:
        """Listen to another model instead, unless one was measured; `call` has a forward of it that has begun."""
        if self._subject is not None or self.role.idle:
            return
        self._detach_from_model()
        self._whole = self.model
        self._set_model(outer)
        self.attach_to_model()
        if call is not None:
            self._before_forward(outer, *call)

    def detach(self) -> None:
        """Take the hooks away, and stop listening to a forward that has not ended."""
        for hook in self._step_hooks:
            hook.remove()
        self._step_hooks = []
        if self._before_hook is not None:
            self._before_hook.remove()
            self._before_hook = None
        self.sight.close()
        self._backwards.close()
        self._detach_from_model()
        self._listener.close()

    def _detach_from_model(self) -> None:
        self._remove_after_hook()
        for hook in self._forward_hooks:
            hook.remove()
        self._forward_hooks = []

    def _remove_after_hook(self) -> None:
        if self._after_hook is not None:
            self._after_hook.remove()
            self._after_hook = None

    def let_go(self) -> None:
        """Keep neither model nor optimizer alive, nor what was found of the layers."""
        self._batch, self._locator, self._memories = None, Locator(), {}
        self.history.parameter_state.let_go()
        for name in ("outer", "model", "optimizer", "_whole"):
            self.__dict__.pop(name, None)

    # ---- forwards

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.busy:
            return
        training = self.model.training or self.sight.counts(self.model)
        self._validates_in_train_mode = training and not torch.is_grad_enabled()
        if not (training and self.sight.passes()):
            self._say(self.sight.forward(self.step, training=training))
        if not training or self._listener.listens:
            return
        self._locator.batch, self._locator.stepped = (args, kwargs), False
        if self._pending is not None:
            self._mark_next_batch(self._pending, args, kwargs)
            self._send_earlier()
        elif self.step < self._next_due and self._decided[0] != self.step:  # most steps: not due
            return
        self._forwards += 1
        tier, pending = self._decide(), self._pending
        has_forward = pending is not None and pending.forward is not None and not pending.probe(Losses).abandoned
        if tier is None or has_forward:
            return
        with self._measuring("forward", "this step's forward is not measured"):
            try:
                self._remove_after_hook()
                self._listen(tier, args, kwargs)
            finally:
                self.busy = False

    @contextmanager
    def _measuring(self, topic: str, lost: str) -> Iterator[None]:
        """Count the time of a block for the present step; what fails in it is told once, as what is lost by that."""
        with self.budget.watching(self._task):
            try:
                yield
            except Exception as error:
                self.recorder.complain(topic, f"{lost}: {describe_error(error)}")

    def _listen(self, tier: Tier, args: Any, kwargs: Any) -> None:
        """Listen to the forward that begins, in the first one as the richest tier asks for."""
        self._batch = measure_batch(args, kwargs)
        first = self._subject is None
        self.busy = True  # it may be run aside
        forward = self._listener.begin(self.schedule.richest if first else tier, args, kwargs, first=first)
        if forward is not None:
            self._take_forward(forward)
        elif not isinstance(self._forward_hooks[0], CompiledCallback):
            after = WeakHook(self._after_forward, self.outer)
            self._after_hook = self.outer.register_forward_hook(after, always_call=True)

    def _mark_next_batch(self, pending: StepMeasurement, args: Any, kwargs: Any) -> None:
        """Take the marks of the batch behind a measured one: records may be in step with the epochs of a loader."""
        is_next = pending.number == self.step - 1 and torch.is_grad_enabled()  # else of a validation in train mode
        if is_next and may_repeat_batches(self.history):
            with self._measuring("batch", "the batch of a step is not measured"):
                pending.tell(Probe.take_next_batch, args, kwargs)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._listener.listens:
            if self._pending is not None:
                self._pending.tell(Probe.take_outputs, output)
            return
        raised = output is None and sys.exc_info()[0] is not None
        with self._measuring("forward", "this step's forward is not measured"):
            forward = self._listener.end()
            if forward is not None and not raised:
                self._take_forward(forward)
                if self._pending is not None:
                    self._pending.tell(Probe.take_outputs, output)

    def _take_forward(self, forward: ForwardRecord) -> None:
        """Take what was seen of a forward; the first one says what there is to watch."""
        if self._subject is None:
            self._subject = describe_layers(self.model, forward, self.optimizer, part=self.history.parameter_state.part)
            self._listener.learn(forward)
            about = describe_run(self._subject, self.model, self.optimizer, self.schedule, self.step)
            self.recorder.begin(self._subject.layers, about)
        tier = self._decide()
        forward.batch = self._batch
        if not self.role.sharded:
            modules = self._listener.modules()
            self.history.parameter_state.look_at_modules(modules, self.optimizer, self.step)
            if self.history.parameter_state.alike is None:
                self.history.parameter_state.look_at_first_weights(modules)
        if tier is not None:
            pending = self._pending or self._begin_measurement(tier, self._subject)
            pending.forward, self._pending = forward, pending
            self._backwards.open()
            if not (self.role.sharded or self._listener.apart):
                pending.probe(Accumulation).listen(self.history.parameter_state.smallest)

    def _begin_measurement(self, tier: Tier, subject: Subject) -> StepMeasurement:
        return StepMeasurement(self.step, tier, subject, self.optimizer, self._memories)

    # ---- steps of the optimizer

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._stepping = max(steps_under_way(optimizer), 1) if self._stepping else 1  # one that raised has not ended
        self._nests = self._nests or self._stepping > 1
        tier = self._decide()
        self.history.parameter_state.pass_by()
        if tier is None or self._stepping > 1:  # a step that calls that of its base class
            return None
        changed = after_closure(args, kwargs, lambda: self._measure(optimizer, tier))
        if changed is None:
            self._measure(optimizer, tier)
        return changed

    def _measure(self, optimizer: Optimizer, tier: Tier) -> None:
        """Measure gradients, weights and curvature in front of a step, and look at who has no gradient."""
        self._backwards.close()
        with self._measuring("step", "this step's gradients are not measured"):
            self._send_earlier()
            if self._pending is None and self._subject is not None:
                self._pending = self._begin_measurement(tier, self._subject)
            if self._pending is None:
                return
            parameters = self._listener.parameters()
            self._pending.before(parameters, self.budget)
            if tier is Tier.FULL:
                self._measure_curvature(optimizer)
            if not self.role.sharded:
                self.history.parameter_state.read_parameters(parameters, optimizer, self.step, self._whole)
            if self._pending.lost:
                names = ", ".join(self._pending.lost[:3])
                self.recorder.complain("lost", f"{names}: other parameters than at first, not followed there")

    def _measure_curvature(self, optimizer: Optimizer) -> None:
        """Measure the largest curvature, where that is asked for, and what the learning rate makes of it."""
        if self.sharpness is None or not self.role.writes:
            return
        self.busy = True
        try:
            value = self.sharpness.measure(self.model)
        except Exception as error:
            self.sharpness = None
            self.recorder.complain("sharpness", f"the largest curvature is not measured: {describe_error(error)}")
            return
        finally:
            self.busy = False
        if value is not None:
            rate = max(float(group["lr"]) for group in optimizer.param_groups)
            self._add_figure(SHARPNESS.name, value)
            self._add_figure(EFFECTIVE_SHARPNESS.name, rate * value)

    def _after_any_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is self.optimizer:
            self._after_step()
        elif not self._idle and not steps_under_way(self.optimizer):  # not one that ours is made of
            self.history.parameter_state.others += 1
            self._say(self.sight.stepped_by(optimizer, self.optimizer, self.step))

    def _after_step(self) -> None:
        if self._stepping > 1:
            self._stepping -= 1
            return
        self._stepping = 0
        self._locator.stepped, pending = True, self._pending
        if pending is not None and pending.number == self.step:
            with self._measuring("update", "this step's update is not measured"):
                self._remove_after_hook()  # not in the hook itself: torch goes through them if the forward raises
                pending.after()
                if not self.role.sharded:
                    self.history.parameter_state.look_behind()
        self.step += 1
        if self._before_hook is not None or self.step >= self._next_due:
            self._look_ahead()
        if not self._idle and self.sight.stepped():
            self._say(self.sight.explain(self.step, self.model))
            if self.sight.part is not None:
                (path, part), self.sight.part = self.sight.part, None
                self.history.parameter_state.part = path
                self.turn_to(part, None)

    # ---- what the loop says, and what is said to it

    def observe(self, figures: Mapping[str, Tensor | float]) -> None:
        """Add figures of the present step; a loss that is not finite has its forward run again."""
        if self._pending is not None and "loss" in figures:
            with self.budget.watching(self._task):
                self._pending.tell(Probe.observe_loss, figures["loss"])
                self.history.parameter_state.read(self._pending.probe(LossParts).reading, self.step)
        if self.role.writes and self._step_hooks:
            if not self.sight.sees:
                self._say(self.sight.observed(self.optimizer, self.step))
            for name, value in figures.items():
                number = self._add_figure(name, value)
                if number is not None and name == "loss" and self._locator.is_asked(number):
                    self._locate()

    def _hear(self, loss: Tensor) -> None:
        """Take a loss whose backward begins in a measured step; one that is not finite has its forward run again."""
        pending, alone = self._pending, not self.history.parameter_state.others
        if pending is None or pending.number != self.step or self.busy:
            return
        with self.budget.watching(self._task):
            pending.tell(Probe.hear_loss, loss, alone)
            self.history.parameter_state.read(pending.probe(LossParts).reading, self.step)
            if is_alone() and alone:  # else gradients are not those of this loss alone
                pending.tell(Probe.begin_backward, self._forwards)
        value = pending.probe(Losses).heard
        if value is not None and value.device.type == "cpu" and self._locator.is_asked(value.item()):
            self._locate()

    def _hear_the_end(self) -> None:
        """Take the gradients that a backward leaves in a measured step."""
        if self._pending is not None and self._pending.awaits_backward:
            with self.budget.watching(self._task):
                self._pending.tell(Probe.end_backward)

    def validate(self) -> None:
        """Count a validation whose forward was in train mode with dropout on; an alarm is raised of these."""
        standing = self.history.parameter_state
        standing.validated_in_train_mode += self._validates_in_train_mode and standing.dropout[0] > 0.0
        self._validates_in_train_mode = False

    def look_for_missed_training(self) -> None:
        """Say so if weights have changed while nothing was seen."""
        if self.attached and not self.role.idle:
            self._say(self.sight.missed(self.optimizer, self.step) or self.sight.never_stepped(self.step))

    def _add_figure(self, name: str, value: Tensor | float) -> float | None:
        """Add a figure of the present step; return it, unless it lies on a device, where it is not read."""
        figures = self._figures.get(name)
        if figures is None:
            figures = self._figures[name] = Observed()
        return figures.add(self.step, value)

    def _say(self, blind: Finding | None) -> None:
        """Warn that nothing is seen, and raise it as an alarm: no record will."""
        if blind is not None:
            self.recorder.complain("blind", f"{blind.seen[0].lower()}{blind.seen[1:]} {blind.advice}")
            self.recorder.raise_now(blind)

    def _locate(self) -> None:
        """Find where a loss broke that is not finite."""
        self.busy = True
        with self.budget.watching("locate"):
            try:
                self.history.broken = self._locator.locate_break(self.model, self.step)
            except Exception as error:
                self.recorder.complain("locate", f"where the loss broke is not known: {describe_error(error)}")
            finally:
                self.busy = False

    def _send_earlier(self) -> None:
        """Send what was measured of an earlier step."""
        if self._pending is not None and self._pending.number != self.step:
            self.send()

    def send(self, *, wait: bool = False) -> None:
        """Send what was measured of a step on its way to the host, and hand on what has arrived."""
        pending, self._pending = self._pending, None
        if pending is None and not wait:
            return
        self.budget.pass_steps(self.step - self._charged, sum(figures.count for figures in self._figures.values()))
        self._charged = self.step
        with self.budget.watching(("step", None if pending is None else pending.tier)):
            if pending is not None and self.role.writes:
                observed, self._figures = self._figures, {}
                self.recorder.send(pending, self.budget.passed, observed)
                self._figures = {name: Observed(copies=True) for name, figures in observed.items() if figures.copies}
            self.recorder.collect(self.budget.overhead, wait=wait)
        self.budget.end_record()
