"""What `capture` returns stands in the place of the model in every function, and its trace is taken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.graph import capturing
from normscope.core.errors import InputError

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BOUNDS: dict[str, Callable[..., Any]] = {
    "lipschitz": ns.lipschitz,
    "ladder": ns.ladder,
    "certified_radius": lambda *given: ns.certified_radius(*given, attack=False),
    "weight_sensitivity": ns.weight_sensitivity,
    "audit": lambda *given: ns.audit(*given).lipschitz,
}
OTHERS: dict[str, Callable[..., Any]] = {
    "check": ns.check,
    "symmetries": lambda *given: ns.symmetries(*given).rows,
    "margins": lambda *given: ns.margins(*given, constants=False),
    "twin": lambda *given: ns.twin(*given, normalizer="rms").changes,
    "initialise": lambda *given: ns.initialise(*given).factors,
    "capture": lambda *given: str(ns.capture(*given)),
}


def make_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)).eval()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and all(isinstance(value, Tensor) for value in one.values()):
        return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    plain = [value.to_json() if hasattr(value, "to_json") else value for value in (one, other)]
    for value in plain:
        if isinstance(value, dict):
            value.pop("provenance", None), value.pop("seconds", None)
    return bool(plain[0] == plain[1])


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the traces of torch.export."""
    counted: list[int] = []
    export = capturing._export

    def count(*given: Any, **more: Any) -> Any:
        counted.append(1)
        return export(*given, **more)

    monkeypatch.setattr(capturing, "_export", count)
    return counted


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_of_a_graph_trace_no_more_and_are_the_same(name: str, exports: list[int]) -> None:
    model = make_model()
    of_model = BOUNDS[name](model, X)
    graph = ns.capture(model, X)
    exports.clear()
    assert same(BOUNDS[name](graph, X), of_model)
    assert same(BOUNDS[name](graph), of_model)
    assert not exports


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_function_takes_its_model(name: str) -> None:
    model = make_model()
    assert same(OTHERS[name](ns.capture(model, X)), OTHERS[name](model, X))


LABELLED: dict[str, Callable[[Any], Any]] = {
    "flatness": lambda model: ns.flatness(model, loss="cross_entropy", draws=1, ascent_steps=1),
    "measures": lambda model: ns.measures(model, only=["norms", "outputs"]),
    "smoothness": lambda model: ns.smoothness(model, loss="cross_entropy", steps=1, trial_steps=1),
    "generalization": lambda model: ns.generalization(model, steps=0, cells=(1,)),
    "data": lambda model: ns.lipschitz(model, scope="data", share=0.5),
    "compare": lambda model: ns.compare(model, model),
}


@pytest.mark.parametrize("name", LABELLED)
def test_a_graph_brings_its_batch_with_labels(name: str) -> None:
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    graph = ns.capture(make_model(), (x, (x[:, 0] > 0).long()))
    assert len(LABELLED[name](graph).to_json()) > 3


def test_graphs_are_compared_on_data_as_models_are() -> None:
    one, other = make_model(), make_model()
    other[0].weight.data *= 10.0
    of_models = ns.compare(one, other, data=X).changes
    assert ns.compare(ns.capture(one, X), ns.capture(other, X), data=X).changes == of_models
    assert ns.compare(one, ns.capture(other, X), data=(part for part in X.split(8))).changes == of_models


def test_a_loss_of_a_graph_takes_labels() -> None:
    model = make_model()
    graph = ns.capture(model, (X, Y))
    of_graph, of_model = (ns.hessian(*given, loss="cross_entropy", k=1) for given in ((graph,), (model, (X, Y))))
    assert of_graph.eigenvalues == of_model.eigenvalues


def test_other_data_are_traced_anew(exports: list[int]) -> None:
    model = make_model()
    graph = ns.capture(model, X)
    exports.clear()
    assert len(ns.lipschitz(graph, X[:3], scope="ball", radius=0.1).per_sample) == 3
    assert exports


@pytest.mark.parametrize("change", ["in place", "data", "mode"])
def test_a_model_that_has_changed_is_traced_anew(change: str, exports: list[int]) -> None:
    model = make_model()
    graph = ns.capture(model, X)
    if change == "in place":
        with torch.no_grad():
            model[3].weight.mul_(10.0)
    elif change == "data":
        model[3].weight.data = 10.0 * model[3].weight.data
    else:
        model.train()
    exports.clear()
    assert ns.lipschitz(graph).log10_upper == ns.lipschitz(model, X).log10_upper
    assert len(exports) >= 2


def test_the_mode_and_the_output_are_those_of_the_graph() -> None:
    model = make_model()
    assert ns.lipschitz(ns.capture(model, X, mode="train")).mode == "train"
    assert ns.lipschitz(ns.capture(model, X, mode="train"), mode="eval").mode == "eval"


def test_a_graph_that_knows_no_model_is_refused() -> None:
    inner = ns.ladder(make_model(), X).graph
    with pytest.raises(InputError, match=r"pass one that normscope\.capture returned"):
        ns.lipschitz(inner)


def test_watch_wants_the_model_itself() -> None:
    model = make_model()
    with pytest.raises(InputError, match=r"not a torch\.nn\.Module: pass the model itself"):
        ns.watch(ns.capture(model, X), torch.optim.SGD(model.parameters(), lr=0.1))
