"""`Panel`: a run that is being watched, live in the terminal. rich loads when the first panel is drawn."""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...core.untouched import random_as_found
from ...report.words import format_cell, pluralise, sparkline, visible
from .history import History
from .layer_record import LayerKind
from .record import Record

if TYPE_CHECKING:
    import rich.console
    import rich.live

MAX_DRAWS_PER_SECOND = 4.0
"""The panel is drawn at most this many times a second."""

RECENT_RECORDS = 20
"""Records that a figure is looked for in: layers may take turns."""
DRAWING_TIME_SHARE = 0.005
"""The share of the time that drawing may take: on a slow machine the panel is drawn less often."""

SPARKLINE_MAX_RECORDS = 200
"""Records that a sparkline looks at, at most: a long run costs no more than a short one."""

SPARKLINE_CHARS = 32
"""The width of a sparkline, in characters."""

SHOWN_ALARMS = 3
"""The panel shows this many alarms, the last ones."""

SEVERITY_STYLES = {"info": "cyan", "warning": "yellow", "error": "bold red"}

TOTALS = (
    ("log10_printed", "log10 norms"),
    ("log10_constants", "log10 constants"),
    ("log10_folded", "log10 folded"),
    ("log10_gradient", "log10 gradient"),
)
WORST: tuple[tuple[LayerKind, str, bool, str], ...] = (
    ("normalizer", "log10_variance_min", False, "log10 least variance"),
    ("normalizer", "log10_variance_max", True, "log10 most variance"),
    ("weight", "log10_norm", True, "log10 largest norm"),
    ("weight", "log10_effective_lr", False, "log10 least eff. lr"),
)
"""Quantities by kind, whether the largest is the worst, and what the line is called."""


class Panel:
    """Shows how a run goes on standard error: step, loss, products, the worst layers, the last alarms.

    Nothing is shown where standard error is no terminal, or where a progress bar of tqdm or another live display of
    rich draws there already. A panel that fails is silent from then on: it never stops a run.

    Args:
        console: where to draw; standard error if not given.
        clock: seconds, ascending.

    Example:
        >>> from normscope.doctor.monitor.history import History
        >>> panel = Panel()
        >>> panel.update(History(), 0.01)
        >>> panel.close()
    """

    def __init__(
        self, console: rich.console.Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock
        self._live: rich.live.Live | None = None
        self._drawn: float | None = None
        self._pause = 1.0 / MAX_DRAWS_PER_SECOND
        self._last: tuple[History, float] | None = None
        self._silent = console is None and not _is_terminal(sys.stderr)

    def update(self, history: History, overhead: float) -> None:
        """Draw what is known so far, unless it was drawn a moment ago.

        Args:
            history: the history of the run.
            overhead: the share of the time that watching takes.
        """
        if self._silent:
            return
        now = self._clock()
        self._last = (history, overhead)
        if self._drawn is None or now - self._drawn >= self._pause:
            started, self._drawn = self._live is not None, now
            self._draw()
            if started:  # the first time rich is loaded, too
                self._pause = max(1.0 / MAX_DRAWS_PER_SECOND, (self._clock() - now) / DRAWING_TIME_SHARE)

    def close(self) -> None:
        """Draw the last state, leave it there, and give the terminal back."""
        if not self._silent and self._live is not None:
            self._draw()
        self._stop()
        self._silent = True

    def _draw(self) -> None:
        try:
            if _has_bars():
                self._stop()
                self._silent = True
            elif self._live is None:
                self._start()
            if self._live is not None and self._last is not None:
                self._live.update(_Picture(*self._last), refresh=True)
        except Exception:
            self._stop()
            self._silent = True

    def _start(self) -> None:
        with random_as_found():
            from rich.console import Console
            from rich.file_proxy import FileProxy
            from rich.live import Live

        console = self._console or Console(stderr=True)
        taken = isinstance(sys.stderr, FileProxy) or isinstance(sys.stdout, FileProxy)
        if taken or not console.is_terminal or console.is_dumb_terminal:
            self._silent = True
            return
        # What the loop prints appears above the panel; standard output that goes to a file stays there.
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
            vertical_overflow="crop",
        )
        atexit.register(self._stop)
        self._live.start()
        console.show_cursor(True)  # a killed process cannot give a hidden cursor back

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            atexit.unregister(self._stop)
            try:
                live.stop()
            except Exception:
                self._silent = True


