"""What the command writes: results, files whose places are checked first, and messages of one line."""

from __future__ import annotations

import io
import itertools
import json as json_format
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypedDict, cast

import typer

from ..core.errors import InputError, visible
from ..core.files import file_mode, write_text

if TYPE_CHECKING:
    from ..report.document import Document

# What needs torch loads where it is used: an error and the list of verbs do without it.

STDOUT = Path("-")
"""The file of `--json -`: standard output."""
WRITTEN = b'"schema_version": '
"""Among the first bytes of a saved result."""


def one_line(text: str) -> str:
    """Return `text` as a single line with control characters written out.

    File names, JSON and the errors of others may hold anything: an escape sequence or a line break in one must not
    reach the terminal.
    """
    return re.sub(r"\s*[\n\t]\s*", " ", visible(text)).strip()


def fail(text: str) -> NoReturn:
    """Print one sentence on standard error and end with exit code 2."""
    typer.echo(one_line(f"normscope: {text}"), err=True)
    sys.exit(2)


@contextmanager
def measuring(model: str, data: str | None, *targets: Path | None) -> Iterator[None]:
    """Refuse files that cannot be written before the work, and `sys.exit()` in the user's code inside of the block.

    Long work tells what it does, also where standard error is no terminal.
    """
    from ..core.budget import telling_lines
    from .model_forms import refuse_exit

    check_targets(*targets, inputs=read_from(model, data))
    with telling_lines(), refuse_exit():
        yield


class HelpTexts(TypedDict):
    """Arguments of `app.command`."""

    help: str
    short_help: str
    epilog: str | None


def help_with_examples(text: str, examples: str) -> HelpTexts:
    """Return the help of a verb for `app.command`, its line in the help of a group (the first paragraph), its epilog.

    The commands before the first empty line of `examples` run as they are printed, in an empty folder, and come before
    the text; those after it need files of the reader's and come at the end.
    """
    first, _, others = examples.strip().partition("\n\n")
    return {
        "help": f"Example:\n\n```\n{first}\n```\n\n{text}",
        "short_help": text.strip().partition("\n\n")[0].replace("\n", " "),
        "epilog": f"**With your own files**\n\n```\n{others}\n```\n" if others else None,
    }


def show_result(
    result: Any, html: Path | None, json: Path | None, *others: Path | None, page: Document | None = None
) -> None:
    """Write the files of a result that were asked for, and print its brief page.

    With `--json -` standard output holds the JSON and nothing else.

    Args:
        result: has `to_html(path)`, `to_json(path)` and `document(brief=True)`.
        html: the report to write.
        json: the file of the figures, or `-`.
        others: files that are written already, and are named with the others.
        page: what to print instead of the result's brief page.
    """
    from ..report.terminal import print_document

    if html is not None:
        result.to_html(html)
    alone = json == STDOUT
    if alone:
        typer.echo(json_format.dumps(result.to_json(), indent=1, allow_nan=False))
    else:
        if json is not None:
            result.to_json(json)
        print_document(result.document(brief=True) if page is None else page)
    for path in (html, None if alone else json, *others):
        if path is not None:
            typer.echo(one_line(f"wrote {fspath(path)}"), err=alone)


@dataclass(frozen=True, slots=True)
class PlainResult:
    """A page and the plain data behind it, where a verb shows more than one result."""

    page: Document
    content: Any

    def document(self, *, brief: bool) -> Document:
        """Return the page, which is brief already."""
        return self.page

    def to_html(self, path: Path) -> None:
        """Write the page."""
        from ..report.html import to_html

        write_text(path, to_html(self.page))

    def to_json(self, path: Path | None = None) -> Any:
        """Return the plain data, and write it to a file if there is one."""
        if path is not None:
            write_text(path, json_format.dumps(self.content, indent=1, allow_nan=False) + "\n")
        return self.content


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


def check_targets(*paths: Path | None, inputs: Iterable[Path] = ()) -> None:
    """Refuse files that could not be written in the end, or that the command reads.

    In a folder that is read only pages and results may be overwritten. None is no file.
    """
    targets = [path for path in paths if path is not None and path != STDOUT]
    read = list(inputs)
    for path in targets:
        try:
            reason = _obstacle(path, read)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        if reason is not None:
            raise InputError(f"cannot write {path}: {reason}")
    for one, other in itertools.combinations(targets, 2):
        if _same(one, other) and _is_replaced(file_mode(one)):
            raise InputError(f"two files of the same name: {one}")


def read_from(*texts: str | None) -> list[Path]:
    """Return the files and folders that MODEL and --data are read from, as far as their names tell."""
    named = (path for text in texts if text for path in _possible_paths(text))
    return [path for path in named if os.path.exists(path)]


def _possible_paths(text: str) -> Iterator[Path]:
    """Yield what a text may name: a path, `file.py:name`, `package.module:name`, `npz:FILE`, a sharded model."""
    from .data_forms import RAW
    from .stored import INDEX

    yield Path(text)
    before, _, _ = text.rpartition(":")
    if before:
        module = Path(*before.split("."))
        yield from (Path(before), module, Path(f"{module}.py"))
    _, _, after = text.partition(":")
    if after:
        yield Path(os.path.expanduser(after.removeprefix(RAW)))
    if text.endswith(INDEX):
        yield from Path(text).parent.glob("*.safetensors")


def _obstacle(path: Path, inputs: list[Path]) -> str | None:
    """Return why a file cannot or must not be written; None if nothing is against it."""
    mode = file_mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        return "it is a folder"
    replaced = _is_replaced(mode)
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if replaced and not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder if replaced else path, os.W_OK):
        return f"the folder {folder} is not writable" if replaced else "it is not writable"
    for source in inputs if mode is not None else ():
        if _same(path, source):
            return "it is read here, and a report would destroy it"
        inside = os.path.isdir(source) and path.resolve().is_relative_to(source.resolve())
        if inside and replaced and path.suffix not in (".html", ".htm"):
            with path.open("rb") as file:
                start = file.read(200)
            if WRITTEN not in start:  # a result of an earlier run may be written again
                return f"it is there already, in {source}, which is read here"
    return None


def _is_replaced(mode: int | None) -> bool:
    """Whether writing makes a new file, for which the folder must be writable; pipes and devices are written to."""
    return mode is None or stat.S_ISREG(mode)


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, also through links."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
