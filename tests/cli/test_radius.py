"""`normscope bound radius`: what it prints and writes, and what it refuses."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from normscope.bounds.radius.radii import Radii
from normscope.cli.data_forms import open_labelled
from normscope.cli.model_forms import GivenModel

QUICK = ("--samples", 6, "--max-seconds", 2)


@pytest.mark.slow
def test_radii_of_digits_are_printed_and_written(work, shell):
    options = ("--samples", 10, "--max-seconds", 2, "--at", 0.01, "--at", 0.3, "--html", "r.html", "--json", "r.json")
    done = shell("bound", "radius", "net:build", "--data", "digits", *options)
    assert (done.code, done.err) == (0, "")
    assert "certified" in done.out
    assert "Under attack: the share" in done.out
    assert "0.01" in done.out
    assert done.out.endswith("wrote r.html\nwrote r.json\n")
    radii = Radii.from_json(work / "r.json")
    assert (radii.name, len(radii), radii.classes, radii.input_shape) == ("net:build", 10, 10, (1, 8, 8))
    assert radii.notes[0] == "data: scikit-learn's digits, the part kept for testing, values from 0 to 1, 10 samples"
    page = (work / "r.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "net:build" in page


def test_classes_come_from_npz_files(work):
    given = GivenModel(name="net", model=torch.nn.Linear(4, 3).double())
    np.savez("a.npz", x=np.random.rand(9, 4), labels=np.arange(9, dtype=np.uint8) % 3)
    ((inputs, labels),) = open_labelled("npz:a.npz", given, samples=5, seed=0).batches
    assert (inputs.shape, inputs.dtype, labels.tolist()) == ((5, 4), torch.float64, [0, 1, 2, 0, 1])
    np.savez("b.npz", x=np.random.rand(9, 4))
    opened = open_labelled("npz:b.npz", given, samples=50, seed=0)
    assert opened.batches[0][1] is None
    assert "predicted classes" in opened.notes[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:model",), "--data"),
        (("net.py:model", "--data", "nonsense"), "no known form"),
        (("net.py:model", "--data", "net.py:pairs"), "dtype"),
        (("net.py:model", "--data", "net.py:wrong_shape"), "shapes"),
        (("net.py:model", "--data", "npz:floats.npz"), "labels are integers"),
        (("net.py:broken", "--data", "digits"), "NaN"),
        (("net.py:Several", "--data", "net.py:vectors"), "choose one"),
        (("net.py:model", "--data", "digits", "--html", "no/r.html"), "no folder"),
        (("weights.safetensors", "--data", "digits"), "no model to run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line_and_exit_code_2(work, run, arguments, message):
    save_file({"weight": torch.zeros(2, 2)}, work / "weights.safetensors")
    np.savez(work / "floats.npz", x=np.zeros((3, 1, 8, 8), dtype=np.float32), y=np.zeros(3))
    done = run("bound", "radius", *arguments, *QUICK)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
