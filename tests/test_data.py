"""Data sets in their standard formats, whole, damaged and dangerous."""

import gzip
import os
import pickle
import struct

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.data import cifar10, digits, mnist


def write_mnist(folder, *, packed=False, dot="-"):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 5), ("t10k", 3)):
        images, labels = rng.integers(0, 256, (count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8)
        files = {
            f"{part}-images{dot}idx3-ubyte": struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + images.tobytes(),
            f"{part}-labels{dot}idx1-ubyte": struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes(),
        }
        for name, raw in files.items():
            (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(raw) if packed else raw)


@pytest.mark.parametrize(("inner", "packed", "dot"), [("", False, "-"), ("raw", True, "-"), ("MNIST/raw", False, ".")])
def test_mnist_in_every_layout(tmp_path, inner, packed, dot):
    write_mnist(tmp_path / inner, packed=packed, dot=dot)
    data = mnist(tmp_path)
    assert data.train_images.shape == (5, 1, 28, 28)
    assert data.train_images.dtype == torch.float32
    assert data.test_labels.tolist() == [0, 1, 2]
    raw = (data.train_images * 0.3081 + 0.1307) * 255
    assert torch.allclose(raw, raw.round(), atol=1e-3)
    assert len(mnist(tmp_path, limit=2).train_images) == 2


def test_mnist_refuses_what_is_missing_or_damaged(tmp_path):
    with pytest.raises(InputError, match="no file"):
        mnist(tmp_path)
    write_mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:3], b"", b"\x00\x00\x0d\x03" + whole[4:]):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match="no idx file"):
            mnist(tmp_path)
    file.write_bytes(whole)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes(2))
    with pytest.raises(InputError, match="5 train images and 2 labels"):
        mnist(tmp_path)
    labels.unlink()
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(b"not gzip")
    with pytest.raises(InputError, match="cannot read"):
        mnist(tmp_path)


def write_cifar(folder, *, binary=False, count=4):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        images, labels = rng.integers(0, 256, (count, 3072), np.uint8), rng.integers(0, 10, count)
        if binary:
            records = np.concatenate([labels[:, None].astype(np.uint8), images], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            (folder / name).write_bytes(pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2))


def test_cifar10_python_and_binary_batches_agree(tmp_path):
    write_cifar(tmp_path / "a/cifar-10-batches-py")
    write_cifar(tmp_path / "b/cifar-10-batches-bin", binary=True)
    python, binary = cifar10(tmp_path / "a"), cifar10(tmp_path / "b")
    assert python.train_images.shape == (20, 3, 32, 32)
    assert torch.equal(python.train_images, binary.train_images)
    assert torch.equal(python.test_labels, binary.test_labels)


def test_cifar10_reads_no_more_files_than_asked(tmp_path):
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3").unlink()
    data = cifar10(tmp_path, limit=6)
    assert (len(data.train_images), len(data.train_labels), len(data.test_images)) == (6, 6, 4)
    with pytest.raises(InputError, match=r"no file .*data_batch_3"):
        cifar10(tmp_path)


class Evil:
    """A pickle that makes a folder when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_cifar10_runs_no_code_and_tells_damage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path)
    whole = (tmp_path / "data_batch_1").read_bytes()
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(InputError, match=r"asks for (posix|nt)\.mkdir"):
        cifar10(tmp_path)
    assert not (tmp_path / "ran").exists()
    wrong = pickle.dumps({b"data": np.zeros((2, 7), np.uint8), b"labels": [0, 1]}, protocol=2)
    for damaged in (whole[: len(whole) // 2], b"", b"hello", pickle.dumps([1]), wrong):
        (tmp_path / "data_batch_1").write_bytes(damaged)
        with pytest.raises(InputError, match="no CIFAR-10 python batch, or is damaged"):
            cifar10(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3000))
    with pytest.raises(InputError, match="cut short"):
        cifar10(tmp_path)


def test_digits_are_shuffled_by_the_generator():
    one, two = (digits(generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert (len(one.train_images), len(one.test_images)) == (1438, 359)
    assert one.train_images.shape[1:] == (1, 8, 8)
    assert not torch.equal(one.train_labels, two.train_labels)
