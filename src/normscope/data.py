"""Load data sets: scikit-learn's 8x8 digits, which are embedded, and MNIST and CIFAR-10 from a folder of the user."""

from __future__ import annotations

import gzip
import math
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .core.errors import InputError
from .core.npz import unpacked_limit

__all__ = ["Split", "cifar10", "digits", "mnist"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Images and labels for training and for testing."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(*, generator: torch.Generator, test_share: float = 0.2) -> Split:
    """Return the 1,797 digits of scikit-learn as float32 images of shape (1, 8, 8) with values in [0, 1].

    Args:
        generator: shuffles them.
        test_share: the share kept for testing.

    Returns:
        The two parts.
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    images = torch.from_numpy(source.images).to(torch.float32).unsqueeze(1) / 16.0
    labels = torch.from_numpy(source.target).to(torch.int64)
    order = torch.randperm(len(images), generator=generator)
    tests, trains = order.tensor_split([round(test_share * len(images))])
    return Split(
        train_images=images[trains],
        train_labels=labels[trains],
        test_images=images[tests],
        test_labels=labels[tests],
    )


@dataclass(frozen=True, slots=True)
class ChannelScale:
    """Mean and standard deviation of each channel of a data set, for values from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


MNIST_SCALE = ChannelScale((0.1307,), (0.3081,))
CIFAR_SCALE = ChannelScale((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR_RECORD = 1 + 3 * 32 * 32
"""The number of bytes of a record in the binary version: the label, then the image."""


def mnist(folder: str | Path, *, limit: int | None = None, standardise: bool = True) -> Split:
    """Return MNIST as float32 images of shape (1, 28, 28), standardised.

    Args:
        folder: the folder with the four idx files (`train-images-idx3-ubyte`, ..., also as `.gz`), or a folder `raw` or
            `MNIST/raw` with them.
        limit: the largest number of images in either part.
        standardise: whether to standardise the values; otherwise they lie in [0, 1].

    Returns:
        The two parts, in the order of the files.

    Raises:
        InputError: a file is missing, damaged, or no idx file of images or labels.
    """
    root = Path(folder)
    root = next((root / inner for inner in ("MNIST/raw", "raw") if (root / inner).is_dir()), root)
    parts = []
    for part in ("train", "t10k"):
        images = _idx(_idx_path(root, f"{part}-images", 3), axes=3)[:limit]
        labels = _idx(_idx_path(root, f"{part}-labels", 1), axes=1)[:limit]
        if len(images) != len(labels):
            raise InputError(f"{root} holds {len(images)} {part} images and {len(labels)} labels: a damaged MNIST")
        parts += [
            _floats(images[:, None], MNIST_SCALE if standardise else None),
            torch.from_numpy(labels.astype(np.int64)),
        ]
    return Split(train_images=parts[0], train_labels=parts[1], test_images=parts[2], test_labels=parts[3])


def cifar10(folder: str | Path, *, limit: int | None = None, standardise: bool = True) -> Split:
    """Return CIFAR-10 as float32 images of shape (3, 32, 32), each channel standardised.

    Args:
        folder: the folder with the archive's python batches (`data_batch_1`, ..., `test_batch`) or binary batches
            (`data_batch_1.bin`, ...), or a folder `cifar-10-batches-py` or `cifar-10-batches-bin` with them. Python
            batches are pickles and are read without running any code they may hold.
        limit: the largest number of images in either part; files beyond it are not read.
        standardise: whether to standardise the values; otherwise they lie in [0, 1].

    Returns:
        The two parts, in the order of the files.

    Raises:
        InputError: the files are missing or hold anything but numbers and arrays.
    """
    root = Path(folder)
    inner = ("cifar-10-batches-py", "cifar-10-batches-bin")
    root = next((root / name for name in inner if (root / name).is_dir()), root)
    scale = CIFAR_SCALE if standardise else None
    train_images, train_labels = _cifar_part(root, [f"data_batch_{k}" for k in range(1, 6)], limit, scale)
    test_images, test_labels = _cifar_part(root, ["test_batch"], limit, scale)
    return Split(train_images=train_images, train_labels=train_labels, test_images=test_images, test_labels=test_labels)


def _floats(images: np.ndarray, scale: ChannelScale | None) -> Tensor:
    """Return uint8 images `[n, c, h, w]` in units of each channel's deviation, or from 0 to 1 without a scale."""
    values = torch.from_numpy(np.array(images)).float() / 255.0
    if scale is None:
        return values
    return (values - torch.tensor(scale.mean).reshape(-1, 1, 1)) / torch.tensor(scale.deviation).reshape(-1, 1, 1)


def _idx_path(root: Path, name: str, axes: int) -> Path:
    names = [f"{name}{dot}idx{axes}-ubyte{ending}" for dot in "-." for ending in ("", ".gz")]
    for candidate in names:
        if (root / candidate).is_file():
            return root / candidate
    raise InputError(f"no file {root / names[0]} (or .gz): give the folder with MNIST's idx files")


def _idx(path: Path, *, axes: int) -> np.ndarray:
    """Read an idx file of bytes: two zeros, the type 8, the number of axes, their sizes, the values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4 + 4 * axes)
            sizes = [int.from_bytes(start[k : k + 4]) for k in range(4, len(start), 4)]
            fits = math.prod(sizes) <= unpacked_limit(path.stat().st_size)
            values = file.read(math.prod(sizes) + 1) if fits else b""
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if start[:4] != bytes((0, 0, 8, axes)) or len(sizes) != axes or len(values) != math.prod(sizes):
        raise InputError(f"{path} is no idx file of bytes with {axes} axes, or is cut short or far too large")
    return np.frombuffer(values, dtype=np.uint8).reshape(sizes)


def _cifar_part(
    root: Path, names: Sequence[str], limit: int | None, scale: ChannelScale | None
) -> tuple[Tensor, Tensor]:
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for name in names:
        if limit is not None and sum(map(len, labels)) >= limit:
            break
        binary = root / f"{name}.bin"
        batch = _cifar_binary(binary) if binary.is_file() else _cifar_batch(root / name)
        images.append(batch[0])
        labels.append(batch[1])
    pixels = np.concatenate(images)[:limit].reshape(-1, 3, 32, 32)
    return _floats(pixels, scale), torch.from_numpy(np.concatenate(labels)[:limit])


def _cifar_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    records = np.fromfile(path, dtype=np.uint8)
    if not len(records) or len(records) % CIFAR_RECORD:
        raise InputError(
            f"{path} does not hold records of {CIFAR_RECORD} bytes: no CIFAR-10 binary batch, or cut short"
        )
    records = records.reshape(-1, CIFAR_RECORD)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _cifar_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if not path.is_file():
        raise InputError(f"no file {path}: give the folder with CIFAR-10's python or binary batches")
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        pixels, classes = content[b"data"], content[b"labels"]
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.nbytes > path.stat().st_size:
            raise InputError("its data are no array of bytes")
        images = pixels.reshape(-1, 3 * 32 * 32)
        if len(classes) != len(images) or not all(isinstance(label, int | np.integer) for label in classes):
            raise InputError("its labels are no integers, one for each image")
        labels = np.array(classes, dtype=np.int64)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise InputError(f"{path} is no CIFAR-10 python batch, or is damaged ({type(error).__name__})") from error
    return images, labels


class _ArraysOnly(pickle._Unpickler):
    """Reads pickles of plain data and NumPy arrays; refuses everything that could run code.

    It is the reader that is written in Python: the other one makes room for as many objects as a file says it keeps.
    """

    ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "_frombuffer", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        """Return a name NumPy needs to rebuild an array, or refuse."""
        trusted = module.split(".")[0] == "numpy" or (module, name) == ("_codecs", "encode")
        if trusted and name in self.ALLOWED:
            return super().find_class(module, name)
        raise InputError(f"the file asks for {module}.{name}: not a CIFAR-10 batch, refused")
