"""Files that may come from anywhere: written whole or not at all, read within limits that all stand here.

`npz.py` reads archives by the same limits. The checker of proofs, which must not need this package, has the limits of
archives once more (`tools/verify/normscope_verify/reading.py`). What a page shows of a file is in `report/limits.py`.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

from .errors import InputError

MAX_JSON_BYTES = 64 << 20
"""A file of one result. An audit takes about 1.5 kB a layer, a radius 0.3 kB a sample."""
MAX_JSON_VALUES = 2_000_000
"""Values of one result or one line: as objects of Python each takes about 100 bytes."""
MAX_JSON_DEPTH = 64
"""Objects and lists inside each other; a comparison of audits has about 10."""
MAX_TEXT_LETTERS = 100_000
"""Letters of one name or sentence."""

MAX_LINE_BYTES = 16 << 20
"""A line of a log holds the figures of one step; for 10,000 layers with all figures it takes 3 MB."""
MAX_LOG_BYTES = 1 << 30
MAX_LOG_LINES = 2_000_000

MAX_UNPACKED_BYTES = 1 << 30
"""All arrays of an archive together; its reader may allow more."""
SMALL_BYTES = 64 << 20
"""Up to this size arrays may be packed as tightly as they can be."""
MAX_RATIO = 100
"""Arrays above `SMALL_BYTES` may unpack to this many times the size of the file. Weights unpack to about twice."""
MAX_MEMBERS = 10_000
MAX_READ_BYTES = 1 << 20
"""Bytes that are read at a time. zipfile reads the directory of an archive at once: this is also its largest size."""
MAX_ARRAY_HEADER_BYTES = 10_000
MAX_DIMENSIONS = 32
MAX_TABLE_BYTES = 16 << 20
"""The directory of a file of weights: that of 100,000 tensors takes 10 MB."""


ADVICE = "it is damaged, or Normscope did not write it"
LOG_ADVICE = "copy its first lines into a file of their own (head -n), and measure or log less often next time"
TOO_DEEP = f"is nested too deeply, more than {MAX_JSON_DEPTH} levels: {ADVICE}"


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
    """Return the content of a JSON file."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise ValueError(f"takes more than the {MAX_JSON_BYTES >> 20} MiB that a result may take: {ADVICE}")
        return parse_json(raw)
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{name} {error}") from error


def parse_json(raw: bytes) -> Any:
    """Return the content of JSON that is within the limits of this file.

    The number of values is limited before they are made, by the characters that separate them; texts and nesting are
    before anything is done with them. A `ValueError` says what is wrong as a predicate: "is no JSON: ...".
    """
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > MAX_JSON_VALUES:
        raise ValueError(f"holds {values:,} values, more than the {MAX_JSON_VALUES:,} that are read: {ADVICE}")
    try:
        content = json.loads(raw.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from error
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level, depth = [content], 0
    while level:
        if depth > MAX_JSON_DEPTH:
            raise ValueError(TOO_DEEP)
        longest = max((len(value) for value in level if type(value) is str), default=0)
        if longest > MAX_TEXT_LETTERS:
            raise ValueError(
                f"holds a text of {longest:,} letters, more than the {MAX_TEXT_LETTERS:,} that are read: {ADVICE}"
            )
        objects = [value for value in level if type(value) is dict]
        lists = [value for value in level if type(value) is list]
        level = [*chain.from_iterable(objects), *chain.from_iterable(value.values() for value in objects)]
        level += chain.from_iterable(lists)
        depth += 1
    return content


def bounded_lines(file: IO[bytes], name: str | os.PathLike[str], *, already_read: int = 0) -> Iterator[bytes]:
    """Yield the lines of a log, each with its line break; the last one may have none."""
    number, lines = already_read, None
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"line {number} of {os.fspath(name)} takes more than the {MAX_LINE_BYTES >> 20} MiB that a line may "
                f"take: {ADVICE}"
            )
        yield line
        if lines is None:  # after the first line, which tells what the file is: whoever wants that alone gets it
            lines = number + _lines_behind(file, os.fspath(name))
        if max(number, lines) > MAX_LOG_LINES:
            raise InputError(f"{os.fspath(name)} has more than the {MAX_LOG_LINES:,} lines that are read: {LOG_ADVICE}")


def _lines_behind(file: IO[bytes], name: str) -> int:
    """Return how many lines follow in a log, which are counted and not read; 0 for a pipe."""
    if not file.seekable():
        return 0
    size, place = os.fstat(file.fileno()).st_size, file.tell()
    if size > MAX_LOG_BYTES:
        raise InputError(
            f"{name} takes {size / 1e9:.1f} GB, more than the {MAX_LOG_BYTES / 1e9:.1f} GB that are read: {LOG_ADVICE}"
        )
    lines = sum(file.read(1 << 20).count(b"\n") for _ in range(place, size, 1 << 20))
    file.seek(place)
    return lines


def file_mode(path: str | os.PathLike[str]) -> int | None:
    """Return the type and permissions of the file that a path leads to, also through links; None if there is none."""
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
