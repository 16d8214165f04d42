"""The hooks around the steps of a watched optimizer: each looks at a counter alone unless its step is due."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..core.errors import said
from .composing import Known
from .forward_hooks import ForwardHooks
from .hooking import WeakHook, after_closure, steps_under_way
from .measuring import Measurement
from .probes.sharpness import SharpnessProbe
from .run_state import RunState
from .schedule import Tier
from .time_share import TimeShare


class StepHooks:
    """Counts the steps of an optimizer, and measures gradients, weights and updates of those that are due.

    Args:
        run: the state of the run.
        optimizer: whose steps are counted.
        forwards: the hooks around the forwards of the model that it trains.
        budget: the budget of operator norms and updates in the economy tier.
        sharpness: measures the largest curvature, where that is asked for.
    """

    def __init__(
        self,
        run: RunState,
        optimizer: Optimizer,
        forwards: ForwardHooks,
        *,
        budget: TimeShare,
        sharpness: SharpnessProbe | None,
    ) -> None:
        self._run, self._optimizer, self._forwards = run, optimizer, forwards
        self.budget, self.sharpness = budget, sharpness
        self._known = Known()
        self._stepping = 0
        self._hooks: list[Any] = []

    @property
    def attached(self) -> bool:
        """Whether steps are counted."""
        return bool(self._hooks)

    def attach(self) -> None:
        """Hook on to the optimizer; a process that measures nothing only counts its steps."""
        if self._run.role.idle:
            self._hooks = [self._optimizer.register_step_post_hook(WeakHook(self._after))]
            return
        self._hooks = [
            self._optimizer.register_step_pre_hook(WeakHook(self._before)),
            self._optimizer.register_step_post_hook(WeakHook(self._after)),
            register_optimizer_step_post_hook(WeakHook(self._after_any)),
        ]

    def detach(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def let_go(self) -> None:
        """Keep neither the optimizer nor what was found of the layers."""
        self._known = Known()
        self.__dict__.pop("_optimizer", None)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._stepping = steps_under_way(optimizer) if self._stepping else 1  # one that raised has not ended
        tier = self._run.due()
        self._run.history.standing.pass_by()
        if tier is None or self._stepping > 1:  # a step that calls that of its base class
            return None
        changed = after_closure(args, kwargs, lambda: self._measure(optimizer, tier))
        if changed is None:
            self._measure(optimizer, tier)
        return changed

    def _measure(self, optimizer: Optimizer, tier: Tier) -> None:
        """Measure what there is in front of a step."""
        run = self._run
        with run.clock.watching():
            try:
                run.send_earlier()
                if run.pending is None and run.subject is not None:
                    run.pending = Measurement(run.step, tier, run.subject, optimizer)
                if run.pending is not None:
                    self._measure_pending(run.pending, optimizer, tier)
            except Exception as error:
                run.recorder.complain("step", f"this step's gradients are not measured: {said(error)}")

    def _measure_pending(self, pending: Measurement, optimizer: Optimizer, tier: Tier) -> None:
        """Measure gradients, weights and curvature, and look at who has no gradient."""
        run, parameters = self._run, self._forwards.parameters()
        pending.before(parameters, self._known, self.budget if tier is Tier.ECONOMY else TimeShare(None))
        if tier is Tier.FULL:
            self._measure_curvature(optimizer)
        if not run.role.sharded:
            run.history.standing.look(parameters, optimizer, run.step)
        if pending.lost:
            names = ", ".join(pending.lost[:3])
            run.recorder.complain("lost", f"{names}: other parameters than at first, not followed there")

    def _measure_curvature(self, optimizer: Optimizer) -> None:
        """Measure the largest curvature, where that is asked for, and what the learning rate makes of it."""
        run = self._run
        if self.sharpness is None or not run.role.writes:
            return
        run.busy = True
        try:
            value = self.sharpness.measure(self._forwards.model)
        except Exception as error:
            self.sharpness = None
            run.recorder.complain("sharpness", f"the largest curvature is not measured: {said(error)}")
            return
        finally:
            run.busy = False
        if value is not None:
            rate = max(float(group["lr"]) for group in optimizer.param_groups)
            run.add("sharpness", value)
            run.add("effective_sharpness", rate * value)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping = max(0, self._stepping - 1)
        if self._stepping:
            return
        run = self._run
        run.locator.batch, pending = None, run.pending
        if pending is not None and pending.step == run.step:
            with run.clock.watching():
                try:
                    pending.after()
                except Exception as error:
                    run.recorder.complain("update", f"this step's update is not measured: {said(error)}")
        run.step += 1
        if not run.role.idle:
            run.say(run.sight.stepped(run.step))

    def _after_any(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is self._optimizer or self._stepping:  # or one that ours is made of
            return
        self._run.say(self._run.sight.stepped_by(optimizer, self._optimizer, self._run.step))
