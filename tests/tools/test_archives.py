"""The two readers of npz files, Normscope's and the checker's: the same limits, and bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from normscope.core import npz

from .hostile_archives import (
    HARMLESS,
    HOSTILE,
    bomb,
    declared_too_small,
    overlapping,
    vast_directory,
    vast_header,
)
from .proofs import reading

DTYPES = ("<f8", "<f4", "<i8", "|u1")


def refusals(path: Path) -> tuple[str | None, str | None]:
    """Return the reasons for which the two readers refuse a file; None where one reads it."""
    try:
        ours = npz.read_arrays(path, DTYPES)
        our_reason = None
    except ValueError as error:
        our_reason = str(error)
    try:
        theirs = reading.unpack(str(path))
        their_reason = None
    except Exception as error:
        their_reason = str(error)
    if our_reason is None and their_reason is None:
        assert list(ours) == list(theirs)
        for name, value in ours.items():
            assert (value.dtype, value.shape) == (theirs[name].dtype, theirs[name].shape)
            np.testing.assert_array_equal(value, theirs[name])
    return our_reason, their_reason


@pytest.mark.slow
@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_both_readers_refuse(harm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours, theirs = refusals(harm(tmp_path / "harm.npz"))
    assert ours
    assert theirs
    assert [path.name for path in tmp_path.iterdir()] == ["harm.npz"]


@pytest.mark.slow
@pytest.mark.parametrize("make", HARMLESS, ids=lambda make: make.__name__)
def test_both_readers_read(make, tmp_path):
    assert refusals(make(tmp_path / "plain.npz")) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("read", [lambda path: npz.read_arrays(path, DTYPES), lambda path: reading.unpack(str(path))])
@pytest.mark.parametrize(
    "harm",
    [bomb, overlapping, vast_header, vast_directory, declared_too_small],
    ids=lambda harm: harm.__name__,
)
def test_what_is_refused_takes_no_memory(harm, read, tmp_path):
    path = harm(tmp_path / "harm.npz")
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, reading.BadFile)):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 100e6  # 64 MiB may be unpacked before one array is too many
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_the_first_rows_alone_are_unpacked(tmp_path):
    """Data may be a thousand times what is read of them."""
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.zeros((2_000_000, 5)), t=np.asfortranarray(np.arange(12.0).reshape(4, 3)))
    with npz.open_npz(path) as archive:
        assert archive.names == ("x", "t")
        assert archive.array("x", rows=7).shape == (7, 5)
        np.testing.assert_array_equal(archive.array("t", rows=2), np.arange(12.0).reshape(4, 3)[:2])
    with pytest.raises(ValueError, match="unpack to more than"), npz.open_npz(path) as archive:
        archive.array("x")
