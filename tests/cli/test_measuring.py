"""The verbs that measure a model with its data: what they print and write, and that `normscope show` shows it again."""

import json

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.bounds.data.quantile import DataBracket
from normscope.bounds.radius.radii import Radii
from normscope.cli.data_forms import open_labelled
from normscope.cli.model_forms import GivenModel

LOSS = """
import torch


def squares(out, y):
    return (out - torch.nn.functional.one_hot(y, 10)).square().mean()
"""


@pytest.fixture
def written(work, run):
    """Run a verb that writes a.html and a.json, and `show` it; return what was printed, the page and what is shown."""

    def invoke(*arguments):
        done = run(*arguments, "--html", "a.html", "--json", "a.json")
        assert (done.code, done.err) == (0, "")
        assert done.out.endswith("wrote a.html\nwrote a.json\n")
        shown = run("show", "a.json", "--html", "again.html")
        assert (shown.code, shown.err) == (0, "")
        page = (work / "a.html").read_text()
        assert (work / "again.html").read_text() == page
        return done.out, page, shown.out

    return invoke


def test_a_quantile_over_the_digits(work, written):
    words = ("bound", "lipschitz", "net.py:model", "--data", "digits", "--scope", "data", "--share", 0.9)
    out, page, shown = written(*words)
    assert "With confidence 0.95, at 90 % of inputs or more" in " ".join(out.split())
    found = DataBracket.from_json(work / "a.json")
    assert (found.samples, found.share, found.mode) == (32, 0.9, "eval")
    assert len(set(found.indices)) == 32
    assert found.indices != tuple(range(32))
    assert "adversarial" in page
    assert "Look at these first" in shown


@pytest.mark.parametrize("scope", [pytest.param("point", marks=pytest.mark.slow), "global"])
def test_other_scopes(work, run, scope):
    words = ("--data", "net.py:loader", "--scope", scope, "--html", "b.html", "--json", "b.json")
    done = run("bound", "lipschitz", "net.py:model", *words)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("wrote b.html\nwrote b.json\n")
    assert json.loads((work / "b.json").read_text())["scope"] == scope
    assert "Lipschitz constant" in (work / "b.html").read_text()


@pytest.mark.slow
def test_the_symmetries_of_a_network(work, written):
    out, page, shown = written("bound", "symmetries", "net.py:model", "--data", "digits", "--mode", "train")
    assert "By kind" in out
    assert "By kind" in shown
    found = ns.Symmetries.from_json(work / "a.json")
    assert found.verified == found.rows
    assert "Symmetries of the parameters" in page


@pytest.mark.slow
def test_radii_of_digits(work, shell):
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


@pytest.mark.slow
def test_the_bounds_of_a_model_of_digits(work, written):
    options = ("--samples", 400, "--steps", 2, "--cells", 1, "--cells", 4, "--input-range", 0, 1)
    out, page, shown = written("generalization", "net.py:model", "--data", "digits", *options)
    assert "Theorem 20, all inputs" in out
    assert "Conditions that are not met" in out
    assert out == shown.replace("wrote again.html", "wrote a.html") + "wrote a.json\n"
    data = json.loads((work / "a.json").read_text())
    assert (data["type"], data["samples"], data["held_out"], data["tested"]) == ("generalization", 320, 80, 359)
    assert page.count("<svg") >= 3


@pytest.mark.slow
def test_the_curvature_of_digits(work, written, run):
    options = ("--mode", "train", "--samples", 32, "-k", 2, "--bottom", 1, "--also", "smoothness")
    out, page, shown = written("curvature", "net.py:model", "--data", "digits", *options)
    assert "The sharpest direction has curvature" in out
    assert "train mode" in out
    assert "Effective beta" in out
    assert out == shown.replace("wrote again.html", "wrote a.html") + "wrote a.json\n"
    data = json.loads((work / "a.json").read_text())
    assert list(data) == ["schema_version", "type", "spectrum", "smoothness"]
    assert len(data["spectrum"]["eigenvalues"]) == 2
    assert (data["spectrum"]["mode"], data["spectrum"]["directions"]) == ("train", 32)
    assert page.count("<svg") >= 4
    (work / "one.json").write_text(json.dumps(data["smoothness"]))
    assert "Effective beta" in run("show", "one.json").out
    (work / "damaged.json").write_text(json.dumps(data | {"spectrum": data["smoothness"]}))
    assert "is a damaged curvature (spectrum.type is 'smoothness')" in run("show", "damaged.json").err


def test_a_loss_of_ones_own(work, run):
    (work / "losses.py").write_text(LOSS)
    done = run("curvature", "net.py:model", "--data", "digits", "--samples", 32, "-k", 1, "--loss", "losses.py:squares")
    assert (done.code, done.err) == (0, "")


def test_a_choice(work, run):
    grid = "--normalizers none --batch-sizes 8 --learning-rates 0.01 --seeds 1 --steps 2 --workers 0 --no-capacity"
    done = run(*f"choose net.py:build --data digits {grid} --html c.html --json c.json".split())
    assert (done.code, done.err) == (0, "")
    assert "Nothing can be recommended" in done.out  # after two steps
    assert [one.run.key for one in ns.Choice.from_json(work / "c.json").outcomes] == ["none batch=8 lr=0.01 seed=0"]
    assert "Recommendation" in (work / "c.html").read_text()


def test_the_measures_of_a_model_are_printed_written_and_shown_again(work, written):
    chosen = ("--only", "norms", "--only", "distance", "--only", "steps-to-loss")
    options = ("--samples", 100, "--start", "net.py:model", *chosen)
    out, page, shown = written("measures", "net.py:model", "--data", "digits", *options)
    assert "spectral-product" in out
    assert "pass losses=" in out
    assert out == shown.replace("wrote again.html", "wrote a.html") + "wrote a.json\n"
    data = json.loads((work / "a.json").read_text())
    assert (data["type"], data["samples"]) == ("measures", 100)
    (distance,) = (row["value"] for row in data["rows"] if row["name"] == "distance")
    assert distance == 0.0
    assert "Products and ratios" in page


def test_models_are_audited_to_be_compared(work, run):
    done = run("compare", "net.py:model", "normscope.networks:mlp", "--data", "digits", "--html", "out.html")
    assert done.code == 0, done.err
    assert "Comparison of net.py:model and normscope.networks:mlp" in done.out
    assert (work / "out.html").exists()


def test_measures_are_compared_with_measures_alone(work, run):
    for name in ("a", "b"):
        run(
            "measures", "net.py:model", "--data", "digits", "--samples", 50, "--only", "norms", "--json", f"{name}.json"
        )
    assert "spectral-product" in run("compare", "a.json", "b.json").out
    assert "holds measures and net.py:model does not" in run("compare", "a.json", "net.py:model").err
