"""Files that are given to `Domain.load` and are no domains, or are made to harm."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import InputError

from ..tools.hostile_archives import HOSTILE, archive, saved, zeros


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[nn.Module, torch.Tensor, Path]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, batch = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.randn(6, 3)
    path = tmp_path_factory.mktemp("domain") / "domain.npz"
    ns.domain(model, [batch]).save(path)
    return model, batch, path


def refused(path: Path, recorded: tuple[nn.Module, torch.Tensor, Path]) -> str:
    with pytest.raises(InputError) as raised:
        ns.Domain.load(path, *recorded[:2])
    assert str(path) in str(raised.value)
    return str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_hostile_archives_are_no_domains(harm, recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = harm(tmp_path / "harm.npz")
    with contextlib.suppress(zipfile.BadZipFile, struct.error), zipfile.ZipFile(path, "a") as opened:
        opened.writestr("header.npy", header(recorded, keys=["first"]))  # which makes them look like domains
    tracemalloc.start()
    try:
        assert "write one with Domain.save" in refused(path, recorded)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "ran").exists()


def forged(recorded: tuple[nn.Module, torch.Tensor, Path], path: Path, name: str, content: bytes) -> Path:
    """Write the domain with one member more, or another one in its place."""
    with np.load(recorded[2]) as arrays:
        members = {f"{key}.npy": saved(arrays[key]) for key in arrays.files}
    return archive(path, {**members, name: content})


def header(recorded: tuple[nn.Module, torch.Tensor, Path], **changes: object) -> bytes:
    with np.load(recorded[2]) as arrays:
        text = json.dumps({**json.loads(bytes(arrays["header"])), **changes})
    return saved(np.frombuffer(text.encode(), np.uint8))


def test_a_domain_with_one_member_more_or_less(recorded, tmp_path):
    path = tmp_path / "domain.npz"
    assert "other arrays than it holds" in refused(forged(recorded, path, "more.npy", saved(np.zeros(2))), recorded)
    keys = json.loads(bytes(np.load(recorded[2])["header"]))["keys"]
    for changed in (keys[:-1], [*keys, "more"]):
        forged(recorded, path, "header.npy", header(recorded, keys=changed))
        assert "other arrays than it holds" in refused(path, recorded)


def test_a_vast_header_is_not_parsed(recorded, tmp_path):
    path = zeros(tmp_path / "domain.npz", 17 << 20, "|u1", "header")
    assert "its header takes 17.8 MB" in refused(path, recorded)


def test_folders_and_missing_files(recorded, tmp_path):
    assert "there is no file" in refused(tmp_path, recorded)
    assert "there is no file" in refused(tmp_path / "missing.npz", recorded)
