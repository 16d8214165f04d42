"""Files of weights and data sets that would take far more memory than their size are refused before they do."""

from __future__ import annotations

import gzip
import tracemalloc
import zipfile

import pytest
import torch

import normscope.data as datasets
from normscope.cli.stored import stored_weights
from normscope.core.errors import InputError


@pytest.mark.slow
def test_packed_weights(tmp_path):
    torch.save({"a.weight": torch.zeros(2, 10_000_000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in plain.namelist():
            packed.writestr(member, plain.read(member))
    assert (tmp_path / "bomb.pt").stat().st_size < 100_000
    with pytest.raises(InputError, match=r"it is packed, and would take 80\.0 MB"):
        stored_weights(tmp_path / "bomb.pt")
    assert stored_weights(tmp_path / "plain.pt")


def test_one_number_that_claims_to_be_millions(tmp_path):
    torch.save({"a.weight": torch.zeros(1).expand(2, 10_000_000)}, tmp_path / "bomb.pt")
    with pytest.raises(InputError, match=r"shape \(2, 10000000\), and fewer numbers are stored"):
        stored_weights(tmp_path / "bomb.pt")


def test_a_vast_table_of_tensors(tmp_path):
    (tmp_path / "a.safetensors").write_bytes((20_000_000).to_bytes(8, "little") + b"{}" + b" " * 20_000_000)
    with pytest.raises(InputError, match=r"its table of tensors takes 20\.0 MB, more than 16\.8 MB"):
        stored_weights(tmp_path / "a.safetensors")


def test_a_packed_data_set(tmp_path):
    sizes = b"".join(size.to_bytes(4, "big") for size in (1, 10_000, 10_000))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + sizes + bytes(10**8), 1))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="far too large"):
            datasets.mnist(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_a_pickle_that_asks_for_room(tmp_path):
    """It says that it keeps 16 million objects."""
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02]r\0\0\0\x01.")
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            datasets.cifar10(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
