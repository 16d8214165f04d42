"""Records of a watched run for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import InputError
from ...core.finding import Finding
from ..record import FIGURE_ROOT, LayerRecord, Record


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
