"""Where records of a watched run go besides its log; any callable `sink(record, findings)` will do.

A sink that has `begin(layers, metadata)` is told what is watched before its first record; one that has `close()` is
closed when the run ends. One that has `alarms(findings)` gets there the alarms that come between two records or at the
end; others get them with the last record once more. One that has `metrics(step, figures)` gets what the loop gives
`run.log_metrics`. The sinks here have all of these; they import what they write to when they need it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import InputError
from ...core.finding import Finding, Severity
from .layer_record import LayerRecord
from .record import FIGURE_ROOT, Record

__all__ = ["TensorBoardSink", "WandbSink"]


class TensorBoardSink:
    """Writes every figure as a scalar `normscope/...` and every alarm as text under `normscope/findings`.

    Args:
        target: a folder, or a writer that is in use already (`torch.utils.tensorboard.SummaryWriter`, or anything with
            its `add_scalar`). A writer is left open at the end.

    Raises:
        InputError: the target is neither, or a folder is given and TensorBoard is not installed.

    Example:
        >>> TensorBoardSink("runs/first")  # doctest: +SKIP
    """

    def __init__(self, target: Any) -> None:
        self._own = isinstance(target, str | os.PathLike)
        if not self._own and not hasattr(target, "add_scalar"):
            raise InputError(f"TensorBoardSink takes a folder or a SummaryWriter, not a {type(target).__name__}")
        self._folder = os.fspath(target) if self._own else ""
        self._writer: Any = None if self._own else target
        self._layers: Sequence[LayerRecord] = ()
        if self._own:
            _summary_writer()  # say at once that it is missing

    def begin(self, layers: Sequence[LayerRecord], metadata: Mapping[str, Any]) -> None:
        """Take note of the layers' names; in a folder, hide what an earlier part of the run wrote of later steps."""
        self._layers = tuple(layers)
        if self._own and self._writer is None:
            self._writer = _summary_writer()(self._folder, purge_step=metadata.get("step") or None)

    def __call__(self, record: Record, findings: Sequence[Finding]) -> None:
        """Write one record and the alarms it raised."""
        if self._writer is None:
            self.begin(self._layers, {})
        for name, value in record.flatten(self._layers).items():
            self._writer.add_scalar(name, value, record.step)
        self._note(findings, record.step)

    def metrics(self, step: int, figures: Mapping[str, float]) -> None:
        """Write figures that the loop gave."""
        if self._writer is None:
            self.begin(self._layers, {})
        for name, value in figures.items():
            self._writer.add_scalar(f"{FIGURE_ROOT}/metrics/{name}", value, step)

    def alarms(self, findings: Sequence[Finding]) -> None:
        """Write alarms that came without a record of their own."""
        if self._writer is None:
            self.begin(self._layers, {})
        self._note(findings, findings[-1].step)

    def _note(self, findings: Sequence[Finding], step: int | None) -> None:
        if findings:
            text = "\n\n".join(
                f"**{f.severity.value}: {f.code}** in `{f.where}`: {f.seen} {f.advice}" for f in findings
            )
            self._writer.add_text(f"{FIGURE_ROOT}/findings", text, step)

    def close(self) -> None:
        """Write out everything."""
        if self._writer is not None:
            self._writer.flush()
            if self._own:
                self._writer.close()
                self._writer = None


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoardSink needs TensorBoard: pip install 'normscope[watch]'") from error
    return SummaryWriter


LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.ERROR: "ERROR"}
TITLE_MAX_CHARS = 63
"""Characters of an alert's title that W&B takes."""


class WandbSink:
    """Logs every finite figure as `normscope/...`; alarms become alerts.

    A record arrives a little after its step, and W&B refuses steps that lie behind what was logged last: in W&B the
    figures are drawn over `normscope/step`, the step of the record, and the run's own step is left to the user.

    Args:
        run: what `wandb.init` returned, or anything with `log(figures, step=)` such as trackio's; None for W&B's
            active run.

    Raises:
        InputError: the run has no `log`, or none is given and W&B is not installed or has no active run.

    Example:
        >>> class Printing:
        ...     def log(self, figures, step):
        ...         print(step, figures)
        >>> WandbSink(Printing())(Record(step=3, seconds=0.1, tier="economy", loss=0.5), [])
        3 {'normscope/loss': 0.5, 'normscope/findings': 0}
    """

    def __init__(self, run: Any = None) -> None:
        self._run = _active() if run is None else run
        if not callable(getattr(self._run, "log", None)):
            raise InputError(f"WandbSink takes a run with a log method, not a {type(self._run).__name__}")
        self._own_axis = callable(getattr(self._run, "define_metric", None))
        self._layers: Sequence[LayerRecord] = ()
        self._findings = 0
        if self._own_axis:
            self._run.define_metric(f"{FIGURE_ROOT}/step", hidden=True)
            self._run.define_metric(f"{FIGURE_ROOT}/*", step_metric=f"{FIGURE_ROOT}/step")

    def begin(self, layers: Sequence[LayerRecord], metadata: Mapping[str, Any]) -> None:
        """Take note of the layers' names."""
        self._layers = tuple(layers)

    def __call__(self, record: Record, findings: Sequence[Finding]) -> None:
        """Log one record and the alarms it raised."""
        self._findings += len(findings)
        figures = {name: value for name, value in record.flatten(self._layers).items() if math.isfinite(value)}
        figures[f"{FIGURE_ROOT}/findings"] = self._findings
        self._log(figures, record.step)
        self._alert(findings)

    def metrics(self, step: int, figures: Mapping[str, float]) -> None:
        """Log figures that the loop gave."""
        finite = {f"{FIGURE_ROOT}/metrics/{name}": value for name, value in figures.items() if math.isfinite(value)}
        self._log(finite, step)

    def alarms(self, findings: Sequence[Finding]) -> None:
        """Send alarms that came without a record of their own."""
        self._findings += len(findings)
        self._alert(findings)

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        """Log figures at a step: on an axis of their own, where the run has axes."""
        if self._own_axis:
            self._run.log({**figures, f"{FIGURE_ROOT}/step": step})
        else:
            self._run.log(figures, step=step)

    def _alert(self, findings: Sequence[Finding]) -> None:
        alert: Any = getattr(self._run, "alert", None)
        for finding in findings if alert is not None else ():
            title = finding.title
            title = title if len(title) <= TITLE_MAX_CHARS else f"{title[: TITLE_MAX_CHARS - 1]}…"
            level = {"level": LEVELS[finding.severity]} if self._own_axis else {}
            alert(title=title, text=str(finding), **level)

    def close(self) -> None:
        """Leave the run open: it is the user's."""


def _active() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise InputError("WandbSink needs a run: pip install 'normscope[watch]' for W&B, or pass another's") from error
    if wandb.run is None:
        raise InputError("W&B has no active run: call wandb.init first, or pass WandbSink the run")
    return wandb.run
