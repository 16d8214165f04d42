"""Every public result prints, shows itself in a notebook, and has JSON, a page, a data frame and a plot."""

from __future__ import annotations

import builtins
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
import normscope_lab as lab
from normscope.core.errors import InputError
from normscope.core.shown import Shown

CLASSES = {name: getattr(ns, name) for name in ns.__all__ if inspect.isclass(getattr(ns, name))}
CLASSES["Generalization"] = lab.Generalization
RESULTS = sorted(name for name, cls in CLASSES.items() if issubclass(cls, Shown))
METHODS = ("to_json", "from_json", "to_html", "to_pandas", "plot")
WITHOUT = {
    ("Graph", "to_json"): "it holds the weights and the operators of the model: capture it again",
    ("Graph", "from_json"): "capture it again",
}
"""What a result does not have, and why."""
WITHOUT_CHART = ("Graph", "Twin")
"""Results that are lists, of operators and of changes: there is nothing to draw."""


def test_every_result_is_here() -> None:
    parts = {"Evidence", "Finding", "FindingsError", "NormscopeError", "Scope", "Severity"}
    assert CLASSES.keys() - parts == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_has_every_method(name: str) -> None:
    lacking = {method for method in METHODS if not hasattr(CLASSES[name], method)}
    assert lacking == {method for result, method in WITHOUT if result == name}


@pytest.mark.parametrize("name", RESULTS)
def test_methods_have_one_signature(name: str) -> None:
    cls = CLASSES[name]
    for method, parameters in (("to_json", ["path"]), ("to_html", ["path"]), ("to_pandas", []), ("plot", ["ax"])):
        if hasattr(cls, method):
            signature = inspect.signature(getattr(cls, method))
            assert [p for p in signature.parameters if p != "self"] == parameters, method
            assert all(p.default is None for n, p in signature.parameters.items() if n != "self"), method


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One small result of every kind."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = (x[:, 0] > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    labelled: dict[str, Any] = {"data": (x, y), "loss": "cross_entropy"}
    folder = tmp_path_factory.mktemp("run")
    trained = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    with ns.watch(trained, optimizer, every=2, log=folder, panel=False):
        for _ in range(6):
            optimizer.zero_grad()
            trained(x).square().mean().backward()
            optimizer.step()
    short: dict[str, Any] = {"batch_sizes": (4,), "learning_rates": (0.1,), "seeds": 1, "steps": 2, "workers": 0}
    return {
        "Audit": ns.audit(model, (x, y)),
        "Bracket": ns.lipschitz(model, x[:4], scope="point"),
        "Check": ns.check(model, (x, y)),
        "Choice": ns.choose(model, **labelled, normalizers=("none", "layer"), capacity=False, **short),
        "Comparison": ns.compare(ns.Run(folder), ns.Run(folder)),
        "DataBracket": ns.lipschitz(model, x, scope="data", share=0.5),
        "Flatness": ns.flatness(model, **labelled, draws=1, ascent_steps=1),
        "Generalization": lab.generalization(model, (x, y), steps=0),
        "Graph": ns.capture(model, x),
        "Initialisation": ns.initialise(model, x),
        "Ladder": ns.ladder(model, x[:4]),
        "Margins": ns.margins(model, (x, y)),
        "Measures": ns.measures(model, (x, y), only=["norms"]),
        "Radii": ns.certified_radius(model, (x[:4], y[:4]), attack=False),
        "Run": ns.Run(folder),
        "Smoothness": ns.smoothness(model, **labelled, steps=2, trial_steps=2),
        "Spectrum": ns.hessian(model, **labelled, k=2),
        "Symmetries": ns.symmetries(model, x, mode="train"),
        "Twin": ns.twin(model, x, normalizer="layer"),
        "WeightSensitivity": ns.weight_sensitivity(model, x[:2]),
    }


@pytest.mark.parametrize("name", RESULTS)
class TestResults:
    def test_it_prints_and_shows_itself(self, results: dict[str, Any], name: str) -> None:
        assert len(str(results[name])) > 20
        assert "object at 0x" not in str(results[name])
        assert "<" in results[name]._repr_html_()

    def test_it_has_a_page(self, results: dict[str, Any], name: str, tmp_path: Path) -> None:
        page = results[name].to_html(tmp_path / "page.html")
        assert page.lower().startswith("<!doctype html>")
        assert (tmp_path / "page.html").read_text() == page

    def test_it_comes_back_from_its_file(self, results: dict[str, Any], name: str, tmp_path: Path) -> None:
        if (name, "to_json") in WITHOUT:
            pytest.skip(WITHOUT[name, "to_json"])
        data = results[name].to_json(tmp_path / "result.json")
        assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(data)) == data
        for source in (data, tmp_path / "result.json"):
            assert type(results[name]).from_json(source).to_json() == data

    def test_it_pickles(self, results: dict[str, Any], name: str) -> None:
        assert str(pickle.loads(pickle.dumps(results[name]))) == str(results[name])

    def test_it_is_a_data_frame(self, results: dict[str, Any], name: str) -> None:
        frame = results[name].to_pandas()
        assert len(frame)
        assert len(frame.columns)
        assert frame.columns.is_unique

    def test_it_plots_the_first_chart_of_its_page(self, results: dict[str, Any], name: str) -> None:
        pyplot = pytest.importorskip("matplotlib").use("agg") or pytest.importorskip("matplotlib.pyplot")
        if name in WITHOUT_CHART:
            with pytest.raises(InputError, match=f"page of this {name} has no chart"):
                results[name].plot()
            return
        axes = pyplot.subplots()[1]
        assert results[name].plot(axes) is axes
        assert axes.get_title() in results[name].to_html()
        assert axes.lines or axes.patches or axes.collections
        axes.figure.canvas.draw()
        assert results[name].plot().figure is not axes.figure
        pyplot.close("all")


@pytest.mark.parametrize("name", [name for name in RESULTS if (name, "from_json") not in WITHOUT])
def test_another_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    for text in ('{"a": 1}', "[1]"):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(InputError, match=r"other\.json holds no"):
            CLASSES[name].from_json(tmp_path / "other.json")
    with pytest.raises(InputError):
        CLASSES[name].from_json(tmp_path / "missing.json")


def test_without_matplotlib_the_error_names_the_extra(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *given: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"pip install normscope\[plot\]"):
        results["Check"].plot()
