"""How a training run is intercepted: the hooks around the forwards of a model and the steps of its optimizer.

A step is measured if it is due and there is time for it; in all others each hook only looks at a counter. In a measured
step the first forward in train mode is listened to, gradients and weights are measured before the optimizer's step and
the update after it, and what was measured is sent to the host when the next step begins. `TrainingHooks` does all of
that. Below it stand the hooks that torch lacks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, ref

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...core.errors import describe_error
from ...core.finding import Finding
from ...core.untouched import unwrapped
from ..symptoms.inputs import may_repeat_batches
from .composing import LayerMemory, Observed
from .distributed import ProcessRole, is_alone
from .forward_listening import ForwardRecord, StepListener
from .history import History
from .locating import Locator
from .measuring import Measurement
from .probes.batches import DomainProbe, mark_batch, measure_batch
from .recording import Recorder
from .schedule import Schedule, Tier, TimeBudget
from .unseen_training import UnseenTrainingDetector
from .watched_layers import Subject, describe_layers, describe_run

if TYPE_CHECKING:
    from .probes.sharpness import SharpnessProbe

Before = Callable[[nn.Module, Any, Any], None]
After = Callable[[nn.Module, Any, Any], None]


class TrainingHooks:
    """A watched run as it stands, and the hooks that move it on. Nothing here stops a training run.

    Args:
        outer: the model as it is called in the loop.
        optimizer: the optimizer that trains it.
        schedule: which steps are measured.
        role: what this process does.
        recorder: where records go; another one once the run is entered.
        budget: the time of the run, and what of it watching takes and may take.
        domain: measures where batches stand in a domain, where that is asked for.
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
        domain: DomainProbe | None,
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
        self._domain, self._locator, self._memory = domain, Locator(), LayerMemory()
        self._figures: dict[str, Observed] = {}  # what the loop has observed since the last record
        self._subject: Subject | None = None  # None before the first measured forward
        self._pending: Measurement | None = None  # the step that is being measured
        self._batch: tuple[Tensor | None, Tensor | None] = None, None  # its place in the domain, and its spread
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
        due = self.step >= self._next_due or self._nests or self.history.standing.waits
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
        self._domain, self._batch, self._locator, self._memory = None, (None, None), Locator(), LayerMemory()
        self.history.standing.let_go()
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
        has_forward = pending is not None and pending.forward is not None and not pending.abandoned
        if tier is None or has_forward:
            return
        with self.budget.watching(self._task):
            try:
                self._remove_after_hook()
                self._listen(tier, args, kwargs)
            except Exception as error:
                self.recorder.complain("forward", f"this step's forward is not measured: {describe_error(error)}")
            finally:
                self.busy = False

    def _listen(self, tier: Tier, args: Any, kwargs: Any) -> None:
        """Listen to the forward that begins, in the first one as the richest tier asks for."""
        self._batch = self._place_in_domain(args, kwargs), measure_batch(args, kwargs)
        first = self._subject is None
        self.busy = True  # it may be run aside
        forward = self._listener.begin(self.schedule.richest if first else tier, args, kwargs, first=first)
        if forward is not None:
            self._take_forward(forward)
        elif not isinstance(self._forward_hooks[0], CompiledCallback):
            after = WeakHook(self._after_forward, self.outer)
            self._after_hook = self.outer.register_forward_hook(after, always_call=True)

    def _mark_next_batch(self, pending: Measurement, args: Any, kwargs: Any) -> None:
        """Take the marks of the batch behind a measured one: records may be in step with the epochs of a loader."""
        is_next = pending.step == self.step - 1 and torch.is_grad_enabled()  # else of a validation in train mode
        if is_next and may_repeat_batches(self.history):
            with self.budget.watching(("step", pending.tier)):
                try:
                    pending.next_batch = mark_batch(args, kwargs)
                except Exception as error:
                    self.recorder.complain("batch", f"the batch of a step is not measured: {describe_error(error)}")

    def _place_in_domain(self, args: Any, kwargs: Any) -> Tensor | None:
        """Return where a batch stands in the domain that is followed; None where there is none."""
        try:
            return None if self._domain is None else self._domain.measure(args, kwargs)
        except Exception as error:
            self.recorder.complain(
                "domain", f"where the data stand in the domain is not measured: {describe_error(error)}"
            )
            return None

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._listener.listens:
            if self._pending is not None:
                self._pending.take_outputs(output)
            return
        with self.budget.watching(self._task):
            try:
                forward = self._listener.end()
                raised = output is None and sys.exc_info()[0] is not None
                if forward is not None and not raised:
                    self._take_forward(forward)
                    if self._pending is not None:
                        self._pending.take_outputs(output)
            except Exception as error:
                self.recorder.complain("forward", f"this step's forward is not measured: {describe_error(error)}")

    def _take_forward(self, forward: ForwardRecord) -> None:
        """Take what was seen of a forward; the first one says what there is to watch."""
        if self._subject is None:
            self._subject = describe_layers(self.model, forward, self.optimizer, part=self.history.standing.part)
            self._subject.layers += () if self._domain is None else self._domain.layers
            self._listener.learn(forward)
            about = describe_run(self._subject, self.model, self.optimizer, self.schedule, self.step)
            self.recorder.begin(self._subject.layers, about)
        tier = self._decide()
        forward.domain, forward.spread = self._batch
        if not self.role.sharded:
            modules = self._listener.modules()
            self.history.standing.look_at_modules(modules, self.optimizer, self.step)
            if self.history.standing.alike is None:
                self.history.standing.look_at_first_weights(modules)
        if tier is not None:
            pending = self._pending or Measurement(self.step, tier, self._subject, self.optimizer)
            pending.forward, self._pending = forward, pending
            self._backwards.open()
            if not (self.role.sharded or pending.clearing or self._listener.apart):
                pending.clearing = self.history.standing.clearing()

    # ---- steps of the optimizer

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._stepping = max(steps_under_way(optimizer), 1) if self._stepping else 1  # one that raised has not ended
        self._nests = self._nests or self._stepping > 1
        tier = self._decide()
        self.history.standing.pass_by()
        if tier is None or self._stepping > 1:  # a step that calls that of its base class
            return None
        changed = after_closure(args, kwargs, lambda: self._measure(optimizer, tier))
        if changed is None:
            self._measure(optimizer, tier)
        return changed

    def _measure(self, optimizer: Optimizer, tier: Tier) -> None:
        """Measure gradients, weights and curvature in front of a step, and look at who has no gradient."""
        self._backwards.close()
        with self.budget.watching(self._task):
            try:
                self._send_earlier()
                if self._pending is None and self._subject is not None:
                    self._pending = Measurement(self.step, tier, self._subject, optimizer)
                if self._pending is None:
                    return
                parameters = self._listener.parameters()
                self._pending.before(parameters, self._memory, self.budget)
                if tier is Tier.FULL:
                    self._measure_curvature(optimizer)
                if not self.role.sharded:
                    self.history.standing.look(parameters, optimizer, self.step, self._whole)
                if self._pending.lost:
                    names = ", ".join(self._pending.lost[:3])
                    self.recorder.complain("lost", f"{names}: other parameters than at first, not followed there")
            except Exception as error:
                self.recorder.complain("step", f"this step's gradients are not measured: {describe_error(error)}")

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
            self._add_figure("sharpness", value)
            self._add_figure("effective_sharpness", rate * value)

    def _after_any_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is self.optimizer:
            self._after_step()
        elif not self._idle and not steps_under_way(self.optimizer):  # not one that ours is made of
            self.history.standing.others += 1
            self._say(self.sight.stepped_by(optimizer, self.optimizer, self.step))

    def _after_step(self) -> None:
        if self._stepping > 1:
            self._stepping -= 1
            return
        self._stepping = 0
        self._locator.stepped, pending = True, self._pending
        if pending is not None and pending.step == self.step:
            with self.budget.watching(self._task):
                try:
                    self._remove_after_hook()  # not in the hook itself: torch goes through them if the forward raises
                    pending.after()
                    if not self.role.sharded:
                        self.history.standing.look_behind()
                except Exception as error:
                    self.recorder.complain("update", f"this step's update is not measured: {describe_error(error)}")
        self.step += 1
        if self._before_hook is not None or self.step >= self._next_due:
            self._look_ahead()
        if not self._idle and self.sight.stepped():
            self._say(self.sight.explain(self.step, self.model))
            if self.sight.part is not None:
                (path, part), self.sight.part = self.sight.part, None
                self.history.standing.part = path
                self.turn_to(part, None)

    # ---- what the loop says, and what is said to it

    def observe(self, figures: Mapping[str, Tensor | float]) -> None:
        """Add figures of the present step; a loss that is not finite has its forward run again."""
        if self._pending is not None and "loss" in figures:
            with self.budget.watching(self._task):
                self._pending.observe(figures["loss"], self._memory)
                self.history.standing.read(self._pending.reading, self.step)
        if self.role.writes and self._step_hooks:
            if not self.sight.sees:
                self._say(self.sight.observed(self.optimizer, self.step))
            for name, value in figures.items():
                number = self._add_figure(name, value)
                if number is not None and name == "loss" and self._locator.is_asked(number):
                    self._locate()

    def _hear(self, loss: Tensor) -> None:
        """Take a loss whose backward begins in a measured step; one that is not finite has its forward run again."""
        if self._pending is None or self._pending.step != self.step or self.busy:
            return
        with self.budget.watching(self._task):
            value = self._pending.hear(loss, self._memory, alone=not self.history.standing.others)
            self.history.standing.read(self._pending.reading, self.step)
            if is_alone() and not self.history.standing.others:  # else gradients are not those of this loss alone
                self._pending.begin_backward(self._forwards)
        if value.device.type == "cpu" and self._locator.is_asked(value.item()):
            self._locate()

    def _hear_the_end(self) -> None:
        """Take the gradients that a backward leaves in a measured step."""
        if self._pending is not None and self._pending.halves is not None:
            with self.budget.watching(self._task):
                self._pending.end_backward()

    def validate(self) -> None:
        """Count a validation whose forward was in train mode with dropout on; an alarm is raised of these."""
        standing = self.history.standing
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
                self.history.broken = self._locator.look(self.model, self.step)
            except Exception as error:
                self.recorder.complain("locate", f"where the loss broke is not known: {describe_error(error)}")
            finally:
                self.busy = False

    def _send_earlier(self) -> None:
        """Send what was measured of an earlier step."""
        if self._pending is not None and self._pending.step != self.step:
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


