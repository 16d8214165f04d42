"""Files the command line is asked to write, checked before the long work."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..core.errors import InputError
from .data_forms import RAW
from .stored import INDEX

WRITTEN = ('"type": "audit"', '"type": "check"', '"type": "radii"')
"""What the JSON of an audit, of a check or of radii begins with, more or less."""


def check_targets(*paths: Path | None, inputs: Iterable[Path] = ()) -> None:
    """Refuse files that could not be written in the end, or that the command reads.

    Args:
        paths: where to write; None is not asked for.
        inputs: files and folders that are read. Only reports, audits and radii in a folder may be overwritten.

    Raises:
        InputError: a folder is missing or not writable, a target is a folder or one of the inputs, or two targets are
            one file.
    """
    asked = [path for path in paths if path is not None]
    read = list(inputs)
    for path in asked:
        found = _state(path)
        reason = _unwritable(path, found) or (_taken(path, read) if found is not None else None)
        if reason is not None:
            raise InputError(f"cannot write {path}: {reason}")
    if len(asked) == 2 and _same(*asked) and not _special(_state(asked[0])):
        raise InputError(f"two files of the same name: {asked[0]}")


def read_from(*texts: str | None) -> list[Path]:
    """Return the files and folders that MODEL and --data are read from, as far as their names tell.

    Args:
        texts: as given on the command line; None is not given.
    """
    named = (path for text in texts if text for path in _named(text))
    return [path for path in named if os.path.exists(path)]


def _named(text: str) -> Iterator[Path]:
    """Yield what a text may name: a path, `file.py:name`, `package.module:name`, `npz:FILE`, a sharded model."""
    yield Path(text)
    place, colon, _ = text.rpartition(":")
    if colon and place:
        module = Path(*place.split("."))
        yield from (Path(place), module, Path(f"{module}.py"))
    _, colon, place = text.partition(":")
    if colon and place:
        yield Path(os.path.expanduser(place.removeprefix(RAW)))
    if text.endswith(INDEX):
        yield from Path(text).parent.glob("*.safetensors")


def _state(path: Path) -> os.stat_result | None:
    """Return what stands at a path, links followed; None if nothing does."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def _special(found: os.stat_result | None) -> bool:
    """Whether it is a pipe or a device, which is written to and not replaced."""
    return found is not None and not stat.S_ISREG(found.st_mode)


def _unwritable(path: Path, found: os.stat_result | None) -> str | None:
    """Return why a target cannot be written, or None."""
    if found is not None and stat.S_ISDIR(found.st_mode):
        return "it is a folder"
    if _special(found):
        return None if os.access(path, os.W_OK) else "it is not writable"
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    return None if os.access(folder, os.W_OK) else f"the folder {folder} is not writable"


def _taken(path: Path, inputs: list[Path]) -> str | None:
    """Return which input an existing target would destroy, or None."""
    for given in inputs:
        if _same(path, given):
            return "it is read here, and a report would destroy it"
        inside = os.path.isdir(given) and path.resolve().is_relative_to(given.resolve())
        if inside and not _special(_state(path)) and not _replaceable(path):
            return f"it is there already, in {given}, which is read here"
    return None


def _replaceable(path: Path) -> bool:
    """Whether an existing file looks like one that this command wrote."""
    if path.suffix in (".html", ".htm"):
        return True
    with path.open("rb") as file:
        start = file.read(200)
    return any(word.encode() in start for word in WRITTEN)


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are one file, through whatever links."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
