"""The log of a run: one JSON object a line, appended whole, so that a killed run loses at most its last line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.plain import plain

SCHEMA_VERSION = 1
FILE = "log.jsonl"


class LogWriter:
    """Appends to the log of a run; a line that a killed run left half written is cut off first.

    Args:
        folder: of the run; made if it does not exist.

    Raises:
        InputError: the folder cannot be made or written to, or holds the log of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from error
        self.resumed = self._mend()
        self.bytes = 0

    def _mend(self) -> bool:
        """Cut off what stands behind the last line break; say whether anything is left."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._handle, whole)
        return whole > 0

    def write(self, kind: str, data: Mapping[str, Any]) -> None:
        """Append one line with a single call to the system."""
        line = json.dumps({"type": kind, **plain(dict(data))}, allow_nan=False, separators=(",", ":")) + "\n"
        raw = line.encode()
        os.write(self._handle, raw)
        self.bytes += len(raw)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read_log(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Return the lines of a log; a last line that is not whole is left out.

    Args:
        folder: of the run, or the file in it.

    Raises:
        InputError: there is no log, a line in it is no JSON object, or it has another `schema_version`.
    """
    path = Path(folder)
    path = path / FILE if path.is_dir() else path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the log {path}: {error.strerror or error}") from error
    for number, raw in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            line = json.loads(raw)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is no JSON: the file is damaged") from error
        if not isinstance(line, dict) or "type" not in line:
            raise InputError(f"{path}, line {number} is not a line of a run's log")
        version = line.get("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise InputError(f"{path} has schema_version {version}; this version of Normscope reads {SCHEMA_VERSION}")
        yield line
