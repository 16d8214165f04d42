"""The hooks around the forwards of a watched model: each looks at a counter alone unless its step is due."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..bounds.domain.domain import Domain
from ..core.errors import said
from ..core.untouched import unwrapped
from .forward_record import ForwardRecord
from .hooking import WeakHook, around_forward
from .measuring import Measurement
from .probes.domains import DomainProbe
from .probes.inputs import spread
from .run_state import RunState
from .schedule import Tier
from .step_listener import StepListener
from .watched_layers import describe, metadata


class ForwardHooks:
    """Listens to the forwards of a model at measured steps; the first one says what there is to watch.

    Args:
        run: the state of the run.
        outer: the model as it is called in the loop.
        optimizer: the optimizer that trains it.
        domain: the domain that batches are compared with, if any.

    Attributes:
        model: the one inside of `outer`.
    """

    def __init__(self, run: RunState, outer: nn.Module, optimizer: Optimizer, domain: Domain | None) -> None:
        self._run, self._optimizer = run, optimizer
        self._probe = None if domain is None else DomainProbe(domain)
        self._batch: tuple[Tensor | None, Tensor | None] = None, None
        self._hooks: list[Any] = []
        self._set(outer)

    def _set(self, outer: nn.Module) -> None:
        self.outer, self.model = outer, unwrapped(outer)
        self._listener = StepListener(self.outer, self.model)

    def attach(self) -> None:
        """Hook on to the model."""
        before, after = WeakHook(self._before, self.outer), WeakHook(self._after, self.outer)
        self._hooks = around_forward(self.outer, before, after)

    def detach(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def turn_to(self, outer: nn.Module, call: tuple[Any, Any] | None) -> None:
        """Listen to another model instead; `call` has a forward of it that has begun."""
        self.detach()
        self._set(outer)
        self.attach()
        if call is not None:
            self._before(outer, *call)

    def stop_listening(self) -> None:
        """Stop listening to a forward that has not ended."""
        self._listener.close()

    def let_go(self) -> None:
        """Keep no model alive."""
        self._probe, self._batch = None, (None, None)
        for name in ("outer", "model", "_optimizer"):
            self.__dict__.pop(name, None)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the model has now; each keeps the name that it had at the first forward."""
        return self._listener.parameters()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        run = self._run
        if run.busy or torch.compiler.is_compiling():
            return
        stuck = run.sight.forward(training=self.model.training)
        if not self.model.training or self._listener.listens:
            return
        run.locator.batch = (args, kwargs)
        if stuck is not None:
            run.recorder.complain("stuck", stuck)
        run.send_earlier()
        tier, pending = run.due(), run.pending
        heard = pending is not None and pending.seen is not None and not pending.abandoned
        if tier is None or heard:
            return
        with run.clock.watching():
            try:
                self._listen(tier, args, kwargs)
            except Exception as error:
                run.recorder.complain("forward", f"this step's forward is not measured: {said(error)}")
            finally:
                run.busy = False

    def _listen(self, tier: Tier, args: Any, kwargs: Any) -> None:
        """Listen to the forward that begins, in the first one as the richest tier asks for."""
        self._batch = self._place(args, kwargs), spread(args, kwargs)
        first = self._run.subject is None
        tier = max(self._run.schedule.every, key=lambda tier: tier.rank) if first else tier
        self._run.busy = True  # it may be run aside
        seen = self._listener.begin(tier, args, kwargs, first=first)
        if seen is not None:
            self._heard(seen)

    def _place(self, args: Any, kwargs: Any) -> Tensor | None:
        """Return where a batch stands in the domain that is followed; None where there is none."""
        try:
            return None if self._probe is None else self._probe.measure(args, kwargs)
        except Exception as error:
            words = f"where the data stand in the domain is not measured: {said(error)}"
            self._run.recorder.complain("domain", words)
            return None

    def _after(self, module: nn.Module, args: Any, made: Any) -> None:
        if not self._listener.listens:
            return
        run, seen = self._run, None
        with run.clock.watching():
            try:
                seen = self._listener.end()
                raised = made is None and sys.exc_info()[0] is not None
                if seen is not None and not raised:
                    self._heard(seen)
            except Exception as error:
                run.recorder.complain("forward", f"this step's forward is not measured: {said(error)}")
        run.clock.spend(0.0 if seen is None else seen.seconds)

    def _heard(self, seen: ForwardRecord) -> None:
        """Take what was seen of a forward; the first one says what there is to watch."""
        run = self._run
        if run.subject is None:
            run.subject = describe(self.model, seen, self._optimizer)
            run.subject.layers += () if self._probe is None else self._probe.layers
            self._listener.learn(seen)
            about = metadata(run.subject, self.model, self._optimizer, run.schedule, run.step)
            run.recorder.begin(run.subject.layers, about)
        tier = run.due()
        seen.domain, seen.spread = self._batch
        if tier is not None:
            run.pending = run.pending or Measurement(run.step, tier, run.subject, self._optimizer)
            run.pending.seen = seen
            if not (run.role.sharded or run.pending.clearing or self._listener.apart):
                run.pending.clearing = run.history.standing.clearing()
