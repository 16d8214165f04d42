"""`normscope curvature`: what it prints and writes, and what it refuses."""

import json

import pytest

LOSSES = """
import torch


def squares(out, y):
    return (out - torch.nn.functional.one_hot(y, 10)).square().mean()


def rows(out, y):
    return out.sum(1)
"""


@pytest.mark.slow
def test_the_curvature_of_digits_is_printed_and_written(work, run):
    options = ("--mode", "train", "--samples", 32, "-k", 2, "--bottom", 1, "--html", "c.html", "--json", "c.json")
    done = run("curvature", "net.py:model", "--data", "digits", *options, "--also", "smoothness")
    assert (done.code, done.err) == (0, "")
    assert "The sharpest direction has curvature" in done.out
    assert "train mode" in done.out
    assert "Effective beta" in done.out
    assert done.out.endswith("wrote c.html\nwrote c.json\n")
    data = json.loads((work / "c.json").read_text())
    assert list(data) == ["schema_version", "type", "spectrum", "smoothness"]
    assert len(data["spectrum"]["eigenvalues"]) == 2
    assert (data["spectrum"]["mode"], data["spectrum"]["directions"]) == ("train", 32)
    assert (work / "c.html").read_text().count("<svg") >= 4
    shown = run("show", "c.json", "--html", "again.html")
    assert (shown.code, shown.err) == (0, "")
    assert done.out == shown.out.replace("wrote again.html", "wrote c.html") + "wrote c.json\n"
    assert (work / "again.html").read_text() == (work / "c.html").read_text()
    (work / "one.json").write_text(json.dumps(data["smoothness"]))
    assert "Effective beta" in run("show", "one.json").out
    (work / "damaged.json").write_text(json.dumps(data | {"spectrum": data["smoothness"]}))
    assert "is a damaged curvature (spectrum.type is 'smoothness')" in run("show", "damaged.json").err


def test_a_loss_of_ones_own(work, run):
    (work / "losses.py").write_text(LOSSES)
    done = run("curvature", "net.py:model", "--data", "digits", "--samples", 32, "-k", 1, "--loss", "losses.py:squares")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:model", "--data", "net.py:loader"), "no labels"),
        (("net.py:model", "--data", "digits", "--loss", "nonsense"), "nonsense"),
        (("net.py:model", "--data", "digits", "--loss", "losses.py:rows"), "must be a scalar"),
        (("net.py:broken", "--data", "digits"), "nan"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(work, run, arguments, message):
    (work / "losses.py").write_text(LOSSES)
    done = run("curvature", *arguments)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
