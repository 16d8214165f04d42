"""Bad input: one line that says what was met, exit code 2, and nothing left behind."""

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file


class Evil:
    """A pickle that makes a folder when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def cut(path: Path, share: float) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])


@pytest.fixture
def files(ruins, monkeypatch):
    """Stand in a folder full of files that cannot be used; every case must leave it as it was."""
    monkeypatch.chdir(ruins)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return ruins


@pytest.fixture(scope="module")
def ruins(tmp_path_factory, net_source):
    work = tmp_path_factory.mktemp("ruins")
    (work / "net.py").write_text(net_source)
    torch.save(torch.nn.Linear(2, 2), work / "whole.pt")
    torch.save({"epoch": 3}, work / "empty.pt")
    torch.save([torch.zeros(2)], work / "list.pth")
    (work / "evil.bin").write_bytes(pickle.dumps({"weight": Evil()}))
    torch.save({"weight": Evil()}, work / "evil.pt")
    torch.save({"weight": torch.zeros(100, 100)}, work / "cut.pt")
    cut(work / "cut.pt", 0.5)
    save_file({"a.weight": torch.zeros(100, 100)}, work / "cut.safetensors")
    cut(work / "cut.safetensors", 0.5)
    save_file({"a.weight": torch.zeros(2, 2)}, work / "part-1.safetensors")
    (work / "text.safetensors").write_text("no tensors here")
    save_file({}, work / "none.safetensors")
    for name, shards in {
        "missing": {"a.weight": "part-1.safetensors", "b.weight": "part-2.safetensors"},
        "lying": {"b.weight": "part-1.safetensors"},
        "escaping": {"a.weight": "../part-1.safetensors"},
    }.items():
        (work / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (work / "odd.safetensors.index.json").write_text("[1]")
    (work / "program.pt2").write_bytes(b"not a zip")
    (work / "notes.txt").write_text("hello")
    np.savez(work / "other.npz", foo=np.zeros(3))
    np.savez(work / "objects.npz", x=np.array([Evil()], dtype=object))
    np.savez(work / "words.npz", x=np.array(["a", "b"]))
    np.savez(work / "nothing.npz", x=np.zeros((0, 1, 8, 8)))
    np.savez(work / "cut.npz", x=np.zeros((50, 1, 8, 8)))
    cut(work / "cut.npz", 0.5)
    np.save(work / "array.npy", np.zeros(3))
    os.rename(work / "array.npy", work / "array.npz")
    (work / "folder").mkdir()
    pickled = work / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text('{"model_type": "vit", "architectures": ["ViTModel"]}')
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    foreign = work / "foreign"
    foreign.mkdir()
    config = {"model_type": "vit", "architectures": ["MyModel"], "auto_map": {"AutoModel": "code.MyModel"}}
    (foreign / "config.json").write_text(json.dumps(config))
    (foreign / "code.py").write_text("import os\nos.mkdir('ran')\n")
    save_file({"a": torch.zeros(2)}, foreign / "model.safetensors")
    unknown = work / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text('{"model_type": "no-such-architecture"}')
    save_file({"a": torch.zeros(2)}, unknown / "model.safetensors")
    damaged = work / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text('{"model_type": "vit", "architectures": ["ViTModel"]}')
    (damaged / "model.safetensors").write_bytes(b"cut short")
    bare = work / "bare"
    bare.mkdir()
    (bare / "config.json").write_text('{"model_type": "vit"}')
    raising = work / "raising.py"
    raising.write_text("import no_such_package_at_all\n")
    (work / "syntax.py").write_text("def build(:\n")
    return work


DIGITS = ["--data", "digits"]
CASES = {
    # what MODEL may not be
    "net.py:missing": ("has no 'missing'", []),
    "net.py:number": ("is of type int", []),
    "net.py:returns_a_number": ("returns an object of type int, not a torch.nn.Module", []),
    "net.py:needs": ("called without arguments", []),
    "net.py:raises": ("net.py:raises() raises ValueError: the weights are gone", []),
    "net.py:leaves": ("raises SystemExit", []),
    "net.py:": ("something is missing beside the colon", []),
    "nowhere.py:build": ("no file nowhere.py", []),
    "no_such_package.net:build": ("there is no module 'no_such_package.net'", []),
    "raising.py:build": ("raises ModuleNotFoundError: No module named 'no_such_package_at_all'", []),
    "raising:build": ("raises ModuleNotFoundError: No module named 'no_such_package_at_all'", []),
    "syntax.py:build": ("raises SyntaxError", []),
    "net.py": ("net.py is a Python file: name what builds the model in it too, as in net.py:build", []),
    "notes.txt": ("a file of no known form", []),
    "what is this": ("neither a file nor a folder", []),
    "no-such-org/no-such-model": ("the hub cannot be reached", []),
    "missing.pt2": ("no file missing.pt2", ["--trust"]),
    "program.pt2": ("add --trust", []),
    "program.pt2 trusted": ("no exported program", ["--trust"]),
    "missing.safetensors": ("no file missing.safetensors", []),
    "cut.safetensors": ("cut short", []),
    "text.safetensors": ("no safetensors file", []),
    "none.safetensors": ("holds no tensor", []),
    "missing.safetensors.index.json": ("part-2.safetensors, which missing.safetensors.index.json names", []),
    "lying.safetensors.index.json": ("does not hold the tensor 'b.weight'", []),
    "escaping.safetensors.index.json": ("is not a file name", []),
    "odd.safetensors.index.json": ("no index of safetensors files", []),
    "whole.pt": ("is refused: it is damaged, or a pickle that holds more than tensors", []),
    "evil.pt": ("is refused: it is damaged, or a pickle that holds more than tensors", []),
    "evil.bin": ("refused", []),
    "cut.pt": ("cut.pt is", []),
    "empty.pt": ("holds no tensor by name", []),
    "list.pth": ("not a state dict", []),
    "part-1.safetensors": ("leave --data out", DIGITS),
    "folder": ("holds no config.json", []),
    "pickled": ("convert them with model.save_pretrained", []),
    "foreign": ("not part of transformers", []),
    "unknown": ("no Hugging Face model that transformers can read", []),
    "damaged": ("the weights of damaged cannot be loaded", []),
    "bare": ("holds no *.safetensors file", []),
    # what --data may not be
    "net.py:build": ("give --data", []),
    "net.py:build unknown": ("of no known form", ["--data", "imagenet"]),
    "net.py:build colon": ("lacks what follows the colon", ["--data", "mnist:"]),
    "net.py:build mnist": ("give the folder with MNIST's idx files", ["--data", "mnist:folder"]),
    "net.py:build cifar10": ("give the folder with CIFAR-10's", ["--data", "cifar10:folder"]),
    "net.py:build npz": ("no file missing.npz", ["--data", "npz:missing.npz"]),
    "net.py:build other": ("holds foo: the inputs must be called", ["--data", "npz:other.npz"]),
    "net.py:build objects": ("npz file of plain arrays", ["--data", "npz:objects.npz"]),
    "net.py:build words": ("only plain numbers are read", ["--data", "npz:words.npz"]),
    "net.py:build nothing": ("holds no sample", ["--data", "npz:nothing.npz"]),
    "net.py:build cut": ("damaged", ["--data", "npz:cut.npz"]),
    "net.py:build array": ("not an npz archive", ["--data", "npz:array.npz"]),
    "net.py:build empty": ("yields no batch", ["--data", "net.py:empty"]),
    "net.py:build tears": ("raises OSError: the disk went away (net.py, line", ["--data", "net.py:tears"]),
    "net.py:build number": ("neither batches nor a function", ["--data", "net.py:number"]),
    "net.py:build returns": ("gives an object of type int", ["--data", "net.py:returns_a_number"]),
    "net.py:build raises": ("raises ValueError", ["--data", "net.py:raises"]),
    # what cannot be done with either
    "net.py:Falls": ("this forward always falls", DIGITS),
    "net.py:build shape": ("on batch 1 (shapes [(4, 3)])", ["--data", "net.py:wrong_shape"]),
    "net.py:Several output": ("no float output 'third'", ["--data", "net.py:vectors", "--output", "third"]),
    "net.py:build html": ("there is no folder nowhere", [*DIGITS, "--html", "nowhere/report.html"]),
    "net.py:build json": ("it is a folder", [*DIGITS, "--json", "folder"]),
    "net.py:build both": ("two files of the same name", [*DIGITS, "--json", "x", "--html", "x"]),
}


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_nothing_left_behind(case, files, run):
    expected, options = CASES[case]
    model = case if case == "what is this" else case.split(" ")[0]
    targets = [] if {"--html", "--json"} & set(options) else ["--html", "out.html", "--json", "out.json"]
    before = listing(files)
    done = run("audit", model, *options, *targets)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("normscope: ")
    assert done.err.count("\n") == 1
    assert expected in done.err
    assert "not expected" not in done.err
    assert listing(files) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a.json"], "two audits or more"),
        (["missing.json", "notes.txt"], "cannot read missing.json"),
        (["notes.txt", "notes.txt"], "no JSON"),
        (["odd.safetensors.index.json", "notes.txt"], "holds no audit"),
        (["a.json", "b.json", "--html", "nowhere/x.html"], "there is no folder nowhere"),
    ],
)
def test_compare_refuses_in_one_line(arguments, expected, files, run):
    before = listing(files)
    done = run("compare", *arguments)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert listing(files) == before
    assert expected in done.err


REFUSED = {
    "demo --out net.py/inside": "normscope: cannot make the folder",
    "bound lipschitz net.py:model": "--data",
    "bound lipschitz net.py:model --data nonsense": "no known form",
    "bound lipschitz net.py:model --data digits --share 1.5": "share is a number between 0 and 1",
    "bound lipschitz net.py:model --data net.py:loader --scope point --per class": "--scope data",
    "bound symmetries net.py:broken --data digits": "NaN",
    "bound radius net.py:model": "--data",
    "bound radius net.py:model --data net.py:pairs": "dtype",
    "bound radius net.py:model --data npz:floats.npz": "labels are integers",
    "bound radius net.py:Several --data net.py:vectors": "choose one",
    "generalization net.py:model --data net.py:loader": "no labels",
    "generalization net.py:model --data digits --test digits --samples 50 --delta 2": "delta",
    "generalization net.py:model --data digits --samples 50 --loss cross_entropy": "cross_entropy",
    "curvature net.py:model --data net.py:loader": "no labels",
    "curvature net.py:model --data digits --loss net.py:rows": "must be a scalar",
    "choose net.py:build --data digits --batch-sizes 2,x": "--batch-sizes are numbers",
    "choose net.py:build --data net.py:loader": "has no labels",
    "choose net.py:build --data digits --device nowhere": "cannot be moved to --device nowhere",
}


@pytest.mark.parametrize("command", REFUSED)
def test_every_verb_refuses_in_one_line(command, work, run):
    np.savez(work / "floats.npz", x=np.zeros((3, 1, 8, 8), dtype=np.float32), y=np.zeros(3))
    done = run(*command.split())
    assert (done.code, done.out) == (2, "")
    assert REFUSED[command] in done.err
    assert done.err.count("\n") == 1 or done.err.startswith("Usage: ")  # typer tells of a missing option in a box


@pytest.mark.parametrize(
    "verb",
    [
        "lab cost",
        "curvature",
        "generalization",
        *(f"bound {v}" for v in ["lipschitz", "radius", "symmetries"]),
    ],
)
def test_weights_alone_are_refused_by_every_command_that_runs_a_model(verb, work, run):
    save_file({"a.weight": torch.ones(2, 2)}, "w.safetensors")
    done = run(*verb.split(), "w.safetensors", "--data", "digits")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "normscope: w.safetensors holds weights and no model to run: name a function that builds the model "
        "(package.module:function)\n"
    )
