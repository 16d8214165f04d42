"""What the command says beside its tables: one line each, which no terminal acts on."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, NoReturn, TextIO, cast

import typer

from ..report.cells import visible


def one_line(text: str) -> str:
    r"""Return `text` as a single line with control characters written out.

    File names, JSON and the errors of others may hold anything: an escape sequence or a line break in one must not
    reach the terminal.

    Args:
        text: any string.

    Example:
        >>> one_line("no file a\x1b[31mb\n  c")
        'no file a\\x1b[31mb c'
    """
    return re.sub(r"\s*[\n\t]\s*", " ", visible(text)).strip()


def fail(text: str) -> NoReturn:
    """Say one sentence on standard error and end with exit code 2."""
    typer.echo(one_line(f"normscope: {text}"), err=True)
    sys.exit(2)


def say_written(*paths: str | PathLike[str] | None) -> None:
    """Say on standard output which files were written; None was not asked for."""
    for path in paths:
        if path is not None:
            typer.echo(one_line(f"wrote {fspath(path)}"))


def print_anything() -> None:
    """Let standard output replace what its encoding lacks (PYTHONIOENCODING=ascii) instead of failing there."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class _Pipe:
    """A stream whose reader may leave (`| head`): what is written after that goes nowhere, and nobody is told."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, to nowhere if the reader has left."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self) -> None:
        """Flush, to nowhere if the reader has left."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        """Let the stream end in the null device, also for what is left in its buffer."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """Let the command go on to its end, with its own exit code, when a reader of its output has seen enough."""
    before = sys.stdout, sys.stderr
    out, err = (None if stream is None else _Pipe(stream) for stream in before)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield
    finally:
        for pipe in (out, err):
            if pipe is not None:
                pipe.flush()
        sys.stdout, sys.stderr = before
