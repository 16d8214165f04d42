"""Files made to harm the reader: refused in one line, nothing run, nothing blown up."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns

from .proofs import File, checker


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> File:
    path = tmp_path_factory.mktemp("sound") / "norm.npz"
    ns.spectral_norm(nn.Conv2d(1, 2, 3, padding=1), (1, 5, 5)).save(path)
    return File.of(path)


def refused(path, capsys) -> str:
    assert checker.main([str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return shown.err


def test_what_is_not_there_or_not_a_proof(tmp_path, capsys):
    refused(tmp_path / "missing.npz", capsys)
    refused(tmp_path, capsys)
    np.savez(tmp_path / "weights.npz", weight=np.ones(3))
    assert "not a proof file" in refused(tmp_path / "weights.npz", capsys)
    torch.save({"a": torch.ones(2)}, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", capsys)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"null", b'{"format": "normscope-proof"}', b"\xff\xfe", b'{"a": 1, "a": 2}'),
        *(b'{"format": "normscope-proof", "version": 4, "claims": NaN}', b"[" * 100_000),
        *(b'{"format": "normscope-proof", "version": %d}' % version for version in (1, 2, 3)),
    ],
    ids=range(12),
)
def test_headers_that_are_no_headers(text, tmp_path, capsys):
    np.savez(tmp_path / "proof.npz", header=np.frombuffer(text or b" ", np.uint8))
    refused(tmp_path / "proof.npz", capsys)


def dense(file: File) -> dict:
    return next(node for node in file.header["network"]["nodes"] if node["kind"] == "dense")


def bomb(file: File) -> None:
    file.header["network"]["input"]["size"] = 10**9


def widen(file: File) -> None:
    dense(file)["columns"] = 10**9


def flood(file: File) -> None:
    factors = {"array": dense(file)["matrix"], "each": 10**6}
    file.header["network"]["nodes"].append({"name": "z", "kind": "scale", "from": ["y"], "factors": factors})


def mistype(file: File) -> None:
    file.claim("upper")["log10"] = True


def misspell(file: File) -> None:
    dense(file)["kind"] = "__import__('os').system('true')"


def lengthen(file: File) -> None:
    name = file.claim("lower")["witness"][0]
    file.arrays[name] = np.ones(7)


def complicate(file: File) -> None:
    file.arrays["extra"] = np.ones(2, complex)


@pytest.mark.parametrize(
    "harm",
    [bomb, widen, flood, mistype, misspell, lengthen, complicate],
    ids=lambda harm: harm.__name__,
)
def test_harmful_content_is_refused(harm, sound, tmp_path, capsys):
    file = sound.copy()
    harm(file)
    refused(file.write(tmp_path / "proof.npz"), capsys)


def test_names_cannot_move_the_terminal(sound, tmp_path, capsys):
    file = sound.copy()
    file.claim("upper")["method"] = "\x1b[2Jgone\n\r"
    assert checker.main([str(file.write(tmp_path / "proof.npz"))]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("\n") == 2


@pytest.mark.slow
def test_every_field_may_be_anything(sound, tmp_path, capsys):
    """Replace every value of the header by values of other kinds: there is an answer, never a crash."""
    text = json.dumps(sound.header)
    places = list(_places(json.loads(text)))
    for place in places:
        for value in (None, -1, 1e308, "x", [[1]], {}):
            file = File(json.loads(text), sound.arrays)
            target = file.header
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = value
            assert checker.main([str(file.write(tmp_path / "proof.npz"))]) in (0, 1, 2, 3)
    assert "cannot be checked" not in capsys.readouterr().err


def _places(tree, before=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from _places(value, (*before, key))
