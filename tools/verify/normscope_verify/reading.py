"""Reading a proof file: plain JSON and arrays of finite numbers; nothing is run, and memory is bounded beforehand."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from typing import Any

import numpy as np

from .arithmetic import Array, BadFile, require

FORMAT, VERSION = "normscope-proof", 3
MOST_UNPACKED, MOST_HEADER, MOST_SIZE, MOST_NAMED = 1 << 30, 64 << 20, 10**7, 8 * 10**6
"""Bytes of all arrays, bytes of JSON, entries of one value, and of what is copied, however often it is named."""


def read(path: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the arrays of a proof file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            require(len(names) == len(set(names)), "two members of one name")
            unpacked, packed = sum(member.file_size for member in members), os.path.getsize(path)
            require(unpacked <= min(MOST_UNPACKED, 500 * packed), "it unpacks to too much")
            require("header.npy" in names, "no header: not a proof file")
            arrays = {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
        raw = arrays.pop("header").tobytes()
        require(len(raw) <= MOST_HEADER, "the header is too large")
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


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Read one array of finite numbers, after checking that its bytes are all there."""
    with archive.open(member) as stream:
        require(np.lib.format.read_magic(stream) == (1, 0), "an array of an unknown version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        require(dtype.str in ("<f8", "<f4", "<i8", "|u1") and not fortran, f"an array of {dtype}")
        content = stream.read()
    require(len(content) == math.prod(shape) * dtype.itemsize, "an array is cut off")
    value = np.frombuffer(content, dtype).reshape(shape)
    require(dtype.kind != "f" or np.isfinite(value).all(), f"{member.filename} holds NaN or infinite values")
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
