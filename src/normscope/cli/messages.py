"""What the command writes beside its tables: files, and messages of one line that cannot control a terminal."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO, cast

import typer

from ..report.words import visible


def one_line(text: str) -> str:
    r"""Return `text` as a single line with control characters written out.

    File names, JSON and the errors of others may hold anything: an escape sequence or a line break in one must not
    reach the terminal.

    Example:
        >>> one_line("no file a\x1b[31mb\n  c")
        'no file a\\x1b[31mb c'
    """
    return re.sub(r"\s*[\n\t]\s*", " ", visible(text)).strip()


def fail(text: str) -> NoReturn:
    """Print one sentence on standard error and end with exit code 2."""
    typer.echo(one_line(f"normscope: {text}"), err=True)
    sys.exit(2)


class WritableResult(Protocol):
    """A result that can write its report and its figures."""

    def to_html(self, path: Path, /) -> object:
        """Write the report."""
        ...

    def to_json(self, path: Path, /) -> object:
        """Write the figures."""
        ...


def write_result(result: WritableResult, html: Path | None, json: Path | None) -> None:
    """Write the report and the figures of a result to the files that were asked for."""
    if html is not None:
        result.to_html(html)
    if json is not None:
        result.to_json(json)


def say_written(*paths: str | PathLike[str] | None) -> None:
    """Print which files were written; None stands for a file that was not asked for."""
    for path in paths:
        if path is not None:
            typer.echo(one_line(f"wrote {fspath(path)}"))


def print_anything() -> None:
    """Let standard output replace characters that its encoding lacks (PYTHONIOENCODING=ascii) instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class _Pipe:
    """A stream whose reader may close it early (`| head`): what is written after that is dropped without an error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, or drop it if the reader has left."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop_everything()
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop its buffer if the reader has left."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop_everything()

    def _drop_everything(self) -> None:
        """Connect the stream to the null device, also for what is left in its buffer."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """Let the command run to its end, with its own exit code, when the reader of its output leaves early."""
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
