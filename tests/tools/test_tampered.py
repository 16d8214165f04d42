"""Files that were tampered with by someone who knows the format: the digest fits, the claims do not."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from normscope.bounds.traced_network import TracedNetwork

from ..soundness.networks import noise
from .proofs import File, bracket_of, checker, reading, seeded, tight


def conv_net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64, 8), nn.LayerNorm(8, eps=0.3), nn.LeakyReLU(0.2), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)),
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> File:
    """The file of a bracket that is verified."""
    path = tmp_path_factory.mktemp("sound") / "proof.npz"
    tight(seeded(conv_net), noise(2, 2, 8, 8, seed=3)).save(path)
    assert checker.main([str(path)]) == 0
    return File.of(path)


def weight(file: File, name: str) -> np.ndarray:
    """Return a copy in float64, put in place, of the matrix that a linear node multiplies by, `[rows, terms]`."""
    nodes = file.header["network"]["nodes"]
    found = next(n for n in nodes if n["kind"] == "dense" and n["name"].split("/")[0] == name)
    return widened(file, found["matrix"])[0]


def widened(file: File, name: str) -> np.ndarray:
    file.arrays[name] = file.arrays[name].astype(np.float64)
    return file.arrays[name]


def certificate(file: File) -> dict:
    return next(step for step in file.claim("upper")["steps"] if step["do"] == "certificate")


def lower_the_bound(file: File) -> None:
    file.claim("upper")["log10"] -= 0.02


def raise_the_lower_side(file: File) -> None:
    file.claim("lower")["log10"] += 1e-6


def change_a_weight(file: File) -> None:
    weight(file, "linear_1")[0, 0] *= 1.5


def overstate_the_scale(file: File) -> None:
    certificate(file)["scale"] *= 1.1
    file.claim("upper")["log10"] -= 0.04


def move_the_witness(file: File) -> None:
    name = file.claim("lower")["witness"][0]
    widened(file, name)[3] += 0.1


def change_eps(file: File) -> None:
    file.node(kind="normalize")["eps"] = 0.31


def move_the_probe(file: File) -> None:
    widened(file, file.header["probe"]["output"])[0] += 1e-3


FALSE = [
    lower_the_bound, raise_the_lower_side, change_a_weight, overstate_the_scale, move_the_witness, change_eps,
    move_the_probe,
]  # fmt: skip


def told(file: File, tmp_path, capsys) -> tuple[int, str, str]:
    code = checker.main([str(file.write(tmp_path / "proof.npz"))])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.slow
@pytest.mark.parametrize("tamper", FALSE, ids=lambda tamper: tamper.__name__)
def test_a_false_claim_is_rejected(tamper: Callable[[File], None], sound, tmp_path, capsys):
    file = sound.copy()
    tamper(file)
    code, out, _ = told(file, tmp_path, capsys)
    assert code == 1
    assert "REJECTED" in out


@pytest.mark.slow
def test_untouched_it_is_verified(sound, tmp_path, capsys):
    code, out, _ = told(sound.copy(), tmp_path, capsys)
    assert (code, out.count(": VERIFIED")) == (0, 3)


@pytest.mark.parametrize(("threshold", "code"), [(20.0, 3), (36.0, 3), (40.0, 0)])
def test_a_jump_that_float64_can_see_is_not_verified(threshold, code, tmp_path):
    """softplus(20) is 2e-9 above 20, which torch returns a little further: the function has no constant 1."""
    model = nn.Softplus(1.0, threshold).double().eval()
    bracket_of(TracedNetwork.of(model, torch.zeros(1, 1, dtype=torch.float64)), 0.0).save(tmp_path / "proof.npz")
    assert checker.main([str(tmp_path / "proof.npz")]) == code


@pytest.mark.slow
def test_a_truncated_file_and_one_flipped_byte_are_refused(sound, tmp_path, capsys):
    path = sound.write(tmp_path / "whole.npz")
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:-10], b"", b"PK\x03\x04", content[::-1]):
        path.write_bytes(damaged)
        assert checker.main([str(path)]) == 2
    for place in range(200, len(content), len(content) // 40):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert checker.main([str(path)]) in (0, 2)  # 0: a byte of the archive that means nothing
    assert capsys.readouterr().err.count("\n") >= 30


def test_accidents_are_seen_by_the_digest_alone(sound, tmp_path, monkeypatch, capsys):
    file = sound.copy()
    digest = reading.fingerprint(file.header, file.arrays)
    weight(file, "linear_2")[0, 0] += 1e-7
    monkeypatch.setattr(reading, "fingerprint", lambda header, arrays: digest)
    path = file.write(tmp_path / "proof.npz")
    monkeypatch.undo()
    assert checker.main([str(path)]) == 2
    assert "digest" in capsys.readouterr().err
