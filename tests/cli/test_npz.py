"""`--data npz:FILE` with files from anywhere: what is not needed is not unpacked, and nothing harms."""

from __future__ import annotations

import contextlib
import tracemalloc

import numpy as np
import pytest
from torch import nn

from normscope.cli import data_forms
from normscope.cli.data_forms import open_labelled
from normscope.cli.model_forms import GivenModel
from normscope.core.errors import InputError

from ..tools.hostile_archives import HOSTILE, archive, saved

READABLE = ("big_endian", "bomb", "flipped")
"""Harmless as data: others save such files, the first samples of a bomb are small, and the damage lies behind them."""


def given() -> GivenModel:
    return GivenModel(name="net", model=nn.Linear(3, 2).eval())


@pytest.mark.slow
@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_hostile_archives(harm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = harm(tmp_path / "harm.npz")
    monkeypatch.setattr(data_forms, "INPUTS", ("a0", "a000"))
    samples = None
    tracemalloc.start()
    try:
        with contextlib.suppress(InputError):
            samples = data_forms.npz_inputs(path, 10)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert (samples is not None) == (harm.__name__ in READABLE)
    assert samples is None or len(samples) <= 10
    assert not (tmp_path / "ran").exists()


def test_only_the_samples_that_are_needed_are_unpacked(tmp_path):
    """Five megabytes of samples lie in the file."""
    path = tmp_path / "data.npz"
    archive(path, {"x.npy": saved(np.zeros((200_000, 3), np.int64)), "y.npy": saved(np.arange(200_000) % 2)})
    tracemalloc.start()
    try:
        ((inputs, labels),) = open_labelled(f"npz:{path}", given(), samples=7, seed=0).batches
        batches = data_forms.open_data(f"npz:{path}", given(), batch_size=4, seed=0)
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
    assert (inputs.shape, labels.tolist()) == ((7, 3), [0, 1, 0, 1, 0, 1, 0])  # integers were once not cut
    assert len(batches.loader) == data_forms.BATCHES
