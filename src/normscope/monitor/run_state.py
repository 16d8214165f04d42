"""What the hooks of a watched run share: its clock, its step, the step that is being measured, where records go."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from ..core.errors import said
from ..core.finding import Finding
from .clock import Clock
from .distributed import ProcessRole
from .history import History
from .locating import Locator
from .measuring import Measurement
from .observed import Observed
from .recording import Recorder
from .schedule import Schedule, Tier
from .unseen import Sight
from .watched_layers import Subject


@dataclass(slots=True, kw_only=True)
class RunState:
    """A watched run as it stands.

    Attributes:
        schedule: which steps are measured.
        role: what this process does.
        recorder: where records go; another one once the run is entered.
        sight: what keeps the watcher from seeing; anew once the run is entered.
        step: how many steps the optimizer has taken.
        busy: whether the model is run by the watcher just now, not by the loop.
        subject: what is watched; None before the first measured forward.
        pending: the step that is being measured, if one is.
        figures: what the loop observed since the last record, by name.
        clock: the time of the run and that of the watcher.
        locator: finds where a loss broke.
    """

    schedule: Schedule
    role: ProcessRole
    recorder: Recorder
    sight: Sight
    step: int = 0
    busy: bool = False
    subject: Subject | None = None
    pending: Measurement | None = None
    figures: dict[str, Observed] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    locator: Locator = field(default_factory=Locator)

    @property
    def history(self) -> History:
        """The layers, records and alarms so far."""
        return self.recorder.history

    def due(self) -> Tier | None:
        """Return how much of the present step is measured; None for nothing."""
        return self.schedule.due(self.step)

    def add(self, name: str, value: Tensor | float) -> float | None:
        """Add a figure of the present step; return it, unless it lies on a device, where it is not read."""
        return self.figures.setdefault(name, Observed()).add(self.step, value)

    def say(self, blind: Finding | None) -> None:
        """Warn that nothing is seen, and raise it as an alarm: no record will."""
        if blind is not None:
            self.recorder.complain("blind", f"{blind.seen[0].lower()}{blind.seen[1:]} {blind.advice}")
            self.recorder.raise_now(blind)

    def locate(self, model: nn.Module) -> None:
        """Find where a loss broke that is not finite."""
        self.busy = True
        with self.clock.watching():
            try:
                self.history.broken = self.locator.look(model, self.step)
            except Exception as error:
                self.recorder.complain("locate", f"where the loss broke is not known: {said(error)}")
            finally:
                self.busy = False

    def send_earlier(self) -> None:
        """Send what was measured of an earlier step."""
        if self.pending is not None and self.pending.step != self.step:
            self.send()

    def send(self, *, wait: bool = False) -> None:
        """Send what was measured of a step on its way to the host, and hand on what has arrived."""
        pending, self.pending = self.pending, None
        if pending is None and not wait:
            return
        with self.clock.watching():
            if pending is not None and self.role.writes:
                observed = {name: held.take() for name, held in self.figures.items()}
                self.recorder.send(pending, self.clock.passed, observed)
            self.recorder.collect(self.clock.overhead, wait=wait)
        self.clock.settle()
