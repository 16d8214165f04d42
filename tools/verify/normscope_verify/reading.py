"""Reading a proof file: plain JSON and arrays of finite numbers; nothing is run, and memory is bounded beforehand."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import zipfile
from typing import Any

import numpy as np

from .arithmetic import Array, BadFile, require

FORMAT, VERSION = "normscope-proof", 4
MOST_SIZE, MOST_NAMED = 10**7, 8 * 10**6
"""Entries of one value, and of what is copied, however often it is named."""
MOST_UNPACKED, SMALL, MOST_RATIO = 1 << 30, 64 << 20, 100
"""Bytes of all arrays; and above a small size, how many times the bytes of the file. So are those below in
`normscope/core/npz.py`, which reads the other files of Normscope."""
MOST_MEMBERS, MOST_AT_ONCE, MOST_ARRAY_HEADER, MOST_DIMENSIONS, MOST_HEADER = 10_000, 1 << 20, 10_000, 32, 16 << 20
"""Arrays; bytes read at a time, as the directory is; bytes of an array's header; dimensions; bytes of JSON."""


def read(path: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the arrays of a proof file."""
    try:
        arrays = unpack(path)
        require("header" in arrays, "no header: not a proof file")
        raw = arrays.pop("header").tobytes()
        require(len(raw) <= MOST_HEADER, "the header is too large")
        for name, value in arrays.items():
            require(value.dtype.kind != "f" or np.isfinite(value).all(), f"{name} holds NaN or infinite values")
        header = json.loads(raw.decode(), object_pairs_hook=_no_duplicates)
    except BadFile:
        raise
    except OSError as error:
        raise BadFile(error.strerror or str(error)) from None
    except Exception as error:  # zipfile, zlib, numpy and json raise many kinds for a damaged file
        raise BadFile(f"damaged: {type(error).__name__}: {error}") from None
    require(isinstance(header, dict) and header.get("format") == FORMAT, "not a proof file of Normscope")
    version = header.get("version")
    require(version == VERSION, f"version {version!r} is not {VERSION}, which this checker reads: save it again")
    require(header.pop("digest", None) == fingerprint(header, arrays), "damaged: the digest does not fit the content")
    return header, arrays


def fingerprint(header: dict[str, Any], arrays: dict[str, Array]) -> str:
    """Return the digest of a file's content: it catches accidents, not forgers."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


def unpack(path: str) -> dict[str, Array]:
    """Return the arrays of an npz file; every size is checked before anything is unpacked."""
    with io.FileIO(path) as file:
        archive = zipfile.ZipFile(_BoundedReads(file))
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        require(len(names) <= MOST_MEMBERS, "too many members")
        require(len(names) == len(set(names)), "two members of one name")
        require(all(re.fullmatch(r"\w+", name, re.ASCII) for name in names), "a member with a path or an odd name")
        unpacked, packed = sum(member.file_size for member in members), os.fstat(file.fileno()).st_size
        require(unpacked <= min(MOST_UNPACKED, max(SMALL, MOST_RATIO * packed)), "it unpacks to too much")
        return {name: _array(archive, member) for name, member in zip(names, members)}


class _BoundedReads(io.BufferedReader):
    """A file of which only so much is read at once: zipfile reads the directory, of whatever size, in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        require(size is None or size <= MOST_AT_ONCE, "its directory is too large")
        return super().read(size)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Read one array of numbers, after checking that its bytes are all there."""
    require(member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), "a member that NumPy did not pack")
    with archive.open(member) as stream:
        magic = stream.read(8)
        require(magic in (np.lib.format.magic(1, 0), np.lib.format.magic(2, 0)), "a member that is no array")
        width = 2 if magic[6] == 1 else 4
        prefix = stream.read(width)
        length = int.from_bytes(prefix, "little")
        require(len(prefix) == width and length <= MOST_ARRAY_HEADER, "an array with a header that is too long")
        text = io.BytesIO(prefix + stream.read(length))
        parse = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = parse(text)
        require(dtype.str in ("<f8", "<f4", "<i8", "|u1") and not by_columns, f"an array of {dtype}")
        require(len(shape) <= MOST_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape), "an odd shape")
        start = len(magic) + width + length
        require(member.file_size - start == math.prod(shape) * dtype.itemsize, "an array is cut off")
        content = bytearray()
        while len(content) < member.file_size - start:
            part = stream.read(MOST_AT_ONCE)
            require(part, "an array is cut off")
            content += part
    value = np.frombuffer(content, dtype).reshape(shape)
    value.flags.writeable = False
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(pairs)) == len(pairs), "a key of the header occurs twice")
    return dict(pairs)


class Reader:
    """Checked access to JSON that refers to arrays."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays, self.named = arrays, 0

    def array(self, name: Any, dimensions: int = 1, dtype: str = "f") -> Array:
        """Return an array by its reference, in float64 or int64; one that is not empty."""
        require(isinstance(name, str) and name in self.arrays, f"no array {name!r}")
        value = self.arrays[name]
        require(value.dtype.kind == dtype and value.size, f"array {name} has dtype {value.dtype} or is empty")
        require(value.ndim == dimensions, f"array {name} has {value.ndim} dimensions")
        self.arrays[name] = value.astype(np.float64 if dtype == "f" else np.int64, copy=False)
        return self.arrays[name]

    def indices(self, name: Any, dimensions: int, entries: int) -> Array:
        """Return an array of places among so many entries; -1 stands for none."""
        value = self.array(name, dimensions, "i")
        self.name(value.size)
        require(value.min() >= -1 and value.max() < entries, "an index out of place")
        return value

    def pattern(self, value: Any) -> Array:
        """Return numbers that repeat: one number, an array, or an array of which each entry comes several times."""
        if not isinstance(value, dict):
            return self.array(value) if isinstance(value, str) else np.array([self.number(value)])
        found, times = self.array(value.get("array")), self.whole(value.get("each"), 1, MOST_SIZE)
        self.name(found.size * times)
        return np.repeat(found, times)

    def name(self, entries: int) -> None:
        """Refuse to copy more than memory is meant for."""
        self.named += entries
        require(self.named <= MOST_NAMED, "too many indices and patterns")

    @staticmethod
    def listed(value: Any, what: str, most: int = 100_000) -> list[Any]:
        """Return a list."""
        require(isinstance(value, list) and len(value) <= most, f"{what} are no list, or too many")
        return list(value)

    @staticmethod
    def number(value: Any) -> float:
        """Return a finite number."""
        require(type(value) in (int, float) and abs(value) <= 1e308, f"{value!r} is no number")
        return float(value)

    @staticmethod
    def whole(value: Any, low: int = 1, high: int = MOST_SIZE) -> int:
        """Return an integer between two others."""
        require(type(value) is int and low <= value <= high, f"{value!r} is no integer from {low} to {high}")
        return int(value)
