"""Check the files that a command is asked to write, before the long work."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..core.errors import InputError
from ..core.files import file_mode
from .data_forms import RAW
from .stored import INDEX

WRITTEN = (b'"type": "audit"', b'"type": "check"', b'"type": "radii"')
"""One of these is among the first bytes of a saved audit, check or set of radii."""


def check_targets(*paths: Path | None, inputs: Iterable[Path] = ()) -> None:
    """Refuse files that could not be written in the end, or that the command reads.

    Args:
        paths: the files to write; None stands for a file that was not asked for.
        inputs: the files and folders that are read. In such a folder only reports, audits, checks and radii may be
            overwritten.

    Raises:
        InputError: a folder is missing or not writable, a target is a folder or one of the inputs, or two targets are
            one file.
    """
    targets = [path for path in paths if path is not None]
    read = list(inputs)
    for path in targets:
        try:
            reason = _obstacle(path, read)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        if reason is not None:
            raise InputError(f"cannot write {path}: {reason}")
    if len(targets) == 2 and _same(*targets) and _is_replaced(file_mode(targets[0])):
        raise InputError(f"two files of the same name: {targets[0]}")


def read_from(*texts: str | None) -> list[Path]:
    """Return the files and folders that MODEL and --data are read from, as far as their names tell.

    Args:
        texts: MODEL and DATA as given on the command line; None if one is not given.
    """
    named = (path for text in texts if text for path in _named(text))
    return [path for path in named if os.path.exists(path)]


def _named(text: str) -> Iterator[Path]:
    """Yield what a text may name: a path, `file.py:name`, `package.module:name`, `npz:FILE`, a sharded model."""
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
        if inside and replaced and not _is_report(path):
            return f"it is there already, in {source}, which is read here"
    return None


def _is_replaced(mode: int | None) -> bool:
    """Whether writing makes a new file, for which the folder must be writable; pipes and devices are written to."""
    return mode is None or stat.S_ISREG(mode)


def _is_report(path: Path) -> bool:
    """Whether an existing file looks like one that this command wrote."""
    if path.suffix in (".html", ".htm"):
        return True
    with path.open("rb") as file:
        start = file.read(200)
    return any(mark in start for mark in WRITTEN)


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, also through links."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
