"""A progress line on the terminal for work that takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import Any

from .markup import visible

DELAY = 2.0
"""Seconds that must pass before anything is shown."""


class Progress:
    """Shows what is being done once it has taken a while; silent when standard error is not a terminal.

    Inside `Parts` it shows nothing of its own: the bar of the parts says what is being done.

    Example:
        >>> with Progress("bounding layers", total=2) as progress:
        ...     progress.step("layer1")
        ...     progress.step("layer2")
    """

    def __init__(self, title: str, total: int | None = None) -> None:
        self.title, self.total, self.done = title, total, 0
        self._line = _Line()
        self._parts = _parts.get()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._line.stop()

    def step(self, label: str = "") -> None:
        """Count one step; `label` names what comes next."""
        self.done += 1
        if self._parts is not None:
            self._parts.inside(f"{self.title} {label}", self.done / self.total if self.total else 0.0)
        else:
            self._line.show(f"{self.title} {label}"[:60], self.done, self.total)


class Parts:
    """One bar for a measurement of several parts: which one runs, and which remain. Silent as `Progress` is.

    Example:
        >>> with Parts("auditing", ("capture", "data", "bounds")) as parts:
        ...     begin("data")
        ...     parts.line()
        'auditing: data; then bounds'
    """

    def __init__(self, title: str, names: Sequence[str]) -> None:
        self.title, self.names = title, tuple(names)
        self._at, self._what, self._share = 0, "", 0.0
        self._line = _Line()

    def __enter__(self) -> Parts:
        self._token: Token[Parts | None] = _parts.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _parts.reset(self._token)
        self._line.stop()

    def begin(self, name: str) -> None:
        """Say which part begins; a name that is not among the parts changes nothing."""
        if name in self.names:
            self._at, self._what, self._share = self.names.index(name), "", 0.0
            self._show()

    def inside(self, what: str, share: float) -> None:
        """Say what the part that runs does, and how much of it is done."""
        self._what, self._share = what.strip()[:40], min(share, 1.0)
        self._show()

    def line(self) -> str:
        """Return what is shown beside the bar."""
        doing = f" ({self._what})" if self._what else ""
        left = self.names[self._at + 1 :]
        return f"{self.title}: {self.names[self._at]}{doing}" + (f"; then {', '.join(left)}" if left else "")

    def _show(self) -> None:
        """Show the parts that are done; the part that runs counts by the share of it that is done."""
        self._line.show(self.line(), self._at + self._share, len(self.names))


_parts: ContextVar[Parts | None] = ContextVar("normscope_parts", default=None)
"""The bar of the measurement that runs, if it has one."""


def begin(name: str) -> None:
    """Say which part of a measurement begins, where a bar shows its parts."""
    parts = _parts.get()
    if parts is not None:
        parts.begin(name)


class _Line:
    """The bar itself: shown after a while, on a terminal alone."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: Any = None

    def show(self, text: str, done: float, total: float | None) -> None:
        """Show a text and how much is done, if it is time to."""
        if self._bar is None and sys.stderr.isatty() and time.monotonic() - self._began > DELAY:
            self._start(total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=visible(text))

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def _start(self, total: float | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=total)
        self._bar.start()
