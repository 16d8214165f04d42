"""Where the measured steps go: the history with its alarms, the log, the sinks, the panel."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from ...core.errors import InputError, describe_error, visible
from ...core.finding import Finding
from ...core.provenance import provenance
from ..symptoms.registry import add_record, look_for_alarms
from .blocks import parameter_count
from .history import History
from .layer_record import LayerRecord
from .log import SCHEMA_VERSION, LogWriter
from .quantities.losses import Observed
from .record import Record
from .schedule import Schedule, TimeBudget
from .step_measurement import StepMeasurement
from .watched_layers import Subject

if TYPE_CHECKING:
    from .panel import Panel

Sink = Callable[[Record, Sequence[Finding]], None]
LOOK_RECORDS = 4
"""After this many records all alarms are looked for, whatever the budget."""


class Recorder:
    """Turns measurements into records once they have arrived, in order, and hands them on.

    Nothing here stops a training run: what fails is told once and left out from then on.

    Args:
        budget: the time that watching may take.
        folder: the folder of the log; None for none. A log that is there goes on.
        sinks: called with every record and its findings.
        panel: whether to show a live panel.
    """

    def __init__(
        self,
        budget: TimeBudget,
        folder: str | os.PathLike[str] | None = None,
        sinks: Sequence[Sink] = (),
        *,
        panel: bool = False,
    ) -> None:
        self.history = History()
        self._sinks, self.budget = list(sinks), budget
        self._queue: deque[StepMeasurement] = deque()
        self._warned: set[str] = set()
        self._waited = 0
        self._writer = None if folder is None else LogWriter(folder)
        if self._writer is not None and self._writer.resumed:
            try:
                self.history.resume(self._writer.path)
            except BaseException:
                self._writer.close()
                raise
        self._panel: Panel | None = None
        if panel:
            from .panel import Panel  # loaded only where one is shown

            self._panel = Panel()

    def begin(self, layers: Sequence[LayerRecord], metadata: Mapping[str, Any]) -> None:
        """Take note of what is watched."""
        if not self.history.begin(layers):
            self.complain(
                "layers",
                "the log that goes on has other layers than this model: of its records so far only losses and sums are "
                "kept; a folder of its own would be clearer",
            )
        self._write("run", metadata)
        self._tell("begin", layers, metadata)

    def send(self, measurement: StepMeasurement, seconds: float, observed: Mapping[str, Observed]) -> None:
        """Send a measured step on its way to the host, with what the loop observed since the last one."""
        try:
            measurement.send_all(seconds, observed)
            self._queue.append(measurement)
        except Exception as error:
            self.complain("send", f"a measured step is lost: {describe_error(error)}")

    def collect(self, overhead: float, *, wait: bool = False) -> None:
        """Hand on what has arrived; with `wait` everything, and all alarms are looked for."""
        while self._queue and (wait or self._queue[0].arrived()):
            arriving = self._queue.popleft()
            try:
                record = arriving.record()
                raised = self._look(record, last=wait and not self._queue)
            except Exception as error:
                self.complain("record", f"a measured step is lost: {describe_error(error)}")
                continue
            self._write("step", record.text())
            for finding in raised:
                self._write("finding", finding.to_json())
            self._tell("__call__", record, raised)
            self._show(overhead)
        if wait and self._waited:
            self._waited = 0
            try:
                self._ring(look_for_alarms(self.history))
            except Exception as error:
                self.complain("record", f"alarms are not looked for: {describe_error(error)}")
            self._show(overhead)

    def note(self, step: int, figures: Mapping[str, float]) -> None:
        """Hand on figures that the loop gave."""
        shown = {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}
        self._write("metrics", {"step": step, "metrics": shown})
        self._tell("metrics", step, figures)

    def raise_now(self, finding: Finding) -> None:
        """Raise an alarm that no record shows."""
        if self.history.raised(finding):
            self._ring([finding])

    def _ring(self, raised: Sequence[Finding]) -> None:
        """Hand on alarms that come without a record of their own."""
        for finding in raised:
            self._write("finding", finding.to_json())
        for sink in list(self._sinks) if raised else ():
            if hasattr(sink, "alarms"):
                self._tell_one(sink, "alarms", raised)
            elif self.history.records:
                self._tell_one(sink, "__call__", self.history.records[-1], raised)

    def _show(self, overhead: float) -> None:
        if self._panel is not None:
            self._panel.update(self.history, overhead)

    def _look(self, record: Record, *, last: bool) -> list[Finding]:
        """Add a record and look for alarms: for all of them every few records, or as often as the budget has it."""
        self._waited += 1
        if not last and self._waited < LOOK_RECORDS and not self.budget.affords("alarms"):
            return add_record(self.history, record, thorough=False)
        self._waited = 0
        with self.budget.watching("alarms"):
            return add_record(self.history, record)

    def close(self, end: Mapping[str, Any]) -> None:
        """Write the last line and let go of everything."""
        if self._panel is not None:
            self._panel.close()
        self._write("end", end)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._tell("close")

    def complain(self, topic: str, words: str) -> None:
        """Warn once on a topic; watching never stops a run."""
        if topic not in self._warned:
            self._warned.add(topic)
            with contextlib.suppress(UserWarning):  # also where warnings are errors
                warnings.warn(visible(f"normscope: {words}"), stacklevel=3)

    def _tell(self, method: str, *what: Any) -> None:
        """Call a method of every sink that has it."""
        for sink in list(self._sinks):
            self._tell_one(sink, method, *what)

    def _tell_one(self, sink: Sink, method: str, *what: Any) -> None:
        """Call a method of a sink if it has it; a sink that fails is left out from then on."""
        try:
            getattr(sink, method, lambda *_: None)(*what)
        except Exception as error:
            self._sinks.remove(sink)
            with contextlib.suppress(Exception):
                getattr(sink, "close", lambda: None)()
            self.complain(f"sink {sink}", f"a sink failed and is left out from now on: {describe_error(error)}")

    def _write(self, kind: str, data: Mapping[str, Any] | str) -> None:
        """Append to the log; one that cannot be written to is given up."""
        if self._writer is not None:
            try:
                self._writer.write(kind, data)
            except OSError as error:
                self._writer.close()
                self._writer = None
                self.complain("log", f"the log cannot be written to and ends here: {describe_error(error)}")


def check_destination(log: Any, sinks: Any) -> None:
    """Raise InputError where the sinks are no functions, or the log is no path of a folder."""
    if not isinstance(sinks, Sequence) or not all(map(callable, sinks)):
        raise InputError(
            "sinks is a list of functions of a record and its findings, as in normscope.doctor.monitor.sinks"
        )
    if log is not None and not isinstance(log, str | os.PathLike):
        raise InputError(f"log is a {type(log).__name__}: pass the path of a folder")
    if log is not None and not os.fspath(log):
        raise InputError('log is an empty path: pass that of a folder, "." for the present one, or None for no log')


def describe_run(
    subject: Subject, model: nn.Module, optimizer: Optimizer, schedule: Schedule, step: int
) -> dict[str, Any]:
    """Return what a log says first of a run that begins, or goes on, at a step."""
    device = next((p.device for p in model.parameters()), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": type(model).__name__,
        "parameters": parameter_count(model),
        "optimizer": type(optimizer).__name__,
        "every": {tier.value: interval for tier, interval in schedule.every.items()},
        "layers": [layer.to_json() for layer in subject.layers],
        "notes": subject.notes,
        "provenance": provenance(device),
    }
