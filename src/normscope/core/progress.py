"""A progress line on the terminal for work that takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

DELAY = 2.0
"""Seconds before anything is shown."""


class Progress:
    """Shows what is being done once it has taken a while; silent when standard error is not a terminal.

    Example:
        >>> with Progress("bounding layers", total=2) as progress:
        ...     progress.step("layer1")
        ...     progress.step("layer2")
    """

    def __init__(self, title: str, total: int | None = None) -> None:
        self.title, self.total, self.done = title, total, 0
        self.began = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, label: str = "") -> None:
        """Count one step; `label` names what comes next."""
        self.done += 1
        if self._bar is None and sys.stderr.isatty() and time.monotonic() - self.began > DELAY:
            self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, description=f"{self.title} {label}"[:60])

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self.title, total=self.total)
        self._bar.start()
