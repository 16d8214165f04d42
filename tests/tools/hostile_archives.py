"""Archives made to harm whoever reads them as npz: each of a kind, small on disk."""

from __future__ import annotations

import io
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

MEGABYTE = 1 << 20


class Evil:
    """Makes a folder if it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def saved(value: np.ndarray, **about: object) -> bytes:
    """Return an array as NumPy saves it."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, value, **about)
    return stream.getvalue()


def header(descr: object = "<f8", shape: object = (4,), fortran: bool = False, version: int = 1, pad: int = 0) -> bytes:
    """Return the header of an array, whatever it says."""
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode() + b" " * pad + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


def archive(path: Path, members: dict[str, bytes], **about: object) -> Path:
    """Write members into a zip archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content, **about)
    return path


def zeros(path: Path, count: int, descr: str = "<f8", name: str = "a0") -> Path:
    """Write an array of so many zeros without holding it in memory, packed as tightly as deflate can."""
    start, left = header(descr, (count,)), count * np.dtype(descr).itemsize
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
        file.open(f"{name}.npy", "w", force_zip64=True) as member,
    ):
        member.write(start)
        while left:
            member.write(bytes(min(left, MEGABYTE)))
            left -= min(left, MEGABYTE)
    return path


def patched(path: Path, old: bytes, new: bytes, *, last: bool = False) -> Path:
    """Replace bytes of a file."""
    content = path.read_bytes()
    assert old in content
    parts = content.rpartition(old) if last else content.partition(old)
    path.write_bytes(parts[0] + new + parts[2])
    return path


def bomb(path: Path) -> Path:
    """A quarter of a gigabyte of zeros in a file of a quarter of a megabyte."""
    return zeros(path, 1 << 25)


def overlapping(path: Path) -> Path:
    """A thousand entries of the directory that lead to one member of eight megabytes."""
    archive(path, {"a0.npy": saved(np.zeros(MEGABYTE))})
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    entry = content[start:end]
    names = [f"a{i:03d}.npy".encode() for i in range(1000)]
    entries = b"".join(
        entry[:28] + struct.pack("<H", len(name)) + entry[30:46] + name + entry[46 + 6 :] for name in names
    )
    close = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1000, 1000, len(entries), start, 0)
    path.write_bytes(content[:start] + entries + close)
    return path


def many_members(path: Path) -> Path:
    return archive(path, {f"a{i}": b"" for i in range(10_001)})


def vast_directory(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for i in range(40):
            file.writestr("a" * 30_000 + f"{i}.npy", b"")
    return path


def declared_too_small(path: Path) -> Path:
    """The directory says that a member holds 10,000 bytes; it unpacks to eight megabytes."""
    archive(path, {"a0.npy": saved(np.zeros(MEGABYTE))})
    size = struct.pack("<I", len(saved(np.zeros(MEGABYTE))))
    return patched(path, size, struct.pack("<I", 10_000), last=True)


def shape_beyond_its_bytes(path: Path) -> Path:
    return archive(path, {"a0.npy": header(shape=(10**12,)) + bytes(32)})


def shape_that_overflows(path: Path) -> Path:
    return archive(path, {"a0.npy": header(shape=(2**62, 4)) + bytes(32)})  # 2**64 entries are none, modulo 2**64


def negative_shape(path: Path) -> Path:
    return archive(path, {"a0.npy": header(shape=(-2, -2)) + bytes(32)})


def empty_but_vast(path: Path) -> Path:
    return archive(path, {"a0.npy": header(shape=(0, 2**70))})


def objects(path: Path) -> Path:
    return archive(path, {"a0.npy": saved(np.array([Evil()], dtype=object))})


def bare_pickle(path: Path) -> Path:
    return archive(path, {"a0.npy": pickle.dumps(Evil())})


def complex_numbers(path: Path) -> Path:
    return archive(path, {"a0.npy": saved(np.ones(3, complex))})


def big_endian(path: Path) -> Path:
    return archive(path, {"a0.npy": saved(np.ones(3, ">f8"))})


def vast_header(path: Path) -> Path:
    """A header of four gigabytes by its own words, and of thirty megabytes in truth."""
    start = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1)
    return archive(path, {"a0.npy": start + b" " * (30 * MEGABYTE)})


def nested_header(path: Path) -> Path:
    text = b"{'descr': " + b"(" * 4000 + b"}\n"
    return archive(path, {"a0.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text})


def header_that_calls(path: Path) -> Path:
    text = b"__import__('os').mkdir('ran')\n"
    return archive(path, {"a0.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text})


def duplicates(path: Path) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as file:
        warnings.simplefilter("ignore")
        file.writestr("a0.npy", saved(np.zeros(4)))
        file.writestr("a0.npy", saved(np.ones(4)))
    return path


def climbing_name(path: Path) -> Path:
    return archive(path, {"../a0.npy": saved(np.zeros(4))})


def nested_archive(path: Path) -> Path:
    inner = io.BytesIO()
    np.savez_compressed(inner, a0=np.zeros(4))
    return archive(path, {"a0.npy": inner.getvalue()})


def packed_by_lzma(path: Path) -> Path:
    return archive(path, {"a0.npy": saved(np.zeros(4))}, compress_type=zipfile.ZIP_LZMA)


def cut_inside(path: Path) -> Path:
    """The directory is whole, and part of the packed bytes before it is missing."""
    archive(path, {"a0.npy": saved(np.random.default_rng(0).random(10_000))})
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    path.write_bytes(content[: start - 5000] + content[start:])
    return path


def flipped(path: Path) -> Path:
    archive(path, {"a0.npy": saved(np.random.default_rng(0).random(1000))}, compress_type=zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    return path


def nothing(path: Path) -> Path:
    path.write_bytes(b"")
    return path


HOSTILE: tuple[Callable[[Path], Path], ...] = (
    bomb, overlapping, many_members, vast_directory, declared_too_small,
    shape_beyond_its_bytes, shape_that_overflows, negative_shape,
    empty_but_vast, objects, bare_pickle,
    complex_numbers, big_endian, vast_header, nested_header, header_that_calls,
    duplicates, climbing_name, nested_archive,
    packed_by_lzma, cut_inside, flipped, nothing,
)  # fmt: skip


def plain(path: Path) -> Path:
    return archive(path, {"a0.npy": saved(np.arange(6.0).reshape(2, 3)), "a1.npy": saved(np.arange(4))})


def empty_arrays(path: Path) -> Path:
    return archive(path, {"a0.npy": saved(np.zeros((0, 3))), "a1.npy": saved(np.array(3.0))})


def small_and_tight(path: Path) -> Path:
    """Thirty megabytes of zeros in thirty kilobytes: too small to harm."""
    return zeros(path, 30 * MEGABYTE, "|u1")


def large_and_loose(path: Path) -> Path:
    """Seventy megabytes that deflate leaves as they are."""
    noise = np.random.default_rng(0).integers(0, 256, 70 * MEGABYTE, dtype=np.uint8)
    return archive(path, {"a0.npy": saved(noise)}, compress_type=zipfile.ZIP_STORED)


def stored(path: Path) -> Path:
    np.savez(path, header=np.frombuffer(b"{}", np.uint8), a0=np.ones(5, np.float32))
    return path


HARMLESS = (plain, empty_arrays, small_and_tight, large_and_loose, stored)
