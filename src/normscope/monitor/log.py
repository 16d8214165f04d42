"""The log of a run: one JSON object a line, appended whole, so that a killed run loses at most its last line."""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import bounded_lines

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

SCHEMA_VERSION = 1
FILE = "log.jsonl"
BLOCK = 1 << 16
"""Bytes that are read at a time in search of the last line break."""


class LogWriter:
    """Appends to the log of a run; a line that a killed run left half written is cut off first.

    Args:
        folder: the folder of the run; made if it does not exist.

    Attributes:
        resumed: whether the log holds whole lines already.

    Raises:
        InputError: the folder cannot be made or written to, another run writes to it, or its log is of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from error
        try:
            next(read_log(self.path), None)  # what is no log, or another version's, is left alone
            self._lock()
        except BaseException:
            os.close(self._handle)
            raise
        self.resumed = self._mend()

    def _lock(self) -> None:
        """Keep others from writing to the same log, until it is closed or the process ends."""
        if fcntl is not None:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by a kill
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):  # others: not on this file system
                    raise InputError(
                        f"another run is writing to {self.path}: give this one a folder of its own"
                    ) from error
        OPEN.add(self)

    def _mend(self) -> bool:
        """Cut off what stands behind the last line break; say whether anything is left."""
        size = start = os.fstat(self._handle).st_size
        whole = 0
        while start > 0 and whole == 0:
            start, stop = max(0, start - BLOCK), start
            os.lseek(self._handle, start, os.SEEK_SET)
            found = os.read(self._handle, stop - start).rfind(b"\n")
            whole = 0 if found < 0 else start + found + 1
        if whole < size:
            os.ftruncate(self._handle, whole)
        return whole > 0

    def write(self, kind: str, data: Mapping[str, Any] | str) -> None:
        """Append one line with a single call to the system.

        Args:
            kind: what the line says of the run.
            data: plain data, or a JSON object with at least one entry as text.

        Raises:
            OSError: it could not be written, or not whole; then nothing of it is left. Or the file was deleted.
        """
        text = data if isinstance(data, str) else json.dumps(data, allow_nan=False, separators=(",", ":"))
        raw = f'{{"type":"{kind}",{text[1:]}\n'.encode()
        if self._handle < 0:  # closed, or of the process that this one was forked from
            return
        if os.fstat(self._handle).st_nlink == 0:  # what is written to a file without a name is lost
            raise OSError(errno.ENOENT, "the file was deleted", str(self.path))
        written = os.write(self._handle, raw)
        if written < len(raw):
            os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file; every line is with the system already."""
        if self._handle >= 0:
            os.close(self._handle)
            OPEN.discard(self)
            self._handle = -1


OPEN: weakref.WeakSet[LogWriter] = weakref.WeakSet()
"""The logs that this process has open."""


def _forget() -> None:
    """Leave the logs to the process that this one was forked from, its lock too."""
    for writer in list(OPEN):
        writer.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def read_log(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Return the lines of a log; a last line that is not whole is left out.

    Args:
        folder: the folder of the run, or the file in it.

    Raises:
        InputError: there is no log, a line in it is no JSON object or too long, or it has another `schema_version`.
    """
    path = Path(folder)
    path = path / FILE if path.is_dir() else path
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(bounded_lines(file, path), 1):
                if raw.endswith(b"\n"):
                    yield read_line(raw, f"{path}, line {number}")
                elif number == 1 and not raw.startswith(b'{"type"'[: len(raw)]):
                    raise InputError(f"{path} is no log of a run")
    except OSError as error:
        raise InputError(f"cannot read the log {path}: {error.strerror or error}") from error


def read_line(raw: bytes, where: str) -> dict[str, Any]:
    """Return one line of a log.

    Raises:
        InputError: it is no JSON object, or has another `schema_version`.
    """
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON: the file is damaged") from error
    if not isinstance(line, dict) or "type" not in line:
        raise InputError(f"{where} is not a line of a run's log")
    version = line.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema_version {version!s:.40}; this version of Normscope reads {SCHEMA_VERSION}"
        )
    return line
