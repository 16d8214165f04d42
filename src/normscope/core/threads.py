"""Warnings, loggers and settings of the whole process, changed so that other threads are left alone."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator


class _MessagesOfThread(logging.Filter):
    """Selects the messages of the thread that made it: for a filter of `warnings`, and for loggers."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._thread, self._pattern = threading.get_ident(), re.compile(pattern)

    def match(self, text: str) -> bool:
        """Whether a warning is of this thread and begins with the pattern; `warnings` asks this of a pattern."""
        return threading.get_ident() == self._thread and self._pattern.match(text) is not None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is of another thread, and is let through."""
        return threading.get_ident() != self._thread


@contextlib.contextmanager
def ignore_warnings(pattern: str = "") -> Iterator[None]:
    """Run a block in which warnings of this thread are ignored; those of other threads are shown.

    `warnings.catch_warnings` would hide them for all threads. Where two of its blocks overlap, the later end puts
    back what the earlier block had set.

    Args:
        pattern: a regular expression; only warnings that begin with it are ignored.
    """
    entry = ("ignore", _MessagesOfThread(pattern), Warning, None, 0)
    entered: list[object] = warnings.filters  # type: ignore[assignment]
    entered.insert(0, entry)
    try:
        yield
    finally:
        for filters in (entered, warnings.filters):  # another thread may have begun or ended a `catch_warnings`
            while entry in filters:
                filters.remove(entry)  # type: ignore[union-attr]


@contextlib.contextmanager
def silence_loggers(*loggers: str) -> Iterator[None]:
    """Run a block in which some loggers drop what this thread logs."""
    of_thread = _MessagesOfThread("")
    for name in loggers:
        logging.getLogger(name).addFilter(of_thread)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(of_thread)


def shared_setting(
    change: Callable[[], contextlib.AbstractContextManager[object]],
) -> Callable[[], contextlib._GeneratorContextManager[None]]:
    """Make a context that changes a setting of the whole process safe for threads whose blocks overlap.

    The first thread to enter changes the setting and the last to leave puts it back. If each did both, the last to
    leave would put back what the first had set, and the setting would outlive all blocks.
    """
    lock, users, held = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        nonlocal users
        with lock:
            if users == 0:
                held.enter_context(change())
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if users == 0:
                    held.close()

    shared.__doc__ = change.__doc__
    return shared