# ---- hooks around forwards, where those of torch are not enough


class WeakHook:
    """A hook that calls a method while its object lives; its copy, in a copied or pickled model, calls nothing.

    Args:
        method: the bound method to call; None for a hook that calls nothing.
        module: the module that it is a hook of; deep copies of the module have no such hook.
    """

    def __init__(self, method: Callable[..., Any] | None = None, module: nn.Module | None = None) -> None:
        self._owner: Callable[[], Any] = (lambda: None) if method is None else ref(method.__self__)  # type: ignore[attr-defined]
        self._function: Any = None if method is None else method.__func__  # type: ignore[attr-defined]
        self._module = None if module is None else ref(module)

    def __call__(self, *args: Any) -> Any:
        """Call the method, if there is one left; nothing of it is compiled."""
        if is_compiling():
            return None
        owner = self._owner()
        return None if owner is None else self._function(owner, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        # a saved model is loaded where there is no Normscope too: a callable of Python's own that does nothing
        return getattr, (nullcontext(), "__exit__")

    def __deepcopy__(self, memo: Any) -> WeakHook:
        module = None if self._module is None else self._module()
        copied = None if module is None else memo.get(id(module))
        if copied is not None:
            _leave_out_weak_hooks(copied)
        return WeakHook()


def _leave_out_weak_hooks(copied: nn.Module) -> None:
    """Let a copy that is being made drop such hooks once it has its state, which is the last thing that a copy gets."""

    def finish(state: Any) -> None:
        del copied.__dict__["__setstate__"]
        copied.__setstate__(state)
        for hooks in (copied._forward_pre_hooks, copied._forward_hooks):
            for number in [number for number, hook in hooks.items() if isinstance(hook, WeakHook)]:
                del hooks[number]
                for flags in (copied._forward_pre_hooks_with_kwargs, copied._forward_hooks_always_called):
                    flags.pop(number, None)

    copied.__dict__["__setstate__"] = finish


class CompiledCallback:
    """Calls back around a module that was compiled in place: its own hooks would be compiled with it."""

    def __init__(self, module: nn.Module, before: Before, after: After) -> None:
        self.module, self.compiled = module, module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            before(module, args, kwargs)
            output = None  # as for torch's hooks: nothing if it raised
            try:
                output = self.compiled(*args, **kwargs)  # type: ignore[misc]
                return output
            finally:
                after(module, args, output)

        module._compiled_call_impl = call

    def remove(self) -> None:
        """Put the module back as it was."""
        self.module._compiled_call_impl = self.compiled


# ---- the losses of measured steps, heard where their backwards begin: also those that a loop tells nobody

# torch has no hook in front of a backward, and behind it the outputs and targets that autograd kept are gone. So the
# function `torch.autograd.backward`, which `Tensor.backward` calls, is replaced while somebody listens: from a measured
# forward to the step of the optimizer, and never in other steps.

_listeners: list[BackwardListener] = []
_backward: Callable[..., None] = torch.autograd.backward


class BackwardListener:
    """While it is open, calls one method with each loss whose backward begins, and another when that has ended.

    Args:
        hear: the bound method that gets the loss; its object is not kept alive.
        end: the bound method that is called at the end, without arguments.
    """

    def __init__(self, hear: Callable[[Tensor], None], end: Callable[[], None] | None = None) -> None:
        self._hear, self._end = WeakMethod(hear), None if end is None else WeakMethod(end)

    def open(self) -> None:
        """Begin to listen."""
        global _backward
        if self not in _listeners:
            if not _listeners:
                _backward = torch.autograd.backward
                torch.autograd.backward = _hear_and_run
            _listeners.append(self)

    def close(self) -> None:
        """Stop listening; the last one puts torch's function back."""
        if self in _listeners:
            _listeners.remove(self)
            if not _listeners and torch.autograd.backward is _hear_and_run:
                torch.autograd.backward = _backward

    def begin(self, tensors: Any) -> None:
        """Hand on the one number that a backward begins with."""
        hear = self._hear()
        loss = tensors[0] if isinstance(tensors, Sequence) and len(tensors) == 1 else tensors
        if hear is None:
            self.close()
        elif isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_complex():
            with contextlib.suppress(Exception):  # what cannot be heard never stops a backward
                hear(loss)

    def end(self) -> None:
        """Say that the backward has ended."""
        end = None if self._end is None else self._end()
        if end is not None:
            with contextlib.suppress(Exception):
                end()


def _hear_and_run(tensors: Any, *args: Any, **kwargs: Any) -> None:
    """Let everybody hear of a backward, and run it."""
    listeners = () if is_compiling() else tuple(_listeners)
    for listener in listeners:
        listener.begin(tensors)
    _backward(tensors, *args, **kwargs)
    for listener in listeners:
        listener.end()


# ---- steps that call others, or take a closure


STEP_CODE = Optimizer.profile_hook_step(lambda self: None).__code__
"""The function of torch that runs around an optimizer's step and calls its hooks."""


def steps_under_way(optimizer: Optimizer) -> int:
    """Return how many steps of an optimizer have begun and not ended: two where one calls that of its base class."""
    frame: FrameType | None = sys._getframe()
    count = 0
    while frame is not None:
        count += frame.f_code is STEP_CODE and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return count


def after_closure(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], then: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of an optimizer's step with a closure that calls back once it has run for the first time.

    With a closure, forward and backward happen inside of the step: in front of it there are no gradients yet.

    Args:
        args: the positional arguments of the step, as a pre-hook gets them: the optimizer first.
        kwargs: the named arguments of the step.
        then: what is called.

    Returns:
        What a pre-hook returns to change them; None if there is no closure.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None
    called = False

    def run() -> Any:
        nonlocal called
        loss = closure()
        if not called:
            called = True
            then()
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": run}
    return (args[0], run, *args[2:]), dict(kwargs)