class _Picture:
    """What is drawn; rendered when rich asks, at the width of the terminal."""

    def __init__(self, history: History, overhead: float) -> None:
        self.history, self.overhead = history, overhead

    def __rich_console__(self, console: rich.console.Console, options: Any) -> Iterator[Any]:
        from rich import box
        from rich.panel import Panel as Box
        from rich.text import Text

        width = min(options.max_width, 110)
        body = Text("\n", no_wrap=True, overflow="ellipsis").join(
            Text(visible(line), style=style) for line, style in lines(self.history, self.overhead)
        )
        body.no_wrap, body.overflow = True, "ellipsis"
        yield Box(body, title="normscope", title_align="left", box=box.ROUNDED, width=width, border_style="dim")


def lines(history: History, overhead: float) -> Iterator[tuple[str, str]]:
    """Yield the lines of the panel, each with its style.

    Args:
        history: the history of the run.
        overhead: the share of the time that watching takes.

    Yields:
        A dozen lines at most.
    """
    if not history.records:
        yield "nothing has been measured yet", "dim"
        return
    last = history.records[-1]
    rate = f"   lr {format_cell(last.lr[0], 'number')}" if last.lr else ""
    yield f"step {last.step:,}{rate}   overhead {format_cell(overhead, 'percent')}", "bold"
    some = _thin_out(history.records)
    yield from _show_course("loss", [record.loss for record in some])
    for quantity, name in TOTALS:
        yield from _show_course(name, [record.total_of(quantity) for record in some])
    for kind, quantity, most, name in WORST:
        yield from _show_worst(history, kind, quantity, most, name)
    for finding in history.findings[-SHOWN_ALARMS:]:
        when = "" if finding.step is None else f"step {finding.step:,}: "
        yield f"{when}{finding.title}: {finding.seen}", SEVERITY_STYLES[finding.severity.value]
    if len(history.findings) > SHOWN_ALARMS:
        yield f"and {pluralise(len(history.findings) - SHOWN_ALARMS, 'earlier alarm')}", "dim"


def _thin_out(records: Sequence[Record]) -> list[Record]:
    """Return few of many records, evenly, the last among them."""
    stride = max(math.ceil(len(records) / SPARKLINE_MAX_RECORDS), 1)
    return [records[index] for index in range((len(records) - 1) % stride, len(records), stride)]


def _show_course(name: str, values: Sequence[float | None]) -> Iterator[tuple[str, str]]:
    measured = [value for value in values if value is not None]
    if measured:
        shown = format_cell(measured[-1], "log10" if name != "loss" else "number")
        yield f"{name:<22}{shown:>10}  {sparkline(measured, SPARKLINE_CHARS)}", ""


def _show_worst(history: History, kind: LayerKind, quantity: str, most: bool, name: str) -> Iterator[tuple[str, str]]:
    latest: dict[str, float] = {}
    for record in history.having(kind, quantity)[-RECENT_RECORDS:]:  # layers may take turns
        latest |= {layer.name: v for layer, v in zip(history.of(kind), record.of(kind, quantity)) if v is not None}
    numbers = [(value, name) for name, value in latest.items() if not math.isnan(value)]
    if numbers:
        value, where = max(numbers) if most else min(numbers)
        yield f"{name:<22}{format_cell(value, 'log10'):>10}  {where}", ""


def _has_bars() -> bool:
    """Whether a progress bar of tqdm is drawn: two that move the cursor make a mess."""
    return bool(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ()))


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # a stream that is closed, missing, or somebody's own
        return False
