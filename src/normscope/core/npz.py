"""Read npz files that may come from anywhere: every size is checked before anything is unpacked, and nothing is run.

A zip archive of a few bytes can unpack to a thousand times as much, and say in its directory that it does not. What an
archive may cost is decided here by the size of its file. The checker of proofs, which must not need this package, has a
reader of its own with the same limits (`tools/verify/normscope_verify/reading.py`).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from .errors import InputError, describe_error
from .files import (
    MAX_ARRAY_HEADER_BYTES,
    MAX_DIMENSIONS,
    MAX_MEMBERS,
    MAX_RATIO,
    MAX_READ_BYTES,
    MAX_UNPACKED_BYTES,
    SMALL_BYTES,
    write_bytes,
)
from .version import __version__

NUMBERS = "biuf"
"""The kinds of dtypes that hold plain real numbers: truth values, integers, floats."""


def unpacked_limit(packed: int, max_bytes: int = MAX_UNPACKED_BYTES) -> int:
    """Return to how many bytes a file of so many bytes may unpack."""
    return min(max_bytes, max(SMALL_BYTES, MAX_RATIO * packed))


class Npz:
    """The arrays of an open npz file, each checked before it is unpacked.

    Attributes:
        names: the names of the arrays.
    """

    def __init__(self, file: io.FileIO, max_bytes: int) -> None:
        self._archive = open_zip(file)
        members = self._archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise ValueError(f"it has {len(members):,} members, more than {MAX_MEMBERS:,}")
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise ValueError(f"two of its members are called {name!r:.40}")
            self._members[name] = member
        self.names = tuple(self._members)
        self._packed = os.fstat(file.fileno()).st_size
        self._left = self._most = unpacked_limit(self._packed, max_bytes)

    def array(self, name: str, *, rows: int | None = None) -> np.ndarray:
        """Return one array of plain numbers."""
        member = self._members[name]
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r:.40} is packed in a way that NumPy does not use")
        with self._archive.open(member) as stream:
            shape, by_columns, dtype, start = _array_header(stream, name)
            if math.prod(shape) * dtype.itemsize != member.file_size - start:
                raise ValueError(
                    f"{name!r:.40} has {dtype} entries of shape {shape!s:.60} by its header, which does not fit its "
                    f"{member.file_size:,} bytes"
                )
            if rows is not None and shape and not by_columns:
                shape = (min(rows, shape[0]), *shape[1:])
            flat = self._read(stream, math.prod(shape), dtype, name)
        value = flat.reshape(shape, order="F" if by_columns else "C")
        return value if rows is None or not shape else value[:rows]

    def _read(self, stream: IO[bytes], entries: int, dtype: np.dtype, name: str) -> np.ndarray:
        """Return so many entries of a stream, if they may be unpacked."""
        self._left -= entries * dtype.itemsize
        if self._left < 0:
            raise ValueError(
                f"its arrays unpack to more than {_megabytes(self._most)}, which is the most that is read of a file of "
                f"{_megabytes(self._packed)} ({name!r:.40} alone takes {_megabytes(entries * dtype.itemsize)})"
            )
        flat = np.empty(entries, dtype)
        target, done = flat.view(np.uint8), 0
        while done < len(target):
            part = stream.read(min(MAX_READ_BYTES, len(target) - done))
            if not part:
                raise ValueError(f"{name!r:.40} is cut off")
            target[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        return flat


@contextmanager
def open_npz(path: str | os.PathLike[str], *, max_bytes: int = MAX_UNPACKED_BYTES) -> Iterator[Npz]:
    """Open an npz file of plain numbers; what is wrong with it, inside the block too, becomes one clause."""
    with io.FileIO(path) as file:
        try:
            yield Npz(file, max_bytes)
        except ValueError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds for a damaged file
            raise ValueError(f"it is not an npz archive, or is damaged: {describe_error(error)}") from error


def open_zip(file: io.FileIO, *, max_directory_bytes: int = MAX_READ_BYTES) -> zipfile.ZipFile:
    """Open a zip archive; refuse one with a vast directory, which zipfile would read at once."""
    reader = _BoundedReads(file)
    reader.most = max_directory_bytes
    return zipfile.ZipFile(reader)


class _BoundedReads(io.BufferedReader):
    """A file of which only so much is read at once, as zipfile reads the directory of an archive."""

    most = MAX_READ_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes; refuse to read more than the limit at once."""
        if size is not None and size > self.most:
            raise ValueError(f"its directory takes {_megabytes(size)}, more than {_megabytes(self.most)}")
        return super().read(size)


def _array_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Return shape, whether it is stored by columns, dtype and first byte of an array of plain numbers."""
    magic = stream.read(8)
    if magic not in (np.lib.format.magic(1, 0), np.lib.format.magic(2, 0)):
        raise ValueError(f"{name!r:.40} is no array that NumPy saved")
    form, read_header = (
        ("<H", np.lib.format.read_array_header_1_0) if magic[6] == 1 else ("<I", np.lib.format.read_array_header_2_0)
    )
    prefix = stream.read(struct.calcsize(form))
    (length,) = struct.unpack(form, prefix)
    if length > MAX_ARRAY_HEADER_BYTES:
        raise ValueError(f"{name!r:.40} has a header of {length:,} bytes, more than {MAX_ARRAY_HEADER_BYTES:,}")
    shape, by_columns, dtype = read_header(io.BytesIO(prefix + stream.read(length)))
    if dtype.hasobject or dtype.kind not in NUMBERS or dtype.subdtype is not None:
        raise ValueError(f"{name!r:.40} has dtype {dtype!s:.40}: only plain numbers are read")
    if len(shape) > MAX_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{name!r:.40} has shape {shape!s:.60}")
    return shape, by_columns, dtype, len(magic) + len(prefix) + length


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


FORMAT, VERSION = "normscope-proof", 4


class Archive:
    """Collects arrays and hands out the names by which the JSON refers to them.

    Floats that float32 holds exactly are stored as float32; a tensor that is put twice is stored once.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._names: dict[int, tuple[Tensor, str]] = {}

    def put(self, value: Tensor) -> str:
        """Store a tensor of floats or integers; return its name."""
        stored = self._names.get(id(value))
        if stored is not None:
            return stored[1]
        plain = value.detach().cpu()
        if plain.is_floating_point():
            wide = plain.double()
            if not bool(torch.isfinite(wide).all()):
                raise InputError("a proof cannot hold NaN or infinite values")
            array = wide.numpy()
            narrow = wide.float()
            array = narrow.numpy() if torch.equal(narrow.double(), wide) else array
        else:
            array = plain.to(torch.int64).numpy()
        name = f"a{len(self.arrays)}"
        self.arrays[name] = np.ascontiguousarray(array).reshape(tuple(value.shape))
        self._names[id(value)] = (value, name)
        return name

    def write(self, path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        """Write the arrays and a header of plain data."""
        content = {"format": FORMAT, "version": VERSION, "made_by": f"normscope {__version__}", **header}
        text = json.dumps({**content, "digest": _digest(content, self.arrays)}, allow_nan=False)
        buffer = io.BytesIO()
        members: dict[str, Any] = {"header": np.frombuffer(text.encode(), np.uint8), **self.arrays}
        np.savez_compressed(buffer, **members)
        write_bytes(path, buffer.getvalue())


def _digest(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Return a digest of the content, by which a reader notices accidental damage."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()
