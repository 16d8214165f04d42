"""Reading a proof file: plain JSON and arrays of finite numbers; nothing is run, and memory is bounded beforehand."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arithmetic import Array, BadFile, require

FORMAT, VERSION = "normscope-proof", 2
MOST_UNPACKED, MOST_HEADER, MOST_ENTRIES, MOST_INDICES = 1 << 30, 64 << 20, 10**7, 8 * 10**6
"""Bytes of all arrays, bytes of JSON, entries of one value, and of all indices, however often they are named."""


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
    except BadFile:
        raise
    except OSError as error:
        raise BadFile(error.strerror or str(error)) from None
    except Exception as error:  # zipfile, zlib and numpy raise many kinds for a damaged file
        raise BadFile(f"damaged: {type(error).__name__}: {error}") from None
    raw = arrays.pop("header").tobytes()
    require(len(raw) <= MOST_HEADER, "the header is too large")
    try:
        header = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"the header is no JSON: {error}") from None
    require(isinstance(header, dict) and header.get("format") == FORMAT, "not a proof file of Normscope")
    require(
        header.get("version") == VERSION,
        f"version {header.get('version')!r} is not {VERSION}, which this checker reads: measure and save again",
    )
    digest = header.pop("digest", None)
    require(digest == fingerprint(header, arrays), "damaged: the digest does not fit the content")
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


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


@dataclass(frozen=True)
class Reader:
    """Checked access to JSON that refers to arrays."""

    arrays: dict[str, Array]
    spent: list[int] = field(default_factory=list)

    def spend(self, entries: int) -> None:
        """Refuse to read more indices than memory is meant for."""
        self.spent.append(entries)
        require(sum(self.spent) <= MOST_INDICES, "too many indices")

    def array(self, name: Any, dtype: str = "f") -> Array:
        """Return an array by its reference, in float64 or int64."""
        require(isinstance(name, str) and name in self.arrays, f"no array {name!r}")
        value = self.arrays[name]
        require(value.dtype.kind == dtype, f"array {name} has dtype {value.dtype}")
        self.arrays[name] = value.astype(np.float64 if dtype == "f" else np.int64, copy=False)
        return self.arrays[name]

    def numbers(self, value: Any) -> Array:
        """Return a number, or the array it refers to, as an array."""
        return self.array(value) if isinstance(value, str) else np.array(self.number(value))

    @staticmethod
    def shape(value: Any) -> tuple[int, ...]:
        """Return a list of sizes as a shape."""
        require(isinstance(value, list) and len(value) <= 16, f"{value!r} is no shape")
        require(all(type(n) is int and 0 < n <= MOST_ENTRIES for n in value), f"{value!r} is no shape")
        require(math.prod(value) <= MOST_ENTRIES, f"a value of {value!r} entries is too large")
        return tuple(value)

    def axes(self, value: Any, view: tuple[int, ...]) -> tuple[int, ...]:
        """Return a list of different axes of a view."""
        found = tuple(self.whole(axis, 0, len(view) - 1) for axis in self.listed(value, "axes", 16))
        require(0 < len(found) == len(set(found)), f"{value!r} is no list of axes")
        return found

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
    def whole(value: Any, low: int, high: int) -> int:
        """Return an integer between two others."""
        require(type(value) is int and low <= value <= high, f"{value!r} is no integer from {low} to {high}")
        return int(value)
