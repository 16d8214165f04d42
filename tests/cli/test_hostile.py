"""Input that nobody means well with: code that exits, names that hold escape sequences, files of noise."""

import io
import json
import logging

import numpy as np
import pytest
import torch

import normscope
from normscope.cli import data_forms
from normscope.cli.messages import one_line
from normscope.cli.model_forms import GivenModel
from normscope.core.errors import InputError

EXITS = """
import sys
import torch
from torch import nn


class Leaves(nn.Module):
    def forward(self, x):
        sys.exit(0)


def factory():
    sys.exit(0)


def first():
    sys.exit(0)
    yield


def later():
    yield torch.randn(4, 64)
    sys.exit(0)


class Panic(BaseException):
    pass


class Panics(nn.Module):
    def forward(self, x):
        raise Panic("at the disco\\x1b[31m\\nand on")


def build():
    return nn.Linear(64, 4).eval()


def colours():
    raise ValueError("\\x1b[31mred")
"""


@pytest.fixture
def exits(work):
    (work / "exits.py").write_text(EXITS)
    return work


@pytest.mark.parametrize(
    ("model", "data"),
    [("Leaves", "digits"), ("factory", "digits"), ("build", "exits.py:first"), ("build", "exits.py:later"),
     ("build", "exits.py:factory")],
)  # fmt: skip
def test_code_that_exits_is_no_success(model, data, exits, run):
    done = run("audit", f"exits.py:{model}", "--data", data)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "SystemExit: 0" in done.err
    assert "not expected" not in done.err


def test_what_is_no_exception_ends_in_one_line_too(exits, run):
    done = run("audit", "exits.py:Panics", "--data", "digits")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "at the disco" in done.err
    assert "\x1b" not in done.err


def test_no_message_reaches_the_terminal_with_its_control_characters(exits, run):
    (exits / "m.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "\x1b[31mevil\nline"}}))
    audit = {"type": "audit", "schema_version": "\x1b[31mX\nY" + "z" * 999}
    (exits / "a.json").write_text(json.dumps(audit))
    for arguments in (
        ("audit", "m.safetensors.index.json"),
        ("audit", "exits.py:colours"),
        ("audit", "a\x1b[31m\nb.safetensors"),
        ("show", "a.json"),
        ("show", "\x1b]0;title\x07\r\u202e.json"),
    ):
        done = run(*arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert not set(done.err) & set("\x1b\r\x07\u202e")
        assert len(done.err) < 300
    assert one_line("a\tb\n\n  c\x9b\ud800\u2028") == "a b c\\x9b\\ud800\\u2028"


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_dense_values_are_skipped(exits, run):
    eye = torch.eye(3)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    odd = {"sparse.weight": eye.to_sparse(), "csr.weight": eye.to_sparse_csr(), "nested.weight": nested}
    torch.save(odd | {"meta.weight": torch.eye(3, device="meta"), "dense.weight": eye}, exits / "odd.pt")
    done = run("audit", "odd.pt", "--json", "a.json")
    assert (done.code, done.err) == (0, "")
    audit = normscope.Audit.from_json(exits / "a.json")
    assert [row.path for row in audit.layers] == ["dense"]
    assert any("4 tensors" in what and "sparse, nested or meta" in why for what, why in audit.skipped)


@pytest.mark.parametrize("name", ["noise.pt", "text.bin", "empty.pth", "noise.pt2"])
def test_noise_is_refused_in_one_line(name, exits, run):
    noise = np.random.default_rng(0).bytes(500)
    content = {"noise.pt": b"\x80\x02" + noise, "text.bin": b"no tensors here", "empty.pth": b"", "noise.pt2": noise}
    (exits / name).write_bytes(content[name])
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger("torch.export").addHandler(handler)
    done = run("audit", name, "--trust")
    logging.getLogger("torch.export").removeHandler(handler)
    assert (done.code, done.out, done.err.count("\n"), logged.getvalue()) == (2, "", 1, "")
    assert ("can load" if name == "noise.pt2" else f"{name} is ") in done.err


def test_values_beyond_the_models_dtype_are_refused_and_those_within_keep_their_digits(exits, run):
    np.savez(exits / "large.npz", x=np.full((4, 64), 1e300))
    done = run("audit", "exits.py:build", "--data", "npz:large.npz")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--data holds 1e+300, beyond the range of the model's float32" in done.err
    double = GivenModel(name="m", model=torch.nn.Linear(64, 4).double())
    assert float(data_forms.open_data("npz:large.npz", double, batch_size=None, seed=0).first.max()) == 1e300
    with np.errstate(all="raise"):
        np.savez(exits / "longer.npz", x=np.full((4, 64), np.longdouble("0.1")))
        data_forms.open_data("npz:longer.npz", double, batch_size=None, seed=0)
    half = GivenModel(name="m", model=torch.nn.Linear(64, 4).half())
    np.savez(exits / "mixed.npz", x=np.full((4, 64), -1e5, np.float32))
    with pytest.raises(InputError, match="float16"):
        data_forms.open_data("npz:mixed.npz", half, batch_size=None, seed=0)
