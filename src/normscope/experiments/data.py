"""Data sets: scikit-learn's 8x8 digits, which are embedded, and CIFAR-10 from a folder the user gives."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Images and labels, cut into a part to train on and a part to test on."""

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


CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def cifar10(folder: str | Path) -> Split:
    """Return CIFAR-10 as float32 images of shape (3, 32, 32), each channel standardised.

    Args:
        folder: holds the archive's python batches (`data_batch_1`, ..., `test_batch`), or a folder
            `cifar-10-batches-py` with them. They are pickles and are read without running any code they may hold.

    Raises:
        InputError: the files are missing or hold anything but numbers and arrays.
    """
    root = Path(folder)
    root = root / "cifar-10-batches-py" if (root / "cifar-10-batches-py").is_dir() else root
    parts = [_cifar_batch(root / f"data_batch_{k}") for k in range(1, 6)]
    test_images, test_labels = _cifar_batch(root / "test_batch")
    return Split(
        train_images=torch.cat([images for images, _ in parts]),
        train_labels=torch.cat([labels for _, labels in parts]),
        test_images=test_images,
        test_labels=test_labels,
    )


def _cifar_batch(path: Path) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise InputError(f"no file {path}: give the folder with CIFAR-10's python batches")
    with path.open("rb") as file:
        content = _ArraysOnly(file, encoding="bytes").load()
    images = torch.from_numpy(np.asarray(content[b"data"], dtype=np.uint8)).reshape(-1, 3, 32, 32).float() / 255.0
    mean, std = torch.tensor(CIFAR_MEAN).reshape(3, 1, 1), torch.tensor(CIFAR_STD).reshape(3, 1, 1)
    return (images - mean) / std, torch.tensor(content[b"labels"], dtype=torch.int64)


class _ArraysOnly(pickle.Unpickler):
    """Reads pickles of plain data and NumPy arrays; refuses everything that could run code."""

    ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "_frombuffer", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        """Return a name NumPy needs to rebuild an array, or refuse."""
        trusted = module.split(".")[0] == "numpy" or (module, name) == ("_codecs", "encode")
        if trusted and name in self.ALLOWED:
            return super().find_class(module, name)
        raise InputError(f"the file asks for {module}.{name}: not a CIFAR-10 batch, refused")
