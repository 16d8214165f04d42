"""Write a file whole or not at all; read JSON and lines back, of files that may come from anywhere."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .errors import InputError

MAX_JSON_BYTES = 32 << 20
"""An audit takes about 1.5 kB a layer, a radius 0.3 kB a sample. As objects JSON takes up to 20 times its size."""
MAX_LINE_BYTES = 16 << 20
"""One line of a log holds the figures of one step; for 10,000 layers with all figures it takes 3 MB."""
MAX_LOG_BYTES = 1 << 30


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file so that a reader never sees half of it.

    A link stays a link: the file it points to is replaced. Pipes and devices are written to as they are.

    Args:
        path: the file to write; its folder must exist.
        text: the content.

    Raises:
        InputError: the folder does not exist or cannot be written to.
    """
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes to a file in the way in which `write_text` writes text."""
    try:
        mode = file_mode(path)
        if mode is not None and not stat.S_ISREG(mode):
            Path(path).write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content, None if mode is None else stat.S_IMODE(mode))
    except OSError as error:
        raise InputError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file.

    Raises:
        InputError: the file cannot be read, is no JSON, or is larger than any result.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise InputError(
                f"{os.fspath(path)} is larger than {MAX_JSON_BYTES >> 20} MiB, and no result of Normscope is: it is "
                "damaged, or holds something else"
            )
        return json.loads(raw.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{os.fspath(path)} is no JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{os.fspath(path)} is no JSON that can be read: it is nested too deeply") from error


def bounded_lines(file: IO[bytes], name: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of a log, each with its line break; the last one may have none.

    Args:
        file: the log, open for reading.
        name: its name in errors.

    Raises:
        InputError: the log, or a line of it, is larger than a run writes.
    """
    size = os.fstat(file.fileno()).st_size
    if size > MAX_LOG_BYTES:
        raise InputError(
            f"{os.fspath(name)} takes {size / 1e9:.1f} GB, more than the {MAX_LOG_BYTES / 1e9:.1f} GB that are read: "
            "copy its first lines into a file of their own (head -n), and measure less often next time"
        )
    number = 1
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"line {number} of {os.fspath(name)} is longer than {MAX_LINE_BYTES >> 20} MiB: the file is damaged, "
                "or holds something else"
            )
        yield line
        number += 1


def file_mode(path: str | os.PathLike[str]) -> int | None:
    """Return the type and permissions of the file that a path leads to, also through links; None if there is none.

    Raises:
        OSError: the path cannot be looked up.
    """
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _replace(target: Path, content: bytes, permissions: int | None) -> None:
    """Write a temporary file in the same folder, and then put it in the place of the target in one step.

    A new file, without permissions to keep, gets those of the user's umask from the system: to read the umask is to
    change it, and a file that another thread made meanwhile would be open to all.
    """
    temporary = target.with_name(f".normscope-{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if permissions is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if permissions is not None:
            os.chmod(temporary, permissions)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
