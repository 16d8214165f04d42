"""What the command says beside its tables: one line each, which no terminal acts on."""

from __future__ import annotations

import io
import re
import sys
from os import PathLike, fspath
from typing import NoReturn

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


def say_written(path: str | PathLike[str]) -> None:
    """Say on standard output which file was written."""
    typer.echo(one_line(f"wrote {fspath(path)}"))


def print_anything() -> None:
    """Let standard output replace what its encoding lacks (PYTHONIOENCODING=ascii) instead of failing there."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
